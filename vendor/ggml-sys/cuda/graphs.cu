#include "few_columns.cuh"
#include "ggml-impl.h"
#include "graphs.cuh"

namespace nextn {

// Graphs of a context that run kernel by kernel first: they load kernels and make what libraries need.
constexpr int FIRST_GRAPHS = 4;

bool captures_at_once(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph) {
    if (!kernels_are_on() || ctx.nextn_graphs++ < FIRST_GRAPHS) {
        return false;
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor * node = graph->nodes[i];
        if (node->op == GGML_OP_MUL_MAT) {
            // A handle is not made while a stream is captured.
            return ggml_nrows(node->src[1]) <= MAX_TOKENS && ctx.cublas_handle();
        }
    }
    return false;
}

}  // namespace nextn
