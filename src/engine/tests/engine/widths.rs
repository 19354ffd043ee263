//! Batches of one width (`--exact N`) with several tokens of one generation: tokens that a grammar forces, drafts right and
//! wrong, and what fills the batch. Whatever the tokens are, the generation and the state behind it are those of one token
//! a batch.

use std::sync::Arc;

use crate::tiny::Spec;
use engine::{
    Allowed, Constraint, DraftRequest, EngineConfig, Exact, Grammar, ObservedStep, Proposer, ProposerInfo,
    RequestOptions, SavedDraftError, Scope, SequenceChange, TargetState,
};
use model::{LoadOptions, Model, RunError, Runner};
use test_support::{Completion, generate, greedy_exactly, spawn};
use text::TokenId;

/// Tokens of the generation that are forced, run by run, each followed by one that the model picks.
const RUNS: [usize; 8] = [0, 1, 2, 7, 3, 8, 15, 33];

/// Tokens of the generation; the last is one that the model picks.
const N_TOKENS: usize = 8 + 1 + 2 + 7 + 3 + 8 + 15 + 33;

const N_PROMPT: u32 = 37;

/// Which token is forced at each place of the generation; `None` where the model picks.
fn plan() -> Vec<Option<TokenId>> {
    let mut places = Vec::new();
    for n in RUNS {
        places.extend((0..n).map(|i| Some(TokenId((40 + (7 * i + n) % 200) as u32))));
        places.push(None);
    }
    places
}

#[derive(Debug, Clone)]
struct Plan {
    places: Arc<Vec<Option<TokenId>>>,
    /// Tokens that end a generation, which never may.
    ends: Arc<Vec<TokenId>>,
    /// What is forced is told ahead.
    jumps: bool,
    at: usize,
    bits: Vec<u32>,
}

impl Grammar for Plan {
    fn start(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

impl Constraint for Plan {
    fn allowed(&mut self) -> Result<Allowed<'_>, String> {
        let Some(Some(only)) = self.places.get(self.at) else { return Ok(Allowed::AllBut(&self.ends)) };
        self.bits.fill(0);
        self.bits[only.0 as usize / 32] |= 1 << (only.0 % 32);
        Ok(Allowed::Only(&self.bits))
    }

    fn accept(&mut self, token: TokenId) -> Result<(), String> {
        let fits = self.places.get(self.at).is_none_or(|place| place.is_none_or(|only| only == token));
        assert!(fits, "{token:?} does not belong at {}", self.at);
        self.at += 1;
        Ok(())
    }

    fn n_fitting(&mut self, tokens: &[TokenId]) -> usize {
        let places = self.places.iter().skip(self.at).chain(std::iter::repeat(&None));
        tokens.iter().zip(places).take_while(|(token, place)| place.is_none_or(|only| only == **token)).count()
    }

    fn forced(&mut self) -> Vec<TokenId> {
        let to_come = self.places.iter().skip(self.at).map_while(|place| *place);
        if self.jumps { to_come.collect() } else { Vec::new() }
    }

    fn is_complete(&self) -> bool {
        false
    }
}

/// Drafts the generation that is to come, with a wrong token at every fifth place.
struct Knows {
    answer: Vec<TokenId>,
    depth: usize,
    n_seen: usize,
}

impl Proposer for Knows {
    fn info(&self) -> ProposerInfo {
        ProposerInfo { max_depth: self.depth, ..ProposerInfo::default() }
    }

    fn change(&mut self, _: usize, change: SequenceChange<'_>) -> Result<(), SavedDraftError> {
        if let SequenceChange::Begin { tokens, .. } = change {
            self.n_seen = tokens.len();
        }
        Ok(())
    }

    fn observe(&mut self, _: &mut Runner, step: &ObservedStep<'_>) -> Result<(), RunError> {
        self.n_seen += step.sequences.iter().map(|s| s.tokens.len()).sum::<usize>();
        Ok(())
    }

    fn propose(
        &mut self,
        _: &mut Runner,
        _: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        // The state lacks the token that was picked last; the draft comes after it.
        let first = self.n_seen + 1 - N_PROMPT as usize;
        let guess = |at: usize| if at.is_multiple_of(5) { TokenId(9) } else { self.answer[at] };
        let draft =
            |request: &DraftRequest| (first..N_TOKENS.min(first + request.max.min(self.depth))).map(guess).collect();
        Ok(requests.iter().map(draft).collect())
    }
}

/// The generation and the state that it leaves.
fn answer(model: &Arc<Model>, exact: Exact, jumps: bool, proposer: Option<Knows>) -> (Vec<TokenId>, Vec<u8>) {
    let config = EngineConfig { n_ctx: Some(256), threads: Some(1), n_batch: 16, exact, ..EngineConfig::default() };
    let proposer = proposer.map(|p| Box::new(p) as Box<dyn Proposer>);
    let engine = spawn(model, config, proposer);
    let vocab = model.vocab();
    let ends = (0..vocab.len() as u32).map(TokenId).filter(|&id| vocab.is_eog(id)).collect();
    let bits = vec![0; vocab.len().div_ceil(32)];
    let grammar = Plan { places: Arc::new(plan()), ends: Arc::new(ends), jumps, at: 0, bits };
    let options = RequestOptions { grammar: Some(Arc::new(grammar)), ..greedy_exactly(N_TOKENS) };
    let prompt: Vec<_> = (0..N_PROMPT).map(|i| TokenId(60 + 3 * i)).collect();
    let Completion { tokens, end, .. } = generate(&engine, &prompt, options);
    assert!(end.is_ok(), "{exact}, jumps {jumps}, after {} tokens: {end:?}", tokens.len());
    let saved = engine.save_slot(0, Scope::default()).expect("a slot that is free");
    (tokens, saved.to_bytes().expect("its file is there"))
}

#[test]
fn what_is_forced_or_drafted_leaves_every_bit_in_passes_of_any_width() {
    assert_eq!(plan().len(), N_TOKENS);
    let dir = tempfile::TempDir::new().expect("a folder");
    for arch in ["qwen35", "llama"] {
        let path = Spec::of(arch).document().write(&dir.path().join("tiny.gguf"));
        let model = Model::open(&path, &LoadOptions::default()).expect("a sound file");
        let widths = (1..=32).map(Exact::Width).chain([Exact::Off, Exact::On]);
        for exact in widths {
            let (plain, state) = answer(&model, exact, false, None);
            assert_eq!(plain.len(), N_TOKENS);
            for jumps in [false, true] {
                for depth in [0, 1, 6, 15] {
                    let knows = Knows { answer: plain.clone(), depth, n_seen: 0 };
                    let (tokens, left) = answer(&model, exact, jumps, (depth > 0).then_some(knows));
                    let what = format!("{arch}, exact {exact}, jumps {jumps}, depth {depth}");
                    assert_eq!(tokens, plain, "{what}");
                    assert!(left == state, "{what}: another state");
                }
            }
        }
    }
}
