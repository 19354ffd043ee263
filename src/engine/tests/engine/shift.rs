//! Generations that outlive their context: after a shift they go on as an engine does that was given what was left as a prompt.

use engine::{ContextShift, EngineConfig, Event, FinishReason, RequestOptions};
use test_support::*;
use text::TokenId;

const N_CTX: usize = 256;

fn shifting(n: usize, shift: ContextShift) -> RequestOptions {
    RequestOptions { shift: Some(shift), ..greedy_exactly(n) }
}

fn prompt(n: usize) -> Vec<TokenId> {
    (0..n as u32).map(|i| TokenId(i * 7 % 190 + 5)).collect()
}

/// Whole pieces of one length, and no other checkpoints than those at boundaries.
fn pieces(config: EngineConfig) -> EngineConfig {
    EngineConfig { n_batch: 32, n_batch_shared: 32, checkpoint_every: Some(0), ..config }
}

#[test]
fn a_generation_goes_on_over_its_beginning_and_its_end() {
    for model in [tiny(), pocket(), pocket_moe()] {
        for (keep, boundaries) in [(None, vec![64]), (Some(20), vec![]), (Some(0), vec![]), (Some(usize::MAX), vec![])]
        {
            let (engine, _alone) = engine(&model, pieces(config(N_CTX, 1)));
            let prompt = prompt(80);
            let options = RequestOptions {
                checkpoint_boundaries: boundaries.clone(),
                ..shifting(600, ContextShift { keep, discard: None })
            };
            let got = generate(&engine, &prompt, options);
            assert_eq!(got.tokens.len(), 600, "{model:?}, keep {keep:?}");
            // What the state held at the first shift, and what was left of it.
            let n_keep = keep.unwrap_or(64).min(80);
            let all: Vec<TokenId> = prompt.iter().chain(&got.tokens).copied().take(N_CTX + 1).collect();
            let n_cut = (all.len() - n_keep) / 2;
            let left = [&all[..n_keep], &all[n_keep + n_cut..]].concat();
            let n_more = N_CTX + 1 - left.len();
            let fresh = spawn(&model, pieces(config(N_CTX, 1)), None);
            // The same pieces: a checkpoint at the beginning cuts the prompt there.
            let options = RequestOptions { checkpoint_boundaries: boundaries, ..greedy_exactly(n_more) };
            let expected = generate(&fresh, &left, options);
            let after = &got.tokens[all.len() - prompt.len()..];
            // Of an attention model the beginning stays as it was; where the rest begins in a piece may decide the last bits.
            assert_eq!(after[..8.min(n_more)], expected.tokens[..8.min(n_more)], "{model:?}, keep {keep:?}");
        }
    }
}

#[test]
fn drafts_change_nothing_about_it() {
    for model in [pocket(), pocket_moe()] {
        let config = pieces(config(N_CTX, 2));
        let (plain, _alone) = engine(&model, config.clone());
        let drafting = drafting(&model, config);
        let shift = ContextShift { keep: Some(16), discard: Some(100) };
        let expected = generate(&plain, &prompt(50), shifting(500, shift));
        let together =
            generate_all(&drafting, vec![(prompt(50), shifting(500, shift)), (prompt(70), shifting(400, shift))]);
        assert_eq!(together[0].tokens, expected.tokens, "{model:?}");
        assert_eq!(together[1].tokens, generate(&plain, &prompt(70), shifting(400, shift)).tokens, "{model:?}");
        assert!(together[0].timings().accepted > 0, "{model:?}");
    }
}

#[test]
fn without_a_number_of_tokens_it_ends_after_as_many_as_the_context_has() {
    let model = tiny();
    let (engine, _alone) = engine(&model, pieces(config(N_CTX, 1)));
    let options = RequestOptions { max_tokens: None, ..shifting(1, ContextShift::default()) };
    let mut generation = submit(&engine, &prompt(200), options);
    let (mut n, mut reason) = (0, None);
    while let Some(event) = generation.next() {
        match event {
            Event::Tokens(pieces) => n += pieces.len(),
            Event::Finished(summary) => reason = Some(summary.reason),
            _ => {}
        }
    }
    assert_eq!((n, reason), (N_CTX, Some(FinishReason::Length)));
}
