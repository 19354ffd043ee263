// Gumbel noise on the logits of a draft, made where they are.
#pragma once

#include "common.cuh"

namespace nextn {

// Whether this node adds Gumbel noise (Graph::add_gumbel of the crate ggml) and the kernel serves it.
bool adds_gumbel(const ggml_tensor * node);

// Computes such a node; false, and nothing, for any other.
bool add_gumbel(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

}  // namespace nextn
