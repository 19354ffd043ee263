// Products of quantised weights, and of small F32 ones, with few columns by kernels of nextn, in place of ggml's where they serve.
#pragma once

#include "common.cuh"

#include <vector>

namespace nextn {

// Tokens of a batch up to which the kernels serve.
constexpr int MAX_TOKENS = 48;

// NEXTN_CUDA_KERNELS=off leaves everything to ggml, =products attention and recurrent layers, =attention recurrent layers; =states has
// no node computed with others that ggml computes by itself.
bool kernels_are_on();
bool attention_is_on();
bool states_are_on();
bool fusions_are_on();

// Whether this device can run the kernels: NVIDIA's, from sm_80 on.
bool is_served_here();

// How many multiprocessors this device has.
int multiprocessors();

// Computes what ggml_cuda_mul_mat_vec_q, or _f, is asked for; false, and nothing, where ggml's kernels must. Without a fusion it takes
// any product.
bool few_columns(ggml_backend_cuda_context & ctx, const ggml_tensor * src0, const ggml_tensor * src1, const ggml_tensor * ids,
                 ggml_tensor * dst, const ggml_cuda_mm_fusion_args_host * fusion);

// Whether few_columns computes this product with what follows it.
bool fuses(const ggml_tensor * product);

// Products of several matrices with the same columns, in a launch for each type of weights.
struct part_of_several {
    const ggml_tensor * w;
    ggml_tensor * dst;          // the product, or what comes of it
    int finishing;              // see few_columns_kernels.cuh
    const ggml_tensor * add, * times;
};
using several_products = std::vector<part_of_several>;
bool serves_several(const ggml_tensor * x, const several_products & all);
void compute_several(ggml_backend_cuda_context & ctx, const ggml_tensor * x, const several_products & all);

// A product of routed experts and one of a shared expert, each with columns of its own, in one launch.
bool serves_with_shared(const ggml_tensor * routed, const ggml_tensor * shared);
// at_once: the launch before this one is that of what they multiply, which has waited for the choice of experts.
void compute_with_shared(ggml_backend_cuda_context & ctx, ggml_tensor * routed, ggml_tensor * shared, bool at_once);

// One launch of ours has computed what both multiply, by the same choice of experts.
bool comes_of_gated(ggml_backend_cuda_context & ctx, const ggml_tensor * routed, const ggml_tensor * shared);

// Where a kernel that computes n columns of k values leaves them as products take them, so that these need not; null if it cannot.
struct column_block;
column_block * columns_to_be(ggml_backend_cuda_context & ctx, const ggml_tensor * of, int k, int n);

// A node that is not computed, as those who read it do that; and whether one is.
void leave(ggml_backend_cuda_context & ctx, const ggml_tensor * node);
bool is_left(ggml_backend_cuda_context & ctx, const ggml_tensor * node);

// Functions of the backend by name, for nextn; null if there is none. nextn_columns_alike(type, ne): tokens of a batch up to which
// one has the bits that it has alone in products with weights of this shape; 0 if none. nextn_queries_alike: of attention over
// cells of F16; nextn_queries_alike_over: over cells of a type for keys and one for values, bits of our own types below zero.
// nextn_adds_gumbel: there if nodes that add Gumbel noise are computed. nextn_states_by_number(n_past, n_channels, head_size): tokens of a
// sequence up to which recurrent layers take the number of a state from an input.
void * function(const char * name);

// Forgets which columns are kept: a graph begins.
void forget_columns(ggml_backend_cuda_context & ctx);

}  // namespace nextn
