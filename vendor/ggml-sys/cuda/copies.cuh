// Copies that follow each other, in one launch.
#pragma once

#include "common.cuh"

namespace nextn {

// Computes the copies that begin with node i of a graph where they are alike but for their places, as snapshots of a convolution's
// last inputs are; gives how many nodes come behind i that need no more computing, 0 where ggml must copy.
int copies(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, int i);

}  // namespace nextn
