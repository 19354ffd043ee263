//! The small test vocabulary as lists.

use serde_json::Value;
use text::{SpecialIds, TokenId, Vocab, VocabSource};

/// `tok-a`, owned: what a converter would put into a GGUF file.
#[derive(Clone)]
pub struct Lists {
    pub tokens: Vec<String>,
    pub types: Vec<i32>,
    pub merges: Vec<String>,
}

/// 4000 BPE tokens, 33 special ones, and 7 rows that are not used.
pub fn tok_a() -> Lists {
    let json = tok_a_json();
    let model = &json["model"];
    let mut tokens = vec![String::new(); 4040];
    let mut types = vec![5; 4040];
    for (token, id) in model["vocab"].as_object().unwrap() {
        let id = id.as_u64().unwrap() as usize;
        tokens[id] = token.clone();
        types[id] = 1;
    }
    for added in json["added_tokens"].as_array().unwrap() {
        let id = added["id"].as_u64().unwrap() as usize;
        tokens[id] = added["content"].as_str().unwrap().to_owned();
        types[id] = if added["special"] == true { 3 } else { 4 };
    }
    for (id, token) in tokens.iter_mut().enumerate().filter(|(_, token)| token.is_empty()) {
        *token = format!("[PAD{id}]");
    }
    let merge = |pair: &Value| format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
    let merges = model["merges"].as_array().unwrap().iter().map(merge).collect();
    Lists { tokens, types, merges }
}

/// `tokenizer.json` of `tok-a`, which the checkpoints of the oracle have.
pub fn tok_a_json() -> Value {
    let files = unpacked(include_bytes!("../../../../tests/golden/oracle/hf.json.z"));
    serde_json::from_str(files["tokenizer.json"].as_str().unwrap()).unwrap()
}

/// A golden file, which is kept packed.
pub fn unpacked(packed: &[u8]) -> Value {
    let bytes = miniz_oxide::inflate::decompress_to_vec_zlib(packed).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

impl Lists {
    pub fn source<'a>(&'a self, pre: &'a str) -> VocabSource<'a> {
        VocabSource {
            model: "gpt2",
            pre,
            tokens: self.tokens.iter().map(String::as_str).collect(),
            types: Some(self.types.clone()),
            merges: self.merges.iter().map(String::as_str).collect(),
            special: SpecialIds { eos: Some(4002), pad: Some(4000), ..SpecialIds::default() },
            add_bos: Some(false),
            ..VocabSource::default()
        }
    }

    pub fn vocab(&self, pre: &str) -> Vocab {
        Vocab::new(&self.source(pre)).unwrap()
    }
}

pub fn numbers(ids: &[TokenId]) -> Vec<u32> {
    ids.iter().map(|id| id.0).collect()
}

/// The bytes of tokens, joined.
pub fn joined(vocab: &Vocab, ids: &[TokenId]) -> Vec<u8> {
    ids.iter().flat_map(|&id| vocab.bytes(id).unwrap()).copied().collect()
}
