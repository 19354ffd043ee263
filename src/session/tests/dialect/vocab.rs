//! Small vocabularies.

use std::sync::Arc;

use text::{SpecialIds, Vocab, VocabSource};

/// A token for each byte, and these.
pub fn vocab_of(tokens: &[(&str, i32)]) -> Arc<Vocab> {
    let mut texts = alphabet::letters();
    let mut types = vec![1; texts.len()];
    for (text, kind) in tokens.iter().chain(&[("<|end|>", 3)]) {
        texts.push((*text).to_owned());
        types.push(*kind);
    }
    let source = VocabSource {
        model: "gpt2",
        pre: "qwen35",
        tokens: texts.iter().map(String::as_str).collect(),
        types: Some(types),
        special: SpecialIds { eos: Some(texts.len() as u32 - 1), ..SpecialIds::default() },
        ..VocabSource::default()
    };
    Arc::new(Vocab::new(&source).expect("a small vocabulary"))
}

#[path = "../../../text/tests/fuzz/alphabet.rs"]
mod alphabet;
