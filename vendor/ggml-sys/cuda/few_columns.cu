#include "few_columns.cuh"
#include "few_columns_kernels.cuh"
#include "unary.cuh"

#include <cstdlib>
#include <cstring>

namespace nextn {

namespace {

// Quantised columns, kept while a graph runs: products that share an input quantise it once. The memory stays where it is for as
// long as the backend lives, since captured graphs point to it.
struct kept_columns {
    static constexpr size_t SIZE = 4 << 20;
    char * data = nullptr;
    const ggml_tensor * of = nullptr;

    ~kept_columns() {
        if (data) {
            (void) cudaFree(data);
        }
    }
};

struct finish_as_ggml {
    __device__ float operator()(const products & p, float value, bool has_gate, float gate, int64_t place) const {
        if (p.bias) {
            value += p.bias[place];
        }
        if (!has_gate) {
            return value;
        }
        if (p.gate_bias) {
            gate += p.gate_bias[place];
        }
        return ggml_cuda_op_glu_single(ggml_glu_op(p.glu), gate, value, p.glu_limit);
    }
};

// NEXTN_CUDA_KERNELS=off leaves all products to ggml.
bool is_on() {
    static const bool on = [] {
        const char * value = getenv("NEXTN_CUDA_KERNELS");
        return !value || strcmp(value, "off") != 0;
    }();
    return on;
}

// A weight or some rows of one: nothing that a graph computes, so it can be read before the previous kernel has ended.
bool is_weight(const ggml_tensor * w) {
    const ggml_tensor * whole = w->view_src ? w->view_src : w;
    return whole->buffer && ggml_backend_buffer_get_usage(whole->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS &&
        reinterpret_cast<uintptr_t>(w->data) % 16 == 0;
}

bool serves(const ggml_tensor * w, const ggml_tensor * x, const ggml_tensor * ids, const ggml_tensor * dst) {
    const int cc = ggml_cuda_info().devices[ggml_cuda_get_device()].cc;
    if (!is_on() || !GGML_CUDA_CC_IS_NVIDIA(cc) || ggml_cuda_highest_compiled_arch(cc) < GGML_CUDA_CC_AMPERE) {
        return false;
    }
    switch (w->type) {
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K:
        case GGML_TYPE_Q6_K:
        case GGML_TYPE_Q8_0:
            break;
        default:
            return false;
    }
    // Quantising reads four floats at a time.
    const bool aligned = reinterpret_cast<uintptr_t>(x->data) % 16 == 0 && x->nb[1] % 16 == 0 && x->nb[2] % 16 == 0;
    const int64_t n_tokens = ids ? x->ne[2] : x->ne[1];
    return is_weight(w) && w->ne[0] % BLOCK == 0 && w->nb[1] == ggml_row_size(w->type, w->ne[0]) && w->ne[3] == 1 &&
        x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) && x->ne[3] == 1 && aligned && dst->nb[0] == sizeof(float) &&
        n_tokens <= MAX_COLUMNS && (ids ? x->ne[1] <= 64 : w->ne[2] == 1 && x->ne[2] == 1);
}

template <typename T, int WARPS, int STAGES> void launch(const products & p, int n_matrices, cudaStream_t stream) {
    const dim3 grid((p.n_rows + TILE - 1) / TILE, n_matrices);
    const size_t memory = size_t(WARPS) * STAGES * TILE * T::WINDOW;
    const ggml_cuda_kernel_launch_params params(grid, dim3(32, WARPS), memory, stream);
    ggml_cuda_kernel_launch(few_columns<T, WARPS, STAGES, finish_as_ggml>, params, p, finish_as_ggml());
}

// Up to 48 KiB of shared memory for a thread block.
template <typename T, int STAGES> void launch(const products & p, int n_matrices, cudaStream_t stream) {
    static_assert(4 * STAGES * TILE * T::WINDOW <= 48 << 10, "too much shared memory");
    if (p.n_blocks >= 4) {
        launch<T, 4, STAGES>(p, n_matrices, stream);
    } else {
        launch<T, 2, STAGES>(p, n_matrices, stream);
    }
}

}  // namespace

bool fuses(const ggml_tensor * product) {
    return product->op == GGML_OP_MUL_MAT && serves(product->src[0], product->src[1], nullptr, product);
}

void forget_columns(ggml_backend_cuda_context & ctx) {
    if (ctx.nextn_columns) {
        static_cast<kept_columns *>(ctx.nextn_columns.get())->of = nullptr;
    }
}

bool few_columns(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1, const ggml_tensor * ids,
                 ggml_tensor * dst, const ggml_cuda_mm_fusion_args_host * fusion) {
    if (!serves(src0, src1, ids, dst)) {
        return false;
    }
    products p = {};
    if (fusion) {
        if (fusion->x_scale || fusion->gate_scale || (ids && (fusion->x_bias || fusion->gate_bias))) {
            return false;
        }
        if (fusion->gate && (!is_weight(fusion->gate) || !ggml_are_same_stride(fusion->gate, src0))) {
            return false;
        }
        if (fusion->shared_up && (!is_weight(fusion->shared_up) || !is_weight(fusion->shared_gate))) {
            return false;
        }
        const auto data = [](const ggml_tensor * tensor) { return tensor ? tensor->data : nullptr; };
        p.gate = (const uint8_t *) data(fusion->gate);
        p.bias = (const float *) data(fusion->x_bias);
        p.gate_bias = (const float *) data(fusion->gate_bias);
        p.glu = fusion->glu_op;
        p.glu_limit = fusion->glu_limit;
        p.shared_w = (const uint8_t *) data(fusion->shared_up);
        p.shared_gate = (const uint8_t *) data(fusion->shared_gate);
        p.shared_dst = (float *) data(fusion->shared_dst);
        p.shared_token = fusion->shared_dst ? fusion->shared_dst->nb[1] / sizeof(float) : 0;
    }
    cudaStream_t stream = ctx.stream();
    const int k = int(src0->ne[0]);
    const int n_each = ids ? int(src1->ne[1]) : 1;
    p.n_tokens = int(ids ? src1->ne[2] : src1->ne[1]);
    const int n = n_each * p.n_tokens;

    // Quants, then scales, of whole groups.
    const size_t n_quants = size_t(k) * GGML_PAD(n, MAX_COLUMNS), size = n_quants + n_quants / SUB * sizeof(float2);
    ggml_cuda_pool_alloc<char> temporary(ctx.pool());
    kept_columns * kept = nullptr;
    if (ctx.curr_stream_no == 0 && size <= kept_columns::SIZE) {
        if (!ctx.nextn_columns) {
            ctx.nextn_columns = std::make_shared<kept_columns>();
        }
        kept = static_cast<kept_columns *>(ctx.nextn_columns.get());
        if (!kept->data) {
            // A stream that is being captured allows no allocation.
            cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
            CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
            if (capture == cudaStreamCaptureStatusNone) {
                CUDA_CHECK(cudaMalloc(&kept->data, kept_columns::SIZE));
            }
        }
        kept = kept->data ? kept : nullptr;
    }
    char * columns = kept ? kept->data : temporary.alloc(size);
    p.y = { (const int8_t *) columns, (const float2 *) (columns + n_quants) };
    if (!kept || kept->of != src1) {
        const int64_t each = src1->nb[1] / sizeof(float), token = src1->nb[ids ? 2 : 1] / sizeof(float);
        const ggml_cuda_kernel_launch_params params(dim3((k + 1023) / 1024, n), dim3(256), size_t(0), stream);
        ggml_cuda_kernel_launch(quantise, params, (const float *) src1->data, each, token, n_each, (int8_t *) columns,
            (float2 *) (columns + n_quants), k);
        if (kept) {
            kept->of = src1;
        }
    }

    p.w = (const uint8_t *) src0->data;
    p.row_bytes = src0->nb[1];
    p.matrix_bytes = src0->nb[2];
    p.n_blocks = k / BLOCK;
    p.n_rows = int(src0->ne[1]);
    p.dst = (float *) dst->data;
    p.dst_slot = ids ? dst->nb[1] / sizeof(float) : 0;
    p.dst_token = dst->nb[ids ? 2 : 1] / sizeof(float);
    if (ids) {
        p.ids = (const int32_t *) ids->data;
        p.ids_stride = int(ids->nb[1] / sizeof(int32_t));
        p.n_used = int(ids->ne[0]);
        p.n_each = n_each;
    }
    const int n_matrices = (ids ? p.n_used * p.n_tokens : 1) + (p.shared_w ? 1 : 0);
    switch (src0->type) {
        case GGML_TYPE_Q4_K: launch<k_quants<false>, 3>(p, n_matrices, stream); break;
        case GGML_TYPE_Q5_K: launch<k_quants<true>, 3>(p, n_matrices, stream); break;
        case GGML_TYPE_Q6_K: launch<q6_k, 3>(p, n_matrices, stream); break;
        default: launch<bytes_with_scales, 2>(p, n_matrices, stream); break;
    }
    return true;
}

}  // namespace nextn
