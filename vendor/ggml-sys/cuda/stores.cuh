// Rows that go into KV caches: rotated and rounded in one launch, and into types of our own.
#pragma once

#include "common.cuh"

namespace nextn {

// The kind of cells, of cells.cuh, that a type keeps: ggml's, or bits of ours below zero.
int kind_of(int type);

// Whether a node is a store into cells of our own types.
bool stores_cells(const ggml_tensor * node);

// Computes it; false, and nothing, of other nodes.
bool store_cells(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

// Values that a node rotates together; 0 if it rotates nothing.
int values_rotated(const ggml_tensor * node);

// Computes node i, a rotation of rows, with the store of these behind it; gives how many nodes come behind node i that need no more
// computing, 0 where nothing was computed.
int rotation_and_store(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, int i);

}  // namespace nextn
