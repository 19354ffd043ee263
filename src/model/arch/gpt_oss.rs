//! gpt-oss: attention with sinks and biases, every other layer behind a window, YaRN in all of them; experts with biases and
//! a clamped gate, weighed by a softmax over those that were chosen.
//! Source: OpenAI 2025; GGUF name: gpt-oss.

use crate::architecture::Entry;
use crate::blocks::{
    AttentionConfig, AttentionKind, DenseKind, ExpertGlu, FfnConfig, Gating, MoeKind, RouterKind, SlidingKind,
};
use crate::decoder::{self, BlockConfig, DecoderConfig, NormNames};
use crate::error::LoadError;
use crate::keys::Keys;

pub(super) const ENTRY: Entry = Entry { names: &["gpt-oss"], nextn: false, open: |file| decoder::open(file, config) };

fn config(keys: &Keys<'_, '_>) -> Result<DecoderConfig, LoadError> {
    let n_block = keys.n_block()?;
    let kind = AttentionKind {
        neox: true,
        bias: true,
        out_bias: true,
        sinks: true,
        exact_yarn: true,
        ..AttentionKind::default()
    };
    let sliding = SlidingKind { kind, base: None, scales: true };
    let attention = AttentionConfig::read_sliding(keys, n_block, kind, sliding, |il| il.is_multiple_of(2))?;
    let router = RouterKind { gating: Gating::SoftmaxOfChosen, bias: true, ..RouterKind::default() };
    let glu = ExpertGlu::Clamped { slope: 1.702, limit: 7.0 };
    let moe = MoeKind { router, bias: true, glu, ..MoeKind::default() };
    let ffn = FfnConfig::read(keys, n_block, DenseKind::default(), moe)?;
    let norms = NormNames { ffn: "post_attention_norm", after: None };
    let block = |(attention, ffn)| BlockConfig::attention(attention, norms, ffn);
    DecoderConfig::read(keys, attention.into_iter().zip(ffn).map(block).collect(), 0)
}
