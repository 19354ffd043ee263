//! Prompts with pictures: what is taken up of earlier ones, and that nothing but the picture tells two of them apart.
//! The model's tokens have the same bits wherever a prompt is cut.

use std::sync::Arc;

use engine::{EngineConfig, EngineHandle, GenerateRequest, RequestError, RequestOptions, Scope};
use model::{Embedded, Model, Pictures, Placed};
use test_support::{
    Completion, config, drafting, engine, generate, generate_all, greedy, pocket_moe, slot_bytes, some_tokens, submit,
};
use text::TokenId;

use crate::uncached;

/// Tokens before and behind the picture.
const TEXT: usize = 40;
const GRID: [usize; 3] = [1, 3, 4];

/// The rows of a picture that is told by a number.
fn embedded(n_embd: usize, number: u8) -> Arc<Embedded> {
    let rows = (0..12 * n_embd).map(|i| ((i * 7919 + 31 * usize::from(number)) % 97) as f32 / 97.0 - 0.5).collect();
    Arc::new(Embedded { rows, grid: GRID })
}

/// Options with a picture behind the first tokens of a prompt of `n` tokens.
fn with_picture(model: &Model, number: u8, n: usize) -> RequestOptions {
    with_pictures(model, &[(number, TEXT)], n)
}

/// Options with pictures, each behind so many tokens of a prompt of `n` tokens.
fn with_pictures(model: &Model, at: &[(u8, usize)], n: usize) -> RequestOptions {
    let n_embd = model.hparams().n_embd;
    let placed =
        at.iter().map(|&(number, first)| Placed { first, embedded: embedded(n_embd, number), hash: [number; 32] });
    let pictures = Pictures::new(model.picture_kind(), n_embd, n, placed.collect()).expect("they fit");
    RequestOptions { pictures, ..greedy(8) }
}

fn prompt() -> Vec<TokenId> {
    some_tokens((2 * TEXT + 12) as u32)
}

#[test]
fn a_prompt_with_the_same_picture_is_taken_up_and_one_with_another_is_not() {
    let model = pocket_moe();
    let (engine, _lock) = engine(&model, config(256, 1));
    let n = prompt().len();
    let ask = |number: u8, cache: bool| -> Completion {
        let options = RequestOptions { cache, ..with_picture(&model, number, n) };
        generate(&engine, &prompt(), options)
    };
    let fresh = [ask(1, false), ask(2, false)];
    assert_ne!(fresh[0].tokens, fresh[1].tokens, "the picture counts");
    let first = ask(1, true);
    assert_eq!((first.n_cached(), &first.tokens), (0, &fresh[0].tokens));
    let longer = [prompt(), some_tokens(5)].concat();
    let again = generate(&engine, &[&longer[..n], &first.tokens, &some_tokens(3)].concat(), with_picture(&model, 1, n));
    assert!(again.n_cached() >= n, "{} of {n} tokens", again.n_cached());
    let other = ask(2, true);
    assert!(other.n_cached() <= TEXT, "{} tokens", other.n_cached());
    assert_eq!(other.tokens, fresh[1].tokens);
}

#[test]
fn ids_of_pictures_are_no_tokens_of_a_prompt() {
    let model = pocket_moe();
    let (engine, _lock) = engine(&model, config(256, 1));
    let id = TokenId(TokenId::FIRST_OF_PICTURES + 5);
    let refused = GenerateRequest::new(vec![TokenId(1), id], greedy(1), engine.limits());
    assert!(matches!(refused, Err(RequestError::Token { .. })), "{refused:?}");
    let outside = GenerateRequest::new(prompt()[..TEXT + 3].to_vec(), with_picture(&model, 1, 99), engine.limits());
    assert!(matches!(outside, Err(RequestError::Picture { .. })), "{outside:?}");
    let mut generation = submit(&engine, &prompt(), with_picture(&model, 1, 92));
    assert_eq!(Completion::read(&mut generation).tokens.len(), 8);
}

/// Conversations with pictures, of different lengths, and one without.
fn several(model: &Model) -> Vec<(Vec<TokenId>, RequestOptions)> {
    [&[(1, TEXT)][..], &[(2, TEXT)], &[(3, 0), (1, 30)], &[], &[(2, 12), (2, 24), (4, 60)]]
        .into_iter()
        .enumerate()
        .map(|(i, at)| {
            let prompt = some_tokens(90 + 7 * i as u32);
            let options = with_pictures(model, at, prompt.len());
            (prompt, uncached(RequestOptions { ignore_eos: true, max_tokens: Some(12), ..options }))
        })
        .collect()
}

#[test]
fn sequences_with_pictures_get_together_what_each_gets_alone() {
    let model = pocket_moe();
    let alone: Vec<_> = {
        let (engine, _lock) = engine(&model, config(512, 1));
        several(&model).into_iter().map(|(prompt, options)| generate(&engine, &prompt, options).tokens).collect()
    };
    for n_sequences in [2, 5] {
        let (engine, _lock) = engine(&model, EngineConfig { n_batch_shared: 16, ..config(512, n_sequences) });
        let together: Vec<_> = generate_all(&engine, several(&model)).into_iter().map(|c| c.tokens).collect();
        assert_eq!(together, alone, "{n_sequences} sequences");
    }
}

#[test]
fn drafts_change_nothing_of_sequences_with_pictures() {
    let model = pocket_moe();
    let plain: Vec<_> = {
        let (engine, _lock) = engine(&model, config(512, 1));
        several(&model).into_iter().map(|(prompt, options)| generate(&engine, &prompt, options).tokens).collect()
    };
    for n_sequences in [1, 3] {
        let (_other, _lock) = engine(&model, config(64, 1));
        let engine = drafting(&model, config(512, n_sequences));
        let all = generate_all(&engine, several(&model));
        let drafted: usize = all.iter().map(|c| c.timings().drafted).sum();
        assert!(drafted > 0, "{n_sequences} sequences: nothing was drafted");
        let tokens: Vec<_> = all.into_iter().map(|c| c.tokens).collect();
        assert_eq!(tokens, plain, "{n_sequences} sequences");
    }
}

#[test]
fn a_picture_may_lie_over_the_border_of_two_passes() {
    let model = pocket_moe();
    let n = prompt().len();
    let ask = |n_batch: usize| {
        let (engine, _lock) = engine(&model, EngineConfig { n_batch, n_batch_shared: n_batch, ..config(256, 1) });
        generate(&engine, &prompt(), uncached(with_picture(&model, 1, n))).tokens
    };
    let whole = ask(256);
    // Borders before it, behind its first token, in its middle, before its last, behind it.
    for n_batch in [TEXT, TEXT + 1, TEXT + 6, TEXT + 11, TEXT + 12, 7] {
        assert_eq!(ask(n_batch), whole, "passes of {n_batch} rows");
    }
}

#[test]
fn a_sequence_with_a_picture_comes_back_from_a_file_and_from_the_host_to_the_same_picture_only() {
    let model = pocket_moe();
    let n = prompt().len();
    let fresh = |prompt: &[TokenId], number: u8| {
        let (engine, _lock) = engine(&model, config(256, 1));
        generate(&engine, prompt, uncached(with_picture(&model, number, n))).tokens
    };
    let first = fresh(&prompt(), 1);
    let longer = [prompt(), first, some_tokens(3)].concat();
    let expected = [fresh(&longer, 1), fresh(&longer, 2)];
    assert_ne!(expected[0], expected[1], "the picture counts");
    let check = |engine: &EngineHandle, how: &str| {
        let same = generate(engine, &longer, with_picture(&model, 1, n));
        assert!(same.n_cached() >= n, "{how}: {} of {n} tokens", same.n_cached());
        assert_eq!(same.tokens, expected[0], "{how}");
    };
    let saved = {
        let (engine, _lock) = engine(&model, config(256, 1));
        generate(&engine, &prompt(), with_picture(&model, 1, n));
        slot_bytes(&engine)
    };
    let loaded = |check: &dyn Fn(&EngineHandle)| {
        let (engine, _lock) = engine(&model, config(256, 1));
        let state = engine.read_slot(&saved).expect("a sound file");
        engine.load_slot(0, state, Scope::default()).expect("a free slot");
        check(&engine);
    };
    loaded(&|engine| check(engine, "a file"));
    loaded(&|engine| {
        let other = generate(engine, &longer, with_picture(&model, 2, n));
        assert!(other.n_cached() <= TEXT, "{} tokens of another picture", other.n_cached());
        assert_eq!(other.tokens, expected[1]);
    });
    let stored = |check: &dyn Fn(&EngineHandle)| {
        let (engine, _lock) = engine(&model, EngineConfig { store_bytes: 64 << 20, ..config(256, 1) });
        generate(&engine, &prompt(), with_picture(&model, 1, n));
        // Takes the only slot.
        generate(&engine, &some_tokens(120)[60..], greedy(4));
        assert!(engine.stats().expect("it runs").stored_bytes > 0);
        check(&engine);
    };
    stored(&|engine| check(engine, "the host"));
    stored(&|engine| {
        let other = generate(engine, &longer, with_picture(&model, 2, n));
        assert!(other.n_cached() <= TEXT, "{} tokens of another picture", other.n_cached());
        assert_eq!(other.tokens, expected[1]);
    });
}
