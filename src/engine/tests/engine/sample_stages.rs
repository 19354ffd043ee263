//! Every stage, alone and in chains, beside a plain reference in double precision that sorts everything.

use std::collections::HashMap;

use engine::sample::{Sampler, SamplingParams, Stage};
use proptest::prelude::*;
use text::TokenId;

/// How near a compared quantity may come to its bound before `f32` and `f64` may disagree. The stages compare in `f32`
/// or with `f32` exponentials: relative error near 2e-7, on logits up to 10.
const NEAR: f64 = 1e-5;

struct Plain {
    /// Sorted: higher logit first, then lower id.
    cands: Vec<(u32, f64)>,
    /// Smallest distance of a compared quantity from its bound.
    margin: f64,
}

impl Plain {
    fn new(logits: &[f32]) -> Self {
        let cands = (0..).zip(logits.iter().map(|&x| f64::from(x))).collect();
        let mut this = Self { cands, margin: f64::INFINITY };
        this.sort();
        this
    }

    fn sort(&mut self) {
        self.cands.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    }

    fn p(&self) -> Vec<f64> {
        let weights: Vec<f64> = self.cands.iter().map(|c| (c.1 - self.cands[0].1).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|w| w / sum).collect()
    }

    fn entropy(&self) -> f64 {
        self.p().iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum()
    }

    fn at_least(&mut self, x: f64, bound: f64) -> bool {
        self.margin = self.margin.min((x - bound).abs());
        x >= bound
    }

    fn keep_least(&mut self, bound: f64, min_keep: usize) {
        let n = self.cands.clone().iter().filter(|c| self.at_least(c.1, bound)).count();
        self.cands.truncate(n.max(min_keep));
    }

    /// Keeps candidates in this order until `enough` says so of the sum, given the number.
    fn keep_until(&mut self, order: &[usize], bound: f64, min_keep: usize) {
        let (p, old) = (self.p(), self.cands.clone());
        self.cands.clear();
        let mut sum = 0.0;
        for &i in order {
            self.cands.push(old[i]);
            sum += p[i];
            if self.at_least(sum, bound) && self.cands.len() >= min_keep {
                break;
            }
        }
        self.sort();
    }

    fn run(&mut self, stage: Stage, params: &SamplingParams, history: &[u32]) {
        let min_keep = params.min_keep.max(1) as usize;
        match stage {
            Stage::Penalties => {
                let n = usize::try_from(params.penalty_last_n).unwrap_or(usize::MAX);
                for c in &mut self.cands {
                    let count = history.iter().rev().take(n).filter(|&&t| t == c.0).count() as f64;
                    if count > 0.0 {
                        let repeat = f64::from(params.repeat_penalty);
                        c.1 = if c.1 > 0.0 { c.1 / repeat } else { c.1 * repeat };
                        c.1 -= count * f64::from(params.frequency_penalty) + f64::from(params.presence_penalty);
                    }
                }
            }
            Stage::Dry => {
                let n = usize::try_from(params.dry_penalty_last_n).unwrap_or(usize::MAX);
                for (token, n_same) in dry_plain(&history[history.len().saturating_sub(n)..], params) {
                    let beyond = (n_same - params.dry_allowed_length as usize) as i32;
                    let penalty = f64::from(params.dry_multiplier) * f64::from(params.dry_base).powi(beyond);
                    self.cands.iter_mut().filter(|c| c.0 == token).for_each(|c| c.1 -= penalty);
                }
            }
            Stage::TopNSigma => {
                let n = self.cands.len() as f64;
                let mean = self.cands.iter().map(|c| c.1).sum::<f64>() / n;
                let variance = self.cands.iter().map(|c| (c.1 - mean).powi(2)).sum::<f64>() / n;
                let bound = self.cands[0].1 - f64::from(params.top_n_sigma) * variance.sqrt();
                self.keep_least(bound, 1);
            }
            Stage::TopK => self.cands.truncate(params.top_k as usize),
            Stage::Typical => {
                let (p, entropy) = (self.p(), self.entropy());
                let distance: Vec<f64> = p.iter().map(|p| (-p.ln() - entropy).abs()).collect();
                let mut order: Vec<usize> = (0..p.len()).collect();
                order.sort_by(|&a, &b| distance[a].total_cmp(&distance[b]));
                for w in order.windows(2) {
                    // Equal logits are at equal distances on both sides; others must not swap by rounding.
                    if self.cands[w[0]].1 != self.cands[w[1]].1 {
                        self.margin = self.margin.min(distance[w[1]] - distance[w[0]]);
                    }
                }
                self.keep_until(&order, f64::from(params.typical_p), min_keep);
            }
            Stage::TopP => {
                let order: Vec<usize> = (0..self.cands.len()).collect();
                self.keep_until(&order, f64::from(params.top_p), min_keep);
            }
            Stage::MinP => self.keep_least(self.cands[0].1 + f64::from(params.min_p).ln(), min_keep),
            Stage::Xtc => {
                let p = self.p();
                let n = p.iter().filter(|&&p| self.at_least(p, f64::from(params.xtc_threshold))).count();
                if n > 1 && self.cands.len() - (n - 1) >= min_keep {
                    self.cands.drain(..n - 1);
                }
            }
            Stage::Temperature => {
                let (mut t, range) = (f64::from(params.temperature), f64::from(params.dynatemp_range));
                if range > 0.0 && self.cands.len() > 1 {
                    let share = self.entropy() / (self.cands.len() as f64).ln();
                    let low = (t - range).max(0.0);
                    t = low + (t + range - low) * share.powf(f64::from(params.dynatemp_exponent));
                    self.margin = self.margin.min(t - 1e-6);
                }
                self.cands.iter_mut().for_each(|c| c.1 /= t);
                if self.cands.iter().any(|c| c.1.abs() > 300.0) {
                    // Colder than this a rounding of an f32 logit shows in the probabilities.
                    self.margin = 0.0;
                }
            }
        }
        self.sort();
    }
}

/// For each token the longest run of tokens that ends the history and also stands before that token in it.
fn dry_plain(history: &[u32], params: &SamplingParams) -> HashMap<u32, usize> {
    // Token 0 is the breaker of these tests.
    let n_unbroken = history.iter().rev().take_while(|&&t| t != 0).count();
    let allowed = params.dry_allowed_length as usize;
    let mut longest = HashMap::new();
    for at in 1..history.len() {
        let pairs = history[..at].iter().rev().zip(history.iter().rev());
        let n = pairs.take_while(|(a, b)| a == b).count().min(n_unbroken);
        let entry: &mut usize = longest.entry(history[at]).or_default();
        *entry = n.max(*entry);
    }
    longest.retain(|&token, n| token != 0 && *n >= allowed && history.len() > allowed);
    longest
}

/// Token 0 is a line break, the default breaker; the others are letters.
fn bytes_of(TokenId(id): TokenId, out: &mut Vec<u8>) {
    out.push(if id == 0 { b'\n' } else { b'a' });
}

fn params() -> impl Strategy<Value = SamplingParams> {
    let cuts = (1_u32..30, 0.0_f32..1.0, 0.001_f32..1.0, 0.01_f32..1.0, 0.1_f32..3.0, 0.0_f32..0.5, 0_u32..5);
    let penalties = (-1_i32..20, 0.5_f32..2.0, -1.0_f32..1.0, -1.0_f32..1.0);
    let dry = (0.1_f32..2.0, 1.0_f32..2.0, 0_u32..4, -1_i32..20);
    let temperature = (0.2_f32..2.0, prop_oneof![Just(0.0_f32), 0.1_f32..1.0], 0.5_f32..2.0);
    (cuts, penalties, dry, temperature).prop_map(|(c, p, d, t)| SamplingParams {
        top_k: c.0,
        top_p: c.1,
        min_p: c.2,
        typical_p: c.3,
        top_n_sigma: c.4,
        xtc_threshold: c.5,
        xtc_probability: 1.0,
        min_keep: c.6,
        penalty_last_n: p.0,
        repeat_penalty: p.1,
        presence_penalty: p.2,
        frequency_penalty: p.3,
        dry_multiplier: d.0,
        dry_base: d.1,
        dry_allowed_length: d.2,
        dry_penalty_last_n: d.3,
        temperature: t.0,
        dynatemp_range: t.1,
        dynatemp_exponent: t.2,
        seed: Some(1),
        ..SamplingParams::default()
    })
}

fn check(params: &SamplingParams, history: &[u32], logits: &[f32]) -> Result<(), TestCaseError> {
    let mut plain = Plain::new(logits);
    for &stage in &params.stages {
        let off = match stage {
            Stage::Penalties => params.penalty_last_n == 0,
            Stage::Dry => params.dry_penalty_last_n == 0,
            _ => false,
        };
        if !off {
            plain.run(stage, params, history);
        }
    }
    prop_assume!(plain.margin > NEAR);
    let mut sampler = Sampler::new(params, logits.len(), &bytes_of).unwrap();
    sampler.prime(&history.iter().map(|&t| TokenId(t)).collect::<Vec<_>>());
    let got = sampler.distribution(logits);
    let want: HashMap<u32, f64> = plain.cands.iter().map(|c| c.0).zip(plain.p()).collect();
    prop_assert_eq!(got.len(), want.len(), "{:?} != {:?}", got, plain.cands);
    for c in got {
        let p = want.get(&c.id.0).copied();
        prop_assert!(p.is_some(), "{:?} not in {:?}", c, plain.cands);
        // An f32 logit of 300 is exact to 1.5e-5, and a chain rounds more than once.
        prop_assert!((f64::from(c.p) - p.unwrap()).abs() < 1e-4, "{:?} != {:?}", c, p);
    }
    prop_assert!(got.windows(2).all(|w| w[0].p >= w[1].p), "not in order: {:?}", got);
    Ok(())
}

fn logits() -> impl Strategy<Value = Vec<f32>> {
    // Ties, and rows long enough for the sorting in pieces.
    prop_oneof![
        prop::collection::vec(-10.0_f32..10.0, 1..40),
        prop::collection::vec((-8_i32..8).prop_map(|x| x as f32 * 0.5), 1..40),
        prop::collection::vec(-3.0_f32..3.0, 300..700),
    ]
}

fn history() -> impl Strategy<Value = Vec<u32>> {
    prop_oneof![prop::collection::vec(0_u32..4, 0..30), prop::collection::vec(1_u32..3, 0..30)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_global_rejects: 100_000, ..ProptestConfig::default() })]

    #[test]
    fn each_stage_alone_agrees_with_the_plain_one(
        params in params(), history in history(), logits in logits(), which in 0_usize..9,
    ) {
        let params = SamplingParams { stages: vec![Stage::DEFAULT_ORDER[which]], ..params };
        check(&params, &history, &logits)?;
    }

    #[test]
    fn chains_in_any_order_agree_with_the_plain_ones(
        params in params(),
        history in history(),
        logits in logits(),
        stages in prop::collection::vec(prop::sample::select(Stage::DEFAULT_ORDER.to_vec()), 0..6),
    ) {
        check(&SamplingParams { stages, ..params }, &history, &logits)?;
    }
}
