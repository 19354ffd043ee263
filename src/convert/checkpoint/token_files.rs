//! What the files of a tokenizer say alike of all kinds of vocabularies: added tokens, merges, ids of special tokens.
//! Knows no kind of vocabulary.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::safetensors::quoted;

/// A token beside the vocabulary.
#[derive(Deserialize)]
pub(super) struct Added {
    pub(super) id: u64,
    pub(super) content: String,
    #[serde(default)]
    pub(super) special: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
}

/// Older files have the two halves in one string.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Merge {
    One(String),
    Two(String, String),
}

/// Tokens besides the vocabulary, by id: those of `tokenizer.json`, then those that only the other file has.
pub(super) fn added_tokens(list: &[Added], config: &Value) -> Result<BTreeMap<u64, (String, bool)>, String> {
    let mut added = BTreeMap::new();
    for t in list {
        if added.insert(t.id, (t.content.clone(), t.special)).is_some() {
            return Err(format!("added token {} appears twice", t.id));
        }
    }
    for (id, t) in config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten() {
        let content = t.get("content").and_then(Value::as_str);
        let (Ok(id), Some(content)) = (id.parse(), content) else {
            return Err(format!("added_tokens_decoder: {} is no token", quoted(id)));
        };
        let special = t.get("special").and_then(Value::as_bool).unwrap_or(false);
        added.entry(id).or_insert_with(|| (content.to_owned(), special));
    }
    Ok(added)
}

/// Whether a token stands for a byte.
pub(super) fn is_byte(token: &str) -> bool {
    let byte = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    byte.is_some_and(|hex| hex.len() == 2 && u8::from_str_radix(hex, 16).is_ok())
}

/// The parts of a sequence, or what stands for itself.
pub(super) fn parts<'j>(v: &'j Value, list: &str) -> impl Iterator<Item = &'j Value> {
    v.get(list).and_then(Value::as_array).map_or(std::slice::from_ref(v), Vec::as_slice).iter()
}

/// What kind of part it is.
pub(super) fn kind(v: &Value) -> &str {
    v.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// Both by the names of their keys.
pub(super) type Special = (Vec<(&'static str, u32)>, Vec<(&'static str, bool)>);

/// Ids of special tokens, and which of them are put around a text.
pub(super) fn special(
    config: &Value,
    root: &Value,
    added: &BTreeMap<u64, (String, bool)>,
    post: &Value,
    n_vocab: u64,
) -> Result<Special, String> {
    let mut around: Vec<(&'static str, bool)> = Vec::new();
    for part in parts(post, "processors") {
        let single = part.get("single").and_then(Value::as_array);
        let (bos, eos) = match (kind(part), single) {
            ("ByteLevel", _) => (false, false),
            ("TemplateProcessing", Some(items)) if items.len() > 1 => {
                let is_special = |item: Option<&Value>| item.is_some_and(|i| i.get("SpecialToken").is_some());
                (is_special(items.first()), is_special(items.last()))
            }
            _ => continue,
        };
        for (name, yes) in [("bos", bos), ("eos", eos)] {
            match around.iter_mut().find(|(n, _)| *n == name) {
                Some(known) => known.1 |= yes,
                None => around.push((name, yes)),
            }
        }
    }
    let mut ids: Vec<(&'static str, u32)> = Vec::new();
    for (short, key) in SPECIAL {
        if let Some(yes) = config.get(format!("add_{short}_token")).and_then(Value::as_bool)
            && !around.iter().any(|(n, _)| *n == short)
        {
            around.push((short, yes));
        }
        let token = config.get(format!("{short}_token"));
        let content = token.and_then(|t| t.as_str().or_else(|| t.get("content")?.as_str()));
        if let Some(content) = content
            && let Some((id, _)) = added.iter().find(|(_, (token, _))| token == content)
        {
            ids.push((key, *id as u32));
        }
    }
    for (short, key) in SPECIAL {
        let named = format!("{short}_token_id");
        let of = |v: &Value| v.get(&named).and_then(Value::as_u64);
        let id = of(root).or_else(|| of(root.get("text_config")?));
        if let Some(id) = id
            && !ids.iter().any(|(n, _)| *n == key)
        {
            if id >= n_vocab {
                return Err(format!("{named} of config.json is {id}, vocab_size is {n_vocab}"));
            }
            ids.push((key, id as u32));
        }
    }
    Ok((ids, around))
}

/// Short names in checkpoints, and what the keys call them.
const SPECIAL: [(&str, &str); 7] = [
    ("bos", "bos"),
    ("eos", "eos"),
    ("unk", "unknown"),
    ("sep", "seperator"),
    ("pad", "padding"),
    ("cls", "cls"),
    ("mask", "mask"),
];
