//! State in granules as a GPU has them, pretended on the host: sequences that share beginnings, part, wait and come back say what they
//! would alone, and what they share is there once. What writes to a granule without memory, or to one that others show, ends a test.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use engine::{EngineConfig, EngineHandle, FlashAttention, RequestOptions};
use memory::LayerState;
use model::Model;
use test_support::*;
use text::TokenId;

/// Tests take turns: granules are those of the process.
static ALONE: Mutex<()> = Mutex::new(());

const GRANULE: usize = 4 << 10;
/// More than a test takes.
const N_GRANULES: usize = 1 << 16;
const SEED: u64 = 20_261_127;

fn config_of(n_ctx: usize, n_sequences: usize) -> EngineConfig {
    let (flash_attention, checkpoint_every) = (FlashAttention::On, Some(64));
    // Of 64 rows and more the fused attention of a CPU adds up in another order.
    EngineConfig { flash_attention, checkpoint_every, n_batch: 32, n_batch_shared: 32, ..config(n_ctx, n_sequences) }
}

/// An engine whose state is in granules.
fn in_granules(make: impl Fn() -> EngineHandle) -> EngineHandle {
    ggml::pretend_granules(GRANULE, N_GRANULES);
    let engine = make();
    engine.stats().expect("it runs");
    ggml_as_before();
    engine
}

/// State that is made from now on lies in pages. What may still be taken stays.
fn ggml_as_before() {
    ggml::pretend_granules(0, ggml::pretended_granules_left());
}

/// Bytes of granules with memory.
fn taken() -> usize {
    (N_GRANULES - ggml::pretended_granules_left()) * GRANULE
}

/// Ends an engine, after which all of its memory must have gone back.
fn end(engine: EngineHandle) {
    let life = engine.life();
    drop(engine);
    while !life.is_freed() {
        std::thread::yield_now();
    }
    assert_eq!(taken(), 0);
}

fn recurrent_bytes(model: &Model) -> usize {
    let of_layer = |layer: &LayerState| if let LayerState::Recurrent(r) = layer { r.n_bytes() } else { 0 };
    model.state_layout().layers.iter().map(of_layer).sum()
}

#[test]
fn eight_sequences_take_their_common_beginning_once() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for model in [pocket_moe(), tiny()] {
        let system: Vec<TokenId> = (0..1768).map(|i| TokenId(i * 7 % 190 + 5)).collect();
        let prompts: Vec<Vec<TokenId>> =
            (0..8).map(|of| system.iter().copied().chain([TokenId(of + 5), TokenId(3)]).collect()).collect();
        let alone = in_granules(|| spawn(&model, config_of(2048, 1), None));
        let expected: Vec<_> =
            prompts.iter().map(|prompt| generate(&alone, prompt, greedy_exactly(20)).tokens).collect();
        let (one, counted_of_one) = (taken(), alone.stats().expect("it runs").taken_bytes);
        end(alone);
        let engine = in_granules(|| spawn(&model, config_of(2048, 8), None));
        let requests = prompts.iter().map(|prompt| (prompt.clone(), greedy_exactly(20))).collect();
        let together = generate_all(&engine, requests);
        assert!(together.iter().map(|got| &got.tokens).eq(&expected), "{model:?}");
        let recurrent = 7 * recurrent_bytes(&model);
        println!("{model:?}: one takes {one}, eight {}, {recurrent} of them recurrent", taken());
        let counted = engine.stats().expect("it runs").taken_bytes;
        assert!((taken() - recurrent) * 100 <= one * 115, "{model:?}: one takes {one}, eight {}", taken());
        assert!((counted - recurrent) * 100 <= counted_of_one * 115, "{model:?}: {counted_of_one}, eight {counted}");
        end(engine);
    }
}

/// A prompt that begins as one of those that were served, or is new, with some tokens of its own.
fn fork(random: &mut Random, served: &[Vec<TokenId>]) -> Vec<TokenId> {
    let mut prompt = match served {
        [] => Vec::new(),
        _ => {
            let of = &served[random.below(served.len())];
            of[..of.len() * random.below(101) / 100].to_vec()
        }
    };
    let longest = if random.below(4) == 0 { 400 } else { 60 };
    let n = (1 + random.below(longest)).min(800usize.saturating_sub(prompt.len()).max(1));
    prompt.extend((0..n).map(|_| TokenId(random.below(190) as u32 + 5)));
    prompt
}

/// Serves forks of what was served, some at once, where there is room for little more than one; each is compared with one that was
/// computed alone.
fn serve_forks(model: &Arc<Model>, drafts: bool, store_bytes: usize, n_rounds: usize) {
    let make = |config| if drafts { drafting(model, config) } else { spawn(model, config, None) };
    let of_one = make(config_of(1024, 1)).stats().expect("it runs").state_bytes;
    // The head takes its part.
    let kv_bytes = Some(if drafts { of_one * 5 / 2 } else { of_one * 5 / 4 });
    let config = EngineConfig { store_bytes, kv_bytes, ..config_of(1024, 4) };
    let alone = spawn(model, config_of(1024, 1), None);
    let engine = in_granules(|| make(config.clone()));
    let mut random = Random::new(SEED);
    let mut served: Vec<Vec<TokenId>> = Vec::new();
    let mut known: HashMap<Vec<TokenId>, Vec<TokenId>> = HashMap::new();
    for round in 0..n_rounds {
        let requests: Vec<_> =
            (0..1 + random.below(6)).map(|_| (fork(&mut random, &served), 1 + random.below(40))).collect();
        let all = requests.iter().map(|(prompt, n)| (prompt.clone(), greedy_exactly(*n))).collect();
        for ((prompt, n), got) in requests.iter().zip(generate_all(&engine, all)) {
            let fresh = || generate(&alone, prompt, RequestOptions { cache: false, ..greedy_exactly(40) }).tokens;
            let expected = known.entry(prompt.clone()).or_insert_with(fresh);
            assert_eq!(got.tokens, expected[..*n], "{model:?}, round {round}, seed {SEED}, {} tokens", prompt.len());
            served.push(prompt.iter().chain(&got.tokens).copied().collect());
        }
        let stats = engine.stats().expect("it runs");
        assert!(drafts || taken() <= stats.taken_bytes, "{} bytes of granules, {stats:?}", taken());
        if served.len() > 12 {
            served.drain(..served.len() - 12);
        }
    }
    let stats = engine.stats().expect("it runs");
    println!("{model:?}: {stats:?}");
    assert!(stats.reused.n_copied + stats.reused.n_stored > 500 && stats.n_evicted + stats.n_paused > 5, "{stats:?}");
    end(engine);
}

#[test]
fn forks_of_sequences_that_share_granules_say_what_they_would_alone() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    serve_forks(&tiny(), false, 0, 40);
    serve_forks(&tiny(), false, 64 << 20, 40);
    serve_forks(&pocket_moe(), false, 64 << 20, 8);
}

#[test]
fn so_do_those_that_draft() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    serve_forks(&pocket_moe(), true, 64 << 20, 8);
}
