//! Generated text through our encoder and through the `tokenizers` crate, with the published split patterns.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use text::{Special, Vocab};
use tokenizers::Tokenizer;

use crate::generate::{any_text, config};
use crate::support::{Lists, joined, numbers, tok_a, tok_a_json};

/// Both encoders over the same lists. Some merges are left out where `thin` says so: then tokens exist that merges
/// do not reach, and a word that is one of them shows whether words are looked up first.
fn pair(pre: &str, thin: bool) -> (Vocab, Tokenizer) {
    let (_, patterns, whole_words) = text::split_rules().find(|(name, ..)| *name == pre).unwrap();
    let mut json = tok_a_json();
    let mut lists = tok_a();
    if thin {
        let kept = |i: usize| i % 5 != 3;
        let merges = json["model"]["merges"].as_array().unwrap().iter().enumerate();
        json["model"]["merges"] = merges.filter(|(i, _)| kept(*i)).map(|(_, merge)| merge.clone()).collect();
        let merges = lists.merges.into_iter().enumerate();
        lists.merges = merges.filter(|(i, _)| kept(*i)).map(|(_, merge)| merge).collect();
    }
    json["normalizer"] = serde_json::Value::Null;
    let stages = json["pre_tokenizer"]["pretokenizers"].as_array_mut().unwrap();
    let split = stages.remove(0);
    for (at, pattern) in patterns.iter().enumerate() {
        let mut split = split.clone();
        split["pattern"]["Regex"] = (*pattern).into();
        stages.insert(at, split);
    }
    json["model"]["ignore_merges"] = whole_words.into();
    let theirs = Tokenizer::from_bytes(serde_json::to_vec(&json).unwrap()).unwrap();
    (lists.vocab(pre), theirs)
}

fn ids_of(theirs: &Tokenizer, text: &str) -> Vec<u32> {
    theirs.encode_fast(text, false).unwrap().get_ids().to_vec()
}

fn compare(pre: &str, thin: bool, cases: u32) {
    let (ours, theirs) = pair(pre, thin);
    let mut theirs_plain = theirs.clone();
    theirs_plain.set_encode_special_tokens(true);
    let both = |text: String| {
        for (special, theirs) in [(Special::Parse, &theirs), (Special::Plain, &theirs_plain)] {
            let ids = ours.encode(&text, special);
            prop_assert_eq!(numbers(&ids), ids_of(theirs, &text), "{:?}", special);
            prop_assert_eq!(joined(&ours, &ids), text.as_bytes());
        }
        Ok(())
    };
    TestRunner::new(config(cases)).run(&any_text(), both).unwrap();
}

#[test]
fn qwen35_agrees_with_the_reference_on_generated_text() {
    compare("qwen35", false, 2500);
}

#[test]
fn qwen2_agrees_with_the_reference_on_generated_text() {
    compare("qwen2", false, 2500);
}

#[test]
fn llama_bpe_agrees_with_the_reference_on_generated_text() {
    compare("llama-bpe", false, 2500);
}

#[test]
fn each_rule_over_bytes_agrees_with_the_reference_on_generated_text() {
    let mut seen = vec![];
    let by_characters = ["gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"];
    for (name, patterns, whole_words) in text::split_rules().filter(|(name, ..)| !by_characters.contains(name)) {
        if !seen.contains(&(patterns, whole_words)) {
            seen.push((patterns, whole_words));
            compare(name, false, 200);
        }
    }
    assert!(seen.len() > 25);
}

#[test]
fn tokens_that_merges_do_not_reach_agree_with_the_reference() {
    compare("qwen35", true, 2500);
    compare("llama-bpe", true, 2500);
}

#[test]
fn whole_words_are_looked_up_first_in_llama_bpe_only() {
    let (qwen, _) = pair("qwen35", true);
    let (llama, _) = pair("llama-bpe", true);
    let lists = tok_a();
    let letters = |token: &&String| token.len() > 1 && token.bytes().all(|b| b.is_ascii_lowercase());
    let words = || lists.tokens[..4000].iter().filter(letters);
    let whole = |vocab: &Vocab| words().filter(|word| vocab.encode(word, Special::Plain).len() == 1).count();
    assert_eq!(whole(&llama), words().count());
    assert!(whole(&qwen) < words().count() * 9 / 10, "{} of {}", whole(&qwen), words().count());
}

#[test]
fn one_word_without_end_takes_no_more_than_its_length() {
    // A quadratic merge would need 4e10 steps for each of these.
    let (ours, theirs) = pair("qwen35", false);
    let scrambled = (0..200_000_u64).map(|i| char::from(b'a' + ((i * i * 7919) >> 5) as u8 % 26)).collect::<String>();
    for text in ["a".repeat(200_000), "the".repeat(66_667), "=".repeat(200_000), " ".repeat(200_000), scrambled] {
        let ids = ours.encode(&text, Special::Parse);
        assert_eq!(numbers(&ids), ids_of(&theirs, &text), "{}", &text[..20]);
    }
}

#[test]
fn a_word_of_megabytes_is_cut_and_still_whole() {
    let vocab = tok_a().vocab("qwen35");
    let text = "\u{e9}ab".repeat(600_000);
    assert_eq!(joined(&vocab, &vocab.encode(&text, Special::Parse)), text.as_bytes());
}

#[test]
fn many_beginnings_of_special_tokens_take_no_more_than_their_length() {
    let vocab = tok_a().vocab("qwen35");
    for text in ["<|im_star".repeat(50_000), "<".repeat(400_000), "\n \n".repeat(200_000), "'".repeat(400_000)] {
        assert_eq!(joined(&vocab, &vocab.encode(&text, Special::Parse)), text.as_bytes());
    }
}

/// Kept apart from the generated text: a special token that is a prefix of another one.
#[test]
fn of_special_tokens_at_one_place_the_longest_is_taken() {
    let mut lists: Lists = tok_a();
    lists.tokens[4033] = "<think>\n".to_owned();
    lists.types[4033] = 4;
    let vocab = lists.vocab("qwen35");
    assert_eq!(numbers(&vocab.encode("<think>\n\n<think>", Special::Parse)), [4033, 198, 4024]);
}
