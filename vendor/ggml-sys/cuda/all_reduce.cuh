// Sums over the ranks of a model, and rows of all of them: GPUs that compute it together, each with some rows or columns of its matrices.
//
// Functions of the backend by name, for nextn (function_of_ranks; null for other names):
// nextn_all_reduce_new(n, devices): a number for these 2 to 8 devices, in the order of their ranks; below zero if they cannot.
// nextn_all_reduce_free(number): when nothing computes with it any more.
#pragma once

#include "all_reduce_kernels.cuh"
#include "common.cuh"

namespace nextn {

void * function_of_ranks(const char * name);

// Whether this node is such a sum (Graph::all_reduce of the crate ggml) and the kernel serves it.
bool reduces(const ggml_tensor * node);

// The same of rows that are put side by side (Graph::all_gather).
bool gathers(const ggml_tensor * node);

// What the rank that computes such a node needs.
part_in_sum part_of(const ggml_tensor * node);

// Computes either; false, and nothing, for any other node.
bool all_reduce(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

}  // namespace nextn
