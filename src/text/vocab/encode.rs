//! Text to token ids: special tokens first, then words, then merges.
//! Owns the order of these steps and a bounded memory of words already seen; the tables belong to others.

use hashbrown::HashMap;

use super::{Special, TokenId, Vocab};
use crate::bpe::Scratch;
use crate::pretokenize::Pre;

impl Vocab {
    /// The tokens of `text`. No BOS is added, nothing is normalised, and the bytes of the tokens are those of `text`.
    ///
    /// Of special tokens that start at the same place the longest is taken. Time is about linear in the length of
    /// the text, also for one word without end; a word is cut every MiB.
    #[must_use]
    pub fn encode(&self, text: &str, special: Special) -> Vec<TokenId> {
        let finder = match special {
            Special::Parse => &self.parse,
            Special::Plain => &self.plain,
        };
        let mut encoder = Encoder { vocab: self, ids: Vec::new(), scratch: Scratch::default(), seen: HashMap::new() };
        let mut done = 0;
        for (range, id) in finder.find(text) {
            encoder.text(&text[done..range.start]);
            encoder.ids.push(id);
            done = range.end;
        }
        encoder.text(&text[done..]);
        encoder.ids.into_iter().map(TokenId).collect()
    }

    /// The tokens of a text that is a prompt by itself: BOS where the model wants one, special tokens by their text.
    #[must_use]
    pub fn encode_prompt(&self, text: &str) -> Vec<TokenId> {
        let bos = self.bos().filter(|_| self.add_bos());
        bos.into_iter().chain(self.encode(text, Special::Parse)).collect()
    }

    /// The tokens of `text`, special tokens by their text, and how many of them lie before each of the byte offsets
    /// `cuts`: ascending, each once, without 0. `cuts` ascend and lie at character borders, beside special tokens, where
    /// encoding part by part gives the tokens of the whole; if it does not there are no offsets.
    #[must_use]
    pub fn encode_with_cuts(&self, text: &str, cuts: &[usize]) -> (Vec<TokenId>, Vec<usize>) {
        let tokens = self.encode(text, Special::Parse);
        let mut parts = Vec::with_capacity(tokens.len());
        let mut found = Vec::with_capacity(cuts.len());
        let mut from = 0;
        for &to in cuts {
            parts.extend(self.encode(&text[from..to], Special::Parse));
            found.push(parts.len());
            from = to;
        }
        parts.extend(self.encode(&text[from..], Special::Parse));
        found.dedup();
        found.retain(|&n| n > 0);
        if parts != tokens {
            found.clear();
        }
        (tokens, found)
    }
}

struct Encoder<'v, 't> {
    vocab: &'v Vocab,
    ids: Vec<u32>,
    scratch: Scratch,
    /// Where in `ids` the tokens of a word already stand.
    seen: HashMap<&'t [u8], (usize, usize)>,
}

impl<'t> Encoder<'_, 't> {
    fn text(&mut self, text: &'t str) {
        for word in self.vocab.pre.words(text) {
            self.word(word.as_bytes());
        }
    }

    fn word(&mut self, word: &'t [u8]) {
        if let Some(&(start, end)) = self.seen.get(word) {
            self.ids.extend_from_within(start..end);
            return;
        }
        let start = self.ids.len();
        let tokens = &self.vocab.tokens;
        match tokens.find_plain(word) {
            // Llama 3 takes a word that is a token as it is, even where the merges lead elsewhere.
            Some(id) if self.vocab.pre == Pre::LlamaBpe => self.ids.push(id),
            _ => self.vocab.merges.encode(tokens, word, &mut self.scratch, &mut self.ids),
        }
        if self.seen.len() < MAX_SEEN && word.len() <= MAX_SEEN_BYTES {
            self.seen.insert(word, (start, self.ids.len()));
        }
    }
}

/// Words remembered during one call: enough for the common ones of any text, in 2 MiB.
const MAX_SEEN: usize = 1 << 15;
/// Longer words hardly come again.
const MAX_SEEN_BYTES: usize = 64;
