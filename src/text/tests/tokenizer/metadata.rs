//! The tokenizer keys of a GGUF file.

use std::path::PathBuf;

use gguf::{ArrayBuf, Header, Value, Writer};
use text::{Special, TokenId, Vocab};

use crate::support::{numbers, tok_a};

/// Bytes of a file with the keys of a usable tokenizer, each of which `change` may replace or leave out.
fn file<'v>(name: &str, change: impl Fn(&str) -> Change<'v>) -> Vec<u8> {
    let lists = tok_a();
    let tokens: ArrayBuf = lists.tokens.iter().map(String::as_str).collect();
    let types: ArrayBuf = lists.types.iter().copied().collect();
    let merges: ArrayBuf = lists.merges.iter().map(String::as_str).collect();
    let pairs: [(&str, Value<'_>); 8] = [
        ("tokenizer.ggml.model", "gpt2".into()),
        ("tokenizer.ggml.pre", "qwen35".into()),
        ("tokenizer.ggml.tokens", tokens.as_array().into()),
        ("tokenizer.ggml.token_type", types.as_array().into()),
        ("tokenizer.ggml.merges", merges.as_array().into()),
        ("tokenizer.ggml.eos_token_id", 4002_u32.into()),
        ("tokenizer.ggml.prefix_token_id", 4003_u32.into()),
        ("tokenizer.ggml.add_bos_token", false.into()),
    ];
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.gguf"));
    let mut writer = Writer::create(&path).unwrap();
    writer.add("general.architecture", "qwen35").unwrap();
    for (key, value) in pairs {
        match change(key) {
            Change::Keep => writer.add(key, value).unwrap(),
            Change::Replace(value) => writer.add(key, value).unwrap(),
            Change::Drop => {}
        }
    }
    writer.begin().unwrap().finish().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    bytes
}

enum Change<'v> {
    Keep,
    Drop,
    Replace(Value<'v>),
}

fn load(bytes: &[u8]) -> Result<Vocab, text::Error> {
    Vocab::from_metadata(Header::parse(bytes).unwrap().metadata())
}

#[test]
fn a_file_gives_the_same_vocabulary_as_its_lists() {
    let vocab = load(&file("whole", |_| Change::Keep)).unwrap();
    let lists = tok_a().vocab("qwen35");
    let text = "<|im_start|>user\nna\u{ef}ve 123<|im_end|>";
    assert_eq!(vocab.encode(text, Special::Parse), lists.encode(text, Special::Parse));
    assert_eq!((vocab.len(), vocab.eos(), vocab.add_bos()), (4040, Some(TokenId(4002)), false));
    assert_eq!(vocab.fim().map(|fim| fim.prefix), Some(TokenId(4003)), "the older name of the key");
}

#[test]
fn keys_that_are_needed_are_named_when_absent() {
    for key in ["tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"] {
        let bytes = file("absent", |k| if k == key { Change::Drop } else { Change::Keep });
        let text = load(&bytes).unwrap_err().to_string();
        assert!(text.contains(key), "{text}");
    }
}

#[test]
fn without_a_split_rule_words_are_split_by_the_default_one() {
    let bytes = file("unruled", |k| if k == "tokenizer.ggml.pre" { Change::Drop } else { Change::Keep });
    let text = "It's 12345 words!";
    assert_eq!(
        load(&bytes).unwrap().encode(text, Special::Parse),
        tok_a().vocab("default").encode(text, Special::Parse)
    );
}

#[test]
fn without_types_all_tokens_are_normal_but_those_known_by_name() {
    let bytes = file("untyped", |k| if k == "tokenizer.ggml.token_type" { Change::Drop } else { Change::Keep });
    let vocab = load(&bytes).unwrap();
    // <|endoftext|>, <|im_end|> and those of fill-in-the-middle prompts.
    let special: Vec<_> = vocab.special_tokens().map(|(id, _)| id.0).collect();
    assert_eq!(special, [4000, 4002, 4016, 4017, 4018, 4019, 4020, 4021]);
    assert!(vocab.is_eog(TokenId(4000)), "known by its name");
    assert_eq!(numbers(&vocab.encode("\n", Special::Parse)), [198]);
}

#[test]
fn keys_of_another_type_are_refused_by_name() {
    let strings: ArrayBuf = ["1"; 4040].into_iter().collect();
    let floats: ArrayBuf = [1.0_f32; 4040].into_iter().collect();
    let bytes: ArrayBuf = [1_u8; 4040].into_iter().collect();
    let wide: ArrayBuf = [1_i64 << 40; 4040].into_iter().collect();
    let cut: ArrayBuf = [&b"\xff\xfe"[..]; 4040].into_iter().collect();
    let cases: [(&str, Value<'_>); 9] = [
        ("tokenizer.ggml.token_type", strings.as_array().into()),
        ("tokenizer.ggml.token_type", floats.as_array().into()),
        ("tokenizer.ggml.token_type", wide.as_array().into()),
        ("tokenizer.ggml.token_type", 1_u32.into()),
        ("tokenizer.ggml.tokens", bytes.as_array().into()),
        ("tokenizer.ggml.tokens", cut.as_array().into()),
        ("tokenizer.ggml.merges", "a b".into()),
        ("tokenizer.ggml.eos_token_id", (-1_i32).into()),
        ("tokenizer.ggml.add_bos_token", 1_u32.into()),
    ];
    for (key, value) in cases {
        let bytes = file("retyped", |k| if k == key { Change::Replace(value) } else { Change::Keep });
        let text = load(&bytes).unwrap_err().to_string();
        assert!(text.contains(key), "{text}");
    }
}

#[test]
fn types_may_be_narrower_integers() {
    let types: ArrayBuf = tok_a().types.iter().map(|&kind| kind as u8).collect();
    let replace = |k: &str| match k {
        "tokenizer.ggml.token_type" => Change::Replace(types.as_array().into()),
        _ => Change::Keep,
    };
    assert_eq!(load(&file("narrow", replace)).unwrap().special_tokens().count(), 33);
}

#[test]
fn another_tokenizer_is_reported_before_its_missing_keys() {
    let bytes = file("spm", |k| match k {
        "tokenizer.ggml.model" => Change::Replace("bert".into()),
        "tokenizer.ggml.merges" => Change::Drop,
        _ => Change::Keep,
    });
    let text = load(&bytes).unwrap_err().to_string();
    assert!(text.contains("\"bert\""), "{text}");
}
