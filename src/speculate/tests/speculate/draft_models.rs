//! A draft model of its own: no generation changes, and what it drafts is what it would draft from the whole text, however
//! many draft tokens were accepted, whichever state the model keeps, and beside other sequences.

use std::sync::{Arc, Mutex};

use engine::sample::SamplingParams;
use engine::{
    DraftRequest, EngineConfig, ObservedStep, Proposer, ProposerInfo, RequestOptions, SavedDraftError, SequenceChange,
    TargetState,
};
use model::{AdapterSet, LoadOptions, Model, Pictures, RunError, Runner};
use speculate::{Depth, DraftModel, Mode, SpecConfig, memory_plan_with, proposer_with};
use test_support::{config, generate, generate_all, greedy_exactly, pocket, pocket_moe, question, some_tokens, spawn};
use text::TokenId;

use crate::tiny::Spec;

fn tiny(arch: &'static str) -> Arc<Model> {
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = Spec { n_vocab: 512, ..Spec::of(arch) }.document().write(&dir.path().join("tiny.gguf"));
    Model::open(&path, &LoadOptions::default()).expect("a sound file")
}

fn spec(mode: Mode, depth: Depth) -> SpecConfig {
    SpecConfig { mode, depth, ..SpecConfig::default() }
}

/// A draft model, each draft of which is compared with that of one that has read the whole text at once. What it hands out is
/// spoiled now and then, so that drafts are rejected after any number of tokens.
struct Compared {
    inner: DraftModel,
    draft: Arc<Model>,
    config: EngineConfig,
    depth: usize,
    texts: Vec<(Vec<TokenId>, bool)>,
    n_drafts: usize,
    n_compared: Arc<Mutex<usize>>,
}

impl Compared {
    fn whole(
        &self,
        runner: &mut Runner,
        target: &TargetState<'_>,
        request: &DraftRequest,
    ) -> Result<Vec<TokenId>, RunError> {
        let model = Arc::clone(runner.model());
        let mut fresh = DraftModel::new(&self.draft, &model, &self.config, Depth::Fixed(self.depth))?;
        let (tokens, adapters) = (&self.texts[request.slot].0[..], &AdapterSet::default());
        let begin = SequenceChange::Begin { tokens, adapters, hidden: &[], pictures: &Pictures::default() };
        fresh.change(request.slot, begin).expect("nothing was saved");
        Ok(fresh.propose(runner, target, &[*request])?.remove(0))
    }
}

impl Proposer for Compared {
    fn info(&self) -> ProposerInfo {
        self.inner.info()
    }

    fn change(&mut self, slot: usize, change: SequenceChange<'_>) -> Result<(), SavedDraftError> {
        if let SequenceChange::Begin { tokens, .. } = change {
            self.texts[slot] = (tokens.to_vec(), false);
        }
        self.inner.change(slot, change)
    }

    fn observe(&mut self, runner: &mut Runner, step: &ObservedStep<'_>) -> Result<(), RunError> {
        for s in step.sequences {
            let (text, ahead) = &mut self.texts[s.slot];
            text.truncate(text.len() - usize::from(std::mem::take(ahead)));
            text.extend(s.tokens.iter().copied().chain(s.next));
            *ahead = s.next.is_some();
        }
        self.inner.observe(runner, step)
    }

    fn propose(
        &mut self,
        runner: &mut Runner,
        target: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        let mut drafts = self.inner.propose(runner, target, requests)?;
        for (request, draft) in requests.iter().zip(&mut drafts) {
            let whole = self.whole(runner, target, request)?;
            assert_eq!(*draft, whole, "after {} tokens", self.texts[request.slot].0.len());
            *self.n_compared.lock().expect("no panic before") += 1;
            self.n_drafts += 1;
            // Right to the end, or wrong from some token on.
            if let Some(token) = draft.get_mut(self.n_drafts % (2 * self.depth)) {
                token.0 = (token.0 + 1) % 256;
            }
        }
        Ok(drafts)
    }
}

/// Generations with a model that drafts for itself, beside each other, one after the other, and from another place.
fn follows_itself(arch: &str, model: &Arc<Model>, n_sequences: usize, n: usize) {
    let (depth, config) = (3, config(768, n_sequences));
    let plain = spawn(model, config.clone(), None);
    let n_compared = Arc::<Mutex<usize>>::default();
    let compared = Compared {
        inner: DraftModel::new(model, model, &config, Depth::Fixed(depth)).expect("room"),
        draft: Arc::clone(model),
        config: config.clone(),
        depth,
        texts: vec![Default::default(); n_sequences],
        n_drafts: 0,
        n_compared: Arc::clone(&n_compared),
    };
    let drafting = spawn(model, config, Some(Box::new(compared)));
    // The second begins as the first and goes another way; the third goes on from it.
    let long: Vec<TokenId> = some_tokens(40).iter().map(|id| TokenId(id.0 % 250)).collect();
    let other = [&long[..30], &[TokenId(7); 3]].concat();
    for prompts in [vec![long.clone(); n_sequences], vec![other.clone(); 1], vec![[&other[..], &long].concat(); 1]] {
        let requests = || {
            let number = prompts.iter().cloned().enumerate();
            number.map(|(i, p)| ([&p[..], &[TokenId(i as u32)]].concat(), greedy_exactly(n))).collect::<Vec<_>>()
        };
        let want: Vec<_> = generate_all(&plain, requests()).into_iter().map(|c| c.tokens).collect();
        let got: Vec<_> = generate_all(&drafting, requests());
        let accepted: u64 = got.iter().map(|c| c.timings().accepted as u64).sum();
        assert!(accepted > 0, "{arch}");
        assert_eq!(got.into_iter().map(|c| c.tokens).collect::<Vec<_>>(), want, "{arch}");
    }
    assert!(*n_compared.lock().expect("no panic") > n / depth, "{arch}");
}

#[test]
fn every_architecture_drafts_after_any_rollback_as_from_the_whole_text() {
    for arch in model::architectures() {
        follows_itself(arch, &tiny(arch), 1, 24);
    }
}

#[test]
fn a_draft_model_with_recurrent_state_follows_several_sequences() {
    follows_itself("qwen35", &tiny("qwen35"), 3, 24);
    follows_itself("qwen3", &tiny("qwen3"), 3, 24);
}

/// The cells of the windows are rings, which the sequence outgrows.
#[test]
fn a_draft_model_with_windows_goes_back_behind_its_rings() {
    follows_itself("gemma3", &tiny("gemma3"), 1, 560);
}

#[test]
fn a_model_that_drafts_for_itself_is_always_right() {
    let model = pocket();
    let config = config(256, 1);
    let drafts = proposer_with(&model, Some(&model), &config, spec(Mode::Draft, Depth::Fixed(4))).expect("room");
    let engine = spawn(&model, config, drafts);
    let c = generate(&engine, &question(&model, "What is 17 + 25?"), greedy_exactly(50));
    assert!(c.timings().drafted > 30 && c.timings().drafted == c.timings().accepted, "{:?}", c.timings());
}

#[test]
fn no_source_and_no_mixture_of_them_changes_a_greedy_or_sampled_generation() {
    let (target, draft) = (pocket_moe(), pocket());
    let prompts: Vec<_> =
        ["What is 17 + 25?", "Tell me a story.", "Say hello three times."].map(|text| question(&target, text)).into();
    let seeded = |seed| RequestOptions {
        sampling: SamplingParams { temperature: 0.8, seed: Some(seed), ..SamplingParams::default() },
        ..greedy_exactly(40)
    };
    let run = |mode, depth| {
        let config = config(256, 2);
        let drafts = proposer_with(&target, Some(&draft), &config, spec(mode, depth)).expect("room");
        let engine = spawn(&target, config, drafts);
        let greedy = generate_all(&engine, prompts.iter().map(|p| (p.clone(), greedy_exactly(40))).collect());
        let sampled = generate_all(&engine, prompts.iter().map(|p| (p.clone(), seeded(11))).collect());
        let accepted: u64 = greedy.iter().chain(&sampled).map(|c| c.timings().accepted as u64).sum();
        (greedy.into_iter().chain(sampled).map(|c| c.tokens).collect::<Vec<_>>(), accepted)
    };
    let (plain, _) = run(Mode::Off, Depth::Auto);
    for (mode, depth) in [
        (Mode::Draft, Depth::Fixed(1)),
        (Mode::Draft, Depth::Fixed(6)),
        (Mode::Draft, Depth::Auto),
        (Mode::DraftNgram, Depth::Fixed(3)),
        (Mode::NextNDraft, Depth::Fixed(3)),
        (Mode::NextNDraftNgram, Depth::Auto),
        (Mode::Auto, Depth::Auto),
    ] {
        let (tokens, accepted) = run(mode, depth);
        assert_eq!(tokens, plain, "{mode} {depth}");
        if let Depth::Fixed(n) = depth {
            assert!(accepted > 20 * n.min(2) as u64, "{mode} {depth}: {accepted}");
        }
    }
}

#[test]
fn a_draft_ends_before_a_token_that_the_draft_model_finds_improbable() {
    let (target, draft) = (pocket_moe(), pocket());
    let run = |p_min| {
        let config = config(256, 1);
        let drafts = proposer_with(&target, Some(&draft), &config, spec(Mode::Draft, Depth::Fixed(6))).expect("room");
        let engine = spawn(&target, config, drafts);
        let options = RequestOptions { draft_p_min: p_min, ..greedy_exactly(60) };
        let c = generate(&engine, &question(&target, "Tell me a story."), options);
        (c.tokens.clone(), c.timings().drafted, c.timings().accepted as f64 / c.timings().drafted.max(1) as f64)
    };
    let (all, n_all, share) = run(0.0);
    let (sure, n_sure, share_of_sure) = run(0.9);
    assert_eq!(all, sure);
    assert!(n_sure < n_all && share_of_sure > share, "{n_sure} of {n_all}, {share_of_sure} and {share}");
    assert!(run(1.0).1 < n_sure, "hardly any token is certain");
}

#[test]
fn a_draft_model_of_other_tokens_is_refused_with_what_differs() {
    let config = config(256, 1);
    let target = tiny("qwen3");
    let refused = |draft: &Arc<Model>| {
        let drafts = proposer_with(&target, Some(draft), &config, spec(Mode::Auto, Depth::Auto));
        drafts.err().expect("another vocabulary").to_string()
    };
    let error = refused(&pocket());
    assert!(error.contains("it has 8192 tokens, the model has 512") && error.contains("--draft-model"), "{error}");
    let dir = tempfile::TempDir::new().expect("a folder");
    let mut document = Spec { n_vocab: 512, ..Spec::of("qwen3") }.document();
    let tokens = document.keys.iter_mut().find(|(key, _)| key == "tokenizer.ggml.tokens").expect("a vocabulary");
    if let crate::tiny::Meta::Strs(tokens) = &mut tokens.1 {
        tokens.swap(40, 41);
    }
    let swapped = Model::open(&document.write(&dir.path().join("other.gguf")), &LoadOptions::default()).expect("sound");
    let error = refused(&swapped);
    assert!(error.contains("its token 40 is `"), "{error}");
    let asked = proposer_with(&target, None, &config, spec(Mode::Draft, Depth::Auto)).err().expect("none was given");
    assert!(asked.to_string().contains("--draft-model"), "{asked}");
    // A few more tokens at the end are padding.
    let padded = Spec { n_vocab: 520, ..Spec::of("qwen3") }.document().write(&dir.path().join("padded.gguf"));
    let padded = Model::open(&padded, &LoadOptions::default()).expect("sound");
    for (target, draft) in [(&target, &padded), (&padded, &target)] {
        let drafts = proposer_with(target, Some(draft), &config, spec(Mode::Draft, Depth::Fixed(3))).expect("alike");
        let engine = spawn(target, config.clone(), drafts);
        let plain = spawn(target, config.clone(), None);
        let prompt = [TokenId(target.vocab().len() as u32 - 1), TokenId(5), TokenId(6)];
        let [got, want] = [engine, plain].map(|e| generate(&e, &prompt, greedy_exactly(30)));
        assert_eq!(got.tokens, want.tokens);
        assert!(got.timings().drafted > 0);
    }
}

#[test]
fn what_a_draft_model_keeps_is_planned_and_counts_against_the_free_memory() {
    for arch in ["qwen35", "qwen3", "gemma3", "deepseek2"] {
        let (target, draft) = (tiny("qwen3"), tiny(arch));
        let config = EngineConfig { n_sequences: 2, ..config(512, 2) };
        let drafts = spec(Mode::Draft, Depth::Fixed(4));
        let planned = memory_plan_with(&config, &drafts, target.facts(), Some(draft.facts()));
        let kept = DraftModel::new(&draft, &target, &config, drafts.depth).expect("room").state_bytes();
        assert!(planned.beside >= kept && kept > 0, "{arch}: {} planned, {kept} kept", planned.beside);
        assert_eq!(memory_plan_with(&config, &drafts, target.facts(), None).beside, 0);
    }
    let (target, draft) = (tiny("qwen3"), tiny("qwen3"));
    let config = EngineConfig { n_ctx: Some(1 << 30), n_sequences: 64, ..config(512, 64) };
    let drafts = proposer_with(&target, Some(&draft), &config, spec(Mode::Auto, Depth::Auto));
    let error = drafts.err().expect("petabytes").to_string();
    assert!(error.contains("a draft model ") && error.contains("What fits"), "{error}");
}
