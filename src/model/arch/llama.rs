//! Llama 2 and 3, dense: grouped-query attention, neighbouring elements turn together, optional frequency factors.
//! Source: Touvron et al. 2023, Grattafiori et al. 2024; GGUF name: llama.

use super::{Entry, Opened};
use crate::blocks::AttentionSizes;
use crate::decoder;
use crate::error::LoadError;
use crate::head_file::HeadFile;
use crate::keys::{Keys, WIDTH};
use crate::load::Loader;

pub(super) const ENTRY: Entry = Entry { names: &["llama"], nextn: false, open };

fn open(
    keys: &Keys<'_, '_>,
    loader: &mut Loader<'_>,
    n_vocab: usize,
    _: Option<&HeadFile<'_, '_>>,
) -> Result<Opened, LoadError> {
    if let Some(n) = keys.find("expert_count", 0..=1 << 16)?.filter(|&n| n > 0) {
        return Err(keys.error("expert_count", format!("{n} experts found, only dense llama models are supported")));
    }
    let family = decoder::Family {
        n_layer: keys.need("block_count", 1..=1024)?,
        sizes: AttentionSizes::read(keys, false)?,
        head_norms: false,
        n_ff: keys.need("feed_forward_length", WIDTH)?,
        moe: None,
    };
    decoder::open(keys, loader, n_vocab, family)
}
