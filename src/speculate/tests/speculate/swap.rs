//! A sequence that leaves its slot and comes back drafts as if it had stayed: from the host's store, and from a file.

use std::sync::Arc;

use engine::{EngineConfig, EngineHandle, Proposer, RequestOptions, Scope};
use model::Model;
use speculate::{AsyncProposer, Depth, DraftMode, DraftVocabSize, Mode, SpecConfig};
use test_support::*;

use text::TokenId;

const N: usize = 40;

/// Two conversations, by turns.
fn prompts() -> [Vec<TokenId>; 2] {
    [some_tokens(90), (0..120).map(|i| TokenId(500 + 7 * i)).collect()]
}

/// First turns of both, then the second turns, which go on after the first's generations.
fn talk(engine: &EngineHandle, between: impl Fn(usize)) -> Vec<Completion> {
    let mut prompts = prompts();
    let mut answers = Vec::new();
    for turn in 0..3 {
        for (i, prompt) in prompts.iter_mut().enumerate() {
            between(2 * turn + i);
            let answer = generate(engine, prompt, greedy_exactly(N));
            prompt.extend(&answer.tokens);
            prompt.extend(some_tokens(5));
            answers.push(answer);
        }
    }
    answers
}

fn assert_same(got: &[Completion], expected: &[Completion], what: &str) {
    let n_drafted: usize = expected.iter().map(|a| a.timings().drafted).sum();
    let n_accepted: usize = expected.iter().map(|a| a.timings().accepted).sum();
    assert!(n_accepted > 20 && n_accepted < n_drafted, "{what}: {n_accepted} of {n_drafted} tell something");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.tokens, expected.tokens, "{what}, answer {i}");
        assert_eq!(got.timings().cached_tokens, expected.timings().cached_tokens, "{what}, answer {i}");
        assert_eq!(got.drafts, expected.drafts, "{what}, answer {i}: the same drafts");
        assert_eq!(got.timings().accepted_by_depth, expected.timings().accepted_by_depth, "{what}, answer {i}");
    }
    assert!(got[4].timings().cached_tokens > got[2].timings().cached_tokens, "{what}: turns go on where they were");
}

/// The head, between passes and beside them.
fn heads(model: &Arc<Model>, config: &EngineConfig) -> Vec<(&'static str, Box<dyn Proposer>)> {
    let head = || head(model, config, Depth::Fixed(3), DraftVocabSize::Full);
    let beside = AsyncProposer::new(head(), model, 1, false).expect("a thread");
    vec![("fused", Box::new(head())), ("async", Box::new(beside))]
}

#[test]
fn a_sequence_that_was_stored_drafts_as_if_it_had_stayed() {
    let model = pocket();
    for i in 0..2 {
        let (_, stays) = heads(&model, &config(512, 2)).swap_remove(i);
        let expected = talk(&spawn(&model, config(512, 2), Some(stays)), |_| {});
        let swapped = EngineConfig { store_bytes: 64 << 20, ..config(512, 1) };
        let (what, leaves) = heads(&model, &swapped).swap_remove(i);
        let engine = spawn(&model, swapped, Some(leaves));
        let got = talk(&engine, |_| {});
        assert!(engine.stats().expect("it runs").stored_bytes > 0);
        assert_same(&got, &expected, what);
    }
}

#[test]
fn a_sequence_from_a_file_drafts_as_if_it_had_stayed() {
    let model = pocket();
    let expected = talk(&drafting(&model, config(512, 2)), |_| {});
    for i in 0..2 {
        let (what, proposer) = heads(&model, &config(512, 1)).swap_remove(i);
        let engine = spawn(&model, config(512, 1), Some(proposer));
        let files = std::cell::RefCell::new([None, None]);
        let got = talk(&engine, |n| {
            // What the other conversation left is saved, and what this one left before comes back.
            let mut files = files.borrow_mut();
            if n > 0 {
                files[(n + 1) % 2] = Some(slot_bytes(&engine));
            }
            match &files[n % 2] {
                Some(file) => engine.load_slot(0, engine.read_slot(file).expect("sound"), Scope::default()),
                None => engine.clear_slot(0),
            }
            .expect("free");
        });
        assert_same(&got, &expected, what);
    }
}

#[test]
fn a_chat_whose_thinking_is_stripped_goes_on_at_its_checkpoint_from_store_and_file() {
    let model = pocket();
    let first = some_tokens(120);
    let options = RequestOptions { checkpoint_boundaries: vec![30, 100, 118], ..greedy_exactly(30) };
    let mut stripped = first[..118].to_vec();
    stripped.extend((0..20).map(|i| TokenId(40 + i)));
    let run = |engine: &EngineHandle, between: &dyn Fn()| {
        generate(engine, &first, options.clone());
        between();
        generate(engine, &stripped, greedy_exactly(N))
    };
    let expected = run(&drafting(&model, config(512, 1)), &|| {});
    assert_eq!(expected.timings().cached_tokens, 118);

    let engine = drafting(&model, EngineConfig { store_bytes: 64 << 20, ..config(512, 1) });
    let stored = run(&engine, &|| drop(generate(&engine, &prompts()[1], greedy_exactly(4))));
    let engine = drafting(&model, config(512, 1));
    let from_file = run(&engine, &|| {
        let file = slot_bytes(&engine);
        generate(&engine, &prompts()[1], greedy_exactly(4));
        engine.load_slot(0, engine.read_slot(&file).expect("sound"), Scope::default()).expect("free");
        assert_eq!(slot_bytes(&engine), file, "checkpoints and drafts came back whole");
    });
    // A new engine knows nothing but the file.
    let (old, new) = (drafting(&model, config(512, 1)), drafting(&model, config(512, 1)));
    let elsewhere = {
        generate(&old, &first, options.clone());
        new.load_slot(0, new.read_slot(&slot_bytes(&old)).expect("sound"), Scope::default()).expect("free");
        generate(&new, &stripped, greedy_exactly(N))
    };
    for (what, got) in [("store", stored), ("file", from_file), ("another engine", elsewhere)] {
        assert_eq!(got.timings().cached_tokens, 118, "{what}");
        assert_eq!((got.tokens, got.drafts), (expected.tokens.clone(), expected.drafts.clone()), "{what}");
    }
}

#[test]
fn a_file_of_an_engine_without_drafts_or_with_others_is_taken() {
    let model = pocket();
    let proposer = |mode| {
        let spec = SpecConfig { mode, draft_mode: DraftMode::Fused, ..SpecConfig::default() };
        speculate::proposer(&model, &config(512, 1), spec).expect("room")
    };
    let spawn = |mode| spawn(&model, config(512, 1), proposer(mode));
    let modes = [Mode::Off, Mode::NextN, Mode::Ngram, Mode::NextNgram];
    for from in modes {
        let engine = spawn(from);
        let answer = generate(&engine, &some_tokens(60), greedy_exactly(10));
        let file = slot_bytes(&engine);
        let longer = [&some_tokens(60)[..], &answer.tokens, &some_tokens(3)].concat();
        let expected = generate(&engine, &longer, greedy_exactly(10));
        for to in modes {
            let engine = spawn(to);
            engine.load_slot(0, engine.read_slot(&file).expect("sound"), Scope::default()).expect("free");
            let got = generate(&engine, &longer, greedy_exactly(10));
            assert_eq!(got.tokens, expected.tokens, "{from} to {to}");
            assert_eq!(got.timings().cached_tokens, expected.timings().cached_tokens, "{from} to {to}");
        }
    }
}

#[test]
fn a_part_for_drafts_that_is_not_sound_is_refused_and_nothing_changes() {
    let model = pocket();
    let engine = drafting(&model, config(512, 1));
    let answer = generate(&engine, &some_tokens(60), greedy_exactly(20));
    let file = slot_bytes(&engine);
    let at = file.windows(8).position(|w| w == b"NEXTN  1").expect("the head's part");
    let n_drafts = u64::from_le_bytes(file[at - 8..at].try_into().expect("8 bytes")) as usize;
    let with = |offset: usize, new: &[u8]| {
        let mut file = file.clone();
        file[at + offset..at + offset + new.len()].copy_from_slice(new);
        file
    };
    // After the kind and the fingerprint: the number of waiting inputs, then these; last the cells.
    let waiting = u64::from_le_bytes(file[at + 40..at + 48].try_into().expect("8 bytes"));
    assert!(waiting > 0, "an input waits for its cells at the end of an answer");
    let longer = [&some_tokens(60)[..], &answer.tokens, &some_tokens(3)].concat();
    for (file, says) in [
        (with(40, &u64::MAX.to_le_bytes()), "is no length"),
        (with(40, &(waiting - 1).to_le_bytes()), ""),
        (with(48, &9u32.to_le_bytes()), "its inputs are of other tokens"),
        (with(n_drafts - 2, &0x7C00u16.to_le_bytes()), "its cells is not finite"),
    ] {
        let saved = engine.read_slot(&file).expect("what the engine can tell is sound");
        let why = engine.load_slot(0, saved, Scope::default()).expect_err("not sound").to_string();
        assert!(why.contains("its part for drafts") && why.contains(says), "`{says}` expected: {why}");
    }
    assert_eq!(slot_bytes(&engine), file);
    // A head of another file: the sequence comes back, and drafts begin anew.
    let other = with(8, &[file[at + 8] ^ 1]);
    engine.load_slot(0, engine.read_slot(&other).expect("sound"), Scope::default()).expect("free");
    let got = generate(&engine, &longer, greedy_exactly(10));
    assert_eq!(got.timings().cached_tokens, 60 + 19);
}
