//! GLM-4 and GLM-Z1 of 2025, dense: a norm before and after both parts of a layer, and biases on queries, keys and values.
//! Source: the Glm4 reference model; GGUF name: glm4.

use crate::architecture::Entry;
use crate::blocks::{AttentionConfig, AttentionKind, FfnConfig};
use crate::decoder::{self, BlockConfig, DecoderConfig, NormNames};
use crate::error::LoadError;
use crate::keys::{Keys, WIDTH};

pub(super) const ENTRY: Entry = Entry { names: &["glm4"], nextn: false, open: |file| decoder::open(file, config) };

fn config(keys: &Keys<'_, '_>) -> Result<DecoderConfig, LoadError> {
    let kind = AttentionKind { bias: true, ..AttentionKind::default() };
    let norms = NormNames { ffn: "ffn_norm", after: Some(["post_attention_norm", "post_ffw_norm"]) };
    // `ffn_up` has the rows of the gate, then those of up.
    let ffn = FfnConfig::Dense { n_ff: keys.need("feed_forward_length", WIDTH)?, fused: true, bias: false };
    let block = |attention| BlockConfig::attention(attention, norms, ffn);
    let blocks = AttentionConfig::read(keys, keys.n_block()?, kind)?.into_iter().map(block).collect();
    DecoderConfig::read(keys, blocks, 0)
}
