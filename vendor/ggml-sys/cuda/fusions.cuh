// Nodes of a graph that follow each other and become one launch.
#pragma once

#include "common.cuh"
#include "ggml-backend-impl.h"

namespace nextn {

// Puts nodes beside those that they are computed with, and has what these read outlive them: before a graph gets its memory.
void arrange(ggml_cgraph * graph, const ggml_backend_graph_optimize_params & params);

// Computes node i with others behind it; gives how many nodes come behind i that need no more computing, 0 where nothing was computed.
int fused(ggml_backend_cuda_context & ctx, ggml_cgraph * graph, int i);

}  // namespace nextn
