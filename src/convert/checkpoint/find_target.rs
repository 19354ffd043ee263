//! What a draft head's file says of the model that it drafts for, found in a checkpoint folder or in a GGUF file.
//! Owns which of their keys tell it.

use std::path::Path;

use super::config::Config;
use super::description;
use super::fields::{Fields, MAX_DIM};
use super::table::Sizes;
use super::target::Target;
use super::tokenizer::Tokenizer;
use crate::error::Error;
use crate::gguf_model::Key;
use crate::kind::Kind;
use crate::source::Source;

/// Reads the descriptions of a checkpoint, or the header of a GGUF file.
///
/// # Errors
/// It is neither, or damaged, or of a class that is not known; or it has no tokenizer.
pub(super) fn open(path: &Path) -> Result<Target, Error> {
    match Kind::of(path)? {
        Kind::Checkpoint => of_checkpoint(path),
        Kind::Gguf => of_file(path),
        Kind::Safetensors => Err(Error::input(path, "the folder of a whole checkpoint or a GGUF file expected")),
    }
}

fn of_checkpoint(folder: &Path) -> Result<Target, Error> {
    let (path, raw) = description::find(folder)?.ok_or_else(|| Error::input(folder, "no config.json is there"))?;
    let refused = |what: String| Error::input(&path, what);
    let config = Config::of(&raw).map_err(refused)?;
    let tokenizer = Tokenizer::open(folder, &config, &raw)?;
    let special = config.table().map_or(&[][..], |table| table.row.special);
    let c = Fields::of(&raw);
    Ok(Target {
        n_layer: config.n_layer,
        n_embd: c.need("hidden_size", MAX_DIM).map_err(refused)?,
        n_vocab: config.n_vocab,
        has_sections: Sizes::rope_fields(&c).get("mrope_section").is_some(),
        tokenizer: tokenizer.with_special(special).into_keys(),
        read: description::beside(folder),
    })
}

fn of_file(path: &Path) -> Result<Target, Error> {
    let source = Source::open(path)?;
    let refused = |key: &str| Error::input(path, format!("{key} is missing: no model with a vocabulary?"));
    let arch = source.text("general.architecture").ok_or_else(|| refused("general.architecture"))?.to_owned();
    let find = |key: &str| source.key(&format!("{arch}.{key}")).and_then(Key::as_u64);
    let need = |key: &str| find(key).ok_or_else(|| refused(&format!("{arch}.{key}")));
    let tokens = "tokenizer.ggml.tokens";
    let Some(Key::Array(list)) = source.key(tokens) else { return Err(refused(tokens)) };
    Ok(Target {
        n_layer: need("block_count")?.saturating_sub(find("nextn_predict_layers").unwrap_or(0)),
        n_embd: need("embedding_length")?,
        n_vocab: list.as_array().len() as u64,
        has_sections: source.key(&format!("{arch}.rope.dimension_sections")).is_some(),
        tokenizer: source.keys.iter().filter(|(key, _)| key.starts_with("tokenizer.")).cloned().collect(),
        read: source.inputs.iter().map(|input| input.path().to_owned()).collect(),
    })
}
