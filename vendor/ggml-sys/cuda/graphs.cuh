// When a CUDA graph is captured.
#pragma once

#include "common.cuh"

namespace nextn {

// Whether a graph that is new is captured in its first run, where ggml runs it kernel by kernel first: passes of few tokens come again,
// and most of their time is launching.
bool captures_at_once(ggml_backend_cuda_context & ctx, const ggml_cgraph * graph);

}  // namespace nextn
