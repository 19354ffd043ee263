//! The first tokens of sampled answers follow the model's distribution, with drafts and without: chi-square over thousands of
//! answers, against the exact chances of every text. The rule is seen to catch what is wrong.

use std::collections::HashMap;
use std::sync::Arc;

use engine::sample::{GumbelNoise, Sampler, SamplingParams};
use engine::{
    DraftRequest, EngineConfig, ObservedStep, Proposer, ProposerInfo, RequestOptions, SavedDraftError, SequenceChange,
    TargetState,
};
use model::{LoadOptions, Model, RunError, Runner};
use speculate::{Depth, DraftVocabSize};
use test_support::{Random, config, generate_all, head, spawn};
use text::TokenId;

use crate::support::rig::{Rig, exact};
use crate::support::tiny::Spec;

/// Tokens of an answer.
const N_TOKENS: usize = 3;

/// Answers of one law.
const N_ANSWERS: u64 = 3000;

/// Answers that one sequence queues at a time.
const N_QUEUED: usize = 60;

type Text = [u32; N_TOKENS];

fn model() -> (tempfile::TempDir, Arc<Model>) {
    let dir = tempfile::tempdir().expect("a folder");
    let spec = Spec { nextn: true, ..Spec::of("qwen35") };
    let path = spec.document().write(&dir.path().join("tiny.gguf"));
    let model = Model::open(&path, &LoadOptions::default()).expect("a tiny model");
    (dir, model)
}

fn prompt() -> Vec<TokenId> {
    [5, 9, 40, 9, 5, 77].map(TokenId).to_vec()
}

/// The exact chance of every text that can come.
fn law(model: &Arc<Model>, params: &SamplingParams) -> HashMap<Text, f64> {
    let mut rig = Rig::new(model, exact(1, 64));
    let mut texts = HashMap::from([(Vec::new(), 1.0)]);
    for _ in 0..N_TOKENS {
        let mut longer = HashMap::new();
        for (said, chance) in texts {
            let slot = rig.slot();
            let ids: Vec<u32> = prompt().iter().map(|t| t.0).chain(said.iter().copied()).collect();
            let logits = rig.step(&[(&slot, &ids)]);
            rig.memory.release(slot);
            let mut sampler = Sampler::new(params, model.hparams().n_vocab, &|_, _| {}).expect("in range");
            sampler.prime(&ids.iter().map(|&id| TokenId(id)).collect::<Vec<_>>());
            for c in sampler.distribution(&logits[logits.len() - model.hparams().n_vocab..]) {
                let text: Vec<u32> = said.iter().copied().chain([c.id.0]).collect();
                longer.insert(text, chance * f64::from(c.p));
            }
        }
        texts = longer;
    }
    texts.into_iter().map(|(text, chance)| (text.try_into().expect("three tokens"), chance)).collect()
}

/// How far counts are from a law, and the degrees of freedom. Texts that are expected less than 5 times count together.
fn chi_square(law: &HashMap<Text, f64>, counts: &HashMap<Text, usize>) -> (f64, f64) {
    let n: usize = counts.values().sum();
    let (mut sum, mut n_cells) = (0.0, 0);
    let mut rare = (0.0, 0);
    let mut cell = |want: f64, got: usize| {
        sum += (got as f64 - want).powi(2) / want;
        n_cells += 1;
    };
    for (text, chance) in law {
        let (want, got) = (chance * n as f64, counts.get(text).copied().unwrap_or(0));
        if want < 5.0 {
            rare = (rare.0 + want, rare.1 + got);
        } else {
            cell(want, got);
        }
    }
    if rare.0 > 0.0 {
        cell(rare.0, rare.1);
    }
    (sum, f64::from(n_cells - 1))
}

/// What chi-square exceeds once in 10,000 seeds; the seeds are fixed. Source: Wilson and Hilferty 1931.
fn limit(freedom: f64) -> f64 {
    let spread = 2.0 / (9.0 * freedom);
    freedom * (1.0 - spread + 3.719 * spread.sqrt()).powi(3)
}

fn counts(
    model: &Arc<Model>,
    params: &SamplingParams,
    config: EngineConfig,
    proposer: Option<Box<dyn Proposer>>,
    seeds: std::ops::Range<u64>,
) -> (HashMap<Text, usize>, usize, usize) {
    let config = EngineConfig { max_queue: N_QUEUED, ..config };
    let engine = spawn(model, config, proposer);
    let mut counts = HashMap::new();
    let (mut drafted, mut accepted) = (0, 0);
    let seeds: Vec<u64> = seeds.collect();
    for seeds in seeds.chunks(N_QUEUED) {
        let request = |&seed: &u64| {
            let sampling = SamplingParams { seed: Some(seed), ..params.clone() };
            // One token more: the last one of an answer is never drafted.
            let options = RequestOptions {
                max_tokens: Some(N_TOKENS + 1),
                sampling,
                ignore_eos: true,
                checkpoint_boundaries: vec![prompt().len() - 1],
                ..RequestOptions::default()
            };
            (prompt(), options)
        };
        for answer in generate_all(&engine, seeds.iter().map(request).collect()) {
            let text: Text = std::array::from_fn(|i| answer.tokens[i].0);
            *counts.entry(text).or_default() += 1;
            drafted += answer.timings().drafted;
            accepted += answer.timings().accepted;
        }
    }
    (counts, drafted, accepted)
}

/// Knows the noise and what can come, and makes the worst of it: drafts what the noise favours, however unlikely.
struct Favourites {
    /// What can come after each beginning.
    next: HashMap<Vec<u32>, Vec<TokenId>>,
    /// The tokens of the sequence, and whether the last is still to come again.
    tokens: Vec<u32>,
    ahead: bool,
}

impl Favourites {
    fn new(law: &HashMap<Text, f64>) -> Self {
        let mut next: HashMap<Vec<u32>, Vec<TokenId>> = HashMap::new();
        for text in law.keys() {
            for n in 0..N_TOKENS {
                let of = next.entry(text[..n].to_vec()).or_default();
                if !of.contains(&TokenId(text[n])) {
                    of.push(TokenId(text[n]));
                }
            }
        }
        Self { next, tokens: Vec::new(), ahead: false }
    }

    fn of(&self, said: &[u32], noise: GumbelNoise) -> Option<TokenId> {
        let list = self.next.get(said)?.iter().copied();
        list.max_by(|a, b| noise.for_draft(a.0).total_cmp(&noise.for_draft(b.0)))
    }
}

impl Proposer for Favourites {
    fn info(&self) -> ProposerInfo {
        ProposerInfo { max_depth: 2, ..ProposerInfo::default() }
    }

    fn change(&mut self, _: usize, change: SequenceChange<'_>) -> Result<(), SavedDraftError> {
        if let SequenceChange::Begin { tokens, .. } = change {
            self.tokens = tokens.iter().map(|t| t.0).collect();
            self.ahead = false;
        }
        Ok(())
    }

    fn observe(&mut self, _: &mut Runner, step: &ObservedStep<'_>) -> Result<(), RunError> {
        for s in step.sequences {
            if std::mem::take(&mut self.ahead) {
                self.tokens.pop();
            }
            self.tokens.extend(s.tokens.iter().chain(&s.next).map(|t| t.0));
            self.ahead = s.next.is_some();
        }
        Ok(())
    }

    fn propose(
        &mut self,
        _: &mut Runner,
        _: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        let draft = |request: &DraftRequest| {
            let plan = request.gumbel.expect("a sampled generation");
            let mut said = self.tokens[prompt().len()..].to_vec();
            let mut tokens = Vec::new();
            while tokens.len() < request.max.min(2)
                && let Some(token) = self.of(&said, plan.noise(tokens.len() as u64))
            {
                said.push(token.0);
                tokens.push(token);
            }
            tokens
        };
        Ok(requests.iter().map(draft).collect())
    }
}

fn settings() -> Vec<(&'static str, SamplingParams)> {
    let base = SamplingParams { top_k: 6, min_p: 0.0, top_p: 1.0, ..SamplingParams::default() };
    vec![
        ("temperature 0.2, top-p", SamplingParams { temperature: 0.2, top_p: 0.9, ..base.clone() }),
        (
            "temperature 0.6, penalties and bias",
            SamplingParams {
                temperature: 0.6,
                repeat_penalty: 1.3,
                frequency_penalty: 0.2,
                logit_bias: vec![(TokenId(40), 1.0), (TokenId(9), -0.5)],
                ..base.clone()
            },
        ),
        ("temperature 1.5", SamplingParams { temperature: 1.5, ..base }),
    ]
}

#[test]
fn first_tokens_follow_the_distribution_with_drafts_and_without() {
    let (_dir, model) = &model();
    let n_ctx = prompt().len() + N_TOKENS + 2;
    // F32 cells as in the rig, so that the law is that of the engine.
    let config = EngineConfig {
        cache_type_k: memory::CacheType::F32,
        cache_type_v: memory::CacheType::F32,
        flash_attention: engine::FlashAttention::Off,
        ..config(n_ctx, 1)
    };
    for (i, (what, params)) in settings().into_iter().enumerate() {
        let law = law(model, &params);
        let total: f64 = law.values().sum();
        assert!((total - 1.0).abs() < 1e-4, "{what}: chances sum to {total}");
        let proposers: [Option<Box<dyn Proposer>>; 3] = [
            None,
            Some(Box::new(head(model, &config, Depth::Fixed(2), DraftVocabSize::Full))),
            Some(Box::new(Favourites::new(&law))),
        ];
        for (k, proposer) in proposers.into_iter().enumerate() {
            let drafts = proposer.is_some();
            // Seeds of their own: the same ones would give the same texts.
            let first = (3 * i + k) as u64 * N_ANSWERS;
            let (counts, drafted, accepted) =
                counts(model, &params, config.clone(), proposer, first..first + N_ANSWERS);
            let (square, freedom) = chi_square(&law, &counts);
            println!("{what}, proposer {k}: {square:.1} with {freedom} degrees, {accepted} of {drafted} drafts right");
            assert!(counts.keys().all(|text| law.contains_key(text)), "{what}, proposer {k}: a text that cannot come");
            assert!(square < limit(freedom), "{what}, proposer {k}: {square} with {freedom} degrees of freedom");
            assert_eq!(drafts, drafted > 0);
            // A head of random weights is right by chance only; favourites are right often.
            assert!(k != 2 || accepted * 20 > drafted, "{what}, proposer {k}: {accepted} of {drafted} right");
        }
    }
}

#[test]
fn a_wrong_rule_is_caught() {
    let (_dir, model) = &model();
    // The least flat of them: favourites are drawn from a flat distribution.
    let (_, params) = settings().remove(0);
    let law = law(model, &params);
    let (mut first, mut rest) = (HashMap::<u32, f64>::new(), HashMap::<u32, Vec<(Text, f64)>>::new());
    for (text, p) in &law {
        *first.entry(text[0]).or_default() += p;
        rest.entry(text[0]).or_default().push((*text, *p));
    }
    let favourites = Favourites::new(&law);
    let favourite = |noise| favourites.of(&[], noise).expect("something can come first").0;
    // Texts whose first token is chosen by `rule`, the others by the law.
    let texts = |rule: &dyn Fn(u64) -> u32| {
        let mut counts = HashMap::new();
        let mut random = Random::new(3);
        // No model answers here: twice as many are cheap.
        for n in 0..2 * N_ANSWERS {
            let begun = &rest[&rule(n)];
            let total: f64 = begun.iter().map(|(_, p)| p).sum();
            let mut left = total * (random.below(1 << 30) as f64 / (1 << 30) as f64);
            let text = begun.iter().find(|(_, p)| {
                left -= p;
                left < 0.0
            });
            *counts.entry(text.map_or(begun[0].0, |(text, _)| *text)).or_default() += 1;
        }
        chi_square(&law, &counts)
    };
    let noise = |n: u64| {
        let params = SamplingParams { seed: Some(n), ..params.clone() };
        Sampler::new(&params, 1, &|_, _| {}).expect("in range").noise(0)
    };
    let chances: Vec<engine::sample::Candidate> =
        first.iter().map(|(&id, &p)| engine::sample::Candidate { id: TokenId(id), p: p as f32 }).collect();
    let (square, freedom) = texts(&|n| engine::sample::pick(&chances, noise(n)).0);
    assert!(square < limit(freedom), "the right rule: {square} with {freedom}");
    // Accepting every draft, and accepting one in three that should not be.
    let (square, freedom) = texts(&|n| favourite(noise(n)));
    assert!(square > 2.0 * limit(freedom), "all drafts taken: {square} with {freedom}");
    let sometimes = |n: u64| match n % 3 {
        0 => favourite(noise(n)),
        _ => engine::sample::pick(&chances, noise(n)).0,
    };
    let (square, freedom) = texts(&sometimes);
    assert!(square > limit(freedom), "some drafts taken: {square} with {freedom}");
}
