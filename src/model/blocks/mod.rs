//! Blocks: structs of weights with a `forward`, shared by the architectures.
//! Activations are `[n_embd, n_tokens]` unless a line says otherwise.

mod attention;
mod causal_conv;
mod delta_net;
mod expert_ffn;
mod experts;
mod ffn;
mod gated_ffn;
mod latent_attention;
mod layer_norm;
mod linear;
mod mamba;
mod moe;
mod rms_norm;
mod router;
mod self_attention;
mod short_conv;
mod squared_relu;
mod temperature;

pub(crate) use attention::{attend, attend_to, split_heads};
pub(crate) use delta_net::{DeltaNet, DeltaNetConfig, HeadOrder};
pub(crate) use expert_ffn::ExpertGlu;
pub(crate) use ffn::{DenseKind, Ffn, FfnConfig};
pub(crate) use gated_ffn::{Activation, GatedFfn};
pub(crate) use latent_attention::{LatentAttention, LatentConfig};
pub(crate) use layer_norm::LayerNorm;
pub(crate) use linear::{Linear, embedded, join, vector};
pub(crate) use mamba::{Mamba, MambaConfig};
pub(crate) use moe::{MoeConfig, MoeFfn, MoeKind, SharedExpert};
pub(crate) use rms_norm::RmsNorm;
pub(crate) use router::{Gating, RouterKind};
pub(crate) use self_attention::{Attention, AttentionConfig, AttentionKind, SlidingKind};
pub(crate) use short_conv::{ShortConv, ShortConvConfig};
