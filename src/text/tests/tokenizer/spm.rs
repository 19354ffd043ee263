//! SentencePiece, and BPE over characters, against the ids that llama.cpp gives for the same vocabulary.
//! `spm.json.z` was made by `scripts/published/vocabulary_goldens.py`.

use serde_json::Value;
use text::{Decoder, Special, SpecialIds, TokenId, TokenKind, Vocab, VocabSource};

use crate::support::{joined, numbers, unpacked};

struct File(Value);

impl File {
    fn read() -> Self {
        Self(unpacked(include_bytes!("data/spm.json.z")))
    }

    fn texts(&self, key: &str) -> Vec<&str> {
        self.0[key].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
    }

    fn source<'a>(&'a self, model: &'a str) -> VocabSource<'a> {
        let types = self.0["types"].as_array().unwrap().iter().map(|kind| kind.as_i64().unwrap() as i32);
        let scores = self.0["scores"].as_array().unwrap().iter().map(|score| score.as_f64().unwrap() as f32);
        let is_spm = model == "llama";
        VocabSource {
            model,
            pre: if is_spm { "default" } else { model },
            tokens: self.texts("tokens"),
            types: Some(types.collect()),
            scores: is_spm.then(|| scores.collect()),
            merges: if is_spm { vec![] } else { self.texts("merges") },
            special: SpecialIds { bos: Some(1), eos: Some(2), unknown: Some(0), ..SpecialIds::default() },
            ..VocabSource::default()
        }
    }

    fn vocab(&self, model: &str) -> Vocab {
        Vocab::new(&self.source(model)).unwrap()
    }
}

fn ids(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn the_golden_strings_have_the_golden_ids() {
    let file = File::read();
    for model in ["llama", "gemma4"] {
        let vocab = file.vocab(model);
        for case in file.0["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            for (special, expected) in [(Special::Plain, &case[model][0]), (Special::Parse, &case[model][1])] {
                assert_eq!(numbers(&vocab.encode(text, special)), ids(expected), "{model} {special:?} {text:?}");
            }
        }
    }
}

#[test]
fn the_golden_strings_come_back_token_by_token() {
    let file = File::read();
    for (model, space) in [("llama", " "), ("gemma4", "")] {
        let vocab = file.vocab(model);
        let texts = file.0["cases"].as_array().unwrap().iter().map(|case| case["text"].as_str().unwrap());
        // A user-defined token starts a text anew, and then there is another space.
        for text in texts.filter(|text| !text.is_empty() && !text.contains("<tool>") && !text.contains("<|plain|>")) {
            let mut decoder = Decoder::new();
            let tokens = vocab.encode(text, Special::Plain);
            let mut back: String = tokens.iter().map(|&id| decoder.push(vocab.bytes(id).unwrap())).collect();
            back += &decoder.finish();
            assert_eq!(back, format!("{space}{}", text.replace('\u{2581}', " ")), "{model}");
        }
    }
}

#[test]
fn a_space_stands_before_a_text_where_the_model_wants_it() {
    let file = File::read();
    let vocab = file.vocab("llama");
    let bytes = |ids: &[TokenId]| String::from_utf8(joined(&vocab, ids)).unwrap();
    assert_eq!(bytes(&vocab.encode("the cat", Special::Plain)), " the cat");
    assert_eq!(bytes(&vocab.encode_after_text("the cat", Special::Plain)), "the cat");
    assert_eq!(bytes(&vocab.encode("<|user|>the<|end|>", Special::Parse)), "<|user|> the<|end|>");
    assert_eq!(vocab.encode("", Special::Plain), []);
    let mut source = file.source("llama");
    source.add_space_prefix = Some(false);
    let vocab = Vocab::new(&source).unwrap();
    assert_eq!(joined(&vocab, &vocab.encode("the cat", Special::Plain)), b"the cat");
}

#[test]
fn tokens_stand_for_spaces_and_bytes() {
    let vocab = File::read().vocab("llama");
    let id = |text: &str| vocab.id(text).unwrap();
    assert_eq!(vocab.bytes(id(" the")), Some(&b" the"[..]));
    let newline = vocab.encode_after_text("\n", Special::Plain);
    assert_eq!(newline.len(), 1);
    assert_eq!((vocab.kind(newline[0]), vocab.bytes(newline[0])), (Some(TokenKind::Byte), Some(&b"\n"[..])));
    assert_eq!(vocab.kind(TokenId(0)), Some(TokenKind::Unknown));
}

#[test]
fn a_file_that_names_no_roles_has_the_usual_ones() {
    let file = File::read();
    let mut source = file.source("llama");
    source.special = SpecialIds::default();
    let vocab = Vocab::new(&source).unwrap();
    assert_eq!((vocab.bos(), vocab.eos(), vocab.unknown()), (Some(TokenId(1)), Some(TokenId(2)), Some(TokenId(0))));
    assert!(vocab.add_bos() && !vocab.add_eos());
    assert_eq!(numbers(vocab.eog()), [2, vocab.id("<|end|>").unwrap().0]);
    // Some files of Gemma 4 refuse BOS and need it.
    let mut source = file.source("gemma4");
    source.add_bos = Some(false);
    assert!(Vocab::new(&source).unwrap().add_bos());
}

#[test]
fn phi_3_drops_white_space_after_its_special_tokens() {
    let file = File::read();
    let mut source = file.source("llama");
    source.name = "Phi 3 Mini";
    assert!(Vocab::new(&source).unwrap().encode("<|user|>\n\n", Special::Parse).len() > 1);
    source.name = "Phi-3-mini";
    let vocab = Vocab::new(&source).unwrap();
    let ids = vocab.encode("<|user|> \n hi<|end|>\n<|user|>", Special::Parse);
    assert_eq!(joined(&vocab, &ids), b"<|user|> hi<|end|><|user|>");
    assert_eq!(joined(&vocab, &vocab.encode("<s>\nx", Special::Parse)), b"<s> \nx");
}

#[test]
fn one_word_without_end_takes_no_more_than_its_length() {
    let file = File::read();
    for model in ["llama", "gemma4"] {
        let vocab = file.vocab(model);
        for text in
            ["a".repeat(1_500_000), "the".repeat(400_000), "\u{4e00}\u{1f600}".repeat(100_000), "=".repeat(900_000)]
        {
            assert_eq!(joined(&vocab, &vocab.encode_after_text(&text, Special::Plain)), text.as_bytes());
        }
    }
}

#[test]
fn damaged_lists_are_refused_in_words() {
    let file = File::read();
    let mut source = file.source("llama");
    source.scores.as_mut().unwrap().pop();
    let text = Vocab::new(&source).unwrap_err().to_string();
    assert!(text.contains("tokenizer.ggml.scores"), "{text}");
    // Neither byte tokens nor an unknown one.
    let source = VocabSource { model: "llama", tokens: vec!["a", "b"], ..VocabSource::default() };
    let text = Vocab::new(&source).unwrap_err().to_string();
    assert!(text.contains("0x00"), "{text}");
    // With an unknown one, it comes out.
    let source = VocabSource { model: "llama", tokens: vec!["<unk>", "<s>", "</s>", "a"], ..VocabSource::default() };
    let vocab = Vocab::new(&source).unwrap();
    assert_eq!(numbers(&vocab.encode_after_text("ab\u{e9}a", Special::Plain)), [3, 0, 0, 3]);
    // Scores that are no numbers do no harm.
    let mut source = file.source("llama");
    source.scores = Some(vec![f32::NAN; source.tokens.len()]);
    let vocab = Vocab::new(&source).unwrap();
    assert_eq!(joined(&vocab, &vocab.encode_after_text("the cat", Special::Plain)), b"the cat");
}
