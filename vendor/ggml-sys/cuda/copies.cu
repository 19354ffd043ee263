#include "copies.cuh"
#include "few_columns.cuh"
#include "dependent_launch.cuh"
#include "ggml-impl.h"
#include "nodes.cuh"

namespace nextn {

namespace {

// Rows of n_values elements, n_rows in each of some matrices; bytes from row to row, from matrix to matrix. What is written lies
// dense. Grid: elements, then copies.
struct layout {
    int n_values, n_rows, n_all;
    int64_t row, matrix;
};

__global__ void copy_several(const char * from, char * to, layout l, int64_t from_step, int64_t to_step) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    wait_for_previous();
    let_next_start();
    if (i >= l.n_all) {
        return;
    }
    const int row = i / l.n_values, matrix = row / l.n_rows;
    const char * place = from + blockIdx.y * from_step + matrix * l.matrix + (row - matrix * l.n_rows) * l.row;
    reinterpret_cast<uint32_t *>(to + blockIdx.y * to_step)[i] = reinterpret_cast<const uint32_t *>(place)[i - row * l.n_values];
}

const ggml_tensor * whole(const ggml_tensor * tensor) {
    return tensor->view_src ? tensor->view_src : tensor;
}

bool is_copy(const ggml_tensor * node) {
    const ggml_tensor * from = node->src[0], * to = node->src[1];
    return node->op == GGML_OP_CPY && (node->flags & GGML_TENSOR_FLAG_COMPUTE) && from->type == GGML_TYPE_F32 && to->type == GGML_TYPE_F32 &&
        from->nb[0] == sizeof(float) && from->ne[3] == 1 && ggml_is_contiguous(to) && ggml_nelements(from) < INT32_MAX &&
        whole(from) != whole(to);
}

}  // namespace

int copies(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, int i) {
    if (!kernels_are_on() || !is_copy(graph->nodes[i]) || !ctx.stream_context().concurrent_events.empty()) {
        return 0;
    }
    const auto from_of = [](const ggml_tensor * node) { return (const char *) node->src[0]->data; };
    const auto to_of = [](const ggml_tensor * node) { return (char *) node->src[1]->data; };
    const ggml_tensor * first = graph->nodes[i];
    int64_t from_step = 0, to_step = 0;
    int n = 1, end = i;
    for (int k = i + 1; k < graph->n_nodes; k++) {
        const ggml_tensor * node = graph->nodes[k];
        if (computes_nothing(node)) {
            continue;
        }
        // All read parts of one tensor and write parts of another, so their order does not matter.
        const bool alike = is_copy(node) && ggml_are_same_shape(node->src[0], first->src[0]) && ggml_are_same_stride(node->src[0], first->src[0]) &&
            whole(node->src[0]) == whole(first->src[0]) && whole(node->src[1]) == whole(first->src[1]);
        if (!alike) {
            break;
        }
        if (n == 1) {
            from_step = from_of(node) - from_of(first);
            to_step = to_of(node) - to_of(first);
        } else if (from_of(node) != from_of(first) + n * from_step || to_of(node) != to_of(first) + n * to_step) {
            break;
        }
        n++;
        end = k;
    }
    if (n == 1) {
        return 0;
    }
    const ggml_tensor * from = first->src[0];
    const layout l = { int(from->ne[0]), int(from->ne[1]), int(ggml_nelements(from)), int64_t(from->nb[1]), int64_t(from->nb[2]) };
    const ggml_cuda_kernel_launch_params params(dim3((l.n_all + 255) / 256, n), dim3(256), size_t(0), ctx.stream());
    ggml_cuda_kernel_launch(copy_several, params, from_of(first), to_of(first), l, from_step, to_step);
    return end - i;
}

}  // namespace nextn
