//! Sequences that together have no room: they wait in order, leave their slots and go on, and every reply is what it would
//! have been alone.

use std::sync::Arc;

use engine::{EngineConfig, FlashAttention};
use memory::LayerState;
use model::Model;
use test_support::*;
use text::TokenId;

fn config_of(n_ctx: usize, n_sequences: usize) -> EngineConfig {
    EngineConfig { n_batch: 64, n_batch_shared: 64, ..config(n_ctx, n_sequences) }
}

/// As much as one sequence of a full context takes, and a quarter more.
fn with_room_for_one(model: &Arc<Model>, config: EngineConfig) -> EngineConfig {
    let engine = spawn(model, EngineConfig { n_sequences: 2, ..config.clone() }, None);
    let of_one = engine.stats().expect("it runs").state_bytes / 2;
    EngineConfig { kv_bytes: Some(of_one * 5 / 4), ..config }
}

/// No two begin alike.
fn prompts(n: usize, len: usize) -> Vec<Vec<TokenId>> {
    let token = |of: usize, i: usize| TokenId(((of * 31 + i * (7 + of)) % 190 + 5) as u32);
    (0..n).map(|of| (0..len + 11 * of).map(|i| token(of, i)).collect()).collect()
}

#[test]
fn sequences_that_do_not_fit_together_take_turns_and_say_what_they_would_alone() {
    for model in [pocket_moe(), tiny()] {
        for store_bytes in [256 << 20, 0] {
            let config = with_room_for_one(&model, EngineConfig { store_bytes, ..config_of(1024, 4) });
            let (engine, _alone) = engine(&model, config.clone());
            let prompts = prompts(5, 220);
            let n = if model.state_layout().is_recurrent() { 90 } else { 330 };
            let requests = prompts.iter().map(|prompt| (prompt.clone(), greedy_exactly(n))).collect();
            let together = generate_all(&engine, requests);
            let stats = engine.stats().expect("it runs");
            assert!(stats.state_limit < stats.state_bytes && stats.n_evicted + stats.n_paused > 0, "{stats:?}");
            assert!(stats.taken_bytes <= stats.state_limit + (1 << 20), "{stats:?}");
            let alone = spawn(&model, EngineConfig { n_sequences: 1, kv_bytes: None, ..config }, None);
            for (prompt, got) in prompts.iter().zip(&together) {
                let expected = generate(&alone, prompt, greedy_exactly(n));
                assert_eq!(got.tokens, expected.tokens, "{model:?}, store of {store_bytes}, {stats:?}");
            }
        }
    }
}

#[test]
fn a_running_sequence_that_has_to_wait_goes_on_where_it_was() {
    let model = tiny();
    // Cells row by row, so that a sequence takes more the longer it is. ggml's fused attention adds up in another order from
    // 64 rows of a sequence on, and how many come together depends on the others.
    let (flash_attention, n_batch) = (FlashAttention::On, 32);
    let config = EngineConfig { flash_attention, n_batch, store_bytes: 256 << 20, ..config_of(1024, 3) };
    let config = with_room_for_one(&model, config);
    let (engine, _alone) = engine(&model, config.clone());
    let prompts = prompts(3, 200);
    let requests = prompts.iter().map(|prompt| (prompt.clone(), greedy_exactly(500))).collect();
    let together = generate_all(&engine, requests);
    let stats = engine.stats().expect("it runs");
    assert!(stats.n_paused > 0 && stats.reused.n_stored > 0, "{stats:?}");
    // What was kept of it was not computed again.
    let n_all: usize = prompts.iter().map(|prompt| prompt.len() + 500).sum();
    assert!((stats.n_tokens as usize) < n_all + 64, "{} tokens of {n_all} computed", stats.n_tokens);
    let alone = spawn(&model, EngineConfig { n_sequences: 1, kv_bytes: None, ..config }, None);
    for (prompt, got) in prompts.iter().zip(&together) {
        assert_eq!(got.tokens, generate(&alone, prompt, greedy_exactly(500)).tokens);
    }
}

/// Bytes of one recurrent state of a sequence.
fn recurrent_bytes(model: &Model) -> usize {
    let of_layer = |layer: &LayerState| if let LayerState::Recurrent(r) = layer { r.n_bytes() } else { 0 };
    model.state_layout().layers.iter().map(of_layer).sum()
}

/// Conversations with one system prompt, which are there at once.
#[cfg(target_os = "linux")]
#[test]
fn a_beginning_that_eight_sequences_have_in_common_is_there_once() {
    for model in [pocket(), tiny()] {
        let (flash_attention, checkpoint_every) = (FlashAttention::On, Some(64));
        let config = EngineConfig { flash_attention, checkpoint_every, ..config_of(2048, 8) };
        let system: Vec<TokenId> = (0..1600).map(|i| TokenId(i * 7 % 190 + 5)).collect();
        let prompts: Vec<Vec<TokenId>> =
            (0..8).map(|of| system.iter().copied().chain([TokenId(of + 5), TokenId(3)]).collect()).collect();
        let alone = spawn(&model, EngineConfig { n_sequences: 1, ..config.clone() }, None);
        let expected: Vec<_> =
            prompts.iter().map(|prompt| generate(&alone, prompt, greedy_exactly(20)).tokens).collect();
        let one = alone.stats().expect("it runs").taken_bytes;
        let recurrent = recurrent_bytes(&model);
        // Twice what one takes is enough for eight: the budget holds what they have in common once.
        let needed = 2 * one + 8 * recurrent;
        let room = spawn(&model, EngineConfig { n_sequences: 2, ..config.clone() }, None);
        let of_one = room.stats().expect("it runs").state_bytes / 2;
        let config = EngineConfig { kv_bytes: Some(needed.max(of_one)), ..config };
        let (engine, _alone) = engine(&model, config);
        let requests = prompts.iter().map(|prompt| (prompt.clone(), greedy_exactly(20))).collect();
        let together = generate_all(&engine, requests);
        let stats = engine.stats().expect("it runs");
        assert!(together.iter().map(|got| &got.tokens).eq(&expected), "{model:?}");
        assert_eq!((stats.n_paused, stats.n_evicted), (0, 0), "{model:?}: {stats:?}");
        assert!(stats.taken_bytes < one * 5 / 4 + 7 * recurrent, "{model:?}: one takes {one}, eight {stats:?}");
        assert!((stats.n_tokens as usize) < 1700 + 8 * 90, "{model:?}: computed again, {stats:?}");
    }
}

/// Conversations with one system prompt that left their slots for others.
#[cfg(target_os = "linux")]
#[test]
fn sequences_that_come_back_from_the_store_share_their_beginning_again() {
    for model in [pocket(), tiny()] {
        let (flash_attention, checkpoint_every) = (FlashAttention::On, Some(64));
        let config = EngineConfig { flash_attention, checkpoint_every, store_bytes: 256 << 20, ..config_of(2048, 2) };
        let system = || (0..1600).map(|i| TokenId(i * 7 % 190 + 5));
        let talk =
            |of: u32, n: u32| system().chain((0..n).map(|i| TokenId((of * 31 + i * (7 + of)) % 190 + 5))).collect();
        let talks: Vec<Vec<TokenId>> = vec![talk(1, 200), talk(2, 200)];
        let alone = spawn(&model, EngineConfig { n_sequences: 1, ..config.clone() }, None);
        let expected: Vec<_> = talks.iter().map(|prompt| generate(&alone, prompt, greedy_exactly(20)).tokens).collect();
        let one = alone.stats().expect("it runs").taken_bytes;
        let (engine, _alone) = engine(&model, config);
        for prompt in talks.iter().chain(&prompts(2, 1500)) {
            generate(&engine, prompt, greedy_exactly(4));
        }
        let stored = engine.stats().expect("it runs").stored_bytes;
        assert!(stored > one, "{model:?}: both left their slots, {stored} bytes are stored, one takes {one}");
        let n_tokens = engine.stats().expect("it runs").n_tokens;
        let got = generate_all(&engine, talks.iter().map(|prompt| (prompt.clone(), greedy_exactly(20))).collect());
        let stats = engine.stats().expect("it runs");
        assert!(got.iter().map(|got| &got.tokens).eq(&expected), "{model:?}");
        assert!(stats.n_tokens - n_tokens < 400, "{model:?}: computed again, {stats:?}");
        let recurrent = recurrent_bytes(&model);
        assert!(stats.taken_bytes < one * 3 / 2 + recurrent, "{model:?}: one takes {one}, both {stats:?}");
    }
}

#[test]
fn a_budget_below_one_sequence_is_refused_with_the_numbers() {
    let model = tiny();
    let config = EngineConfig { kv_bytes: Some(100 << 10), ..config_of(1024, 2) };
    let error = engine::Engine::spawn(model, config).err().expect("too little").to_string();
    assert!(error.contains("--kv-memory") && error.contains("1024 positions") && error.contains("-c"), "{error}");
}
