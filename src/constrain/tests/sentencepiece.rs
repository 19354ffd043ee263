//! Forms with the vocabulary of a SentencePiece model: spaces inside tokens, and bytes that are tokens.

use std::sync::Arc;

use constrain::{Compiler, Kind, Limits, Spec};
use serde_json::{Value, json};
use test_support::{Random, takes_tokens, write};
use text::{Special, SpecialIds, TokenId, Vocab, VocabSource};

fn vocab() -> Arc<Vocab> {
    let packed = include_bytes!("../../text/tests/tokenizer/data/spm.json.z");
    let file: Value = serde_json::from_slice(&miniz_oxide::inflate::decompress_to_vec_zlib(packed).unwrap()).unwrap();
    let list = |key: &str| file[key].as_array().unwrap().clone();
    let texts = list("tokens");
    let source = VocabSource {
        model: "llama",
        tokens: texts.iter().map(|text| text.as_str().unwrap()).collect(),
        types: Some(list("types").iter().map(|kind| kind.as_i64().unwrap() as i32).collect()),
        scores: Some(list("scores").iter().map(|score| score.as_f64().unwrap() as f32).collect()),
        special: SpecialIds { bos: Some(1), eos: Some(2), unknown: Some(0), ..SpecialIds::default() },
        ..VocabSource::default()
    };
    Arc::new(Vocab::new(&source).unwrap())
}

#[test]
fn tokens_of_spaces_and_of_bytes_make_up_a_form() {
    let vocab = vocab();
    let compiler = Compiler::new(Arc::clone(&vocab), Limits::default());
    let schema = json!({"type": "object", "properties": {"the cat": {"type": "string"}}, "required": ["the cat"]});
    let grammar = compiler.compile(&Spec::new(Kind::JsonSchema(schema))).unwrap();
    for (text, good) in [
        ("{\"the cat\": \"a\"}", true),
        ("{\"the cat\": \"\u{4f60} \u{e9}\u{1f600}\"}", true),
        ("{\n  \"the cat\": \"the end of the line\"\n}", true),
        ("{\"thecat\": \"a\"}", false),
        ("{\"the cat\": 1}", false),
        ("{\"the cat\": \"\u{2581}\"", false),
    ] {
        let tokens = vocab.encode_after_text(text, Special::Plain);
        assert_eq!(takes_tokens(&grammar, &vocab, &tokens), good, "{text}");
    }
    let mut random = Random::new(3);
    for _ in 0..20 {
        if let Some(text) = write(&grammar, &vocab, &mut random, 120) {
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert!(value["the cat"].is_string(), "{text}");
        }
    }
}

#[test]
fn of_a_character_and_its_byte_the_character_is_allowed() {
    // Models write the character; its byte token is for what has no character.
    let vocab = vocab();
    let compiler = Compiler::new(Arc::clone(&vocab), Limits::default());
    let grammar = compiler.compile(&Spec::new(Kind::Regex("a[\\n]\u{1f600}".into()))).unwrap();
    let mut walk = grammar.start();
    let a = vocab.id("a").unwrap();
    assert!(walk.allowed().unwrap().has(a));
    walk.accept(a).unwrap();
    let newline = TokenId(5 + 10);
    assert_eq!(vocab.bytes(newline), Some(&b"\n"[..]));
    assert!(walk.allowed().unwrap().has(newline));
    walk.accept(newline).unwrap();
    for byte in "\u{1f600}".bytes() {
        let token = TokenId(5 + u32::from(byte));
        assert!(walk.allowed().unwrap().has(token));
        walk.accept(token).unwrap();
    }
}
