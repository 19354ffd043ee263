//! White space beside special tokens that some models were trained without.
//! Owns which tokens take it: GGUF files do not say, and llama.cpp knows it by name, as this does.

use super::{TokenKind, Tokens, VocabSource};

/// Tokens that take the white space beside them.
#[derive(Debug, Default)]
pub(super) struct Strips {
    /// Ascending.
    before: Vec<u32>,
    /// Ascending.
    after: Vec<u32>,
}

impl Strips {
    pub(super) fn new(source: &VocabSource<'_>, tokens: &Tokens) -> Self {
        let find = |text: &str| tokens.find_other(text.as_bytes()).or_else(|| tokens.find_plain(text.as_bytes()));
        let one = |text: &str| find(text).into_iter().collect();
        if ["jina-v2-de", "jina-v2-es", "jina-v2-code"].contains(&source.pre) {
            return Self { before: one("<mask>"), after: vec![] };
        }
        let name = source.name.to_lowercase();
        if name.contains("phi-3") || name.contains("phi3") {
            let is_special = |kind| matches!(kind, TokenKind::Control | TokenKind::UserDefined | TokenKind::Unknown);
            let kept = ["<unk>", "<s>", "<|endoftext|>"].map(find);
            let takes = |id: &u32| tokens.kind(*id).is_some_and(is_special) && !kept.contains(&Some(*id));
            return Self { before: vec![], after: (0..tokens.len() as u32).filter(takes).collect() };
        }
        if name.contains("modern-bert") {
            return Self { before: one("[MASK]"), after: vec![] };
        }
        Self::default()
    }

    /// Where the text from `from` to `to`, where `id` stands, ends.
    pub(super) fn before(&self, id: u32, text: &str, from: usize, to: usize) -> usize {
        if self.before.binary_search(&id).is_err() || from >= to {
            return to;
        }
        from + text[from..to].trim_end_matches(is_blank).len()
    }

    /// Where the text after `id`, which ends at `end`, starts.
    pub(super) fn after(&self, id: u32, text: &str, end: usize) -> usize {
        if self.after.binary_search(&id).is_err() {
            return end;
        }
        text.len() - text[end..].trim_start_matches(is_blank).len()
    }
}

/// White space of C.
fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}
