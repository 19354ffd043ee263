//! Lists that no converter should write: each is an error that says what is wrong, or is read as documented.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use text::{Error, Special, TokenId, TokenKind, Vocab};

use crate::generate::{any_text, config};
use crate::support::{Lists, joined, numbers, tok_a};

fn message(lists: &Lists) -> String {
    Vocab::new(&lists.source("qwen35")).unwrap_err().to_string()
}

#[test]
fn unknown_tokenizers_and_split_rules_are_named_with_what_is_known() {
    let lists = tok_a();
    let error = Vocab::new(&lists.source("gpt-9")).unwrap_err();
    assert!(matches!(error, Error::UnknownPre { .. }));
    let text = error.to_string();
    assert!(
        text.contains("\"gpt-9\"") && text.contains("\"qwen35\", \"qwen2\"") && text.contains("\"llama-bpe\""),
        "{text}"
    );

    let mut source = lists.source("qwen35");
    for (model, what) in [("bert", "WordPiece"), ("t5", "unigram"), ("rwkv", "RWKV"), ("plamo2", "PLaMo"), ("x", "")] {
        source.model = model;
        let text = Vocab::new(&source).unwrap_err().to_string();
        assert!(text.contains(&format!("{model:?}")) && text.contains(what) && text.contains("\"gpt2\""), "{text}");
    }
}

#[test]
fn lists_must_agree_in_length() {
    let mut lists = tok_a();
    lists.types.pop();
    let text = message(&lists);
    assert!(text.contains("4039") && text.contains("4040"), "{text}");
    lists.types.clear();
    assert!(message(&lists).contains("0 entries"));
}

#[test]
fn token_types_have_numbers_from_1_to_6() {
    for bad in [0, 7, -1, i32::MIN] {
        let mut lists = tok_a();
        lists.types[17] = bad;
        let text = message(&lists);
        assert!(text.contains("token 17") && text.contains(&bad.to_string()), "{text}");
    }
}

#[test]
fn byte_tokens_are_spelled_in_hex() {
    let mut lists = tok_a();
    lists.types[4033] = 6;
    for bad in ["<0x-1>", "<0x+1>", "<0x>", "<0x100>", "<0xgg>", "A", "<0x41", "<0x\u{e9}>"] {
        lists.tokens[4033] = bad.to_owned();
        assert!(message(&lists).contains("token 4033"), "{bad}");
    }
    lists.tokens[4033] = "<0x0a>".to_owned();
    let vocab = lists.vocab("qwen35");
    assert_eq!((vocab.kind(TokenId(4033)), vocab.bytes(TokenId(4033))), (Some(TokenKind::Byte), Some(&b"\n"[..])));
    assert_eq!(numbers(&vocab.encode("\n", Special::Parse)), [198]);
}

#[test]
fn every_byte_that_is_not_rare_needs_a_token() {
    let mut lists = tok_a();
    lists.tokens[198] = "gone".to_owned();
    assert!(message(&lists).contains("0x0A"));
    let none = Lists { tokens: vec![], types: vec![], merges: vec![] };
    assert!(Vocab::new(&without_roles(&none)).unwrap_err().to_string().contains("0x09"));
}

#[test]
fn rare_bytes_without_a_token_are_left_out_or_unknown() {
    // Falcon has none for 0x03, StarCoder none for 0xF1.
    let mut lists = tok_a();
    let id = lists.tokens.iter().position(|token| token == "\u{103}").unwrap();
    lists.tokens[id] = "gone".to_owned();
    let ids = lists.vocab("qwen35").encode("a\u{3}b", Special::Plain);
    assert_eq!(joined(&lists.vocab("qwen35"), &ids), b"ab");
    let mut source = lists.source("qwen35");
    source.special.unknown = Some(4001);
    let vocab = Vocab::new(&source).unwrap();
    assert_eq!(numbers(&vocab.encode("a\u{3}b", Special::Plain)), [64, 4001, 65]);
}

#[test]
fn characters_that_are_tokens_as_they_are_do_not_take_the_place_of_spelled_ones() {
    let mut lists = tok_a();
    // Command R has flags both ways.
    lists.tokens[4038] = "\u{1f1f8}".to_owned();
    lists.tokens[4039] = "\u{f0}\u{141}\u{129}\u{b8}".to_owned();
    (lists.types[4038], lists.types[4039]) = (1, 1);
    let vocab = lists.vocab("qwen35");
    assert_eq!(vocab.id("\u{1f1f8}"), Some(TokenId(4039)));
    assert_eq!(vocab.bytes(TokenId(4038)), vocab.bytes(TokenId(4039)));
}

#[test]
fn merges_are_two_parts() {
    for bad in ["", "ab", "ab ", " ", "\u{120}"] {
        let mut lists = tok_a();
        lists.merges.insert(5, bad.to_owned());
        let text = message(&lists);
        assert!(text.contains("entry 5") && text.contains(&format!("{bad:?}")), "{text}");
    }
}

#[test]
fn special_ids_lie_in_the_vocabulary() {
    let lists = tok_a();
    for id in [4040, u32::MAX] {
        let mut source = lists.source("qwen35");
        source.special.eos = Some(id);
        let text = Vocab::new(&source).unwrap_err().to_string();
        assert!(text.contains("eos_token_id") && text.contains(&id.to_string()) && text.contains("4040"), "{text}");
    }
    let mut source = lists.source("qwen35");
    source.add_bos = Some(true);
    assert!(matches!(Vocab::new(&source), Err(Error::NoBos)));
}

#[test]
fn merges_without_a_result_are_left_out() {
    // "qz" is no token: "q z" must not happen, and neither must what would follow from it.
    let mut lists = tok_a();
    let plain = lists.vocab("qwen35").encode("qzqz qz", Special::Plain);
    assert!(!lists.tokens.iter().any(|token| token == "qz"));
    lists.merges.splice(0..0, ["q z", "qz qz", "\u{120} qz"].map(str::to_owned));
    assert_eq!(lists.vocab("qwen35").encode("qzqz qz", Special::Plain), plain);
}

#[test]
fn more_merges_than_tokens_do_no_harm() {
    let mut lists = tok_a();
    let before = lists.vocab("qwen35").encode("some words, words", Special::Plain);
    let useless = (0..100_000).map(|i| format!("x{i} y{i}"));
    let again = lists.merges.clone();
    lists.merges.extend(useless.chain(again));
    assert_eq!(lists.vocab("qwen35").encode("some words, words", Special::Plain), before);
}

#[test]
fn of_equal_tokens_the_first_is_used() {
    let mut lists = tok_a();
    lists.tokens[4039] = "a".to_owned();
    lists.tokens[4038] = "<|im_end|>".to_owned();
    lists.types[4038] = 3;
    lists.types[4039] = 1;
    let vocab = lists.vocab("qwen35");
    assert_eq!(numbers(&vocab.encode("a<|im_end|>", Special::Parse)), [64, 4002]);
    assert_eq!((vocab.id("a"), vocab.id("<|im_end|>")), (Some(TokenId(64)), Some(TokenId(4002))));
    assert_eq!(vocab.bytes(TokenId(4039)), Some(&b"a"[..]));
}

#[test]
fn empty_tokens_never_come_out() {
    let mut lists = tok_a();
    for (id, kind) in [(4036, 1), (4037, 3), (4038, 4)] {
        lists.tokens[id].clear();
        lists.types[id] = kind;
    }
    let vocab = lists.vocab("qwen35");
    assert_eq!(vocab.bytes(TokenId(4037)), Some(&[][..]));
    assert_eq!(numbers(&vocab.encode("a\n", Special::Parse)), [64, 198]);
    assert_eq!(vocab.id(""), None);
}

#[test]
fn control_tokens_are_no_result_of_merges() {
    let mut lists = tok_a();
    lists.tokens[4039] = "qz".to_owned();
    lists.types[4039] = 3;
    lists.merges.insert(0, "q z".to_owned());
    let vocab = lists.vocab("qwen35");
    assert!(vocab.encode("qz", Special::Plain).len() > 1);
    assert_eq!(numbers(&vocab.encode("qz", Special::Parse)), [4039]);
}

#[test]
fn many_special_tokens_are_found_in_one_pass() {
    let mut lists = tok_a();
    for i in 0..20_000 {
        lists.tokens.push(format!("<{}{i}>", "x".repeat(i % 20)));
        lists.types.push(4);
    }
    let vocab = lists.vocab("qwen35");
    let text: String = (0..20_000).map(|i| format!("<{}{i}>", "x".repeat(i % 20))).collect();
    let ids = vocab.encode(&text, Special::Parse);
    assert_eq!(numbers(&ids), (4040..24_040).collect::<Vec<_>>());
}

#[test]
fn random_lists_load_or_are_refused_and_then_still_encode_everything() {
    let edit = (any::<prop::sample::Index>(), any_text(), 0..9_i32, "[a-z\u{120}]{0,3} ?[a-z\u{120}]{0,3}");
    let edits = prop::collection::vec(edit, 0..6);
    let all = tok_a();
    let mut small = Lists { tokens: all.tokens[..600].to_vec(), types: vec![1; 600], merges: all.merges.clone() };
    small.tokens.push("<think>".to_owned());
    small.types.push(4);
    let (loaded, refused) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    TestRunner::new(config(600))
        .run(&(edits, any_text()), |(edits, text)| {
            let mut lists = small.clone();
            for (at, token, kind, merge) in edits {
                // Bytes keep their tokens most of the time, or nothing would load.
                let at = 256 + at.index(lists.tokens.len() - 256);
                lists.tokens[at] = token;
                lists.types[at] = kind;
                lists.merges.insert(at, merge);
            }
            let Ok(vocab) = Vocab::new(&without_roles(&lists)) else {
                refused.set(refused.get() + 1);
                return Ok(());
            };
            loaded.set(loaded.get() + 1);
            for special in [Special::Parse, Special::Plain] {
                prop_assert_eq!(joined(&vocab, &vocab.encode(&text, special)), text.as_bytes());
            }
            Ok(())
        })
        .unwrap();
    assert!(loaded.get() > 50 && refused.get() > 50, "{} loaded, {} refused", loaded.get(), refused.get());
}

fn without_roles(lists: &Lists) -> text::VocabSource<'_> {
    text::VocabSource { special: text::SpecialIds::default(), ..lists.source("qwen35") }
}
