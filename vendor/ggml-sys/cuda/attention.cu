#include "attention.cuh"
#include "attention_kernels.cuh"
#include "cells_kernels.cuh"
#include "fattn.cuh"
#include "few_columns.cuh"
#include "ggml-impl.h"
#include "nodes.cuh"
#include "stores.cuh"

#include <cstring>

namespace nextn {

namespace {

// What a node asks for: a FLASH_ATTN_EXT, or a node of ours over cells of our own types.
struct asked {
    const ggml_tensor * q, * mask, * sinks, * slots;
    const ggml_tensor * rows_k, * rows_v;
    kept_cells k, v;
    float scale, softcap;
    int64_t head_size, n_tokens, n_cells;
    rotation turned = { 0, false }, turned_back = { 0, false };      // of our own types

    bool is_packed() const { return k.kind != CELLS_F16 || v.kind != CELLS_F16; }
};

bool is_size(int64_t head_size) {
    return head_size == 64 || head_size == 128 || head_size == 256;
}

bool is_whole(const ggml_tensor * x, size_t bytes) {
    return x->nb[1] % bytes == 0 && x->nb[2] % bytes == 0 && x->nb[3] % bytes == 0;
}

// Where strides are whole, so are addresses: ggml's tensors begin at such.
kept_cells cells_of(const ggml_tensor * rows, int kind) {
    const bool fits = is_whole(rows, kind == CELLS_F16 ? 16 : 2);
    return { (const char *) rows->data, int64_t(rows->nb[1]), int64_t(rows->nb[2]), int64_t(rows->nb[3]), fits ? kind : CELLS_NONE };
}

bool ask(const ggml_tensor * node, asked & a) {
    int turbo_k = 0, turbo_v = 0;
    a.sinks = node->src[4];
    if (node->op == GGML_OP_FLASH_ATTN_EXT) {
        float max_bias;
        memcpy(&a.scale, (const float *) node->op_params + 0, sizeof(float));
        memcpy(&max_bias, (const float *) node->op_params + 1, sizeof(float));
        memcpy(&a.softcap, (const float *) node->op_params + 2, sizeof(float));
        // Whose cells each sequence reads, where an input says it: Graph::flash_attn_among of the crate ggml.
        a.slots = node->src[5];
        if (max_bias != 0.0f || ggml_get_op_params_i32(node, 4) != 0) {
            return false;
        }
    } else if (node->op == GGML_OP_CUSTOM && node->op_params[FIRST_PARAMETER] == ATTEND_CELLS) {
        const int32_t * parameters = node->op_params + FIRST_PARAMETER + 1;
        turbo_k = parameters[0] & 0xff;
        turbo_v = parameters[1] & 0xff;
        memcpy(&a.scale, parameters + 2, sizeof(float));
        memcpy(&a.softcap, parameters + 3, sizeof(float));
        const bool has_slots = parameters[5] != 0;
        a.slots = has_slots ? node->src[4] : nullptr;
        a.sinks = node->src[has_slots ? 5 : 4];
    } else {
        return false;
    }
    const ggml_tensor * q = node->src[0], * k = node->src[1], * v = node->src[2], * mask = node->src[3];
    if (!q || !k || !v || !is_size(q->ne[0])) {
        return false;
    }
    a.q = q;
    a.rows_k = k;
    a.rows_v = v;
    a.mask = mask;
    a.head_size = q->ne[0];
    a.n_tokens = q->ne[1];
    a.n_cells = k->ne[1];
    const int kind_k = kind_of(turbo_k ? -turbo_k : k->type), kind_v = kind_of(turbo_v ? -turbo_v : v->type);
    const int64_t row_k = turbo_k ? bytes_of(kind_k, int(a.head_size)) : a.head_size;
    const int64_t row_v = turbo_v ? bytes_of(kind_v, int(a.head_size)) : a.head_size;
    a.k = cells_of(k, kind_k);
    a.v = cells_of(v, kind_v);
    if (turbo_k) {
        a.turned = { group_of(int(a.head_size)), true };
    }
    if (turbo_v) {
        a.turned_back = { group_of(int(a.head_size)), true };
    }
    const auto in_rows = [](const ggml_tensor * x) { return x->nb[0] == ggml_type_size(x->type); };
    return a.k.kind != CELLS_NONE && a.v.kind != CELLS_NONE && q->type == GGML_TYPE_F32 && k->ne[0] == row_k && v->ne[0] == row_v && in_rows(k) &&
        in_rows(v) && k->ne[3] == q->ne[3] && v->ne[3] == q->ne[3] && v->ne[1] == k->ne[1] && v->ne[2] == k->ne[2] && q->ne[2] % k->ne[2] == 0 &&
        a.n_cells % STEP_CELLS == 0 && a.n_cells < 4 * STEP_CELLS * 65000 && in_rows(q) && is_whole(q, 8) && mask && mask->type == GGML_TYPE_F16 &&
        mask->ne[0] == a.n_cells && mask->ne[1] >= a.n_tokens && mask->ne[2] == 1 && (mask->ne[3] == 1 || mask->ne[3] == q->ne[3]) && in_rows(mask) &&
        is_whole(mask, 4) && mask->nb[1] / sizeof(half) * MAX_TOKENS < INT32_MAX && ggml_is_contiguous(node) &&
        (!a.sinks || a.sinks->type == GGML_TYPE_F32) &&
        (!a.slots || (a.slots->type == GGML_TYPE_I32 && ggml_is_contiguous(a.slots) && ggml_nelements(a.slots) == q->ne[3]));
}

// The kernels for few queries serve cells of these kinds.
bool serves_kinds(int64_t head_size, int kind_k, int kind_v) {
    return attention_is_on() && is_size(head_size) && kind_k != CELLS_NONE && kind_v != CELLS_NONE;
}

bool serves_few(const asked & a) {
    return a.n_tokens <= MAX_TOKENS && serves_kinds(a.head_size, a.k.kind, a.v.kind);
}

// Few queries -------------------------------------------------------------------------------------------------------------------------

template <int D, bool PACKED> struct attend_with {
    const few_queries & p;
    int n_sequences;
    cudaStream_t stream;

    template <int GROUPS> void operator()() const {
        const auto kernel = attend<D, GROUPS, PACKED>;
        constexpr int memory = attention_memory<D, GROUPS>();
        if (memory > 48 << 10) {
            // More than a thread block has by itself.
            CUDA_SET_SHARED_MEMORY_LIMIT(kernel, memory);
        }
        const int n_parts = (p.n_columns + 8 * GROUPS - 1) / (8 * GROUPS);
        const ggml_cuda_kernel_launch_params params(dim3(p.n_head_kv * n_parts, p.n_chunks, n_sequences), dim3(ATTENTION_THREADS<PACKED>),
            size_t(memory), stream);
        ggml_cuda_kernel_launch(kernel, params, p);
    }
};

template <int D> void launch(ggml_backend_cuda_context & ctx, few_queries & p, int n_sequences) {
    const int64_t n = int64_t(p.n_columns) * p.n_chunks * p.n_head_kv * n_sequences;
    ggml_cuda_pool_alloc<float> sums(ctx.pool(), n * D);
    ggml_cuda_pool_alloc<float2> totals(ctx.pool(), n);
    p.sums = sums.get();
    p.totals = totals.get();
    if (p.k.kind == CELLS_F16 && p.v.kind == CELLS_F16) {
        chosen_groups(p, n_sequences, multiprocessors(), attend_with<D, false>{ p, n_sequences, ctx.stream() });
    } else {
        chosen_groups(p, n_sequences, multiprocessors(), attend_with<D, true>{ p, n_sequences, ctx.stream() });
    }
    const ggml_cuda_kernel_launch_params params(dim3(p.n_columns, p.n_head_kv, n_sequences), dim3(D), size_t(0), ctx.stream());
    ggml_cuda_kernel_launch(add_chunks<D>, params, p);
}

// Queries are read at `q`, as those of a.q lie.
void attend_to_few(ggml_backend_cuda_context & ctx, const asked & a, const float * q, float * dst) {
    few_queries p = {};
    p.q = q;
    p.q_token = a.q->nb[1] / sizeof(float);
    p.q_head = a.q->nb[2] / sizeof(float);
    p.q_sequence = a.q->nb[3] / sizeof(float);
    p.k = a.k;
    p.v = a.v;
    p.of_queries = a.turned;
    p.of_sums = a.turned_back;
    p.slots = a.slots ? (const int32_t *) a.slots->data : nullptr;
    p.mask = (const half *) a.mask->data;
    p.mask_token = a.mask->nb[1] / sizeof(half);
    p.mask_sequence = a.mask->ne[3] == 1 ? 0 : a.mask->nb[3] / sizeof(half);
    p.n_tokens = int(a.n_tokens);
    p.n_head = int(a.q->ne[2]);
    p.n_head_kv = int(a.rows_k->ne[2]);
    p.group = p.n_head / p.n_head_kv;
    p.n_columns = p.n_tokens * p.group;
    p.n_cells = int(a.n_cells);
    p.n_chunks = chunks_of(int(a.n_cells));
    p.scale = a.scale;
    p.softcap = a.softcap;
    p.sinks = a.sinks ? (const float *) a.sinks->data : nullptr;
    p.dst = dst;
    const int n_sequences = int(a.q->ne[3]);
    switch (a.head_size) {
        case 64: return launch<64>(ctx, p, n_sequences);
        case 128: return launch<128>(ctx, p, n_sequences);
        default: return launch<256>(ctx, p, n_sequences);
    }
}

// With rotations ----------------------------------------------------------------------------------------------------------------------

// The tensor whose values these are in another shape or order.
const ggml_tensor * source_of(const ggml_tensor * t) {
    while (t->op == GGML_OP_RESHAPE || t->op == GGML_OP_VIEW || t->op == GGML_OP_PERMUTE) {
        t = t->src[0];
    }
    return t;
}

// Where its queries are rotated by the kernel, and what this reads in their place.
struct queries {
    rotation turned;
    const float * data;
};

queries queries_of(ggml_backend_cuda_context & ctx, const asked & a) {
    const ggml_tensor * rotated = source_of(a.q);
    if (!is_left(ctx, rotated)) {
        return { a.turned, (const float *) a.q->data };
    }
    const ptrdiff_t first = (const char *) a.q->data - (const char *) rotated->data;
    return { { values_rotated(rotated), false }, (const float *) ((const char *) rotated->src[1]->data + first) };
}

// Many queries over cells that ggml does not read ---------------------------------------------------------------------------------------

// A dense tensor in place of another.
ggml_tensor dense(const ggml_tensor * like, ggml_type type, const int64_t (&ne)[GGML_MAX_DIMS], void * data) {
    ggml_tensor t = *like;
    t.type = type;
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        t.ne[i] = ne[i];
        t.nb[i] = i == 0 ? ggml_type_size(type) : t.nb[i - 1] * t.ne[i - 1];
    }
    t.view_src = nullptr;
    t.view_offs = 0;
    t.data = data;
    return t;
}

// Attention by ggml over cells as F16, and rotated queries where there are any. They lie behind the result.
struct unpacked {
    ggml_tensor q, k, v, node;
    size_t end;     // bytes from the result's first on
};

unpacked unpacked_of(const ggml_tensor * node, const asked & a) {
    const int64_t shape[GGML_MAX_DIMS] = { a.head_size, a.q->ne[2], a.n_tokens, a.q->ne[3] };
    unpacked u = { *a.q, {}, {}, dense(node, GGML_TYPE_F32, shape, node->data), 0 };
    u.end = ggml_nbytes(&u.node);
    const auto placed = [&](const ggml_tensor * like, ggml_type type) {
        u.end = GGML_PAD(u.end, 256);
        const int64_t shape[GGML_MAX_DIMS] = { a.head_size, like->ne[1], like->ne[2], like->ne[3] };
        const ggml_tensor t = dense(like, type, shape, (char *) node->data + u.end);
        u.end += ggml_nbytes(&t);
        return t;
    };
    u.k = placed(a.rows_k, GGML_TYPE_F16);
    u.v = placed(a.rows_v, GGML_TYPE_F16);
    if (a.turned.n > 0) {
        u.q = placed(a.q, GGML_TYPE_F32);
    }
    memset(u.node.op_params, 0, sizeof(u.node.op_params));
    memcpy((float *) u.node.op_params + 0, &a.scale, sizeof(float));
    memcpy((float *) u.node.op_params + 2, &a.softcap, sizeof(float));
    u.node.op_params[3] = GGML_PREC_F32;
    u.node.op = GGML_OP_FLASH_ATTN_EXT;
    const ggml_tensor * all[GGML_MAX_SRC] = { nullptr, nullptr, nullptr, a.mask, a.sinks };
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        u.node.src[i] = const_cast<ggml_tensor *>(all[i]);
    }
    return u;
}

// Has a node's operands point to those that it lies beside; not before it has its last place.
void link(unpacked & u) {
    u.node.src[0] = &u.q;
    u.node.src[1] = &u.k;
    u.node.src[2] = &u.v;
}

bool serves_unpacked(const ggml_tensor * node, const asked & a) {
    unpacked u = unpacked_of(node, a);
    link(u);
    // A node of ours has room behind its result; ggml asks how much one of its own takes.
    return (node->op != GGML_OP_CUSTOM || u.end <= ggml_nbytes(node)) && ggml_cuda_flash_attn_ext_supported(ggml_cuda_get_device(), &u.node);
}

template <int D> struct unpacking {
    ggml_backend_cuda_context & ctx;
    const asked & a;

    void read(const kept_cells & cells, const ggml_tensor & to) const {
        const int n_tasks = int(a.n_cells) * (D / 16);
        const ggml_cuda_kernel_launch_params params(dim3((n_tasks + CELL_TASKS - 1) / CELL_TASKS, to.ne[2], to.ne[3]), dim3(CELL_TASKS), size_t(0),
            ctx.stream());
        ggml_cuda_kernel_launch(read_cells<D>, params, cells, a.slots ? (const int32_t *) a.slots->data : nullptr, (half *) to.data, int(a.n_cells));
    }

    void rotate(const ggml_tensor & from, void * to, const rotation & how, bool back) const {
        const rotated_rows p = { (const float *) from.data, int64_t(from.nb[1] / sizeof(float)), int64_t(from.nb[2] / sizeof(float)),
            int64_t(from.nb[3] / sizeof(float)), (float *) to, int(from.ne[1]), how, back };
        const ggml_cuda_kernel_launch_params params(dim3((from.ne[1] + CELL_WARPS - 1) / CELL_WARPS, from.ne[2], from.ne[3]), dim3(32 * CELL_WARPS),
            size_t(0), ctx.stream());
        ggml_cuda_kernel_launch(rotate_rows<D>, params, p);
    }

    void run(unpacked & u) const {
        read(a.k, u.k);
        read(a.v, u.v);
        if (a.turned.n > 0) {
            rotate(*a.q, u.q.data, a.turned, false);
        }
        ggml_cuda_flash_attn_ext(ctx, &u.node);
        if (a.turned_back.n > 0) {
            rotate(u.node, u.node.data, a.turned_back, true);
        }
    }
};

void attend_unpacked(ggml_backend_cuda_context & ctx, const ggml_tensor * dst, const asked & a) {
    unpacked u = unpacked_of(dst, a);
    link(u);
    switch (a.head_size) {
        case 64: return unpacking<64>{ ctx, a }.run(u);
        case 128: return unpacking<128>{ ctx, a }.run(u);
        default: return unpacking<256>{ ctx, a }.run(u);
    }
}

// ggml has no kernels for it.
bool is_ours_alone(const ggml_tensor * node, const asked & a) {
    return node->op == GGML_OP_CUSTOM || (a.is_packed() && !ggml_cuda_flash_attn_ext_supported(ggml_cuda_get_device(), node));
}

}  // namespace

int queries_alike(int64_t head_size) {
    return serves_kinds(head_size, CELLS_F16, CELLS_F16) ? MAX_TOKENS : 0;
}

int queries_alike_over(int64_t head_size, int type_k, int type_v) {
    return serves_kinds(head_size, kind_of(type_k), kind_of(type_v)) ? MAX_TOKENS : 0;
}

bool attends(const ggml_tensor * node) {
    asked a;
    return is_served_here() && kernels_are_on() && ask(node, a) && is_ours_alone(node, a) && (serves_few(a) || serves_unpacked(node, a));
}

size_t bytes_of_attention(const ggml_tensor * node) {
    asked a;
    if (node->op != GGML_OP_FLASH_ATTN_EXT || !is_served_here() || !kernels_are_on() || !ask(node, a) || !a.is_packed()) {
        return 0;
    }
    return serves_few(a) ? ggml_nbytes(node) : is_ours_alone(node, a) ? unpacked_of(node, a).end : 0;
}

bool attention(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    asked a;
    const bool served = is_served_here() && kernels_are_on() && ask(dst, a);
    if (served && serves_few(a)) {
        const queries q = queries_of(ctx, a);
        a.turned = q.turned;
        attend_to_few(ctx, a, q.data, (float *) dst->data);
        return true;
    }
    if (served && a.is_packed() && is_ours_alone(dst, a)) {
        attend_unpacked(ctx, dst, a);
        return true;
    }
    GGML_ASSERT((dst->op != GGML_OP_FLASH_ATTN_EXT || !dst->src[5]) && "ggml's kernels do not read slots");
    return false;
}

int attention_and_rotation(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, int i) {
    asked a;
    ggml_tensor * node = graph->nodes[i];
    if (node->op != GGML_OP_FLASH_ATTN_EXT || !is_served_here() || !ask(node, a) || !a.is_packed() || !serves_few(a) ||
        !ggml_node_has_n_uses(graph, i, 1)) {
        return 0;
    }
    int j = i + 1;
    while (j < graph->n_nodes && computes_nothing(graph->nodes[j])) {
        // Nobody else reads it by another shape.
        if (source_of(graph->nodes[j]) == node && ggml_node_get_use_count(graph, j) != 1) {
            return 0;
        }
        j++;
    }
    ggml_tensor * rotated = j < graph->n_nodes ? graph->nodes[j] : nullptr;
    const int n = rotated ? values_rotated(rotated) : 0;
    if (n == 0 || a.head_size % n != 0 || root_of(rotated->src[1]) != node) {
        return 0;
    }
    const queries q = queries_of(ctx, a);
    a.turned = q.turned;
    a.turned_back = { n, false };
    // What the last kernel reads lies apart from all nodes: the result may take the place of the queries.
    attend_to_few(ctx, a, q.data, (float *) rotated->data);
    return j - i;
}

int rotation_of_queries(const ggml_cgraph * graph, int i) {
    const ggml_tensor * rotated = graph->nodes[i];
    const int n = values_rotated(rotated);
    if (n == 0 || !is_served_here() || !ggml_node_has_n_uses(graph, i, 1)) {
        return 0;
    }
    for (int j = i + 1; j < graph->n_nodes; j++) {
        const ggml_tensor * node = graph->nodes[j];
        if (computes_nothing(node)) {
            // Only one node reads it, whatever its shape.
            if (source_of(node) == rotated && ggml_node_get_use_count(graph, j) != 1) {
                return 0;
            }
            continue;
        }
        asked a;
        const bool reads = node->op == GGML_OP_FLASH_ATTN_EXT && source_of(node->src[0]) == rotated;
        return reads && ask(node, a) && a.is_packed() && serves_few(a) && a.head_size % n == 0 ? j : 0;
    }
    return 0;
}

}  // namespace nextn
