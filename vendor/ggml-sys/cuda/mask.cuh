// Masks of attention, made from what each row sees.
#pragma once

#include "common.cuh"

namespace nextn {

// Whether this node is a mask (Graph::mask_of_spans of the crate ggml) and the kernel serves it.
bool makes_mask(const ggml_tensor * node);

// Computes such a node; false, and nothing, for any other.
bool make_mask(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

}  // namespace nextn
