//! Exact mode: an answer's tokens and log probabilities do not depend on drafts, nor on who else is being answered.

use std::sync::Arc;

use engine::{EngineConfig, Exact, Proposer, RequestOptions};
use model::Model;
use speculate::{Depth, DraftVocabSize};
use test_support::{Completion, config, generate_all, greedy_exactly, head, open_pocket, question, spawn};
use text::TokenId;

/// A long prompt, that is computed in pieces beside the answers of others, and short ones.
fn requests(model: &Model) -> Vec<(Vec<TokenId>, RequestOptions)> {
    let long = "The ship left the harbour at dawn. A storm came. ".repeat(14);
    let texts =
        ["Tell me a story about a robot.", "What is 17 + 25?", &format!("Summarise: {long}"), "List three planets."];
    let options = RequestOptions { logprobs: Some(2), cache: false, ..greedy_exactly(40) };
    texts.iter().map(|text| (question(model, text), options.clone())).collect()
}

fn run(model: &Arc<Model>, exact: Exact, n_sequences: usize, depth: usize) -> Vec<Completion> {
    let config = EngineConfig { exact, n_batch_shared: 64, ..config(512, n_sequences) };
    let drafts =
        |depth| -> Box<dyn Proposer> { Box::new(head(model, &config, Depth::Fixed(depth), DraftVocabSize::Full)) };
    let proposer = (depth > 0).then(|| drafts(depth));
    generate_all(&spawn(model, config.clone(), proposer), requests(model))
}

fn assert_same(got: &[Completion], expected: &[Completion], what: &str) {
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(got.seen() == expected.seen(), "{what}: request {i} differs");
    }
}

#[test]
fn company_and_drafts_leave_every_bit() {
    for name in ["pocket-q4_k_m.gguf", "pocket-moe-q8_0.gguf"] {
        let model = &open_pocket(name);
        // Two sequences at least: pieces of prompts are then as long as with four.
        let plain = run(model, Exact::On, 2, 0);
        for (n_sequences, depth) in [(4, 0), (2, 3), (4, 5), (4, 6)] {
            let got = run(model, Exact::On, n_sequences, depth);
            assert_same(&got, &plain, &format!("{name}, {n_sequences} sequences, depth {depth}"));
        }
    }
}

#[test]
fn passes_of_one_width_give_the_same_with_drafts_and_without() {
    let model = &open_pocket("pocket-q4_k_m.gguf");
    // Wider than the kernels' few rows would be, and as wide as on a GPU.
    let plain = run(model, Exact::Width(8), 2, 0);
    for (n_sequences, depth) in [(2, 2), (3, 7), (3, 12)] {
        let got = run(model, Exact::Width(8), n_sequences, depth);
        assert_same(&got, &plain, &format!("{n_sequences} sequences, depth {depth}"));
        let accepted: usize = got.iter().map(|a| a.timings().accepted).sum();
        let longest = got.iter().map(|a| a.timings().accepted_by_depth.len()).max();
        assert!(accepted > 0 && longest <= Some(7), "{accepted} accepted, drafts of {longest:?}");
    }
}
