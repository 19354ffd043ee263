//! Vocabularies of pieces with scores: `tokenizer.model`, or the merges of `tokenizer.json` where there is none.
//! Owns which of a folder's files tells what of a piece, and which scores lead to the same tokens as merges.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::sentencepiece::{self, PieceKind};
use super::table::Vocabulary;
use super::token_files::{Added, Merge, added_tokens, is_byte, kind, parts, special};
use crate::error::Error;
use crate::json::{MAX_JSON_BYTES, find_json, read_json};
use crate::safetensors::quoted;

/// Pieces, and what all files together say of them.
pub(super) struct Pieces {
    /// One for each row of the embedding.
    pub(super) tokens: Vec<(String, PieceKind)>,
    /// As many.
    pub(super) scores: Vec<f32>,
    /// By the key's name.
    pub(super) special_ids: Vec<(&'static str, u32)>,
    /// Whether `bos`, `eos`, .. is put around a text.
    pub(super) added: Vec<(&'static str, bool)>,
    /// Whether a space goes before a text; `None`: it does, and no file says so.
    pub(super) space_first: Option<bool>,
    /// White space after special tokens is not encoded.
    pub(super) drops_space: bool,
}

/// `tokenizer.json`, as far as it tells of what stands beside the pieces.
#[derive(Default, Deserialize)]
struct Beside {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
}

/// `tokenizer.json`, as far as it tells what kind it is.
#[derive(Deserialize)]
struct Form {
    #[serde(default)]
    pre_tokenizer: Value,
    model: FormOfModel,
}

#[derive(Deserialize)]
struct FormOfModel {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    byte_fallback: bool,
}

/// `tokenizer.json`, as far as it tells of pieces.
#[derive(Deserialize)]
struct Whole {
    model: Merges,
}

#[derive(Deserialize)]
struct Merges {
    vocab: HashMap<String, u64>,
    merges: Vec<Merge>,
    #[serde(default)]
    unk_token: Option<String>,
}

/// Whether a folder's vocabulary is one of pieces: it has `tokenizer.model`, or merges over characters with tokens for bytes,
/// and `tokenizer.json` is not byte-level.
///
/// # Errors
/// Neither file is there, or `tokenizer.json` is damaged or of another kind.
pub(super) fn are_in(folder: &Path) -> Result<bool, Error> {
    let path = folder.join("tokenizer.json");
    let has_pieces = sentencepiece::file(folder).exists();
    if !path.exists() {
        return match has_pieces {
            true => Ok(true),
            false => Err(Error::input(folder, "neither tokenizer.json nor tokenizer.model is there")),
        };
    }
    let form: Form = read_json(&path, MAX_JSON_BYTES)?;
    if parts(&form.pre_tokenizer, "pretokenizers").any(|part| kind(part) == "ByteLevel") {
        return Ok(false);
    }
    let kind = form.model.kind;
    if !has_pieces && !kind.is_empty() && kind != "BPE" {
        return Err(Error::input(&path, format!("a model of type {} found, BPE expected", quoted(&kind))));
    }
    Ok(has_pieces || form.model.byte_fallback)
}

/// Whether `tokenizer.json` has merges over characters with tokens for bytes.
fn merges_are_in(path: &Path) -> Result<bool, Error> {
    Ok(path.exists() && read_json::<Form>(path, MAX_JSON_BYTES)?.model.byte_fallback)
}

impl Beside {
    /// A space goes before a text.
    fn space_first(&self) -> bool {
        let metaspace = |part: &Value| {
            let never = part.get("prepend_scheme").and_then(Value::as_str) == Some("never");
            kind(part) == "Metaspace" && !never && part.get("add_prefix_space") != Some(&Value::Bool(false))
        };
        parts(&self.normalizer, "normalizers").any(|part| kind(part) == "Prepend")
            || parts(&self.pre_tokenizer, "pretokenizers").any(metaspace)
    }
}

/// One entry for each row of the embedding.
struct List {
    tokens: Vec<(String, PieceKind)>,
    scores: Vec<f32>,
}

impl List {
    fn new(n_vocab: u64) -> Self {
        let tokens: Vec<_> = (0..n_vocab).map(|id| (format!("[PAD{id}]"), PieceKind::Unused)).collect();
        Self { scores: vec![-10000.0; tokens.len()], tokens }
    }

    /// Ids without a row of the embedding cannot be used, and are passed over.
    fn put(&mut self, id: u64, token: String, kind: PieceKind, score: f32) {
        if let Some(slot) = usize::try_from(id).ok().filter(|&id| id < self.tokens.len()) {
            (self.tokens[slot], self.scores[slot]) = ((token, kind), score);
        }
    }

    /// Nothing stands there yet.
    fn is_free(&self, id: u64) -> bool {
        let slot = usize::try_from(id).ok().and_then(|id| self.tokens.get(id));
        slot.is_some_and(|(_, kind)| *kind == PieceKind::Unused)
    }

    /// A token that was added to the pieces.
    fn put_added(&mut self, id: u64, token: String, special: bool, vocabulary: Vocabulary) {
        let as_it_is = vocabulary == Vocabulary::Phi;
        if special || !as_it_is && looks_special(&token) {
            self.put(id, token, PieceKind::Control, ADDED);
        } else {
            let token = if as_it_is { token } else { token.replace('\u{2581}', " ") };
            self.put(id, token, PieceKind::UserDefined, ADDED);
        }
    }
}

/// What the other files add goes over the pieces.
///
/// # Errors
/// A file is damaged; there is no `tokenizer.model`, and the merges are none that scores stand for.
pub(super) fn read(
    folder: &Path,
    config: &Value,
    root: &Value,
    (n_vocab, vocabulary): (u64, Vocabulary),
) -> Result<Pieces, Error> {
    let path = folder.join("tokenizer.json");
    let beside = if path.exists() { read_json(&path, MAX_JSON_BYTES)? } else { Beside::default() };
    let mut list = List::new(n_vocab);
    let model = sentencepiece::file(folder);
    let has_model = model.exists() || vocabulary == Vocabulary::SentencePiece && !merges_are_in(&path)?;
    let space_first = if has_model {
        let model = sentencepiece::read(&model)?;
        for (piece, id) in model.pieces.into_iter().zip(0..) {
            // What users define there is text like any other.
            let kind = if piece.kind == PieceKind::UserDefined { PieceKind::Normal } else { piece.kind };
            list.put(id, piece.text, kind, piece.score);
        }
        model.space_first
    } else {
        let whole: Whole = read_json(&path, MAX_JSON_BYTES)?;
        of_merges(whole.model, &mut list).map_err(|what| Error::input(&path, what))?;
        beside.space_first()
    };
    let more = find_json(&folder.join("added_tokens.json"), MAX_JSON_BYTES)?;
    for (token, id) in more.as_ref().and_then(Value::as_object).into_iter().flatten() {
        list.put(id.as_u64().unwrap_or(u64::MAX), token.clone(), PieceKind::UserDefined, ADDED);
    }
    let refused = |what: String| Error::input(&folder.join("tokenizer_config.json"), what);
    for (id, (token, special)) in added_tokens(&[], config).map_err(refused)? {
        list.put_added(id, token, special, vocabulary);
    }
    let added = added_tokens(&beside.added_tokens, config).map_err(refused)?;
    let drops_space = vocabulary == Vocabulary::Phi && drop_space(&beside.added_tokens, config);
    for t in beside.added_tokens {
        if vocabulary == Vocabulary::Phi || !has_model || list.is_free(t.id) {
            list.put_added(t.id, t.content, t.special, vocabulary);
        }
    }
    let (special_ids, added) = special(config, root, &added, &beside.post_processor, n_vocab).map_err(refused)?;
    let told = config.get("add_prefix_space").and_then(Value::as_bool);
    Ok(Pieces {
        tokens: list.tokens,
        scores: list.scores,
        special_ids,
        added,
        space_first: match vocabulary {
            Vocabulary::SentencePiece => Some(false),
            _ => told.or((!space_first).then_some(false)),
        },
        drops_space,
    })
}

/// Whether added tokens take the white space that follows them.
fn drop_space(beside: &[Added], config: &Value) -> bool {
    let listed = config.get("added_tokens_decoder").and_then(Value::as_object);
    let takes = |t: &Value| t.get("rstrip").and_then(Value::as_bool) == Some(true);
    beside.iter().any(|t| t.rstrip) || listed.is_some_and(|list| list.values().any(takes))
}

/// The pieces of a vocabulary of merges. A piece scores as the first merge that makes it ranks: merging by scores then takes
/// the same steps, as long as all pairs that make a piece are merges.
fn of_merges(model: Merges, list: &mut List) -> Result<(), String> {
    let pair = |merge: Merge| match merge {
        Merge::Two(a, b) => Some((a, b)),
        Merge::One(both) => both.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())),
    };
    let n_merges = model.merges.len();
    let mut pairs = HashSet::with_capacity(n_merges);
    let mut ranks: HashMap<String, usize> = HashMap::new();
    for (merge, rank) in model.merges.into_iter().zip(0..) {
        let (a, b) = pair(merge).ok_or_else(|| format!("merge {rank} is none of two parts"))?;
        ranks.entry([&*a, &*b].concat()).or_insert(rank);
        pairs.insert((a, b));
    }
    for piece in ranks.keys().filter(|piece| piece.len() <= MAX_PIECE_BYTES) {
        for (at, _) in piece.char_indices().skip(1) {
            let (a, b) = piece.split_at(at);
            if model.vocab.contains_key(a)
                && model.vocab.contains_key(b)
                && !pairs.contains(&(a.to_owned(), b.to_owned()))
            {
                return Err(format!(
                    "{} is no merge, though {} is a token: these are not the merges of scored pieces, which GGUF files have; \
                     tokenizer.model is missing",
                    quoted(&format!("{a} {b}")),
                    quoted(piece)
                ));
            }
        }
    }
    for (piece, id) in model.vocab {
        let kind = match &piece {
            _ if is_byte(&piece) => PieceKind::Byte,
            _ if Some(&piece) == model.unk_token.as_ref() => PieceKind::Unknown,
            _ => PieceKind::Normal,
        };
        if !list.is_free(id) && id < list.tokens.len() as u64 {
            return Err(format!("two tokens have id {id}; one is {}", quoted(&piece)));
        }
        let rank = ranks.get(&piece).copied().unwrap_or(n_merges);
        list.put(id, piece, kind, 0.0 - rank as f32);
    }
    Ok(())
}

/// Tokens that some models add as text though they are none.
fn looks_special(token: &str) -> bool {
    let within = |first: &str, last: &str| token.starts_with(first) && token.ends_with(last);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&token)
        || within("<|", "|>")
        || within("<\u{ff5c}", "\u{ff5c}>")
        || within("<unused", ">")
}

/// Longer pieces are never made of a text.
const MAX_PIECE_BYTES: usize = 1024;
/// The score of tokens that were added.
const ADDED: f32 = -1000.0;
