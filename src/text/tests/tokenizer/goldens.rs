//! 68 strings with the ids that the reference tokenizer gives without its normaliser.
//! `tok-a.cases.json` was made by the oracle's `mk_text_goldens.py`; `ids_raw` stands where it differs from `ids`.

use serde_json::Value;
use text::{Decoder, Special};

use crate::support::{joined, numbers, tok_a};

fn cases() -> Vec<Value> {
    let file: Value = serde_json::from_str(include_str!("data/tok-a.cases.json")).unwrap();
    file["cases"].as_array().unwrap().clone()
}

#[test]
fn the_golden_strings_have_the_golden_ids() {
    let vocab = tok_a().vocab("qwen35");
    let cases = cases();
    assert_eq!(cases.len(), 68);
    for case in &cases {
        let text = case["text"].as_str().unwrap();
        let expected = case.get("ids_raw").unwrap_or(&case["ids"]);
        let expected: Vec<_> = expected.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let ids = vocab.encode(text, Special::Parse);
        assert_eq!(numbers(&ids), expected, "{text:?}");
        assert_eq!(joined(&vocab, &ids), text.as_bytes());
    }
}

#[test]
fn the_golden_strings_come_back_token_by_token() {
    let vocab = tok_a().vocab("qwen35");
    for case in &cases() {
        let text = case["text"].as_str().unwrap();
        let mut decoder = Decoder::new();
        let mut back = String::new();
        for id in vocab.encode(text, Special::Plain) {
            back += &decoder.push(vocab.bytes(id).unwrap());
        }
        back += &decoder.finish();
        assert_eq!(back, text);
    }
}

#[test]
fn nothing_is_normalised() {
    let vocab = tok_a().vocab("qwen35");
    let composed = vocab.encode("\u{e9}", Special::Parse);
    let decomposed = vocab.encode("e\u{301}", Special::Parse);
    assert_ne!(composed, decomposed);
}
