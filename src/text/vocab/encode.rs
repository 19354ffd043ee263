//! Text to token ids: special tokens first, then words, then merges.
//! Owns the order of these steps and a bounded memory of words already seen; the tables belong to others.

use std::borrow::Cow;

use hashbrown::HashMap;

use super::tokens::SPACE;
use super::{Method, Special, TokenId, Vocab};
use crate::pretokenize::Spelling;
use crate::{bpe, spm};

impl Vocab {
    /// The tokens of `text`. No BOS is added, nothing is normalised, and the bytes of the tokens are those of `text`,
    /// but: SentencePiece puts a space before a text and after each special token, where its models do; it has one
    /// token for a space and for U+2581; and Phi 3 drops white space after special tokens.
    ///
    /// Of special tokens that start at the same place the longest is taken. Time is about linear in the length of
    /// the text, also for one word without end; a word is cut every MiB.
    #[must_use]
    pub fn encode(&self, text: &str, special: Special) -> Vec<TokenId> {
        self.encode_at(text, special, true)
    }

    /// As [`Vocab::encode`], for text that follows other text: SentencePiece puts no space before it.
    #[must_use]
    pub fn encode_after_text(&self, text: &str, special: Special) -> Vec<TokenId> {
        self.encode_at(text, special, false)
    }

    /// `fresh`: at the start of a text, or after a special token.
    fn encode_at(&self, text: &str, special: Special, mut fresh: bool) -> Vec<TokenId> {
        let finder = match special {
            Special::Parse => &self.parse,
            Special::Plain => &self.plain,
        };
        let mut parts = Vec::new();
        let mut done = 0;
        for (range, id) in finder.find(text) {
            let end = self.strips.before(id, text, done, range.start);
            if done < end {
                parts.push(Part::Text(self.spelled(&text[done..end], fresh)));
            }
            parts.push(Part::Token(id));
            fresh = true;
            done = self.strips.after(id, text, range.end);
        }
        if done < text.len() {
            parts.push(Part::Text(self.spelled(&text[done..], fresh)));
        }

        let mut encoder = Encoder { vocab: self, ids: Vec::new(), scratch: Scratch::default(), seen: HashMap::new() };
        for part in &parts {
            match part {
                Part::Text(text) => encoder.text(text),
                Part::Token(id) => encoder.ids.push(*id),
            }
        }
        encoder.ids.into_iter().map(TokenId).collect()
    }

    /// `text` with the spaces that tokens stand for.
    fn spelled<'t>(&self, text: &'t str, fresh: bool) -> Cow<'t, str> {
        if self.tokens.spelling() != Spelling::Spaces {
            return Cow::Borrowed(text);
        }
        let space_first = fresh && matches!(self.method, Method::Spm { space_first: true, .. });
        match (space_first, text.contains(SPACE)) {
            (false, false) => Cow::Borrowed(text),
            (false, true) => Cow::Owned(text.replace(SPACE, " ")),
            (true, _) => Cow::Owned([" ", &text.replace(SPACE, " ")].concat()),
        }
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

/// What lies between special tokens, and these.
enum Part<'t> {
    Text(Cow<'t, str>),
    Token(u32),
}

#[derive(Default)]
struct Scratch {
    bpe: bpe::Scratch,
    spm: spm::Scratch,
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
        match &self.vocab.method {
            Method::Bpe { splitter, .. } => splitter.words(text, &mut |word| self.piece(word)),
            Method::Spm { .. } => self.piece(text),
        }
    }

    /// A word of the split rule, or all text.
    fn piece(&mut self, piece: &'t str) {
        if !self.vocab.spaces_cut {
            return self.word(piece);
        }
        let mut rest = piece;
        while let Some(end) = end_before_space(rest) {
            let (word, after) = rest.split_at(end);
            self.word(word);
            rest = after;
        }
        self.word(rest);
    }

    fn word(&mut self, word: &'t str) {
        if let Some(&(start, end)) = self.seen.get(word.as_bytes()) {
            self.ids.extend_from_within(start..end);
            return;
        }
        let start = self.ids.len();
        let tokens = &self.vocab.tokens;
        match &self.vocab.method {
            Method::Spm { spm, .. } => spm.encode(tokens, word, &mut self.scratch.spm, &mut self.ids),
            Method::Bpe { rule, merges, .. } => {
                // Llama 3 takes a word that is a token as it is, even where the merges lead elsewhere.
                let whole = rule.whole_words || (rule.whole_line_ends && word.bytes().all(|byte| byte == b'\n'));
                match tokens.find_plain(word.as_bytes()).filter(|_| whole) {
                    Some(id) => self.ids.push(id),
                    None => merges.encode(tokens, word, &mut self.scratch.bpe, &mut self.ids),
                }
            }
        }
        if self.seen.len() < MAX_SEEN && word.len() <= MAX_SEEN_BYTES {
            self.seen.insert(word.as_bytes(), (start, self.ids.len()));
        }
    }
}

/// Where the first space stands that follows another character.
fn end_before_space(text: &str) -> Option<usize> {
    let spaces = text.bytes().take_while(|&byte| byte == b' ').count();
    Some(spaces + text.as_bytes()[spaces..].iter().position(|&byte| byte == b' ')?)
}

/// Words remembered during one call: enough for the common ones of any text, in 2 MiB.
const MAX_SEEN: usize = 1 << 15;
/// Longer words hardly come again.
const MAX_SEEN_BYTES: usize = 64;
