#include "few_columns.cuh"
#include "few_columns_kernels.cuh"
#include "unary.cuh"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace nextn {

namespace {

// Columns as they are multiplied, and who wants which matrix, kept while a graph runs: products that share an input prepare it once.
// The memory stays where it is for as long as the backend lives, since captured graphs point to it.
struct kept_columns {
    static constexpr size_t SIZE = 8 << 20, CHUNKS = 1 << 20;
    char * data = nullptr;
    const ggml_tensor * of = nullptr;
    const ggml_tensor * ids = nullptr;

    ~kept_columns() {
        if (data) {
            (void) cudaFree(data);
        }
    }
};

struct finish_as_ggml {
    __device__ float operator()(const products & p, float value, bool has_gate, float gate, int64_t, int64_t bias) const {
        if (p.bias) {
            value += p.bias[bias];
        }
        if (!has_gate) {
            return value;
        }
        if (p.gate_bias) {
            gate += p.gate_bias[bias];
        }
        return ggml_cuda_op_glu_single(ggml_glu_op(p.glu), gate, value, p.glu_limit);
    }
};

// A weight or some rows of one: nothing that a graph computes, so it can be read before the previous kernel has ended.
bool is_weight(const ggml_tensor * w) {
    const ggml_tensor * whole = w->view_src ? w->view_src : w;
    return whole->buffer && ggml_backend_buffer_get_usage(whole->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS &&
        reinterpret_cast<uintptr_t>(w->data) % 16 == 0;
}

// Tokens from which on a matrix that several want is read once for them. Fewer seldom want the same one.
constexpr int MIN_SHARED = 9;

bool serves(const ggml_tensor * w, const ggml_tensor * x, const ggml_tensor * ids, const ggml_tensor * dst) {
    const int cc = ggml_cuda_info().devices[ggml_cuda_get_device()].cc;
    if (!kernels_are_on() || !GGML_CUDA_CC_IS_NVIDIA(cc) || ggml_cuda_highest_compiled_arch(cc) < GGML_CUDA_CC_AMPERE) {
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
    // Columns are read four floats at a time.
    const bool aligned = reinterpret_cast<uintptr_t>(x->data) % 16 == 0 && x->nb[1] % 16 == 0 && x->nb[2] % 16 == 0;
    const int64_t n_tokens = ids ? x->ne[2] : x->ne[1];
    const bool of_few_blocks = w->ne[0] < WARPS * BLOCK;
    const bool served = n_tokens <= GROUP || (n_tokens <= MAX_COLUMNS && (ids ? w->ne[2] <= 1024 : !of_few_blocks));
    return served && is_weight(w) && w->ne[0] % BLOCK == 0 && w->nb[1] == ggml_row_size(w->type, w->ne[0]) && w->ne[3] == 1 &&
        x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) && x->ne[3] == 1 && aligned && dst->type == GGML_TYPE_F32 &&
        dst->nb[0] == sizeof(float) && (ids ? x->ne[1] <= 64 && ids->ne[0] <= 64 : w->ne[2] == 1 && x->ne[2] == 1);
}

template <typename T> struct launch {
    const products & p;
    int n_matrices;
    cudaStream_t stream;

    template <int LANES, int STAGES, int TILES, int GROUPS> void operator()() const {
        const auto kernel = few_columns<T, LANES, STAGES, TILES, GROUPS, finish_as_ggml>;
        constexpr int rows = WARPS / LANES * TILE, most = memory_of<T, LANES, STAGES, TILES, GROUPS>(true);
        if (most > 48 << 10) {
            // More than a thread block has by itself.
            CUDA_SET_SHARED_MEMORY_LIMIT(kernel, most);
        }
        const ggml_cuda_kernel_launch_params params(dim3((p.n_rows + rows - 1) / rows, n_matrices), dim3(32, WARPS),
            size_t(memory_of<T, LANES, STAGES, TILES, GROUPS>(p.gate)), stream);
        ggml_cuda_kernel_launch(kernel, params, p, finish_as_ggml());
    }
};

}  // namespace

bool kernels_are_on() {
    static const bool on = [] {
        const char * value = getenv("NEXTN_CUDA_KERNELS");
        return !value || strcmp(value, "off") != 0;
    }();
    return on;
}

bool fuses(const ggml_tensor * product) {
    const ggml_tensor * ids = product->op == GGML_OP_MUL_MAT_ID ? product->src[2] : nullptr;
    return (ids || product->op == GGML_OP_MUL_MAT) && serves(product->src[0], product->src[1], ids, product);
}

void forget_columns(ggml_backend_cuda_context & ctx) {
    if (ctx.nextn_columns) {
        kept_columns & kept = *static_cast<kept_columns *>(ctx.nextn_columns.get());
        kept.of = kept.ids = nullptr;
    }
}

bool few_columns(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1, const ggml_tensor * ids,
                 ggml_tensor * dst, const ggml_cuda_mm_fusion_args_host * fusion) {
    if (!serves(src0, src1, ids, dst)) {
        return false;
    }
    products p = {};
    if (fusion) {
        // What is fused with more than a group of columns must be served: there is no other kernel that does it. ggml scales only
        // what is of other types, gates are of the type and shape of what they gate, and both are weights.
        const auto is_as_w = [&](const ggml_tensor * other) { return !other || (is_weight(other) && other->type == src0->type); };
        const auto is_packed = [&](const ggml_tensor * bias) { return !bias || !ids || bias->nb[1] == src0->ne[1] * sizeof(float); };
        const bool can = !fusion->x_scale && !fusion->gate_scale && is_as_w(fusion->gate) && is_as_w(fusion->shared_up) &&
            is_as_w(fusion->shared_gate) && (!fusion->gate || ggml_are_same_stride(fusion->gate, src0)) &&
            is_packed(fusion->x_bias) && is_packed(fusion->gate_bias);
        if (!can) {
            GGML_ASSERT((ids ? src1->ne[2] : src1->ne[1]) <= GROUP && "a fusion that our kernels do not know");
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

    // Whole groups of columns, then chunks.
    const size_t size = size_t(GGML_PAD(n, GROUP) / GROUP) * (k / BLOCK) * sizeof(column_block);
    const int n_slots = ids ? int(ids->ne[0]) * p.n_tokens : 0;
    const bool in_chunks = ids && p.n_tokens >= MIN_SHARED && src0->ne[2] <= 1024;
    const int n_chunks = in_chunks ? std::min(n_slots, int(src0->ne[2]) + n_slots / GROUP) : 0;
    ggml_cuda_pool_alloc<char> temporary(ctx.pool());
    kept_columns * kept = nullptr;
    if (ctx.curr_stream_no == 0 && size <= kept_columns::SIZE && n_chunks * sizeof(chunk) <= kept_columns::CHUNKS) {
        if (!ctx.nextn_columns) {
            ctx.nextn_columns = std::make_shared<kept_columns>();
        }
        kept = static_cast<kept_columns *>(ctx.nextn_columns.get());
        if (!kept->data) {
            // A stream that is being captured allows no allocation.
            cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
            CUDA_CHECK(cudaStreamIsCapturing(stream, &capture));
            if (capture == cudaStreamCaptureStatusNone) {
                CUDA_CHECK(cudaMalloc(&kept->data, kept_columns::SIZE + kept_columns::CHUNKS));
            }
        }
        kept = kept->data ? kept : nullptr;
    }
    char * columns = kept ? kept->data : temporary.alloc(size + n_chunks * sizeof(chunk));
    chunk * chunks = reinterpret_cast<chunk *>(columns + (kept ? kept_columns::SIZE : size));
    p.y = (const column_block *) columns;
    if (!kept || kept->of != src1) {
        const int64_t each = src1->nb[1] / sizeof(float), token = src1->nb[ids ? 2 : 1] / sizeof(float);
        const ggml_cuda_kernel_launch_params params(dim3((k / BLOCK + 3) / 4, n), dim3(128), size_t(0), stream);
        ggml_cuda_kernel_launch(quantise, params, (const float *) src1->data, each, token, n_each, (column_block *) columns, k / BLOCK);
        if (kept) {
            kept->of = src1;
        }
    }
    if (in_chunks && (!kept || kept->ids != ids)) {
        const int n_threads = GGML_PAD(int(src0->ne[2]), 32);
        const ggml_cuda_kernel_launch_params params(dim3(1), dim3(n_threads), (n_slots + 32) * sizeof(int), stream);
        ggml_cuda_kernel_launch(find_chunks, params, (const int32_t *) ids->data, int(ids->nb[1] / sizeof(int32_t)), int(ids->ne[0]),
            n_slots, int(src0->ne[2]), chunks, n_chunks);
        if (kept) {
            kept->ids = ids;
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
        p.chunks = in_chunks ? chunks : nullptr;
    }
    p.n_routed = in_chunks ? n_chunks : ids ? n_slots : 1;
    // A shared matrix takes its columns a group at a time.
    const int n_matrices = p.n_routed + (p.shared_w ? (p.n_tokens + GROUP - 1) / GROUP : 0);
    switch (src0->type) {
        case GGML_TYPE_Q4_K: chosen<k_quants<false>>(p, launch<k_quants<false>>{ p, n_matrices, stream }); break;
        case GGML_TYPE_Q5_K: chosen<k_quants<true>>(p, launch<k_quants<true>>{ p, n_matrices, stream }); break;
        case GGML_TYPE_Q6_K: chosen<q6_k>(p, launch<q6_k>{ p, n_matrices, stream }); break;
        default: chosen<bytes_with_scales>(p, launch<bytes_with_scales>{ p, n_matrices, stream }); break;
    }
    return true;
}

}  // namespace nextn
