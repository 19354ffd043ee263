//! A NextN head in a file of its own, for a model that has none or another one: whether the two belong together.
//! Owns the reasons for which a head is refused, and which of its tensors may change while it is in use. The head's tensors are bound by the model's architecture.

use std::collections::HashSet;

use ggml::WeightsBuilder;
use gguf::{Header, Metadata};

use crate::error::LoadError;
use crate::keys::Keys;
use crate::rope_options::RopeOptions;
use crate::tensors::block_of;

/// Ending of the architecture's name in draft files of an old layout.
const LEGACY: &str = "_mtp";

/// The architecture that `general.architecture` names, also in files of the old layout.
pub(crate) fn architecture_of(name: &str) -> &str {
    name.strip_suffix(LEGACY).unwrap_or(name)
}

/// The head does not belong to the model.
pub(crate) fn refused(what: impl Into<String>) -> LoadError {
    LoadError::Head(what.into())
}

/// Has the tensors of the head that `headers` hold and `weights` have bound copied, so that they can be replaced. Blocks from
/// `n_layer` on are the head's.
pub(crate) fn mark_replaceable(weights: &mut WeightsBuilder, headers: &[Header<'_>], n_layer: usize) {
    let in_file: HashSet<&str> = headers.iter().flat_map(Header::tensors).map(|t| t.name).collect();
    weights.replaceable(|name| {
        let of_head = block_of(name).filter(|(il, rest)| *il >= n_layer as u64 && !TABLES.contains(rest));
        of_head.is_some() && in_file.contains(name)
    });
}

/// The head's metadata, when they are of the same family and vocabulary as those of the model, `model`. `drafts_for` tells
/// whether a head of the first name may be for a model of the second.
pub(crate) fn head_keys<'m, 'a>(
    meta: &'m Metadata<'a>,
    model: &Metadata<'_>,
    arch: &str,
    rope: RopeOptions,
    drafts_for: impl Fn(&str, &str) -> bool,
) -> Result<Keys<'m, 'a>, LoadError> {
    let own = meta.require_str("general.architecture")?;
    if !drafts_for(own, arch) {
        return Err(refused(format!("it is for architecture `{own}`, the model is `{arch}`")));
    }
    if !same_tokens(meta, model)? {
        same_target(meta, model)?;
    }
    Ok(Keys::new(meta, own, rope))
}

/// Drafts are token ids: those of another vocabulary would be other words. False if the head has no vocabulary.
fn same_tokens(head: &Metadata<'_>, model: &Metadata<'_>) -> Result<bool, LoadError> {
    let key = "tokenizer.ggml.tokens";
    if let (Some(own), Some(theirs)) = (head.array(key)?, model.array(key)?)
        && own.bytes() == theirs.bytes()
    {
        return Ok(true);
    }
    let (Some(own), Some(theirs)) = (head.str_array(key)?, model.str_array(key)?) else { return Ok(false) };
    if own.len() != theirs.len() {
        return Err(refused(format!("its vocabulary has {} tokens, the model's has {}", own.len(), theirs.len())));
    }
    for (id, (own, theirs)) in own.iter_str().zip(theirs.iter_str()).enumerate() {
        let (own, theirs) = (own?, theirs?);
        if own != theirs {
            return Err(refused(format!("its token {id} is `{own}`, the model's is `{theirs}`")));
        }
    }
    Ok(true)
}

/// What a head without a vocabulary says of the model that it was cut from (`docs/FILES.md`). One that says nothing is
/// believed.
fn same_target(head: &Metadata<'_>, model: &Metadata<'_>) -> Result<(), LoadError> {
    let n_tokens = model.array("tokenizer.ggml.tokens")?.map(|tokens| tokens.len() as u64);
    if let (Some(own), Some(theirs)) = (head.u64("nextn.target.vocab_size")?, n_tokens)
        && own != theirs
    {
        return Err(refused(format!("it was cut from a model of {own} tokens, this one has {theirs}")));
    }
    if let (Some(own), Some(theirs)) = (head.str("nextn.target.tokenizer")?, text::fingerprint(model)?)
        && own != theirs
    {
        return Err(refused(format!(
            "it was cut from a model with another vocabulary: {} there, {} here",
            short(own),
            short(&theirs)
        )));
    }
    Ok(())
}

/// Enough of a fingerprint to tell two apart.
fn short(fingerprint: &str) -> String {
    let start: String = fingerprint.chars().take(19).collect();
    if start.len() < fingerprint.len() { start + "..." } else { start }
}

/// Tensors of a head that stay: they are of the size of the vocabulary, and no training changes them.
const TABLES: [&str; 2] = ["nextn.embed_tokens.weight", "nextn.shared_head_head.weight"];
