// Products of quantised weights with few columns by kernels of nextn, in place of ggml's where they serve.
#pragma once

#include "common.cuh"

namespace nextn {

// NEXTN_CUDA_KERNELS=off leaves everything to ggml.
bool kernels_are_on();

// Computes what ggml_cuda_mul_mat_vec_q is asked for; false, and nothing, where ggml's kernels must. Without a fusion it takes
// any product.
bool few_columns(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1, const ggml_tensor * ids,
                 ggml_tensor * dst, const ggml_cuda_mm_fusion_args_host * fusion);

// Whether few_columns computes this product with what follows it.
bool fuses(const ggml_tensor * product);

// Forgets which columns are kept: a graph begins.
void forget_columns(ggml_backend_cuda_context & ctx);

}  // namespace nextn
