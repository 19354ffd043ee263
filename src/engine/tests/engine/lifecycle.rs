//! Random lives of conversations: they fork, go back, run side by side, are cancelled, leave their slots, pause, rest on the
//! host and on disk, and see restarts, with drafts and without. Every reply is that of an engine which knows nothing else.
//! `NEXTN_STEPS` says how many steps to take.

use std::sync::Arc;

use engine::{DiskConfig, EngineConfig, EngineHandle};
use model::Model;
use test_support::*;
use text::TokenId;

use crate::uncached;

const SEED: u64 = 20_261_123;
const N_CTX: usize = 512;

fn spawned(model: &Arc<Model>, config: &EngineConfig, drafts: bool) -> EngineHandle {
    if drafts { drafting(model, config.clone()) } else { spawn(model, config.clone(), None) }
}

fn lives(model: &Arc<Model>, drafts: bool, n_steps: usize) {
    let dir = tempfile::TempDir::new().expect("a folder");
    let plain = EngineConfig { checkpoint_every: Some(64), n_batch: 64, ..config(N_CTX, 3) };
    let plain = EngineConfig { n_batch_shared: 64, ..plain };
    let one = {
        let engine = spawned(model, &EngineConfig { n_sequences: 1, ..plain.clone() }, false);
        engine.stats().expect("it runs").state_bytes
    };
    let disk = DiskConfig { dir: dir.path().to_owned(), n_bytes: 4 * one as u64 };
    // With drafts a part of it is that of their layer.
    let kv_bytes = Some(if drafts { 8 * one } else { one * 3 / 2 });
    let config = EngineConfig { kv_bytes, store_bytes: 2 * one, disk: Some(disk), ..plain.clone() };
    let alone = spawned(model, &EngineConfig { n_sequences: 1, ..plain }, false);
    let mut engine = spawned(model, &config, drafts);
    let mut random = Random::new(SEED);
    let mut token = move || TokenId((5 + random.below(180)) as u32);
    let mut random = Random::new(SEED + 1);
    let mut talks: Vec<Vec<TokenId>> = vec![(0..90).map(|_| token()).collect()];
    let (mut n_evicted, mut n_paused, mut n_reused) = (0, 0, [0; 4]);
    let mut count = |engine: &EngineHandle| {
        let stats = engine.stats().expect("it runs");
        let reused = stats.reused;
        (n_evicted, n_paused) = (n_evicted + stats.n_evicted, n_paused + stats.n_paused);
        let all = [reused.n_own, reused.n_copied, reused.n_stored, reused.n_disk];
        n_reused.iter_mut().zip(all).for_each(|(sum, n)| *sum += n);
        println!("evicted {n_evicted}, paused {n_paused}, reused {n_reused:?}");
    };
    for step in 0..n_steps {
        let mut running = Vec::new();
        for _ in 0..1 + random.below(4) {
            let talk = &talks[random.below(talks.len())];
            // On from its end, from anywhere in it, or from nothing.
            let n = match random.below(4) {
                0 => random.below(talk.len()),
                1 => 0,
                _ => talk.len(),
            };
            let n = n.min(N_CTX - 140);
            let more = 1 + random.below(if n == 0 { 120 } else { 30 });
            let prompt: Vec<TokenId> = talk[..n].iter().copied().chain((0..more).map(|_| token())).collect();
            let options = greedy_exactly(1 + random.below(100));
            let options = if random.below(8) == 0 { uncached(options) } else { options };
            running.push((submit(&engine, &prompt, options.clone()), prompt, options));
        }
        for (mut generation, prompt, options) in running {
            if random.below(6) == 0 {
                (0..random.below(5)).for_each(|_| drop(generation.next()));
                continue;
            }
            let got = Completion::read(&mut generation).tokens;
            let expected = generate(&alone, &prompt, uncached(options)).tokens;
            assert_eq!(got, expected, "seed {SEED}, step {step}, prompt of {}, drafts {drafts}", prompt.len());
            let talk = [prompt, got].concat();
            if talks.len() < 8 { talks.push(talk) } else { talks[random.below(8)] = talk }
        }
        if random.below(8) == 0 {
            count(&engine);
            let life = engine.life();
            drop(engine);
            while !life.is_freed() {
                std::thread::yield_now();
            }
            engine = spawned(model, &config, drafts);
        }
    }
    count(&engine);
    assert!(n_steps < 30 || drafts || n_evicted > 0, "nothing had to leave");
    let [own, copied, stored, disk] = n_reused;
    assert!(n_steps < 30 || own > 0 && stored + copied > 0 && disk > 0, "{n_reused:?}");
}

fn n_steps() -> usize {
    std::env::var("NEXTN_STEPS").ok().and_then(|n| n.parse().ok()).unwrap_or(12)
}

#[test]
fn whatever_becomes_of_sequences_replies_are_those_of_a_fresh_engine() {
    lives(&tiny(), false, n_steps());
    lives(&pocket_moe(), false, n_steps());
}

#[test]
fn drafts_over_all_of_it_change_nothing() {
    lives(&pocket_moe(), true, n_steps());
}

/// Run by hand: `cargo test -p nextn-engine --release --test engine -- --ignored ten_thousand`.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "takes minutes"]
fn ten_thousand_short_requests_leak_nothing() {
    let model = pocket_moe();
    let store_bytes = 4 << 20;
    let engine = drafting(&model, EngineConfig { store_bytes, checkpoint_bytes: 8 << 20, ..config(256, 4) });
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
        let pages: usize = text.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number");
        pages * 4096
    };
    let mut random = Random::new(SEED);
    let mut serve = |n: usize| {
        for _ in 0..n / 4 {
            let mut prompt = || (0..4 + random.below(30)).map(|_| TokenId((5 + random.below(180)) as u32)).collect();
            let requests = (0..4).map(|_| (prompt(), greedy_exactly(3))).collect();
            assert_eq!(generate_all(&engine, requests).len(), 4);
        }
        (engine.stats().expect("it runs").taken_bytes, resident())
    };
    let (taken, before) = serve(2_000);
    let (taken_after, after) = serve(8_000);
    println!("{taken} and {taken_after} bytes of state, {before} and {after} resident");
    assert_eq!(taken_after, taken, "all slots had been full");
    assert!(after < before + (8 << 20), "{before} bytes became {after}");
}
