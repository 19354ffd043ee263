//! What a file says about its tokenizer, before any table is built.
//! Owns the names of the metadata keys; checks counts and types, not meaning.

use super::TokenKind;
use crate::error::Error;

/// The tokenizer of a model as lists, borrowed from where they lie.
#[derive(Clone, Debug, Default)]
pub struct VocabSource<'a> {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE), `llama` (SentencePiece) or `gemma4` (BPE over characters).
    pub model: &'a str,
    /// `tokenizer.ggml.pre`: the split rule of a BPE; empty: `default`.
    pub pre: &'a str,
    /// By id. Normal tokens in the byte-level alphabet or with U+2581 for spaces, the others as their text.
    pub tokens: Vec<&'a str>,
    /// One number for each token; `None`: all are normal.
    pub types: Option<Vec<i32>>,
    /// One number for each token, the better the greater: SentencePiece only. `None`: all are equal.
    pub scores: Option<Vec<f32>>,
    /// "left right", spelled as the tokens, best first: BPE only.
    pub merges: Vec<&'a str>,
    /// The tokens with a role.
    pub special: SpecialIds,
    /// `tokenizer.ggml.add_bos_token`; `None`: what the models of this kind do.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_eos_token`; `None`: no.
    pub add_eos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`; `None`: yes. SentencePiece only.
    pub add_space_prefix: Option<bool>,
    /// `general.name`: Phi 3 drops white space after its special tokens, and only the name tells.
    pub name: &'a str,
}

/// Ids that the file gives for special tokens.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct SpecialIds {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub eot: Option<u32>,
    pub eom: Option<u32>,
    pub unknown: Option<u32>,
    pub sep: Option<u32>,
    pub pad: Option<u32>,
    pub fim_prefix: Option<u32>,
    pub fim_middle: Option<u32>,
    pub fim_suffix: Option<u32>,
    pub fim_pad: Option<u32>,
    pub fim_repo: Option<u32>,
    pub fim_file: Option<u32>,
}

impl<'a> VocabSource<'a> {
    /// # Errors
    /// Model, tokens or merges are absent; a key of another type; a string that is not UTF-8.
    pub fn from_metadata(metadata: &gguf::Metadata<'a>) -> Result<Self, Error> {
        let text = |key| metadata.str(key)?.ok_or(Error::MissingKey { key });
        let list = |key| {
            let list = metadata.str_array(key)?.ok_or(Error::MissingKey { key })?;
            list.iter_str().map(|entry| Ok(entry?)).collect::<Result<Vec<_>, Error>>()
        };
        // The model first: another kind of tokenizer has no merges, and the reader should hear of the kind.
        let model = text("tokenizer.ggml.model")?;
        let is_bpe = model == "gpt2" || model == "gemma4";
        if !is_bpe && model != "llama" {
            return Ok(Self { model, ..Self::default() });
        }
        let mut special = SpecialIds::default();
        for (key, slot) in special.slots() {
            *slot = metadata.u32(key)?;
        }
        // Older names of the same three.
        for (key, slot) in [
            ("tokenizer.ggml.prefix_token_id", &mut special.fim_prefix),
            ("tokenizer.ggml.middle_token_id", &mut special.fim_middle),
            ("tokenizer.ggml.suffix_token_id", &mut special.fim_suffix),
        ] {
            if slot.is_none() {
                *slot = metadata.u32(key)?;
            }
        }
        let pre = metadata.str("tokenizer.ggml.pre")?.unwrap_or_default();
        Ok(Self {
            model,
            pre: if model == "gemma4" { model } else { pre },
            tokens: list(TOKENS)?,
            types: metadata.i32_array("tokenizer.ggml.token_type")?,
            scores: if is_bpe { None } else { metadata.f32_array(SCORES)? },
            merges: if is_bpe { list(MERGES)? } else { vec![] },
            special,
            add_bos: metadata.bool("tokenizer.ggml.add_bos_token")?,
            add_eos: metadata.bool("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: metadata.bool("tokenizer.ggml.add_space_prefix")?,
            name: metadata.str("general.name")?.unwrap_or_default(),
        })
    }

    /// The kind of each token.
    pub(super) fn kinds(&self) -> Result<Vec<TokenKind>, Error> {
        let n_tokens = numbered(TOKENS, self.tokens.len())?;
        let Some(types) = &self.types else { return Ok(vec![TokenKind::Normal; n_tokens]) };
        if types.len() != n_tokens {
            return Err(Error::TypesLength { types: types.len(), tokens: n_tokens });
        }
        let kind = |(id, &found)| match found {
            1 => Ok(TokenKind::Normal),
            2 => Ok(TokenKind::Unknown),
            3 => Ok(TokenKind::Control),
            4 => Ok(TokenKind::UserDefined),
            5 => Ok(TokenKind::Unused),
            6 => Ok(TokenKind::Byte),
            _ => Err(Error::TokenType { id, found }),
        };
        types.iter().enumerate().map(kind).collect()
    }

    /// The scores, one for each token.
    pub(super) fn scores(&self) -> Result<Vec<f32>, Error> {
        let n_tokens = self.tokens.len();
        match &self.scores {
            None => Ok(vec![0.0; n_tokens]),
            Some(scores) if scores.len() == n_tokens => Ok(scores.clone()),
            Some(scores) => Err(Error::ScoresLength { scores: scores.len(), tokens: n_tokens }),
        }
    }

    /// The merges, of which there are few enough to number.
    pub(super) fn bounded_merges(&self) -> Result<&[&'a str], Error> {
        numbered(MERGES, self.merges.len())?;
        Ok(&self.merges)
    }
}

impl SpecialIds {
    pub(super) fn by_key(mut self) -> [(&'static str, Option<u32>); 13] {
        self.slots().map(|(key, slot)| (key, *slot))
    }

    fn slots(&mut self) -> [(&'static str, &mut Option<u32>); 13] {
        [
            ("tokenizer.ggml.bos_token_id", &mut self.bos),
            ("tokenizer.ggml.eos_token_id", &mut self.eos),
            ("tokenizer.ggml.eot_token_id", &mut self.eot),
            ("tokenizer.ggml.eom_token_id", &mut self.eom),
            ("tokenizer.ggml.unknown_token_id", &mut self.unknown),
            ("tokenizer.ggml.seperator_token_id", &mut self.sep),
            ("tokenizer.ggml.padding_token_id", &mut self.pad),
            ("tokenizer.ggml.fim_pre_token_id", &mut self.fim_prefix),
            ("tokenizer.ggml.fim_mid_token_id", &mut self.fim_middle),
            ("tokenizer.ggml.fim_suf_token_id", &mut self.fim_suffix),
            ("tokenizer.ggml.fim_pad_token_id", &mut self.fim_pad),
            ("tokenizer.ggml.fim_rep_token_id", &mut self.fim_repo),
            ("tokenizer.ggml.fim_sep_token_id", &mut self.fim_file),
        ]
    }
}

fn numbered(key: &'static str, found: usize) -> Result<usize, Error> {
    // One bit of an id is needed while merging, and ggml's ids are signed.
    let max = i32::MAX as usize;
    if found > max { Err(Error::TooMany { key, found, max }) } else { Ok(found) }
}

const TOKENS: &str = "tokenizer.ggml.tokens";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
