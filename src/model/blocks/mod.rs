//! Blocks: structs of weights with a `forward`, shared by the architectures.
//! Activations are `[n_embd, n_tokens]` unless a line says otherwise.

mod attention;
mod delta_net;
mod experts;
mod ffn;
mod gated_ffn;
mod linear;
mod moe;
mod rms_norm;
mod router;
mod self_attention;

pub(crate) use delta_net::{DeltaNet, DeltaNetConfig, HeadOrder};
pub(crate) use ffn::{DenseKind, Ffn, FfnConfig};
pub(crate) use linear::{Linear, embedded};
pub(crate) use moe::{ExpertGlu, MoeKind, SharedExpert};
pub(crate) use rms_norm::RmsNorm;
pub(crate) use router::{Gating, RouterKind};
pub(crate) use self_attention::{Attention, AttentionConfig, AttentionKind, SlidingKind};
