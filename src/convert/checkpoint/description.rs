//! What a folder says of its model: `config.json`, or `params.json` where the weights are Mistral's own.
//! Owns which of the two holds, and the names of what stands beside weights.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::families;
use super::sentencepiece;
use crate::error::Error;
use crate::json::{MAX_JSON_BYTES, read_json};
use crate::kind::{CONFIG, PARAMS};
use crate::safetensors::{INDEX, are_consolidated};

/// The file, and what it says in the words of `config.json`; `None` where there is neither.
///
/// # Errors
/// It is damaged, or a `params.json` of a model that is not supported.
pub(super) fn find(folder: &Path) -> Result<Option<(PathBuf, Value)>, Error> {
    let (config, params) = (folder.join(CONFIG), folder.join(PARAMS));
    if params.exists() && (!config.exists() || are_consolidated(folder)?) {
        let own: Value = read_json(&params, MAX_JSON_BYTES)?;
        let said = families::in_words_of_transformers(&own).map_err(|what| Error::input(&params, what))?;
        return Ok(Some((params, said)));
    }
    if !config.exists() {
        return Ok(None);
    }
    let said = read_json(&config, MAX_JSON_BYTES)?;
    Ok(Some((config, said)))
}

/// What a folder may have besides its weights.
pub(super) fn beside(folder: &Path) -> Vec<PathBuf> {
    NAMES.iter().map(|name| folder.join(name)).chain([sentencepiece::file(folder)]).collect()
}

const NAMES: [&str; 10] = [
    CONFIG,
    PARAMS,
    "generation_config.json",
    "tokenizer.json",
    "tekken.json",
    "added_tokens.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    INDEX,
];
