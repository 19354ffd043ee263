//! `tekken.json`: the byte-level vocabulary of Mistral's own files. Tokens of bytes by rank, behind so many special ones.
//! Owns what of the file is read, and which pairs its ranks merge. Knows no other file of a tokenizer.
//! Source: the package mistral-common.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::sentencepiece::PieceKind;
use crate::error::Error;
use crate::json::{MAX_JSON_BYTES, read_json};
use crate::safetensors::quoted;

/// What such a file becomes.
#[derive(Debug)]
pub(super) struct Tekken {
    /// The split rule.
    pub(super) pre: &'static str,
    /// One for each row of the embedding.
    pub(super) tokens: Vec<(String, PieceKind)>,
    pub(super) merges: Vec<String>,
    /// By the key's name.
    pub(super) special_ids: Vec<(&'static str, u32)>,
}

#[derive(Deserialize)]
struct Json {
    config: Sizes,
    vocab: Vec<Token>,
    special_tokens: Option<Vec<SpecialToken>>,
}

#[derive(Deserialize)]
struct Sizes {
    pattern: String,
    /// With the special ones. The list may be longer: it is cut.
    default_vocab_size: u64,
    default_num_special_tokens: u64,
}

#[derive(Deserialize)]
struct Token {
    rank: u64,
    token_bytes: String,
}

#[derive(Deserialize)]
struct SpecialToken {
    rank: u64,
    token_str: String,
}

/// Reads the file for an embedding of `n_vocab` rows.
///
/// # Errors
/// It is missing or damaged, splits words by a rule that is not known, has more tokens than rows, or a token that no pair makes.
pub(super) fn read(path: &Path, n_vocab: u64) -> Result<Tekken, Error> {
    of(read_json(path, MAX_JSON_BYTES)?, n_vocab).map_err(|what| Error::input(path, what))
}

fn of(json: Json, n_vocab: u64) -> Result<Tekken, String> {
    let (n_all, n_special) = (json.config.default_vocab_size, json.config.default_num_special_tokens);
    if n_all > n_vocab || n_special > n_all {
        return Err(format!("{n_all} tokens found, {n_special} of them special; vocab_size is {n_vocab}"));
    }
    let pattern = json.config.pattern.as_str();
    let unknown = || format!("splits words by {}, and no known split rule does", quoted(pattern));
    let pre = text::split_rule(&[pattern], true).ok_or_else(unknown)?;
    let mut tokens: Vec<_> = (0..n_vocab).map(|id| (format!("[PAD{id}]"), PieceKind::Unused)).collect();
    let special = specials(json.special_tokens, n_special)?;
    let find = |text: &str| special.iter().position(|t| t == text).map(|id| id as u32);
    let special_ids = SPECIAL.iter().filter_map(|(key, text)| Some((*key, find(text)?))).collect();
    for (slot, text) in tokens.iter_mut().zip(special) {
        *slot = (text, PieceKind::Control);
    }
    let bytes = by_rank(json.vocab, n_all - n_special)?;
    for (slot, bytes) in tokens[n_special as usize..].iter_mut().zip(&bytes) {
        *slot = (text::spelled(bytes), PieceKind::Normal);
    }
    Ok(Tekken { pre, tokens, merges: merges(&bytes)?, special_ids })
}

/// The texts of special tokens by id. Older files have no list of them, and none has all.
fn specials(listed: Option<Vec<SpecialToken>>, n: u64) -> Result<Vec<String>, String> {
    let of_older = || OF_OLDER.iter().zip(0..).map(|(text, rank)| SpecialToken { rank, token_str: (*text).to_owned() });
    let listed = listed.unwrap_or_else(|| of_older().collect());
    let mut all: Vec<String> = (0..n).map(|id| format!("<SPECIAL_{id}>")).collect();
    let mut seen = HashSet::new();
    for t in listed {
        let slot = usize::try_from(t.rank).ok().and_then(|rank| all.get_mut(rank));
        let slot = slot.ok_or_else(|| format!("special token {} has rank {}, of {n}", quoted(&t.token_str), t.rank))?;
        if !seen.insert(t.rank) {
            return Err(format!("two special tokens have rank {}", t.rank));
        }
        *slot = t.token_str;
    }
    Ok(all)
}

/// The bytes of the first `n` tokens.
fn by_rank(list: Vec<Token>, n: u64) -> Result<Vec<Vec<u8>>, String> {
    if (list.len() as u64) < n {
        return Err(format!("{} tokens of bytes found, {n} expected", list.len()));
    }
    let mut all: Vec<Option<Vec<u8>>> = vec![None; n as usize];
    for t in list.into_iter().filter(|t| t.rank < n) {
        let bytes = STANDARD.decode(&t.token_bytes).ok().filter(|bytes| (1..=MAX_TOKEN_BYTES).contains(&bytes.len()));
        let expected = || format!("token_bytes of rank {}: base64 of 1 to {MAX_TOKEN_BYTES} bytes expected", t.rank);
        let bytes = bytes.ok_or_else(expected)?;
        if all[t.rank as usize].replace(bytes).is_some() {
            return Err(format!("two tokens have rank {}", t.rank));
        }
    }
    let whole: Option<Vec<_>> = all.into_iter().collect();
    whole.ok_or_else(|| format!("ranks below {n} are missing"))
}

/// For each token, by rank, the pairs of earlier ones that make it: a text takes the same steps by them as by the ranks.
fn merges(by_rank: &[Vec<u8>]) -> Result<Vec<String>, String> {
    let ranks: HashMap<&[u8], usize> = by_rank.iter().map(Vec::as_slice).zip(0..).collect();
    if ranks.len() < by_rank.len() {
        return Err("two tokens have the same bytes".into());
    }
    let mut all = Vec::with_capacity(by_rank.len());
    for (rank, whole) in by_rank.iter().enumerate().filter(|(_, whole)| whole.len() > 1) {
        let halves = (1..whole.len()).filter_map(|at| {
            let (a, b) = whole.split_at(at);
            Some((*ranks.get(a)?, *ranks.get(b)?, a, b))
        });
        let mut pairs: Vec<_> = halves.collect();
        if pairs.is_empty() {
            return Err(format!("token {} of rank {rank} is made of no two others", quoted(&text::spelled(whole))));
        }
        pairs.sort_unstable();
        all.extend(pairs.iter().map(|(_, _, a, b)| format!("{} {}", text::spelled(a), text::spelled(b))));
    }
    Ok(all)
}

/// Far above all vocabularies; the pairs of a token take the square of its length.
const MAX_TOKEN_BYTES: usize = 1024;

/// Keys of special tokens.
const SPECIAL: [(&str, &str); 4] = [("bos", "<s>"), ("eos", "</s>"), ("unknown", "<unk>"), ("padding", "<pad>")];

/// The special tokens of files without a list.
const OF_OLDER: [&str; 20] = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];
