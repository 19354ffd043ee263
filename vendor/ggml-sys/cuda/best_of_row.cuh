// The place of the largest element of long rows: the next token of a draft.
#pragma once

#include "common.cuh"

namespace nextn {

// Computes GGML_OP_ARGMAX of rows so long that a launch of ours is quicker; false, and nothing, for any other node.
bool best_of_row(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

}  // namespace nextn
