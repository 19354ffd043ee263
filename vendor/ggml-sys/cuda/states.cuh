// Recurrent layers over a few tokens, by numbers of the states that sequences go on from.
#pragma once

#include "common.cuh"

namespace nextn {

// Tokens of a sequence up to which the kernels serve layers whose convolution keeps n_past inputs of n_channels channels and whose heads
// have states of head_size x head_size (0: no such heads, or others' op); 0 if none.
int states_by_number(int64_t n_past, int64_t n_channels, int64_t head_size);

// Whether this node is a convolution or a delta rule over states by number (Graph::short_conv and delta_rule of the crate ggml) and a
// kernel serves it.
bool takes_states(const ggml_tensor * node);

// Computes such a node; false, and nothing, for any other.
bool with_states(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

// Nodes i and i + 1 of a graph are a norm of queries and keys to length 1 that one delta rule reads, which can compute it: the number
// of that node, else 0.
int norm_of_delta_rule(const ggml_cgraph * graph, int i);

// Leaves such a norm to its delta rule; gives how many nodes come behind i that need no computing, 0 where nothing was left.
int leave_to_delta_rule(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, int i);

// Computes node i of a graph with the SiLU behind it if it is such a convolution; gives how many nodes come behind i that need no more
// computing, 0 where nothing was computed.
int convolution_and_silu(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph, int i);

}  // namespace nextn
