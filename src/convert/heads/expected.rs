//! Which tensors a file should have: those of the model's schema, as far as they are of the parts that the file holds.

use std::collections::HashSet;

use model::{Schema, TensorSchema, block_of};

use super::info::{Content, Layout, ModelInfo};
use super::keys::TARGET_VOCAB;
use crate::gguf_model::Key;
use crate::source::Source;

/// All tensors of a file with these keys.
///
/// # Errors
/// A size is not in the metadata, or out of range; the message names the key.
pub(crate) fn expected(source: &Source, info: &ModelInfo) -> Result<Vec<TensorSchema>, String> {
    let n_vocab = vocab_size(source).ok_or(
        "neither token_embd.weight nor tokenizer.ggml.tokens is there: the size of the vocabulary is not known",
    )?;
    let names: HashSet<&str> = source.tensors.iter().map(|t| t.name.as_str()).collect();
    let schema = Schema::of(&source.metadata(), n_vocab as usize, &|name| names.contains(name));
    let mut all = schema.map_err(|e| e.to_string())?.tensors;
    let slim = info.content == Content::Head(Layout::Slim);
    all.retain(|t| match block_of(&t.name) {
        None => !slim || t.name == "output_norm.weight",
        Some((il, _)) if il < info.n_layer => !matches!(info.content, Content::Head(_)),
        Some(_) => matches!(info.content, Content::Combined | Content::Head(_)),
    });
    let cut = cut_vocab(source);
    for t in &mut all {
        // A slim head uses it where it has no final norm of its own.
        t.required &= !(slim && t.name == "output_norm.weight");
        if let Some(cut) = cut.filter(|_| t.name == "output.weight" || t.name.ends_with("shared_head_head.weight")) {
            t.ne[1] = cut;
        }
    }
    Ok(all)
}

/// Rows of an output matrix that is cut to a part of the vocabulary: as many as there are in the list of its tokens.
pub(crate) fn cut_vocab(source: &Source) -> Option<u64> {
    source.tensor("d2t").and_then(|t| t.ne.first().copied())
}

/// Rows of the embedding matrix; without it what a head's file says of them, or else the number of tokens.
pub(crate) fn vocab_size(source: &Source) -> Option<u64> {
    let rows = source.tensor("token_embd.weight").and_then(|t| t.ne.get(1).copied());
    let said = || source.key(TARGET_VOCAB).and_then(Key::as_u64).filter(|n| *n < 1 << 31);
    rows.or_else(said).or_else(|| match source.key("tokenizer.ggml.tokens")? {
        Key::Array(tokens) => Some(tokens.as_array().len() as u64),
        _ => None,
    })
}
