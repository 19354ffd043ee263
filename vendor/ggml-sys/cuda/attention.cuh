// Attention by kernels of nextn, in place of ggml's where they serve: of few queries over cells of F16 and of blocks, and of any number
// over cells of types that ggml has no kernels for.
#pragma once

#include "common.cuh"

namespace nextn {

// Whether a node is attention that is computed here and would not be otherwise.
bool attends(const ggml_tensor * node);

// Computes a FLASH_ATTN_EXT, or attention over cells of our own types; false, and nothing, where ggml's kernels must.
bool attention(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

// Computes attention with what undoes the rotation of values behind it; gives how many nodes come behind node i that need no more
// computing, 0 where nothing was computed.
int attention_and_rotation(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, int i);

// The node that node i, a rotation of queries, is left to, as that rotates them itself; 0 if none.
int rotation_of_queries(const ggml_cgraph * graph, int i);

// Bytes that a FLASH_ATTN_EXT takes with what it needs beside its result; 0 where ggml says it.
size_t bytes_of_attention(const ggml_tensor * node);

// Tokens of a batch up to which a query of heads of this size over cells of F16 has the bits that it has alone; 0 if none.
int queries_alike(int64_t head_size);

// The same over cells of these types: ggml's, or bits of ours below zero.
int queries_alike_over(int64_t head_size, int type_k, int type_v);

}  // namespace nextn
