#include "stores.cuh"
#include "cells_kernels.cuh"
#include "few_columns.cuh"
#include "ggml-impl.h"
#include "nodes.cuh"

namespace nextn {

namespace {

// Into which row of the cells each row goes.
bool are_ids(const ggml_tensor * ids, int64_t n_rows) {
    return (ids->type == GGML_TYPE_I64 || ids->type == GGML_TYPE_I32) && ids->ne[0] == n_rows && ggml_nelements(ids) == n_rows && ggml_is_contiguous(ids);
}

// Rows are read two values at a time; ggml's tensors begin at larger addresses.
bool are_pairs(const ggml_tensor * rows) {
    return rows->nb[1] % sizeof(float2) == 0 && rows->view_offs % sizeof(float2) == 0;
}

bool is_matrix(const ggml_tensor * t) {
    return t->ne[2] == 1 && t->ne[3] == 1;
}

// Rows [n, n_rows] of floats at `from`, of which `each` values are rotated together.
void store(ggml_backend_cuda_context & ctx, const float * from, const ggml_tensor * rows, const ggml_tensor * ids, const ggml_tensor * into, int kind,
           const rotation & how) {
    stored_rows p = {};
    p.from = from;
    p.from_row = rows->nb[1] / sizeof(float);
    p.into = (char *) into->data;
    p.into_row = into->nb[1];
    p.ids = ids->data;
    p.wide_ids = ids->type == GGML_TYPE_I64;
    p.kind = kind;
    p.n_parts = int(rows->ne[0]) / how.n;
    p.how = how;
    const ggml_cuda_kernel_launch_params params(dim3((p.n_parts + CELL_WARPS - 1) / CELL_WARPS, rows->ne[1]), dim3(32 * CELL_WARPS), size_t(0),
        ctx.stream());
    switch (how.n) {
        case 64: return ggml_cuda_kernel_launch(store_rotated<2>, params, p);
        case 128: return ggml_cuda_kernel_launch(store_rotated<4>, params, p);
        default: return ggml_cuda_kernel_launch(store_rotated<8>, params, p);
    }
}

// Grids have fewer rows.
constexpr int64_t MOST_ROWS = 65535;

struct turbo {
    int kind, group;
};

turbo turbo_of(int32_t word) {
    return { kind_of(-(word & 0xff)), (word >> 8) & 0xff };
}

}  // namespace

int kind_of(int type) {
    switch (type) {
        case GGML_TYPE_F16: return CELLS_F16;
        case GGML_TYPE_Q8_0: return CELLS_Q8_0;
        case GGML_TYPE_Q5_1: return CELLS_Q5_1;
        case GGML_TYPE_Q5_0: return CELLS_Q5_0;
        case GGML_TYPE_Q4_1: return CELLS_Q4_1;
        case GGML_TYPE_Q4_0: return CELLS_Q4_0;
        case GGML_TYPE_IQ4_NL: return CELLS_IQ4_NL;
        case -4: return CELLS_TURBO4;
        case -3: return CELLS_TURBO3;
        default: return CELLS_NONE;
    }
}

bool stores_cells(const ggml_tensor * node) {
    if (node->op != GGML_OP_CUSTOM || node->op_params[FIRST_PARAMETER] != STORE_TURBO) {
        return false;
    }
    const ggml_tensor * into = node->src[0], * rows = node->src[1], * ids = node->src[2];
    const turbo t = turbo_of(node->op_params[FIRST_PARAMETER + 1]);
    return is_served_here() && t.kind != CELLS_NONE && (t.group == 64 || t.group == 128) && rows->type == GGML_TYPE_F32 &&
        rows->nb[0] == sizeof(float) && are_pairs(rows) && is_matrix(rows) && is_matrix(into) && rows->ne[0] % t.group == 0 && rows->ne[1] <= MOST_ROWS &&
        into->nb[1] % 2 == 0 && into->ne[0] == rows->ne[0] / t.group * bytes_of(t.kind, t.group) && are_ids(ids, rows->ne[1]);
}

bool store_cells(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    if (!stores_cells(dst)) {
        return false;
    }
    const turbo t = turbo_of(dst->op_params[FIRST_PARAMETER + 1]);
    const ggml_tensor * rows = dst->src[1];
    store(ctx, (const float *) rows->data, rows, dst->src[2], dst->src[0], t.kind, { t.group, true });
    return true;
}

int values_rotated(const ggml_tensor * node) {
    if (node->op != GGML_OP_MUL_MAT || ggml_get_op_params_i32(node, 1) != GGML_HINT_SRC0_IS_HADAMARD) {
        return 0;
    }
    const ggml_tensor * x = node->src[1];
    const int64_t n = node->src[0]->ne[0];
    const bool served = x->type == GGML_TYPE_F32 && node->type == GGML_TYPE_F32 && ggml_is_contiguous(x) && ggml_is_contiguous(node) &&
        (n == 64 || n == 128 || n == 256) && x->ne[0] == n;
    return served ? int(n) : 0;
}

int rotation_and_store(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, int i) {
    const ggml_tensor * rotated = graph->nodes[i];
    const int n = values_rotated(rotated);
    if (n == 0 || !is_served_here() || !ggml_node_has_n_uses(graph, i, 1)) {
        return 0;
    }
    int j = i + 1;
    while (j < graph->n_nodes && computes_nothing(graph->nodes[j])) {
        // Nobody else reads it by another shape.
        if (root_of(graph->nodes[j]) == rotated && ggml_node_get_use_count(graph, j) != 1) {
            return 0;
        }
        j++;
    }
    if (j == graph->n_nodes || graph->nodes[j]->op != GGML_OP_SET_ROWS) {
        return 0;
    }
    const ggml_tensor * into = graph->nodes[j], * rows = into->src[0], * ids = into->src[1];
    const int kind = kind_of(into->type);
    const bool served = root_of(rows) == rotated && kind != CELLS_F16 && kind != CELLS_NONE && is_matrix(rows) && is_matrix(into) &&
        ggml_is_contiguous(rows) && are_pairs(rotated->src[1]) && rows->ne[0] % n == 0 && rows->ne[1] <= MOST_ROWS && into->ne[0] == rows->ne[0] && are_ids(ids, rows->ne[1]);
    if (!served) {
        return 0;
    }
    store(ctx, (const float *) rotated->src[1]->data, rows, ids, into, kind, { n, false });
    return j - i;
}

}  // namespace nextn
