// Attention of few queries over cells of F16 by kernels of nextn, in place of ggml's where they serve.
#pragma once

#include "common.cuh"

namespace nextn {

// Computes a FLASH_ATTN_EXT; false, and nothing, where ggml's kernels must.
bool attention_of_few(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

// Tokens of a batch up to which a query of heads of this size over cells of F16 has the bits that it has alone; 0 if none.
int queries_alike(int64_t head_size);

}  // namespace nextn
