//! Qwen3, dense and MoE: grouped-query attention with normed heads in every layer.
//! Source: the Qwen3 reference model; GGUF names as llama.cpp's converter writes them: qwen3, qwen3moe.

use super::{Entry, Opened};
use crate::blocks::{AttentionSizes, MoeSizes};
use crate::decoder;
use crate::error::LoadError;
use crate::head_file::HeadFile;
use crate::keys::{Keys, WIDTH};
use crate::load::Loader;

pub(super) const ENTRY: Entry = Entry { names: &["qwen3", "qwen3moe"], nextn: false, open };

fn open(
    keys: &Keys<'_, '_>,
    loader: &mut Loader<'_>,
    n_vocab: usize,
    _: Option<&HeadFile<'_, '_>>,
) -> Result<Opened, LoadError> {
    let n_layer = keys.need("block_count", 1..=1024)?;
    let sizes = AttentionSizes::read(keys, true)?;
    let n_embd = sizes.n_embd;
    let moe = match keys.find("expert_count", 0..=1 << 16)?.unwrap_or(0) {
        0 => None,
        n_expert => {
            let n_used = keys.need("expert_used_count", 1..=n_expert as u32)?;
            let n_ff = keys.find("expert_feed_forward_length", WIDTH)?;
            let n_ff = match n_ff {
                Some(n_ff) => n_ff,
                None => keys.need("feed_forward_length", WIDTH)? / n_used,
            };
            let scale = keys.float("expert_weights_scale", 0.0..=1e4)?.filter(|&s| s > 0.0).unwrap_or(1.0);
            Some(MoeSizes { n_embd, n_expert, n_used, n_ff, n_ff_shared: 0, scale, normalize: true })
        }
    };
    let n_ff = if moe.is_some() { 0 } else { keys.need("feed_forward_length", WIDTH)? };
    decoder::open(keys, loader, n_vocab, decoder::Family { n_layer, sizes, head_norms: true, n_ff, moe })
}
