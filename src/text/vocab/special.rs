//! Special tokens: which one plays which role, and finding them in text.
//! Owns the names by which tokens are known; knows nothing of merges.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};

use super::{Fim, TokenId, TokenKind, Tokens, VocabSource};
use crate::error::Error;
use crate::pretokenize::Pre;

/// The tokens with a role, all inside of the vocabulary.
pub(super) struct Roles {
    pub(super) bos: Option<TokenId>,
    pub(super) eos: Option<TokenId>,
    pub(super) eot: Option<TokenId>,
    pub(super) pad: Option<TokenId>,
    pub(super) add_bos: bool,
    pub(super) fim: Option<Fim>,
    /// Sorted, without duplicates.
    pub(super) eog: Vec<TokenId>,
}

impl Roles {
    pub(super) fn new(source: &VocabSource<'_>, tokens: &Tokens, pre: Pre) -> Result<Self, Error> {
        let ids = &source.special;
        let n_tokens = tokens.len();
        for (key, id) in ids.by_key() {
            if let Some(id) = id
                && id as usize >= n_tokens
            {
                return Err(Error::IdRange { key, id, n_tokens });
            }
        }
        let named = |names: &[&str]| names.iter().find_map(|name| by_name(tokens, name));
        let given = |id: Option<u32>, names: &[&str]| id.or_else(|| named(names)).map(TokenId);

        let (bos, eos, pad) = (ids.bos.map(TokenId), ids.eos.map(TokenId), ids.pad.map(TokenId));
        let eot = given(ids.eot, EOT_NAMES);
        let add_bos = match source.add_bos {
            Some(true) if bos.is_none() => return Err(Error::NoBos),
            Some(add) => add,
            // Llama 3 files may leave the key out and still want it.
            None => pre == Pre::LlamaBpe && bos.is_some(),
        };
        let prefix = given(ids.fim_prefix, &["<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>"]);
        let middle = given(ids.fim_middle, &["<|fim_middle|>", "<fim_middle>", "<fim-middle>"]);
        let suffix = given(ids.fim_suffix, &["<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>"]);
        let fim = match (prefix, middle, suffix) {
            (Some(prefix), Some(middle), Some(suffix)) => Some(Fim { prefix, middle, suffix }),
            _ => None,
        };

        let mut eog = vec![
            eos,
            eot,
            ids.eom.map(TokenId),
            given(ids.fim_pad, &["<|fim_pad|>", "<fim_pad>", "<fim-pad>"]),
            given(ids.fim_repo, &["<|repo_name|>"]),
            given(ids.fim_file, &["<|file_sep|>"]),
        ];
        eog.extend(EOG_NAMES.iter().map(|name| by_name(tokens, name).map(TokenId)));
        let mut eog: Vec<_> = eog.into_iter().flatten().collect();
        eog.sort_unstable();
        eog.dedup();
        Ok(Self { bos, eos, eot, pad, add_bos, fim, eog })
    }
}

/// A token known by its text, of any kind but unused: some files mark these as normal ones.
/// None of the names can come out of the merges, because the split rules cut them at `|` and `_`.
fn by_name(tokens: &Tokens, name: &str) -> Option<u32> {
    let find_other = tokens.find_other(name.as_bytes());
    let id = find_other.or_else(|| tokens.find_plain(name.as_bytes()))?;
    (tokens.kind(id) != Some(TokenKind::Unused)).then_some(id)
}

/// Finds the texts of some tokens.
pub(super) struct SpecialFinder {
    /// Absent when there is nothing to find.
    automaton: Option<AhoCorasick>,
    /// Token of each pattern.
    ids: Vec<u32>,
}

impl SpecialFinder {
    pub(super) fn new(tokens: &Tokens, ids: impl Iterator<Item = u32>) -> Result<Self, Error> {
        let text = |id: u32| tokens.bytes(id).unwrap_or_default();
        let ids: Vec<_> = ids.filter(|&id| !text(id).is_empty()).collect();
        let automaton = if ids.is_empty() {
            None
        } else {
            let patterns = ids.iter().map(|&id| text(id));
            Some(AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(patterns)?)
        };
        Ok(Self { automaton, ids })
    }

    /// The occurrences in `text`, in order, not overlapping: the leftmost first, at one place the longest.
    pub(super) fn find<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (Range<usize>, u32)> + 'a {
        let found = self.automaton.as_ref().map(|automaton| automaton.find_iter(text));
        found.into_iter().flatten().map(|hit| (hit.range(), self.ids[hit.pattern().as_usize()]))
    }
}

/// End of a turn, by likelihood.
const EOT_NAMES: &[&str] = &["<|eot_id|>", "<|im_end|>", "<|end|>"];

/// Tokens that end generation whatever the file says. Qwen needs two of them: its files name one.
const EOG_NAMES: &[&str] = &[
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
];
