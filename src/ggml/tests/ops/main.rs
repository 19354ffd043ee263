//! Ops, the graphs that are made of them, and the executor that runs these, in one program: linking ggml takes longer than
//! most of these tests. What needs a process of its own has a program beside this one.

mod attention;
mod batch_invariance;
mod cells;
mod delta_net;
mod elements;
mod errors;
mod every_type;
mod executor;
mod mamba;
mod matmul;
mod own_kernels;
mod rope;
mod shape;
mod support;
