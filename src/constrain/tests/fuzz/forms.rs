//! What holds of every form that a request asks for: it is refused in words, or its grammar can be walked by the tokens that it
//! allows; and nothing takes longer than it may.
#![allow(dead_code, reason = "every fuzz target uses a part of this")]

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use constrain::{Compiler, Kind, Lead, Limits, Spec};
use text::{SpecialIds, TokenId, Vocab, VocabSource};

/// The schema of a reply as JSON.
pub fn schema(bytes: &[u8]) {
    let Ok(schema) = serde_json::from_slice::<serde_json::Value>(bytes) else { return };
    walk(&Spec::new(Kind::JsonSchema(schema)));
}

/// A grammar in llama.cpp's notation.
pub fn gbnf(bytes: &[u8]) {
    let source = String::from_utf8_lossy(bytes).into_owned();
    let lead = Lead { until: "</think>".into(), may_end: false, gap: 8 };
    walk(&Spec { kind: Kind::Gbnf(source), leads: vec![lead], opening: Some("<think>".into()) });
}

/// A panic of what builds and walks grammars is an error of the one grammar, so it must not end the fuzzer, whose own hook
/// does that. One of the targets themselves still does.
pub fn let_others_panic() {
    std::panic::set_hook(Box::new(|info| eprintln!("{info}")));
}

/// Walks its grammar by tokens that it allows.
pub fn walk(spec: &Spec) {
    let compiler = compiler();
    let grammar = match compiler.compile(spec) {
        Ok(grammar) => grammar,
        Err(error) => {
            assert!(error.to_string().len() < 1000, "{error}");
            assert!(error.is_of_the_form(), "{error}");
            return;
        }
    };
    let vocab = vocab();
    let mut walk = grammar.start();
    let mut random = 88_172_645_463_325_252_u64;
    for _ in 0..60 {
        let Ok(allowed) = walk.allowed() else { break };
        let ids: Vec<TokenId> = (0..vocab.len() as u32).map(TokenId).filter(|&id| allowed.has(id)).collect();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let Some(&token) = ids.get(random as usize % ids.len().max(1)) else { break };
        if vocab.is_eog(token) {
            break;
        }
        assert_eq!(walk.n_fitting(&[token]), 1, "{token:?} is allowed and does not fit");
        if walk.accept(token).is_err() || walk.is_complete() {
            break;
        }
        walk.forced();
    }
}

fn compiler() -> &'static Compiler {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    // More time than a server gives: what overruns it has run away, on a slow machine too.
    let limits = Limits { build: Duration::from_secs(40), ..Limits::default() };
    COMPILER.get_or_init(|| Compiler::new(vocab(), limits))
}

/// A token for each byte and for some words, and the tags.
fn vocab() -> Arc<Vocab> {
    static VOCAB: OnceLock<Arc<Vocab>> = OnceLock::new();
    let make = || {
        let mut tokens = alphabet::letters();
        let mut types = vec![1; tokens.len()];
        for (text, kind) in WORDS {
            tokens.push((*text).to_owned());
            types.push(*kind);
        }
        let eos = Some(tokens.len() as u32 - 1);
        let source = VocabSource {
            model: "gpt2",
            pre: "qwen35",
            tokens: tokens.iter().map(String::as_str).collect(),
            types: Some(types),
            special: SpecialIds { eos, ..SpecialIds::default() },
            ..VocabSource::default()
        };
        Arc::new(Vocab::new(&source).expect("a small vocabulary"))
    };
    Arc::clone(VOCAB.get_or_init(make))
}

/// Their texts and types; the last one ends generation.
const WORDS: &[(&str, i32)] = &[
    ("true", 1),
    ("null", 1),
    ("\":", 1),
    ("\",", 1),
    ("ab", 1),
    ("123", 1),
    ("<think>", 4),
    ("</think>", 4),
    ("<tool_call>", 4),
    ("</tool_call>", 4),
    ("<|im_end|>", 3),
];

#[path = "../../../text/tests/fuzz/alphabet.rs"]
mod alphabet;
