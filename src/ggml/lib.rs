//! Safe ggml: tensors, weights, graphs and executors. The only logic with unsafe code.
