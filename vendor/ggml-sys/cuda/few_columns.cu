#include "few_columns.cuh"
#include "attention.cuh"
#include "few_columns_kernels.cuh"
#include "few_floats_kernels.cuh"
#include "gumbel.cuh"
#include "states.cuh"
#include "mmvq.cuh"
#include "unary.cuh"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace nextn {

static_assert(MAX_TOKENS == MAX_COLUMNS, "both say what is served");

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

    __device__ float operator()(const float_products & p, float value, float gate, int64_t place) const {
        if (p.bias) {
            value += p.bias[place];
        }
        if (!p.gate) {
            return value;
        }
        if (p.gate_bias) {
            gate += p.gate_bias[place];
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

// Experts among which those that several tokens want are found.
constexpr int MAX_EXPERTS = 1024;

// Larger F32 matrices are worth tensor cores.
constexpr int64_t MAX_FLOATS = 4 << 20;

// Tokens up to which a weight of this shape is served.
int most_tokens(ggml_type type, const int64_t * ne) {
    switch (type) {
        case GGML_TYPE_Q4_K:
        case GGML_TYPE_Q5_K:
        case GGML_TYPE_Q6_K:
        case GGML_TYPE_Q8_0:
            return ne[0] % BLOCK != 0 || ne[3] != 1 ? 0 : ne[2] > MAX_EXPERTS ? GROUP : MAX_COLUMNS;
        case GGML_TYPE_F32:
            return ne[0] % 4 != 0 || ne[2] * ne[3] != 1 || ne[0] * ne[1] > MAX_FLOATS ? 0 : MAX_COLUMNS;
        default:
            return 0;
    }
}

bool serves(const ggml_tensor * w, const ggml_tensor * x, const ggml_tensor * ids, const ggml_tensor * dst) {
    // Columns are read four floats at a time.
    const bool aligned = reinterpret_cast<uintptr_t>(x->data) % 16 == 0 && x->nb[1] % 16 == 0 && x->nb[2] % 16 == 0;
    const int64_t n_tokens = ids ? x->ne[2] : x->ne[1];
    return is_served_here() && n_tokens <= most_tokens(w->type, w->ne) && is_weight(w) && w->nb[1] == ggml_row_size(w->type, w->ne[0]) &&
        x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) && x->ne[3] == 1 && aligned && dst->type == GGML_TYPE_F32 &&
        dst->nb[0] == sizeof(float) &&
        (ids ? w->type != GGML_TYPE_F32 && x->ne[1] <= 64 && ids->ne[0] <= 64 : w->ne[2] == 1 && x->ne[2] == 1);
}

struct launch_floats {
    const float_products & p;
    cudaStream_t stream;

    template <int ROWS, int COLUMNS> void operator()() const {
        const int rows = p.gate ? 1 : ROWS;
        const ggml_cuda_kernel_launch_params params(dim3((p.n_rows + rows - 1) / rows, (p.n + FLOAT_COLUMNS - 1) / FLOAT_COLUMNS),
            dim3(FLOAT_THREADS), size_t(0), stream);
        ggml_cuda_kernel_launch(few_floats<ROWS, COLUMNS, finish_as_ggml>, params, p, finish_as_ggml());
    }
};

// What is fused is a bias as large as the result, or a gate of the same shape.
void floats(ggml_backend_cuda_context & ctx, const ggml_tensor * w, const ggml_tensor * x, ggml_tensor * dst,
            const ggml_cuda_mm_fusion_args_host * fusion) {
    float_products p = {};
    p.w = (const float *) w->data;
    p.row = w->nb[1] / sizeof(float);
    p.k = int(w->ne[0]);
    p.n_rows = int(w->ne[1]);
    p.n = int(x->ne[1]);
    p.x = (const float *) x->data;
    p.column = x->nb[1] / sizeof(float);
    p.dst = (float *) dst->data;
    p.dst_column = dst->nb[1] / sizeof(float);
    if (fusion) {
        const auto data = [](const ggml_tensor * tensor) { return tensor ? (const float *) tensor->data : nullptr; };
        p.gate = data(fusion->gate);
        p.bias = data(fusion->x_bias);
        p.gate_bias = data(fusion->gate_bias);
        p.glu = fusion->glu_op;
        p.glu_limit = fusion->glu_limit;
    }
    chosen(p, launch_floats{ p, ctx.stream() });
}

// A token at a time, for which ggml has a kernel with any fusion.
void one_by_one(ggml_backend_cuda_context & ctx, const ggml_tensor * w, const ggml_tensor * x, const ggml_tensor * ids, ggml_tensor * dst,
                const ggml_cuda_mm_fusion_args_host & fusion) {
    const int along = ids ? 2 : 1;
    const auto nth = [](const ggml_tensor * tensor, int along, int64_t i) {
        ggml_tensor one = *tensor;
        one.data = (char *) tensor->data + i * tensor->nb[along];
        one.ne[along] = 1;
        return one;
    };
    for (int64_t i = 0; i < x->ne[along]; i++) {
        ggml_cuda_mm_fusion_args_host of_one = fusion;
        const ggml_tensor columns = nth(x, along, i);
        ggml_tensor chosen_by, bias, gate_bias, shared, to = nth(dst, along, i);
        if (ids) {
            chosen_by = nth(ids, 1, i);
        } else {
            if (fusion.x_bias) {
                bias = nth(fusion.x_bias, 1, i);
                of_one.x_bias = &bias;
            }
            if (fusion.gate_bias) {
                gate_bias = nth(fusion.gate_bias, 1, i);
                of_one.gate_bias = &gate_bias;
            }
        }
        if (fusion.shared_dst) {
            shared = nth(fusion.shared_dst, 1, i);
            of_one.shared_dst = &shared;
        }
        ggml_cuda_mul_mat_vec_q(ctx, w, &columns, ids ? &chosen_by : nullptr, &to, &of_one);
    }
}

bool is_set_to(const char * what) {
    const char * value = getenv("NEXTN_CUDA_KERNELS");
    return value && strcmp(value, what) == 0;
}

// For nextn: see function().
extern "C" int32_t columns_alike(int32_t type, const int64_t * ne) {
    return kernels_are_on() ? most_tokens(ggml_type(type), ne) : 0;
}

extern "C" int32_t queries_alike_by_name(int64_t head_size) {
    return queries_alike(head_size);
}

extern "C" int32_t states_by_number_by_name(int64_t n_past, int64_t n_channels, int64_t head_size) {
    return states_by_number(n_past, n_channels, head_size);
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
    static const bool on = !is_set_to("off");
    return on;
}

bool attention_is_on() {
    static const bool on = kernels_are_on() && !is_set_to("products");
    return on;
}

bool states_are_on() {
    static const bool on = attention_is_on() && !is_set_to("attention");
    return on;
}

bool is_served_here() {
    const int cc = ggml_cuda_info().devices[ggml_cuda_get_device()].cc;
    return kernels_are_on() && GGML_CUDA_CC_IS_NVIDIA(cc) && ggml_cuda_highest_compiled_arch(cc) >= GGML_CUDA_CC_AMPERE;
}

void * function(const char * name) {
    // All devices, since the functions are of them all.
    for (int i = 0; i < ggml_cuda_info().device_count; i++) {
        const int cc = ggml_cuda_info().devices[i].cc;
        if (!GGML_CUDA_CC_IS_NVIDIA(cc) || ggml_cuda_highest_compiled_arch(cc) < GGML_CUDA_CC_AMPERE) {
            return nullptr;
        }
    }
    if (strcmp(name, "nextn_columns_alike") == 0) {
        return reinterpret_cast<void *>(columns_alike);
    }
    if (strcmp(name, "nextn_queries_alike") == 0) {
        return reinterpret_cast<void *>(queries_alike_by_name);
    }
    if (strcmp(name, "nextn_states_by_number") == 0) {
        return reinterpret_cast<void *>(states_by_number_by_name);
    }
    if (kernels_are_on() && strcmp(name, "nextn_adds_gumbel") == 0) {
        return reinterpret_cast<void *>(adds_gumbel);
    }
    return nullptr;
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
    if (src0->type == GGML_TYPE_F32) {
        floats(ctx, src0, src1, dst, fusion);
        return true;
    }
    products p = {};
    if (fusion) {
        // ggml scales only what is of other types, gates are of the type and shape of what they gate, and both are weights.
        const auto is_as_w = [&](const ggml_tensor * other) { return !other || (is_weight(other) && other->type == src0->type); };
        const auto is_packed = [&](const ggml_tensor * bias) { return !bias || !ids || bias->nb[1] == src0->ne[1] * sizeof(float); };
        const bool can = !fusion->x_scale && !fusion->gate_scale && is_as_w(fusion->gate) && is_as_w(fusion->shared_up) &&
            is_as_w(fusion->shared_gate) && (!fusion->gate || ggml_are_same_stride(fusion->gate, src0)) &&
            is_packed(fusion->x_bias) && is_packed(fusion->gate_bias);
        if (!can) {
            const bool is_one = (ids ? src1->ne[2] : src1->ne[1]) == 1;
            if (!is_one) {
                one_by_one(ctx, src0, src1, ids, dst, *fusion);
            }
            return !is_one;
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
    const bool in_chunks = ids && p.n_tokens >= MIN_SHARED && src0->ne[2] <= MAX_EXPERTS;
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
    if (!ids && p.n_blocks < WARPS && p.n_tokens > GROUP) {
        // The kernel for rows of so few blocks takes a group of columns.
        p.shared_w = p.w;
        p.shared_gate = p.gate;
        p.shared_dst = p.dst;
        p.shared_token = p.dst_token;
        p.n_routed = 0;
    }
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
