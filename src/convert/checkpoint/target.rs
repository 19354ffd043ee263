//! The model that a draft head in a file of its own drafts for: what the head's file says of it, and its tokenizer.
//! Knows not where that comes from.

use std::path::PathBuf;

use crate::gguf_model::Key;

/// What is known of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Target {
    /// Layers without its head.
    pub(crate) n_layer: u64,
    /// Width of a hidden state.
    pub(crate) n_embd: u64,
    pub(crate) n_vocab: u64,
    /// Its rotation has sections.
    pub(crate) has_sections: bool,
    /// All keys of its tokenizer.
    pub(crate) tokenizer: Vec<(String, Key)>,
    /// Files that were read.
    pub(crate) read: Vec<PathBuf>,
}

impl Target {
    /// The keys of its tokenizer with the token that stands for drafted ones, where a head has one.
    pub(crate) fn tokenizer_of_head(&self, mask: Option<u64>) -> Vec<(String, Key)> {
        let of_mask = "tokenizer.ggml.mask_token_id";
        // It is below the number of tokens.
        let mask = mask.map(|id| (of_mask.to_owned(), Key::U32(id as u32)));
        self.tokenizer.iter().filter(|(key, _)| mask.is_none() || key != of_mask).cloned().chain(mask.clone()).collect()
    }
}
