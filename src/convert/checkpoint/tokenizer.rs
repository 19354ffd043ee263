//! The tokenizer of a checkpoint as keys of a GGUF file: tokens, kinds, scores, merges, special ids, chat template.
//! Owns `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`; splits no text.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use gguf::ArrayBuf;
use serde::Deserialize;
use serde_json::Value;

use super::config::Config;
use super::pieces;
use super::sentencepiece::{self, PieceKind};
use super::table::Vocabulary;
use super::tekken::{self, Tekken};
use super::token_files::{Added, Merge, added_tokens, is_byte, kind, parts, special};
use crate::error::Error;
use crate::gguf_model::Key;
use crate::io::Input;
use crate::json::{MAX_JSON_BYTES, find_json, read_json};
use crate::safetensors::quoted;

/// Everything that goes into keys.
#[derive(Debug)]
pub(crate) struct Tokenizer {
    /// As GGUF files name the kind of vocabulary.
    model: &'static str,
    /// Of byte-level ones, and of pieces.
    pre: Option<&'static str>,
    tokens: Vec<(String, PieceKind)>,
    /// Of vocabularies whose tokens have them.
    scores: Vec<f32>,
    merges: Vec<String>,
    /// By the key's name, in order.
    special_ids: Vec<(&'static str, u32)>,
    /// `bos`, `eos`, ..: whether it is put around a text.
    added: Vec<(&'static str, bool)>,
    /// Whether a space goes before a text; `None`: as models of this kind do.
    space_first: Option<bool>,
    /// White space after special tokens is not encoded.
    drops_space: bool,
    templates: Vec<(String, String)>,
}

/// `tokenizer.json`, as far as it is used.
#[derive(Deserialize)]
struct Json {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    model: Bpe,
}

#[derive(Deserialize)]
struct Bpe {
    #[serde(rename = "type", default)]
    kind: String,
    vocab: HashMap<String, u64>,
    merges: Vec<Merge>,
    #[serde(default)]
    ignore_merges: bool,
}

impl Tokenizer {
    /// Reads the files of a folder; `root` is its `config.json`.
    ///
    /// # Errors
    /// A file is missing or damaged; `tokenizer.json` is no BPE, splits words by a rule that is not known, or has ids outside of
    /// the embedding; `tokenizer.model` is not merged by scores; a template that is no text.
    pub(crate) fn open(folder: &Path, c: &Config, root: &Value) -> Result<Tokenizer, Error> {
        let path = folder.join("tokenizer.json");
        let config_path = folder.join("tokenizer_config.json");
        let config = find_json(&config_path, MAX_JSON_BYTES)?.unwrap_or(Value::Null);
        let vocabulary = c.table().map_or(Vocabulary::ByteLevel, |table| table.row.vocabulary);
        let tekken = folder.join("tekken.json");
        let of_tekken = match vocabulary {
            Vocabulary::Mistral => tekken.exists(),
            Vocabulary::Llama => tekken.exists() && !path.exists(),
            _ => false,
        };
        let of_pieces = match vocabulary {
            _ if of_tekken => false,
            Vocabulary::Mistral if !sentencepiece::file(folder).exists() => {
                return Err(Error::input(folder, "neither tekken.json nor tokenizer.model is there"));
            }
            Vocabulary::SentencePiece | Vocabulary::Mistral => true,
            Vocabulary::Llama | Vocabulary::Phi => pieces::are_in(folder)?,
            Vocabulary::ByteLevel | Vocabulary::Gemma => false,
        };
        let mut made = if of_tekken {
            Tokenizer::of_tekken(tekken::read(&tekken, c.n_vocab)?)
        } else if of_pieces {
            let told = pieces::read(folder, &config, root, (c.n_vocab, vocabulary))?;
            Tokenizer {
                model: "llama",
                pre: Some("default"),
                tokens: told.tokens,
                scores: told.scores,
                merges: Vec::new(),
                special_ids: told.special_ids,
                added: told.added,
                space_first: told.space_first,
                drops_space: told.drops_space,
                templates: Vec::new(),
            }
        } else {
            let json: Json = read_json(&path, MAX_JSON_BYTES)?;
            Tokenizer::of(json, &config, root, (c.n_vocab, vocabulary)).map_err(|what| Error::input(&path, what))?
        };
        if vocabulary == Vocabulary::Llama && c.n_vocab == N_VOCAB_WITHOUT_BOS {
            made.added.retain(|(name, _)| *name != "bos");
            made.added.push(("bos", false));
        }
        if vocabulary == Vocabulary::Mistral && made.added.is_empty() {
            made.added = vec![("bos", true), ("eos", false)];
        }
        let templates = templates(folder, &config).map_err(|e| match e {
            Problem::Words(what) => Error::input(&config_path, what),
            Problem::Error(e) => e,
        })?;
        Ok(Tokenizer { templates, ..made })
    }

    fn of_tekken(told: Tekken) -> Tokenizer {
        Tokenizer {
            model: "gpt2",
            pre: Some(told.pre),
            // As llama.cpp's converter has it.
            scores: vec![0.0; told.tokens.len()],
            tokens: told.tokens,
            merges: told.merges,
            special_ids: told.special_ids,
            added: vec![("bos", true), ("eos", false)],
            space_first: None,
            drops_space: false,
            templates: Vec::new(),
        }
    }

    fn of(
        json: Json,
        config: &Value,
        root: &Value,
        (n_vocab, vocabulary): (u64, Vocabulary),
    ) -> Result<Tokenizer, String> {
        if json.model.kind != "BPE" && !json.model.kind.is_empty() {
            return Err(format!("a model of type {} found, BPE expected", quoted(&json.model.kind)));
        }
        let gemma = vocabulary == Vocabulary::Gemma;
        let pre = match gemma {
            true => None,
            false => Some(pre_tokenizer(&json.pre_tokenizer, json.model.ignore_merges)?),
        };
        let added = added_tokens(&json.added_tokens, config)?;
        let mut tokens = tokens(json.model.vocab, &added, n_vocab)?;
        if gemma {
            tokens.iter_mut().for_each(as_gemma);
        }
        let merges = json.model.merges.into_iter().map(|merge| match merge {
            Merge::One(both) => both,
            // A space within a half would be read as the gap between the two: byte-level vocabularies write it as another letter.
            Merge::Two(a, b) => format!("{} {}", a.replace(' ', "\u{120}"), b.replace(' ', "\u{120}")),
        });
        let merges = merges.collect();
        let (special_ids, mut around) = special(config, root, &added, &json.post_processor, n_vocab)?;
        if gemma {
            around.retain(|(name, _)| *name != "bos");
            around.push(("bos", true));
        }
        let scores = if gemma { vec![-1000.0; tokens.len()] } else { Vec::new() };
        let space_first = match vocabulary {
            Vocabulary::Gemma => Some(false),
            Vocabulary::Llama => config.get("add_prefix_space").and_then(Value::as_bool),
            _ => None,
        };
        let (model, templates) = (if gemma { "gemma4" } else { "gpt2" }, Vec::new());
        Ok(Tokenizer {
            model,
            pre,
            tokens,
            scores,
            merges,
            special_ids,
            added: around,
            space_first,
            drops_space: false,
            templates,
        })
    }

    /// The same with these special tokens, where the files tell none and the vocabulary has them: the key's name, and the token.
    pub(crate) fn with_special(mut self, special: &[(&'static str, &str)]) -> Self {
        for &(key, token) in special {
            let Some(id) = self.tokens.iter().position(|(t, _)| t == token) else { continue };
            if !self.special_ids.iter().any(|(known, _)| *known == key) {
                self.special_ids.push((key, id as u32));
            }
        }
        self
    }

    /// A model's name by which readers know that white space after special tokens is not encoded, where it is not: GGUF files have
    /// no key for it, and llama.cpp goes by the words.
    pub(crate) fn name(&self, title: String) -> String {
        let known = |title: &str| ["phi-3", "phi3"].iter().any(|phi| title.to_lowercase().contains(phi));
        match title.replace("Phi 3", "Phi-3") {
            _ if !self.drops_space => title,
            with_dash if known(&with_dash) => with_dash,
            other => format!("{other} (Phi-3)"),
        }
    }

    /// In the order of llama.cpp's converter.
    pub(crate) fn into_keys(self) -> Vec<(String, Key)> {
        let mut keys = Vec::new();
        let mut put = |key: &str, value: Key| keys.push((format!("tokenizer.{key}"), value));
        put("ggml.model", self.model.into());
        if let Some(pre) = self.pre {
            put("ggml.pre", pre.into());
        }
        put("ggml.tokens", Key::Array(self.tokens.iter().map(|(token, _)| token.as_str()).collect::<ArrayBuf>()));
        if !self.scores.is_empty() {
            put("ggml.scores", Key::Array(self.scores.iter().copied().collect::<ArrayBuf>()));
        }
        put("ggml.token_type", Key::Array(self.tokens.iter().map(|(_, kind)| *kind as i32).collect::<ArrayBuf>()));
        if !self.merges.is_empty() {
            put("ggml.merges", Key::Array(self.merges.iter().map(String::as_str).collect::<ArrayBuf>()));
        }
        for (name, id) in self.special_ids {
            put(&format!("ggml.{name}_token_id"), Key::U32(id));
        }
        for (name, yes) in self.added {
            put(&format!("ggml.add_{name}_token"), Key::Bool(yes));
        }
        if let Some(yes) = self.space_first {
            put("ggml.add_space_prefix", Key::Bool(yes));
        }
        let others: Vec<&str> =
            self.templates.iter().map(|(name, _)| name.as_str()).filter(|n| *n != "default").collect();
        if !others.is_empty() {
            put("chat_templates", Key::Array(others.iter().copied().collect::<ArrayBuf>()));
        }
        for (name, template) in &self.templates {
            match name.as_str() {
                "default" => put("chat_template", template.as_str().into()),
                name => put(&format!("chat_template.{name}"), template.as_str().into()),
            }
        }
        keys
    }
}

/// The rule that cuts a text into words, by the patterns that run one after another.
fn pre_tokenizer(v: &Value, whole_words: bool) -> Result<&'static str, String> {
    let mut patterns = Vec::new();
    for part in parts(v, "pretokenizers") {
        let is = |key: &str, default: bool| part.get(key).and_then(Value::as_bool).unwrap_or(default);
        match kind(part) {
            "Split" => patterns.extend(part.get("pattern").and_then(|p| p.get("Regex")?.as_str())),
            "Digits" if is("individual_digits", false) => patterns.push(r"\p{N}"),
            "ByteLevel" if is("use_regex", true) => patterns.push(text::BYTE_LEVEL_SPLIT),
            _ => {}
        }
    }
    if patterns.is_empty() {
        return Err("no pre-tokenizer that splits by a regular expression; a byte-level BPE expected".into());
    }
    let unknown = || {
        let shown: Vec<_> = patterns.iter().map(|pattern| quoted(pattern)).collect();
        format!("the pre-tokenizer splits by {}, and no known split rule does", shown.join(", then "))
    };
    text::split_rule(&patterns, whole_words).ok_or_else(unknown)
}

/// One entry for each row of the embedding.
fn tokens(
    vocab: HashMap<String, u64>,
    added: &BTreeMap<u64, (String, bool)>,
    n_vocab: u64,
) -> Result<Vec<(String, PieceKind)>, String> {
    let mut tokens: Vec<Option<(String, PieceKind)>> = vec![None; n_vocab as usize];
    let outside = |token: &str, id: u64| format!("token {} has id {id}, vocab_size is {n_vocab}", quoted(token));
    for (token, id) in vocab {
        let slot = usize::try_from(id).ok().and_then(|i| tokens.get_mut(i)).ok_or_else(|| outside(&token, id))?;
        if let Some((other, _)) = slot {
            return Err(format!("tokens {} and {} have id {id}", quoted(other), quoted(&token)));
        }
        *slot = Some((token, PieceKind::Normal));
    }
    for (id, (token, special)) in added {
        let slot = usize::try_from(*id).ok().and_then(|i| tokens.get_mut(i)).ok_or_else(|| outside(token, *id))?;
        let control = *special || (token.starts_with("<|") && token.ends_with("|>"));
        *slot = Some((token.clone(), if control { PieceKind::Control } else { PieceKind::UserDefined }));
    }
    let named = |(id, token): (usize, Option<_>)| token.unwrap_or_else(|| (format!("[PAD{id}]"), PieceKind::Unused));
    Ok(tokens.into_iter().enumerate().map(named).collect())
}

/// Tokens of Gemma that stand for a byte, and special ones that are shown: a reader of replies needs them.
fn as_gemma((token, kind): &mut (String, PieceKind)) {
    const SHOWN: [&str; 7] =
        ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|\"|>"];
    if *kind == PieceKind::Normal && is_byte(token) {
        *kind = PieceKind::Byte;
    } else if SHOWN.contains(&token.as_str()) {
        *kind = PieceKind::UserDefined;
    }
}

enum Problem {
    Words(String),
    Error(Error),
}

/// Chat templates by name: of `tokenizer_config.json`, else of a file of their own.
fn templates(folder: &Path, config: &Value) -> Result<Vec<(String, String)>, Problem> {
    match config.get("chat_template") {
        Some(Value::String(template)) => return Ok(vec![("default".into(), template.clone())]),
        Some(Value::Array(list)) => {
            let one = |v: &Value| {
                let text = |name: &str| v.get(name).and_then(Value::as_str).map(str::to_owned);
                text("name")
                    .zip(text("template"))
                    .ok_or(Problem::Words("chat_template: names and texts expected".into()))
            };
            return list.iter().map(one).collect();
        }
        None | Some(Value::Null) => {}
        Some(_) => return Err(Problem::Words("chat_template: a text expected".into())),
    }
    let path = folder.join("chat_template.jinja");
    if path.exists() {
        let bytes = Input::read_small(&path, MAX_TEMPLATE_BYTES).map_err(Problem::Error)?;
        let text = String::from_utf8(bytes).map_err(|e| Problem::Error(Error::input(&path, e.to_string())))?;
        return Ok(vec![("default".into(), text)]);
    }
    let json = find_json(&folder.join("chat_template.json"), MAX_TEMPLATE_BYTES).map_err(Problem::Error)?;
    let text = json.as_ref().and_then(|json| json.get("chat_template")?.as_str());
    Ok(text.map(|text| ("default".into(), text.to_owned())).into_iter().collect())
}

const MAX_TEMPLATE_BYTES: u64 = 16 << 20;

/// Llama's small relatives with a vocabulary of this size are trained without BOS, which no file of theirs tells.
const N_VOCAB_WITHOUT_BOS: u64 = 49152;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_rule_is_known_by_its_patterns() {
        let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"});
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false});
        let sequence = |parts: Vec<Value>| json!({"type": "Sequence", "pretokenizers": parts});
        for (name, patterns, whole_words) in text::split_rules() {
            let parts: Vec<Value> = patterns.iter().map(|pattern| split(pattern)).chain([bytes.clone()]).collect();
            let found = pre_tokenizer(&sequence(parts), whole_words);
            // Rules over characters are no byte-level ones, and rules of several names have one in a conversion.
            let same =
                |found: &&str| text::split_rules().any(|(n, p, w)| n == *found && (p, w) == (patterns, whole_words));
            let by_characters = ["gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"].contains(&name);
            assert!(by_characters || found.is_ok_and(|found| same(&found)), "{name}");
        }
        let digits = json!({"type": "Digits", "individual_digits": true});
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false});
        assert_eq!(pre_tokenizer(&byte_level, false), Ok("gpt-2"));
        assert_eq!(pre_tokenizer(&sequence(vec![digits, byte_level]), false), Ok("starcoder"));
        let error = pre_tokenizer(&split("x+"), false).unwrap_err();
        assert!(error.contains("x+"), "{error}");
        assert!(pre_tokenizer(&Value::Null, false).is_err());
    }
}
