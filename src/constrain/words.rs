//! The vocabulary as llguidance wants it: a trie over the bytes of its tokens, and the tokens with a role.
//! Owns what each kind of token may stand for in a constrained answer.

use std::sync::{Arc, Mutex};

use text::{Special, TokenId, TokenKind, Vocab};
use toktrie::{INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

/// The vocabulary of a model, ready for grammars.
pub(crate) struct Words {
    pub(crate) vocab: Arc<Vocab>,
    pub(crate) env: TokEnv,
    pub(crate) eog: Vec<TokenId>,
    /// Tokens of nothing but white space, with their lengths.
    pub(crate) blanks: Vec<(TokenId, usize)>,
    /// What [`Words::holders_of`] has found; tags are few.
    holders: Mutex<Vec<(Vec<u8>, Vec<TokenId>)>>,
}

impl Words {
    /// Takes a second or two for a vocabulary of 250,000 tokens.
    ///
    /// Control tokens can only be named by a grammar, never come as text. Tokens that end generation end the answer.
    /// User-defined tokens, such as `<tool_call>`, are text like any other.
    pub(crate) fn new(vocab: Arc<Vocab>) -> Self {
        let eog = vocab.eog().to_vec();
        let bytes = |id: u32| {
            let id = TokenId(id);
            let bytes = vocab.bytes(id).unwrap_or_default();
            match vocab.kind(id) {
                // 0xFF begins no text, and marks special tokens in the trie.
                _ if bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) || bytes.len() > MAX_TOKEN_BYTES => vec![],
                Some(TokenKind::Control | TokenKind::Unknown) => special(bytes),
                _ if eog.contains(&id) => special(bytes),
                _ => bytes.to_vec(),
            }
        };
        let words: Vec<Vec<u8>> = (0..vocab.len() as u32).map(bytes).collect();
        let is_blank = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_whitespace);
        let blanks = words.iter().zip(0..).filter(|(word, _)| is_blank(word));
        let blanks = blanks.map(|(word, id)| (TokenId(id), word.len())).collect();
        let first = eog.first().map_or(INVALID_TOKEN, |id| id.0);
        let mut trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, first), &words);
        if !eog.is_empty() {
            trie = trie.with_eos_tokens(&eog.iter().map(|id| id.0).collect::<Vec<_>>());
        }
        Self { env: Arc::new(Env { vocab: Arc::clone(&vocab), trie }), vocab, eog, blanks, holders: Mutex::default() }
    }

    /// Bytes of a token, as far as it stands for text.
    pub(crate) fn text(&self, token: TokenId) -> &[u8] {
        let trie = self.env.tok_trie();
        if token.0 as usize >= trie.vocab_size() || trie.is_special_token(token.0) {
            return &[];
        }
        trie.token(token.0)
    }

    /// Some tokens with these bytes; a grammar cannot tell one cut from another.
    pub(crate) fn cut(&self, bytes: &[u8]) -> Vec<u32> {
        self.env.tok_trie().greedy_tokenize(bytes)
    }

    /// The tokens whose text begins with `bytes` and goes on.
    pub(crate) fn beyond<'w>(&'w self, bytes: &'w [u8]) -> impl Iterator<Item = (TokenId, &'w [u8])> {
        let all = (0..self.env.tok_trie().vocab_size() as u32).map(TokenId);
        all.filter_map(move |id| {
            let rest = self.text(id).strip_prefix(bytes)?;
            (!rest.is_empty()).then_some((id, rest))
        })
    }

    /// The tokens whose text has `bytes` in it and does not end with it. There are few, if any: `bytes` is a tag.
    pub(crate) fn holders_of(&self, bytes: &[u8]) -> Vec<TokenId> {
        let mut known = self.holders.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, ids)) = known.iter().find(|(tag, _)| tag == bytes) {
            return ids.clone();
        }
        let all = (0..self.env.tok_trie().vocab_size() as u32).map(TokenId);
        let holds = |id: &TokenId| {
            let text = self.text(*id);
            find(text, bytes).is_some_and(|at| at + bytes.len() < text.len())
        };
        let ids: Vec<TokenId> = all.filter(holds).collect();
        known.push((bytes.to_vec(), ids.clone()));
        ids
    }
}

/// Where `what` first stands in `text`.
pub(crate) fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    if text.len() < what.len() {
        return None;
    }
    text.windows(what.len()).position(|window| window == what)
}

fn special(bytes: &[u8]) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat()
}

struct Env {
    vocab: Arc<Vocab>,
    trie: TokTrie,
}

impl TokenizerEnv for Env {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            self.vocab.encode_after_text(text, Special::Plain).into_iter().map(|id| id.0).collect()
        })
    }
}

/// Longer tokens are never picked under a constraint: the trie has no room for them.
const MAX_TOKEN_BYTES: usize = 1000;
