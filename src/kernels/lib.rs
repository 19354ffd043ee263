//! CPU kernels for few tokens: products of weights with a few columns of activations, the gated delta rule and the short
//! convolution of recurrent layers, in AVX2, AVX-512, NEON and plain Rust. The crate `ggml` puts them behind custom nodes.
//! Owns no memory: activations are quantised into a node that the products of one input share. Knows ggml's nodes and block
//! formats; knows nothing of graphs, devices and models.
//!
//! ggml reads a weight once for each token, or computes more than the memory needs; here every block of the weight is loaded
//! once for up to eight columns, and later blocks are prefetched. So a few tokens cost little more than one, which is what
//! verifying draft tokens needs. A column has the same bits whatever columns stand beside it, in every instruction set.
//!
//! A weight is a matrix of rows; an activation vector (one token's, or one token's for one expert) is a column. Which types,
//! how many columns, on what processors: `docs/KERNELS.md`. Elsewhere ggml computes. The environment variable
//! `NEXTN_KERNELS` chooses for comparisons, read once: `off`, `scalar`, `avx2`, `avxvnni`, `avx512`, `amx`, `neon`, `i8mm`.
//!
//! # What the SAFETY comments refer to
//! - **The tile contract** is that of [`product::dots`]: what a group of weight rows and a tile of columns point to.
//! - **The node contract**: ggml calls a node's function on each of `nth` threads, with a node that is alive, whose operands
//!   are alive and computed, and whose shapes the maker of the node checked (`ggml::Graph`; each function says which shapes).
//! - **An available instruction set** is one that [`Isa::available`] lists: [`Isa::chosen`] gives no other.

// A kernel's loads and stores and the pointers into them belong together.
#![allow(clippy::multiple_unsafe_ops_per_block)]

mod activations;
mod all_reduce;
#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod by_weight_type;
mod cell_attention;
mod cell_rows;
mod delta_lanes;
mod delta_nodes;
mod delta_rule;
mod delta_slices;
mod dispatch;
mod experts;
mod f32x16;
mod floats;
mod geglu;
mod gumbel;
#[cfg(target_arch = "aarch64")]
mod i8mm;
mod isa;
mod joined;
mod lanes;
mod low_bits;
mod mask;
mod matrix;
#[cfg(target_arch = "aarch64")]
mod neon;
mod nodes;
mod prefetch;
mod product;
mod quantise;
mod scalar;
mod short_conv;
pub mod slices;
#[cfg(test)]
mod tests;
mod tile;
mod turbo;
mod weight_rows;
mod weight_type;
mod weighted_rows;
mod which;

pub use activations::Shape;
pub use all_reduce::{ALL_GATHER, ALL_REDUCE, Meeting, all_gather, all_reduce};
pub use attention::{MAX_HEAD, attention_to_all};
pub use cell_attention::{ATTEND_CELLS, BESIDE, RUN, attention_over_cells, attention_over_runs, sums_of_runs};
pub use delta_nodes::{DELTA_RULE, DELTA_RULE_LOGGED, delta_rule, delta_rule_logged};
pub use delta_rule::{HEAD_SIZES, LARGE_STATE, LoggedStep, entry_floats, log_capacity};
pub use delta_slices::replay;
pub use experts::{NO_EXPERT, expert_products, experts_left, head_products};
pub use geglu::{gated_gelu, gelu};
pub use gumbel::{GUMBEL, add_gumbel, gumbel, uniform};
pub use isa::Isa;
pub use joined::{JOINED_ROWS, join_rows, reads_joined};
pub use mask::{MASK_OF_SPANS, mask_of_spans};
pub use nodes::{NodeFn, product, quantise_for_k_types, quantise_for_q8_0};
pub use short_conv::{CHANNELS_AT_ONCE, PAST, SHORT_CONV, TAPS, short_conv};
pub use turbo::{FIRST_PARAMETER, GROUPS, STORE_TURBO, Turbo, store_turbo};
pub use weight_type::{ActivationFormat, FEW_COLUMNS, WeightType};
pub use weighted_rows::weighted_rows;
