//! A draft ends before the first token that the head finds less probable than the request says, and no generation changes.

use std::sync::{Arc, Mutex};

use engine::sample::SamplingParams;
use engine::{
    DraftRequest, EngineConfig, ObservedStep, Proposer, ProposerInfo, RequestOptions, SavedDraftError, SequenceChange,
    TargetState,
};
use model::{Draft, DraftOutput, Model, RunError, Runner};
use speculate::{Depth, DraftMode, DraftVocabSize, Mode, NextN, SpecConfig, proposer};
use test_support::{Completion, config, generate, greedy_exactly, head, pocket_moe, question, spawn};
use text::TokenId;

const DEPTH: usize = 4;
const N_CTX: usize = 160;

/// A draft that was made, and the probability of each token of the chain by a plain reference.
struct Made {
    p_min: f32,
    most: usize,
    draft: Vec<TokenId>,
    chain: Vec<TokenId>,
    probs: Vec<f64>,
}

/// The head, and beside it the same draft computed from the whole text, without a cell that was kept, with all logits.
struct Referenced {
    head: NextN,
    config: EngineConfig,
    tokens: Vec<TokenId>,
    hidden: Vec<f32>,
    next: Option<TokenId>,
    made: Arc<Mutex<Vec<Made>>>,
}

impl Referenced {
    fn new(model: &Arc<Model>, config: EngineConfig) -> (Box<Self>, Arc<Mutex<Vec<Made>>>) {
        let head = head(model, &config, Depth::Fixed(DEPTH), DraftVocabSize::Full);
        let made = Arc::<Mutex<Vec<Made>>>::default();
        let (tokens, hidden) = (Vec::new(), Vec::new());
        (Box::new(Self { head, config, tokens, hidden, next: None, made: Arc::clone(&made) }), made)
    }

    /// The chain after the whole text, and the softmax of its logits at its tokens.
    fn reference(&self, runner: &mut Runner) -> Result<(Vec<TokenId>, Vec<f64>), RunError> {
        let model = Arc::clone(runner.model());
        let of_model = self.config.memory(&model);
        let mut memory = model.head_memory(of_model)?.expect("it has a head");
        let slot = memory.acquire()?.expect("a new memory has a free slot");
        let tokens: Vec<TokenId> = self.tokens[1..].iter().copied().chain(self.next).collect();
        let n_entries = [tokens.len()];
        let step = memory.begin(&[(&slot, tokens.len() + DEPTH - 1)], 1)?;
        let (tokens, hidden, n_entries) = (&tokens, &self.hidden, &n_entries);
        let draft = Draft { tokens, hidden, n_entries, depth: DEPTH, verbose: true, ..Draft::default() };
        let mut output = DraftOutput::default();
        runner.draft(step.view(), &draft, &mut output)?;
        let chain = output.tokens[0].clone();
        let prob = |(id, logits): (&TokenId, &Vec<f32>)| {
            let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
            f64::from(logits[id.0 as usize]).exp() / sum
        };
        let probs = chain.iter().zip(&output.logits).map(prob).collect();
        Ok((chain, probs))
    }
}

impl Proposer for Referenced {
    fn info(&self) -> ProposerInfo {
        self.head.info()
    }

    fn change(&mut self, slot: usize, change: SequenceChange<'_>) -> Result<(), SavedDraftError> {
        let SequenceChange::Begin { tokens: [], .. } = change else { panic!("nothing is kept here: {change:?}") };
        (self.tokens, self.hidden, self.next) = (Vec::new(), Vec::new(), None);
        self.head.change(slot, change)
    }

    fn observe(&mut self, runner: &mut Runner, step: &ObservedStep<'_>) -> Result<(), RunError> {
        for s in step.sequences {
            self.tokens.extend_from_slice(s.tokens);
            self.hidden.extend_from_slice(s.hidden);
            self.next = s.next;
        }
        self.head.observe(runner, step)
    }

    fn propose(
        &mut self,
        runner: &mut Runner,
        target: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        let drafts = self.head.propose(runner, target, requests)?;
        let (chain, probs) = self.reference(runner)?;
        let (request, draft) = (&requests[0], drafts[0].clone());
        let made = Made { p_min: request.p_min, most: request.max.min(DEPTH), draft, chain, probs };
        self.made.lock().expect("nobody panics with it").push(made);
        Ok(drafts)
    }
}

fn options(p_min: f32, max_tokens: usize) -> RequestOptions {
    RequestOptions { draft_p_min: p_min, cache: false, ..greedy_exactly(max_tokens) }
}

#[test]
fn drafts_end_where_the_heads_own_probability_falls_below_p_min() {
    let model = &pocket_moe();
    let prompt = question(model, "Tell me a short story about a dragon.");
    let plain = generate(&spawn(model, config(N_CTX, 1), None), &prompt, options(0.0, 60));
    let (referenced, made) = Referenced::new(model, config(N_CTX, 1));
    let engine = spawn(model, config(N_CTX, 1), Some(referenced));
    let mut drafted = Vec::new();
    for p_min in [0.0, 0.3, 0.7, 0.95, 1.0] {
        let got = generate(&engine, &prompt, options(p_min, 60));
        assert_eq!(got.seen(), plain.seen(), "p_min {p_min}");
        drafted.push(got.timings().drafted);
    }
    assert!(drafted.is_sorted_by(|a, b| a >= b) && drafted[0] > 2 * drafted[4], "{drafted:?}");

    let made = made.lock().expect("the engine waits");
    let (mut n_cut, mut n_whole) = (0, 0);
    for Made { p_min, most, draft, chain, probs } in made.iter() {
        assert_eq!(draft[..], chain[..draft.len()], "p_min {p_min}: the reference drafts the same");
        let unsure = |p: &f64| *p < f64::from(*p_min);
        let expected = probs[..*most].iter().position(unsure).unwrap_or(*most);
        // The reference computes in passes of other widths: within this of the limit it may fall on the other side.
        let near = probs.iter().any(|p| (p - f64::from(*p_min)).abs() < 1e-4);
        if near && *p_min > 0.0 {
            continue;
        }
        assert_eq!(draft.len(), expected, "p_min {p_min}, probabilities {probs:?}");
        (n_cut, n_whole) = (n_cut + usize::from(expected < *most), n_whole + usize::from(expected == *most));
    }
    assert!(n_cut > 10 && n_whole > 10, "{n_cut} drafts ended early, {n_whole} did not");
}

#[test]
fn p_min_changes_no_answer_of_any_source_at_any_depth() {
    let model = &pocket_moe();
    let prompt = question(model, "What is 17 + 25?");
    let sampled = SamplingParams { seed: Some(5), temperature: 0.8, ..SamplingParams::default() };
    for sampling in [SamplingParams::greedy(), sampled] {
        let options = |p_min| RequestOptions { sampling: sampling.clone(), ..options(p_min, 48) };
        let run = |mode, depth, draft_mode, p_min| -> Completion {
            let config = config(N_CTX, 1);
            let spec = SpecConfig { mode, depth, draft_mode, vocab: DraftVocabSize::First(500) };
            let source = proposer(model, &config, spec).expect("it has a head");
            generate(&spawn(model, config, source), &prompt, options(p_min))
        };
        let plain = run(Mode::Off, Depth::Auto, DraftMode::Fused, 0.0);
        for (mode, depth, draft_mode) in [
            (Mode::NextN, Depth::Fixed(3), DraftMode::Fused),
            (Mode::NextN, Depth::Auto, DraftMode::Fused),
            (Mode::NextN, Depth::Fixed(3), DraftMode::Async),
            (Mode::NextNgram, Depth::Fixed(3), DraftMode::Fused),
        ] {
            let what = format!("{mode} {depth} {draft_mode}");
            let all = run(mode, depth, draft_mode, 0.0);
            for p_min in [0.6, 1.0] {
                let got = run(mode, depth, draft_mode, p_min);
                assert_eq!(got.seen(), plain.seen(), "{what}, p_min {p_min}");
                if (mode, depth) == (Mode::NextN, Depth::Fixed(3)) {
                    assert!(
                        got.timings().drafted < all.timings().drafted,
                        "{what}, p_min {p_min}: {:?}",
                        got.timings()
                    );
                }
            }
            assert_eq!(all.seen(), plain.seen(), "{what}");
        }
    }
}
