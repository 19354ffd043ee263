// Products of quantised weights, and of small F32 ones, with few columns by kernels of nextn, in place of ggml's where they serve.
#pragma once

#include "common.cuh"

namespace nextn {

// Tokens of a batch up to which the kernels serve.
constexpr int MAX_TOKENS = 48;

// NEXTN_CUDA_KERNELS=off leaves everything to ggml, =products attention and recurrent layers, =attention recurrent layers.
bool kernels_are_on();
bool attention_is_on();
bool states_are_on();

// Whether this device can run the kernels: NVIDIA's, from sm_80 on.
bool is_served_here();

// Computes what ggml_cuda_mul_mat_vec_q, or _f, is asked for; false, and nothing, where ggml's kernels must. Without a fusion it takes
// any product.
bool few_columns(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1, const ggml_tensor * ids,
                 ggml_tensor * dst, const ggml_cuda_mm_fusion_args_host * fusion);

// Whether few_columns computes this product with what follows it.
bool fuses(const ggml_tensor * product);

// Functions of the backend by name, for nextn; null if there is none. nextn_columns_alike(type, ne): tokens of a batch up to which
// one has the bits that it has alone in products with weights of this shape; 0 if none. nextn_queries_alike: of attention.
// nextn_adds_gumbel: there if nodes that add Gumbel noise are computed. nextn_states_by_number(n_past, n_channels, head_size): tokens of a
// sequence up to which recurrent layers take the number of a state from an input.
void * function(const char * name);

// Forgets which columns are kept: a graph begins.
void forget_columns(ggml_backend_cuda_context & ctx);

}  // namespace nextn
