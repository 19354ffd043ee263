//! Saved slots: what fits comes back, and anything else is refused with a reason before it comes near the engine.

use std::sync::Arc;

use engine::{EngineConfig, EngineHandle, RequestOptions, Scope};
use memory::CacheType;
use model::Model;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use test_support::*;
use text::TokenId;

/// Where the parts of a file without a hidden state begin: after the magic come the fingerprint, the tokens with their number,
/// the length of the hidden state, the number of checkpoints, the length of the drafts' part; then lengths, shape and contents
/// of the state.
const FINGERPRINT: usize = 8;
const N_TOKENS: usize = 40;
const TOKENS: usize = 48;

fn small() -> EngineConfig {
    EngineConfig { n_ctx: Some(200), ..config(1024, 1) }
}

fn prompt() -> Vec<TokenId> {
    (0..40).map(|i| TokenId(100 + i * 3)).collect()
}

/// Leaves 47 tokens in the first slot, and gives them with the slot's bytes.
fn fill(engine: &EngineHandle) -> (Vec<TokenId>, Vec<u8>) {
    let answer = generate(engine, &prompt(), greedy_exactly(8));
    let mut tokens = prompt();
    tokens.extend(&answer.tokens[..7]);
    (tokens, slot_bytes(engine))
}

fn refusal(engine: &EngineHandle, bytes: &[u8]) -> String {
    engine.read_slot(bytes).map(|saved| saved.n_tokens()).expect_err("not sound").to_string()
}

fn with(bytes: &[u8], at: usize, new: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + new.len()].copy_from_slice(new);
    bytes
}

fn plain() -> Vec<(&'static str, Arc<Model>)> {
    vec![("hybrid", pocket()), ("attention only", tiny())]
}

#[test]
fn a_saved_slot_comes_back_and_its_sequence_goes_on_as_if_it_had_never_left() {
    for (name, model) in plain() {
        let (engine, _alone) = engine(&model, small());
        let (mut tokens, saved) = fill(&engine);
        assert!(saved.len() <= engine.max_slot_bytes(), "{name}");
        tokens.push(TokenId(7));
        let expected = generate(&engine, &tokens, greedy_exactly(8));
        assert_eq!(expected.n_cached(), 47, "{name}");
        assert_eq!(engine.clear_slot(0).expect("free"), 55, "{name}");
        assert_eq!(
            engine.load_slot(0, engine.read_slot(&saved).expect("sound"), Scope::default()).expect("free"),
            47,
            "{name}"
        );
        assert_eq!(slot_bytes(&engine), saved, "{name}: what was loaded is what was saved");
        let got = generate(&engine, &tokens, greedy_exactly(8));
        assert_eq!((got.n_cached(), got.tokens), (47, expected.tokens), "{name}");
    }
}

#[test]
fn a_file_that_does_not_fit_the_model_is_refused_with_the_reason() {
    let (engine, _alone) = engine(&pocket(), small());
    let (tokens, saved) = fill(&engine);
    let hidden = TOKENS + 4 * tokens.len();
    let state = hidden + 24;
    let n_shape = u64::from_le_bytes(saved[state + 8..state + 16].try_into().expect("8 bytes")) as usize;
    let recurrent = state + 32 + 8 * n_shape;
    let number = |n: u64| n.to_le_bytes();
    let mut one_float = with(&saved, hidden, &number(1));
    one_float.splice(hidden + 8..hidden + 8, 0.5f32.to_le_bytes());
    let last_cell = saved.len() - 2;
    for (file, says) in [
        (with(&saved, 0, b"GGUFGGUF"), "it does not begin as one"),
        (with(&saved, 0, b"NXTSLOT1"), "another version of this program: save the slot anew"),
        (Vec::new(), "it is cut off"),
        (saved[..30].to_vec(), "it is cut off"),
        (with(&saved, FINGERPRINT, &[saved[FINGERPRINT] ^ 1]), "another model file"),
        (with(&saved, N_TOKENS, &number(1 << 40)), "bytes more expected"),
        (with(&saved, N_TOKENS, &number(u64::MAX)), "is no length"),
        (with(&saved, TOKENS + 8, &i32::MAX.to_le_bytes()), "token 2 has the id 2147483647, outside the vocabulary"),
        (one_float, "hidden states have 1 values"),
        (with(&saved, hidden, &number(1 << 33)), "bytes more expected"),
        (with(&saved, hidden + 8, &number(33)), "33 checkpoints, at most"),
        (with(&saved, hidden + 8, &number(1)), ""),
        (with(&saved, hidden + 16, &number(1 << 50)), "bytes more expected"),
        (with(&saved, state, &number(46)), "47 tokens and a state of 46 positions"),
        (with(&saved, state + 8, &number(1 << 61)), "is no length"),
        (with(&saved, state + 32, &number(0)), "another model or another cache type"),
        (with(&saved, recurrent, &f32::NAN.to_le_bytes()), "its recurrent state is not finite"),
        (with(&saved, last_cell, &0x7C00u16.to_le_bytes()), "its cells is not finite"),
        (saved[..saved.len() - 1].to_vec(), "bytes of cells"),
        ([&saved[..], &[0]].concat(), "bytes of cells"),
    ] {
        let why = refusal(&engine, &file);
        assert!(why.contains(says), "`{says}` expected: {why}");
    }
    assert_eq!(slot_bytes(&engine), saved, "the engine is what it was");
    assert!(engine.read_slot(&saved).is_ok());
}

#[test]
fn checkpoints_come_back_and_those_that_do_not_fit_are_refused() {
    let (engine, _alone) = engine(&pocket(), small());
    let options = RequestOptions { checkpoint_boundaries: vec![10, 20], ..greedy_exactly(8) };
    let n = 40 + generate(&engine, &prompt(), options).tokens.len() - 1;
    let saved = slot_bytes(&engine);
    let edited = [&prompt()[..25], &[TokenId(7)]].concat();
    // After the hidden state's length: the number of checkpoints; each has the length of a hidden state, position, and bytes.
    let first = TOKENS + 4 * n + 16;
    let number = |at: usize| u64::from_le_bytes(saved[at..at + 8].try_into().expect("8 bytes"));
    let (position, n_bytes) = (first + 8, number(first + 16) as usize);
    let second = position + 16 + n_bytes + 8;
    assert_eq!((number(first - 8), number(position), number(second)), (2, 10, 20));
    for (file, says) in [
        (with(&saved, position, &0u64.to_le_bytes()), "a checkpoint at position 0 follows one at 0"),
        (with(&saved, second, &10u64.to_le_bytes()), "a checkpoint at position 10 follows one at 10"),
        (with(&saved, second, &48u64.to_le_bytes()), "it is at position 48, the sequence has 47"),
        (with(&saved, position + 16, &f32::NAN.to_le_bytes()), "its recurrent state is not finite"),
        (with(&saved, position + 8, &(n_bytes as u64 - 4).to_le_bytes()), ""),
    ] {
        let why = refusal(&engine, &file);
        assert!(why.contains(says), "`{says}` expected: {why}");
    }
    let expected = generate(&engine, &edited, greedy_exactly(8));
    assert_eq!(expected.n_cached(), 20);
    engine.load_slot(0, engine.read_slot(&saved).expect("sound"), Scope::default()).expect("free");
    assert_eq!(slot_bytes(&engine), saved);
    let got = generate(&engine, &edited, greedy_exactly(8));
    assert_eq!((got.n_cached(), got.tokens), (20, expected.tokens));
}

#[test]
fn a_slot_of_another_model_another_cache_type_or_a_larger_context_is_refused() {
    let (saved, other) = {
        let (engine, _alone) = engine(&pocket(), small());
        (fill(&engine).1, engine.save_slot(0, Scope::default()).expect("free"))
    };
    let q8 = EngineConfig { cache_type_k: CacheType::Q8_0, ..small() };
    let short = EngineConfig { n_ctx: Some(46), ..config(1024, 1) };
    for (model, config, says) in [
        (pocket_moe(), small(), "another model file"),
        (pocket(), q8, "another cache type"),
        (pocket(), short, "it has 47 tokens, the context 46"),
    ] {
        let (engine, _alone) = engine(&model, config);
        let why = refusal(&engine, &saved);
        assert!(why.contains(says), "{why}");
        // A slot that never was a file is held to the same.
        let why = engine.load_slot(0, other.clone(), Scope::default()).expect_err("not of this engine").to_string();
        assert!(why.contains(says), "{why}");
        assert_eq!(engine.slots().expect("it runs")[0].n_tokens, 0);
    }
    // Another engine of the same model takes it.
    let (engine, _alone) = engine(&pocket(), EngineConfig { n_ctx: Some(300), ..config(1024, 1) });
    assert_eq!(engine.load_slot(0, other, Scope::default()).expect("it fits"), 47);
}

#[test]
fn scales_of_quantised_cells_are_checked() {
    let quantised = EngineConfig { cache_type_k: CacheType::Q8_0, cache_type_v: CacheType::Q8_0, ..small() };
    let (engine, _alone) = engine(&pocket(), quantised);
    let (_, saved) = fill(&engine);
    // The last block is of 34 bytes, its scale in front.
    let why = refusal(&engine, &with(&saved, saved.len() - 34, &0x7E00u16.to_le_bytes()));
    assert!(why.contains("not finite"), "{why}");
    assert!(engine.read_slot(&with(&saved, saved.len() - 2, &0x7E00u16.to_le_bytes())).is_ok(), "quants are any bytes");
}

/// One change of a file.
#[derive(Clone, Debug)]
enum Change {
    Byte(usize, u8),
    Number(usize, u64),
    Cut(usize),
    Remove(usize, usize),
    Insert(usize, Vec<u8>),
}

impl Change {
    fn make(&self, bytes: &mut Vec<u8>) {
        let n = bytes.len().max(1);
        match self {
            Change::Byte(at, to) => bytes.iter_mut().skip(at % n).take(1).for_each(|b| *b = *to),
            Change::Number(at, to) => bytes.iter_mut().skip(at % n).zip(to.to_le_bytes()).for_each(|(b, to)| *b = to),
            Change::Cut(at) => bytes.truncate(at % n),
            Change::Remove(at, len) => drop(bytes.drain(at % n..(at % n + len).min(bytes.len()))),
            Change::Insert(at, new) => drop(bytes.splice(at % n..at % n, new.iter().copied())),
        }
    }
}

/// Most changes are made where lengths and numbers stand.
fn change() -> impl Strategy<Value = Change> {
    let place = || prop_oneof![3 => 40usize..600, 1 => 0usize..1 << 20];
    let number = prop_oneof![
        0u64..300,
        Just(u64::MAX),
        (0u32..64).prop_map(|shift| 1 << shift),
        (0u32..64).prop_map(|shift| (1u64 << shift) - 1),
        any::<u64>(),
    ];
    prop_oneof![
        (place(), any::<u8>()).prop_map(|(at, to)| Change::Byte(at, to)),
        (place(), number).prop_map(|(at, to)| Change::Number(at, to)),
        place().prop_map(Change::Cut),
        (place(), 1usize..80).prop_map(|(at, len)| Change::Remove(at, len)),
        (place(), prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(at, new)| Change::Insert(at, new)),
    ]
}

#[test]
fn changed_files_never_break_the_engine_and_refused_ones_never_change_it() {
    for (name, model) in plain() {
        let (engine, _alone) = engine(&model, small());
        let (mut tokens, saved) = fill(&engine);
        tokens.push(TokenId(7));
        let mut n_refused = 0;
        let mut runner = TestRunner::new(ProptestConfig { cases: 400, ..ProptestConfig::default() });
        let changes = prop::collection::vec(change(), 1..4);
        let held = runner.run(&changes, |changes| {
            let mut file = saved.clone();
            changes.iter().for_each(|change| change.make(&mut file));
            match engine.read_slot(&file) {
                Err(why) => prop_assert!(!why.to_string().is_empty()),
                // Other tokens or other finite values: nobody can tell, and generations are made of them.
                Ok(changed) => {
                    let n = changed.n_tokens();
                    prop_assert_eq!(engine.load_slot(0, changed, Scope::default()).expect("it was checked"), n);
                    let answer = generate(&engine, &tokens, greedy_exactly(2));
                    prop_assert_eq!(answer.tokens.len(), 2);
                    engine.load_slot(0, engine.read_slot(&saved).expect("sound"), Scope::default()).expect("free");
                }
            }
            Ok(())
        });
        held.unwrap_or_else(|error| panic!("{name}: {error}"));
        for len in (0..saved.len()).step_by(97) {
            n_refused += usize::from(engine.read_slot(&saved[..len]).is_err());
        }
        assert_eq!(n_refused, saved.len().div_ceil(97), "{name}: every cut is noticed");
        assert_eq!(slot_bytes(&engine), saved, "{name}");
    }
}
