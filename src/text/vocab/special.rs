//! Special tokens: which one plays which role, and finding them in text.
//! Owns what follows from keys and from names together; knows nothing of merges.

use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};

use super::names::{EOM, EOT, FIM_FILE, FIM_MIDDLE, FIM_PAD, FIM_PREFIX, FIM_REPO, FIM_SUFFIX, Names};
use super::{Fim, TokenId, Tokens, VocabSource};
use crate::error::Error;
use crate::pretokenize::Bos;

/// The tokens with a role, all inside of the vocabulary.
pub(super) struct Roles {
    pub(super) bos: Option<TokenId>,
    pub(super) eos: Option<TokenId>,
    pub(super) eot: Option<TokenId>,
    pub(super) sep: Option<TokenId>,
    pub(super) pad: Option<TokenId>,
    pub(super) unknown: Option<TokenId>,
    pub(super) add_bos: bool,
    pub(super) add_eos: bool,
    pub(super) fim: Option<Fim>,
    /// Sorted, without duplicates.
    pub(super) eog: Vec<TokenId>,
}

impl Roles {
    /// `bos` is what the models of this kind do where the file is silent.
    pub(super) fn new(source: &VocabSource<'_>, names: &Names, add_bos: Bos) -> Result<Self, Error> {
        let mut ids = source.special;
        let n_tokens = source.tokens.len();
        for (key, id) in ids.by_key() {
            if let Some(id) = id
                && id as usize >= n_tokens
            {
                return Err(Error::IdRange { key, id, n_tokens });
            }
        }
        if source.model == "llama" {
            // The first three rows of every SentencePiece model, which early files do not repeat.
            for (slot, id) in [(&mut ids.unknown, 0), (&mut ids.bos, 1), (&mut ids.eos, 2)] {
                *slot = slot.or((n_tokens > 2).then_some(id));
            }
        }
        let given = |id: Option<u32>, list: &[&str]| id.or_else(|| names.first(list)).map(TokenId);

        let (bos, eos, pad) = (ids.bos.map(TokenId), ids.eos.map(TokenId), ids.pad.map(TokenId));
        let eot = given(ids.eot, EOT);
        let add_bos = match (source.add_bos, add_bos) {
            (_, Bos::Always) => bos.is_some(),
            (Some(true), _) if bos.is_none() => return Err(Error::NoBos),
            (Some(add), _) => add,
            (None, default) => default == Bos::UnlessRefused && bos.is_some(),
        };
        let prefix = given(ids.fim_prefix, FIM_PREFIX);
        let middle = given(ids.fim_middle, FIM_MIDDLE);
        let suffix = given(ids.fim_suffix, FIM_SUFFIX);
        let fim = match (prefix, middle, suffix) {
            (Some(prefix), Some(middle), Some(suffix)) => Some(Fim { prefix, middle, suffix }),
            _ => None,
        };

        let (fim_pad, fim_repo, fim_file) =
            (given(ids.fim_pad, FIM_PAD), given(ids.fim_repo, FIM_REPO), given(ids.fim_file, FIM_FILE));
        let roles = [eos, eot, given(ids.eom, EOM), fim_pad, fim_repo, fim_file];
        let mut eog: Vec<_> = roles.into_iter().flatten().chain(names.ends().map(TokenId)).collect();
        eog.sort_unstable();
        eog.dedup();
        Ok(Self {
            bos,
            eos,
            eot,
            sep: ids.sep.map(TokenId),
            pad,
            unknown: ids.unknown.map(TokenId),
            add_bos,
            add_eos: source.add_eos == Some(true) && eos.is_some(),
            fim,
            eog,
        })
    }
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
