#include "attention.cuh"
#include "attention_kernels.cuh"
#include "few_columns.cuh"

#include <cstring>

namespace nextn {

namespace {

template <int D> struct attend_with {
    const attention & p;
    int n_sequences;
    cudaStream_t stream;

    template <int GROUPS> void operator()() const {
        const auto kernel = attend<D, GROUPS>;
        constexpr int memory = attention_memory<D, GROUPS>();
        if (memory > 48 << 10) {
            // More than a thread block has by itself.
            CUDA_SET_SHARED_MEMORY_LIMIT(kernel, memory);
        }
        const int n_parts = (p.n_columns + 8 * GROUPS - 1) / (8 * GROUPS);
        const ggml_cuda_kernel_launch_params params(dim3(p.n_head_kv * n_parts, p.n_chunks, n_sequences), dim3(32 * ATTENTION_WARPS),
            size_t(memory), stream);
        ggml_cuda_kernel_launch(kernel, params, p);
    }
};

template <int D> void launch(ggml_backend_cuda_context & ctx, attention & p, int n_sequences) {
    const int64_t n = int64_t(p.n_columns) * p.n_chunks * p.n_head_kv * n_sequences;
    ggml_cuda_pool_alloc<float> sums(ctx.pool(), n * D);
    ggml_cuda_pool_alloc<float2> totals(ctx.pool(), n);
    p.sums = sums.get();
    p.totals = totals.get();
    chosen_groups(p.n_columns, attend_with<D>{ p, n_sequences, ctx.stream() });
    const ggml_cuda_kernel_launch_params params(dim3(p.n_columns, p.n_head_kv, n_sequences), dim3(D), size_t(0), ctx.stream());
    ggml_cuda_kernel_launch(add_chunks<D>, params, p);
}

}  // namespace

int queries_alike(int64_t head_size) {
    return attention_is_on() && (head_size == 64 || head_size == 128 || head_size == 256) ? MAX_TOKENS : 0;
}

bool attention_of_few(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * q = dst->src[0], * k = dst->src[1], * v = dst->src[2], * mask = dst->src[3], * sinks = dst->src[4];
    // Whose cells each sequence reads, where an input says it: Graph::flash_attn_among of the crate ggml.
    const ggml_tensor * slots = dst->src[5];
    float scale, max_bias, softcap;
    memcpy(&scale, (const float *) dst->op_params + 0, sizeof(float));
    memcpy(&max_bias, (const float *) dst->op_params + 1, sizeof(float));
    memcpy(&softcap, (const float *) dst->op_params + 2, sizeof(float));
    const int32_t most_cells = ggml_get_op_params_i32(dst, 4);

    const auto whole = [](const ggml_tensor * x, int64_t bytes) {
        return reinterpret_cast<uintptr_t>(x->data) % bytes == 0 && x->nb[1] % bytes == 0 && x->nb[2] % bytes == 0 && x->nb[3] % bytes == 0;
    };
    const int64_t d = q->ne[0], n_tokens = q->ne[1], n_cells = k->ne[1];
    const bool served = is_served_here() && q->type == GGML_TYPE_F32 && k->type == GGML_TYPE_F16 && v->type == GGML_TYPE_F16 &&
        n_tokens <= queries_alike(d) && k->ne[0] == d && v->ne[0] == d && n_cells % STEP_CELLS == 0 && n_cells < 4 * STEP_CELLS * 65000 &&
        k->ne[3] == q->ne[3] && v->ne[3] == q->ne[3] && v->ne[2] == k->ne[2] && q->ne[2] % k->ne[2] == 0 && max_bias == 0.0f &&
        most_cells == 0 && q->nb[0] == sizeof(float) && k->nb[0] == sizeof(half) && v->nb[0] == sizeof(half) && whole(q, 8) &&
        whole(k, 16) && whole(v, 16) && mask && mask->type == GGML_TYPE_F16 && mask->ne[0] == n_cells && mask->ne[1] >= n_tokens &&
        mask->ne[2] == 1 && (mask->ne[3] == 1 || mask->ne[3] == q->ne[3]) && mask->nb[0] == sizeof(half) && whole(mask, 4) &&
        mask->nb[1] / sizeof(half) * MAX_TOKENS < INT32_MAX && ggml_is_contiguous(dst) && (!sinks || sinks->type == GGML_TYPE_F32) &&
        (!slots || (slots->type == GGML_TYPE_I32 && ggml_is_contiguous(slots) && ggml_nelements(slots) == q->ne[3]));
    if (!served) {
        GGML_ASSERT(!slots && "ggml's kernels do not read slots");
        return false;
    }
    attention p = {};
    p.q = (const float *) q->data;
    p.q_token = q->nb[1] / sizeof(float);
    p.q_head = q->nb[2] / sizeof(float);
    p.q_sequence = q->nb[3] / sizeof(float);
    p.k = (const half *) k->data;
    p.k_cell = k->nb[1] / sizeof(half);
    p.k_head = k->nb[2] / sizeof(half);
    p.k_sequence = k->nb[3] / sizeof(half);
    p.v = (const half *) v->data;
    p.v_cell = v->nb[1] / sizeof(half);
    p.v_head = v->nb[2] / sizeof(half);
    p.v_sequence = v->nb[3] / sizeof(half);
    p.slots = slots ? (const int32_t *) slots->data : nullptr;
    p.mask = (const half *) mask->data;
    p.mask_token = mask->nb[1] / sizeof(half);
    p.mask_sequence = mask->ne[3] == 1 ? 0 : mask->nb[3] / sizeof(half);
    p.n_tokens = int(n_tokens);
    p.n_head = int(q->ne[2]);
    p.n_head_kv = int(k->ne[2]);
    p.group = p.n_head / p.n_head_kv;
    p.n_columns = p.n_tokens * p.group;
    p.n_cells = int(n_cells);
    p.n_chunks = chunks_of(int(n_cells));
    p.scale = scale;
    p.softcap = softcap;
    p.sinks = sinks ? (const float *) sinks->data : nullptr;
    p.dst = (float *) dst->data;
    switch (d) {
        case 64: launch<64>(ctx, p, int(q->ne[3])); break;
        case 128: launch<128>(ctx, p, int(q->ne[3])); break;
        default: launch<256>(ctx, p, int(q->ne[3])); break;
    }
    return true;
}

}  // namespace nextn
