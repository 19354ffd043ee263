//! From a row of logits to a token: one sampler per sequence.
//! Owns the order of stages, the noise and what earlier tokens change. Knows nothing of models or requests.
//!
//! The stages mean what llama.cpp's mean. Every choice is reproducible: the same parameters, seed, history and logits
//! give the same token on every platform, by arithmetic that is written out here.

mod dry;
mod dry_breakers;
mod filters;
mod history;
mod logprob;
mod math;
mod mirostat;
mod params;
mod pool;
mod rng;
mod select;
mod stage;
mod table;

use std::sync::Arc;

use text::TokenId;

pub use logprob::{TokenLogprob, logprobs};
pub use rng::GumbelNoise;
pub use stage::{MAX_BREAKER_BYTES, MAX_BREAKERS, MAX_STAGES, Mirostat, SampleError, Stage};
pub use table::{Kind, PARAMETERS, Parameter, Range, SamplingParams, Setting};

use history::History;
use pool::Pool;

/// A token that may be drawn, and how likely.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The token.
    pub id: TokenId,
    /// Its probability; those of a distribution sum to 1 up to rounding.
    pub p: f32,
}

/// What a source of drafts needs to guess the next picks of a sampler: they fall where its own logits, divided by the
/// temperature, plus the noise of the pick are largest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GumbelPlan {
    /// What divides the logits, above zero.
    pub temperature: f32,
    seed: u64,
    n_picks: u64,
}

impl GumbelPlan {
    /// The noise of the pick after the next `ahead` ones.
    pub fn noise(&self, ahead: u64) -> GumbelNoise {
        GumbelNoise::new(self.seed, self.n_picks + ahead)
    }
}

/// Chooses the tokens of one sequence.
///
/// `Clone` forks: the fork has the same history and will pick by the same noise. `clone_from` does so without
/// allocating, so a speculating engine keeps one spare sampler per sequence. The buffers for a step (up to 5 MiB for
/// 248320 tokens, with the default stages a few KiB) are not part of a fork; they grow in each sampler when first used.
#[derive(Debug)]
pub struct Sampler {
    plan: Arc<Plan>,
    state: State,
    scratch: Scratch,
    out: Vec<Candidate>,
}

/// What never changes; forks share it.
#[derive(Debug)]
struct Plan {
    params: SamplingParams,
    seed: u64,
    n_vocab: usize,
    stages: Vec<Stage>,
    /// By id, each once.
    bias: Vec<(u32, f64)>,
    breakers: dry_breakers::Breakers,
    is_greedy: bool,
}

/// What accepting and picking change.
#[derive(Clone, Debug)]
struct State {
    n_picks: u64,
    history: History,
    mu: f64,
    /// Whether `out` is the distribution that the next accepted token comes from.
    is_fresh: bool,
}

/// What a pick is made from.
#[derive(Clone, Copy)]
enum Given<'a> {
    /// The logits of the vocabulary.
    Row(&'a [f32]),
    /// The largest of them.
    Few(&'a [(TokenId, f32)]),
}

#[derive(Debug, Default)]
struct Scratch {
    pool: pool::Scratch,
    dry: dry::Search,
}

impl Sampler {
    /// A sampler with no history. `bytes_of` appends the bytes of a token; with DRY on it is asked for every token of
    /// the vocabulary, which takes some milliseconds: make the sampler where that does not hold up others.
    ///
    /// # Errors
    /// Those of [`SamplingParams::validate`].
    pub fn new(
        params: &SamplingParams,
        n_vocab: usize,
        bytes_of: &dyn Fn(TokenId, &mut Vec<u8>),
    ) -> Result<Self, SampleError> {
        params.validate(n_vocab)?;
        let stages = params.active_stages();
        let breakers = if stages.contains(&Stage::Dry) && params.mirostat == Mirostat::Off {
            dry_breakers::Breakers::new(&params.dry_sequence_breakers, n_vocab as u32, bytes_of)
        } else {
            dry_breakers::Breakers::default()
        };
        let bias = merged(&params.logit_bias);
        let seed = params.seed.unwrap_or_else(rng::fresh_seed);
        let state =
            State { n_picks: 0, history: History::new(params), mu: mirostat::first_mu(params), is_fresh: false };
        let is_greedy = bias.is_empty() && takes_the_best(params, &stages);
        let plan = Plan { params: params.clone(), seed, n_vocab, stages, bias, breakers, is_greedy };
        Ok(Self { plan: Arc::new(plan), state, scratch: Scratch::default(), out: Vec::new() })
    }

    /// Takes tokens that were not sampled, the prompt above all, into the history. Mirostat's bound does not move.
    pub fn prime(&mut self, history: &[TokenId]) {
        self.state.is_fresh = false;
        // Pictures are no words that could be repeated.
        let words: Vec<u32> = history.iter().filter(|t| !t.is_of_picture()).map(|t| t.0).collect();
        self.state.history.push_all(words.into_iter(), &self.plan.breakers);
    }

    /// Takes the token chosen for this position into the history. Mirostat's bound moves if `token` is in the last
    /// distribution and that was not accepted from before.
    pub fn accept(&mut self, token: TokenId) {
        if std::mem::take(&mut self.state.is_fresh)
            && let Some(c) = self.out.iter().find(|c| c.id == token && c.p > 0.0)
        {
            self.state.mu = mirostat::next_mu(&self.plan.params, self.state.mu, c.p);
        }
        self.state.history.push(token.0, &self.plan.breakers);
    }

    /// Draws a token; does not accept it.
    ///
    /// Logits beyond the vocabulary are ignored, missing ones count as masked, and so do NaN and minus infinity.
    /// If all are masked the generation is token 0: whoever masks must see to it that something is left.
    pub fn sample(&mut self, logits: &[f32]) -> TokenId {
        let logits = &logits[..logits.len().min(self.plan.n_vocab)];
        if self.plan.is_greedy {
            self.state.is_fresh = false;
            return TokenId(select::argmax(logits).unwrap_or(0));
        }
        let noise = self.noise(0);
        if self.plan.params.mirostat != Mirostat::Off {
            self.state.n_picks += 1;
            // `accept` needs to find the token in the whole distribution.
            self.find_distribution(logits, noise);
            return pick(&self.out, noise);
        }
        self.draw(Given::Row(logits))
    }

    /// As [`Sampler::sample`] with the logits of the whole row, of which [`Sampler::is_enough`] said that these suffice.
    pub fn sample_few(&mut self, few: &[(TokenId, f32)]) -> TokenId {
        if self.plan.is_greedy {
            self.state.is_fresh = false;
            let mut pool = Pool::of(known(few, self.plan.n_vocab), &mut self.scratch.pool);
            return TokenId(pool.nth(0).map_or(0, select::Cand::id));
        }
        self.draw(Given::Few(few))
    }

    /// How many of the largest raw logits the next pick depends on at most, whatever they are; `None`: on all of them.
    pub fn n_needed(&self) -> Option<usize> {
        let Plan { params: p, stages, bias, is_greedy, .. } = &*self.plan;
        if *is_greedy {
            return Some(1);
        }
        if p.mirostat != Mirostat::Off || bias.iter().any(|b| b.1 > 0.0) {
            return None;
        }
        // A token that is made less likely makes room for one further down; none comes up from there.
        let mut n_lowered = bias.len();
        for stage in stages {
            match stage {
                Stage::Penalties if p.only_lowers() => n_lowered += self.state.history.counts().len(),
                Stage::TopK => return Some(n_lowered + p.top_k as usize),
                _ => return None,
            }
        }
        None
    }

    /// Whether these largest logits of a row, in any order, tell the pick that follows up to `n_ahead` others as surely as
    /// the whole row does.
    pub fn is_enough(&self, few: &[(TokenId, f32)], n_ahead: usize) -> bool {
        let Some(n_needed) = self.n_needed() else { return false };
        // What equals the least of them may be left out of them.
        let least = few.iter().map(|c| c.1).fold(f32::INFINITY, f32::min);
        let n_sure = known(few, self.plan.n_vocab).filter(|c| c.1 > least).count();
        few.iter().all(|c| c.1.is_finite()) && n_sure >= n_needed + n_ahead
    }

    fn draw(&mut self, given: Given<'_>) -> TokenId {
        let noise = self.noise(0);
        self.state.n_picks += 1;
        self.state.is_fresh = false;
        let Self { plan, state, scratch, .. } = self;
        let mut pool = plan.run(state, given, noise, scratch);
        let Some(max) = pool.max() else { return TokenId(0) };
        let sum = pool.sum_exp(max);
        // The race of `pick`, in whatever order the candidates lie.
        let candidate = |id, logit| Candidate { id: TokenId(id), p: probability(logit, max, sum) };
        match pool.row() {
            Some(row) => race((0..).zip(row).map(|(id, &x)| candidate(id, math::clean(x))), noise),
            None => race(pool.list().iter().map(|c| candidate(c.id(), c.logit())), noise),
        }
    }

    /// The normalised distribution that the next pick is from, likeliest first, at least one candidate; when greedy, one
    /// with p 1. For the same state `sample` gives what [`pick`] gives with the noise of the next pick. All masked: token
    /// 0 with p 1.
    ///
    /// Without any truncating stage this sorts the vocabulary, some milliseconds; `sample` does not.
    pub fn distribution(&mut self, logits: &[f32]) -> &[Candidate] {
        self.find_distribution(logits, self.noise(0))
    }

    fn find_distribution(&mut self, logits: &[f32], noise: GumbelNoise) -> &[Candidate] {
        let Self { plan, state, scratch, out } = self;
        let logits = &logits[..logits.len().min(plan.n_vocab)];
        state.is_fresh = plan.params.mirostat != Mirostat::Off;
        out.clear();
        if plan.is_greedy {
            out.push(Candidate { id: TokenId(select::argmax(logits).unwrap_or(0)), p: 1.0 });
            return out;
        }
        let mut pool = plan.run(state, Given::Row(logits), noise, scratch);
        let Some(max) = pool.max() else {
            out.push(Candidate { id: TokenId(0), p: 1.0 });
            return out;
        };
        let sum = pool.sum_exp(max);
        let candidate = |c: &select::Cand| Candidate { id: TokenId(c.id()), p: probability(c.logit(), max, sum) };
        out.extend(pool.sorted().iter().map(candidate));
        out
    }

    /// The noise of the pick after the next `ahead` ones. A greedy sampler makes no use of it.
    pub fn noise(&self, ahead: u64) -> GumbelNoise {
        GumbelNoise::new(self.plan.seed, self.state.n_picks + ahead)
    }

    /// What a draft needs to guess the next picks; `None` when the likeliest tokens are the best guess.
    pub fn gumbel_plan(&self) -> Option<GumbelPlan> {
        let Plan { params: p, stages, .. } = &*self.plan;
        let is_tempered = p.mirostat != Mirostat::Off || stages.contains(&Stage::Temperature);
        let temperature = if is_tempered { p.temperature } else { 1.0 };
        let is_cold = self.plan.is_greedy || temperature <= params::MIN_TEMPERATURE;
        (!is_cold).then_some(GumbelPlan { temperature, seed: self.plan.seed, n_picks: self.state.n_picks })
    }

    /// Whether the lowest id among the largest raw logits is the generation whatever came before: an engine may then take
    /// the argmax inside the graph.
    pub fn is_greedy(&self) -> bool {
        self.plan.is_greedy
    }

    /// The seed in use: the one asked for, or the fresh one that took its place.
    pub fn seed(&self) -> u64 {
        self.plan.seed
    }

    /// What was asked for.
    pub fn params(&self) -> &SamplingParams {
        &self.plan.params
    }
}

impl Clone for Sampler {
    fn clone(&self) -> Self {
        // Only mirostat looks back at the last distribution.
        let out = if self.state.is_fresh { self.out.clone() } else { Vec::new() };
        Self { plan: Arc::clone(&self.plan), state: self.state.clone(), scratch: Scratch::default(), out }
    }

    fn clone_from(&mut self, other: &Self) {
        self.plan = Arc::clone(&other.plan);
        self.state.history.clone_from(&other.state.history);
        (self.state.n_picks, self.state.mu, self.state.is_fresh) =
            (other.state.n_picks, other.state.mu, other.state.is_fresh);
        self.out.clear();
        if other.state.is_fresh {
            self.out.extend_from_slice(&other.out);
        }
    }
}

impl Plan {
    fn run<'a>(&self, state: &State, given: Given<'a>, noise: GumbelNoise, scratch: &'a mut Scratch) -> Pool<'a> {
        let Scratch { pool, dry } = scratch;
        let mut pool = match given {
            Given::Row(logits) => Pool::new(logits, pool),
            Given::Few(few) => Pool::of(known(few, self.n_vocab), pool),
        };
        let p = &self.params;
        if !self.bias.is_empty() {
            let look = |id| self.bias.binary_search_by_key(&id, |b| b.0).ok().map(|i| self.bias[i].1);
            pool.touch(self.bias.iter().copied(), look, |x, bias| x + bias);
        }
        if p.mirostat != Mirostat::Off {
            filters::temperature(&mut pool, p.temperature, 0.0, 1.0);
            mirostat::cut(&mut pool, p.mirostat, state.mu, self.n_vocab);
            return pool;
        }
        for stage in &self.stages {
            match stage {
                Stage::Penalties => penalise(&mut pool, p, &state.history),
                Stage::Dry => {
                    let found = dry.run(p, &state.history, &self.breakers);
                    if !found.is_empty() {
                        let tokens = found.iter().map(|(&id, &n)| (id, n));
                        pool.touch(tokens, |id| found.get(&id).copied(), |x, n| x - dry::penalty(p, n));
                    }
                }
                Stage::TopNSigma => filters::top_n_sigma(&mut pool, p.top_n_sigma),
                Stage::TopK => pool.keep_top(p.top_k as usize),
                Stage::Typical => filters::typical(&mut pool, p.typical_p, p.min_keep()),
                Stage::TopP => filters::top_p(&mut pool, p.top_p, p.min_keep()),
                Stage::MinP => filters::min_p(&mut pool, p.min_p, p.min_keep()),
                Stage::Xtc => {
                    filters::xtc(&mut pool, p.xtc_probability, p.xtc_threshold, p.min_keep(), noise.apart());
                }
                Stage::Temperature => {
                    filters::temperature(&mut pool, p.temperature, p.dynatemp_range, p.dynatemp_exponent);
                }
            }
        }
        pool
    }
}

/// The token whose number in `noise`, divided by its probability, is smallest: each with the chance that its probability
/// says, in whatever order they are. Token 0 if no probability is above zero.
pub fn pick(candidates: &[Candidate], noise: GumbelNoise) -> TokenId {
    race(candidates.iter().copied(), noise)
}

fn race(candidates: impl Iterator<Item = Candidate>, noise: GumbelNoise) -> TokenId {
    let mut best = (f64::INFINITY, TokenId(0));
    for c in candidates.filter(|c| c.p > 0.0) {
        let p = f64::from(c.p);
        // -ln(u) >= 1 - u: most of a vocabulary is out of the race without a logarithm.
        if 1.0 - noise.uniform(u64::from(c.id.0)) <= best.0 * p {
            let time = noise.exponential(c.id.0) / p;
            // Equal times go to the lower id, so that the order of candidates never matters.
            if time < best.0 || time == best.0 && c.id < best.1 {
                best = (time, c.id);
            }
        }
    }
    best.1
}

/// The tokens of the vocabulary among these.
fn known(few: &[(TokenId, f32)], n_vocab: usize) -> impl Iterator<Item = (u32, f32)> {
    few.iter().map(|&(TokenId(id), x)| (id, x)).filter(move |c| (c.0 as usize) < n_vocab)
}

fn probability(logit: f32, max: f32, sum_exp: f64) -> f32 {
    (f64::from(math::exp(logit - max)) / sum_exp) as f32
}

/// Repetition penalty first, then frequency and presence, as llama.cpp does.
fn penalise(pool: &mut Pool<'_>, p: &SamplingParams, history: &History) {
    let [repeat, frequency, presence] = [p.repeat_penalty, p.frequency_penalty, p.presence_penalty].map(f64::from);
    let change = |x: f64, count: u32| -> f64 {
        // Dividing a negative logit would make the token likelier.
        let x = if x <= 0.0 { x * repeat } else { x / repeat };
        x - f64::from(count) * frequency - presence
    };
    let counts = history.counts();
    if !counts.is_empty() {
        pool.touch(counts.iter().map(|(&id, &n)| (id, n)), |id| counts.get(&id).copied(), change);
    }
}

/// Sums the biases of each token and drops those without effect.
fn merged(bias: &[(TokenId, f32)]) -> Vec<(u32, f64)> {
    let mut by_id: Vec<(u32, f64)> = bias.iter().map(|&(TokenId(id), b)| (id, b.into())).collect();
    by_id.sort_by_key(|b| b.0);
    by_id.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        kept.1 += if same { later.1 } else { 0.0 };
        same
    });
    by_id.retain(|b| b.1 != 0.0);
    by_id
}

/// Whether these stages end in the best token of the row whatever the row and the history are.
fn takes_the_best(p: &SamplingParams, stages: &[Stage]) -> bool {
    let is_cold = p.temperature <= params::MIN_TEMPERATURE;
    if p.mirostat != Mirostat::Off {
        return is_cold;
    }
    for stage in stages {
        match stage {
            Stage::Temperature if is_cold && p.dynatemp_range <= 0.0 => return true,
            Stage::TopK if p.top_k == 1 => return true,
            // These may demote or drop the best token; dividing may make another one's logit equal to its.
            Stage::Penalties | Stage::Dry | Stage::Typical | Stage::Xtc | Stage::Temperature => return false,
            Stage::TopNSigma | Stage::TopK | Stage::TopP | Stage::MinP => {}
        }
    }
    false
}
