//! Several sources of drafts at once: each sequence drafts by the one that has gained most, as measured, and by none where
//! none gains.
//! Owns the choice and what it is made by: for each source how often its drafts are accepted in this text, what steps with them
//! took, and what it takes to bring a source up to date that was not asked for a while. How long drafts are is each source's
//! own affair.

use std::time::Instant;

use engine::{
    DraftRequest, ObservedSequence, ObservedStep, Proposer, ProposerInfo, SavedDraftError, SequenceChange, TargetState,
};
use model::{RunError, Runner};
use text::TokenId;

use crate::calibration::{Calibration, OfSource};
use crate::depth::Depth;
use crate::depth_control::DepthControl;
use crate::draft_model::FEW;

/// Tokens that a generation is expected to go on for: what it takes to begin with a source is spread over them.
const HORIZON: f64 = 64.0;

/// Share of the time that trying other sources may cost.
const ALLOWANCE: f64 = 0.01;

/// A try of a source costs at least this share of a step: what stands beside the drafts.
const LEAST_LOSS: f64 = 0.1;

/// Times that a source is asked before its steps have been measured.
const N_TRIES: usize = 16;

/// What a token that a source has not seen costs, before that was measured: this share of a plain step.
const CATCH_UP: f64 = 1.0 / 16.0;

/// A source and what is known of it.
struct Judged {
    proposer: Box<dyn Proposer>,
    /// As an estimate only: lengths are the proposer's to choose.
    control: DepthControl,
    /// By slot, tokens that came since it was last asked for a draft.
    lag: Vec<usize>,
    /// Seconds for each of them.
    catch_up: Option<f64>,
    /// Times that it was asked for a draft, and no step was measured.
    n_tries: usize,
    /// Where what was measured goes.
    kept: Option<OfSource>,
}

impl Judged {
    /// Tokens a second of this sequence among so many, with what it takes to begin spread over the horizon; `None` where
    /// nothing was measured.
    fn outlook(&self, slot: usize, n_seqs: usize, plain: Option<f64>) -> Option<Outlook> {
        let rate = self.control.outlook(slot, n_seqs)?;
        let lag = self.lag[slot].saturating_sub(FEW) as f64;
        let begin = lag * self.catch_up.or(plain.map(|plain| CATCH_UP * plain)).unwrap_or(0.0);
        Some(Outlook { rate: HORIZON / (HORIZON / rate + begin), begin })
    }
}

#[derive(Clone, Copy)]
struct Outlook {
    /// Tokens a second.
    rate: f64,
    /// Seconds before the first of them.
    begin: f64,
}

/// Several sources as one proposer.
pub struct BestOf {
    sources: Vec<Judged>,
    /// By slot, the source of the draft that is verified now.
    used: Vec<Option<usize>>,
    /// Plain decoding is a choice, too.
    plain_too: bool,
    /// Seconds that tries may cost now.
    allowance: f64,
    /// Drafts of a warm-up so far.
    n_warm: usize,
}

impl BestOf {
    /// `proposers` for an engine of `n_slots` sequences, with drafts of `depth`. The first goes first while nothing is known.
    pub fn new(proposers: Vec<Box<dyn Proposer>>, n_slots: usize, depth: Depth) -> Self {
        let judged = |proposer: Box<dyn Proposer>| Judged {
            control: DepthControl::new(n_slots, proposer.info().max_depth.max(1)),
            proposer,
            lag: vec![0; n_slots],
            catch_up: None,
            n_tries: 0,
            kept: None,
        };
        let sources = proposers.into_iter().map(judged).collect();
        let plain_too = depth == Depth::Auto;
        Self { sources, used: vec![None; n_slots], plain_too, allowance: 0.0, n_warm: 0 }
    }

    /// Begins with what earlier engines measured, and keeps there what this one does.
    pub fn calibrate(&mut self, calibration: &Calibration) {
        for (i, source) in self.sources.iter_mut().enumerate() {
            let kept = calibration.of(format!("source {i}"));
            source.control.begin_with(&kept.known());
            source.kept = Some(kept);
        }
    }

    /// The source that `slot` drafts by in a step of so many sequences; `None` is plain decoding.
    fn choose(&mut self, slot: usize, n_seqs: usize) -> Option<usize> {
        let plain = self.sources.iter().find_map(|s| s.control.plain(n_seqs));
        let outlooks: Vec<Option<Outlook>> = self.sources.iter().map(|s| s.outlook(slot, n_seqs, plain)).collect();
        let unknown = |i: &usize| outlooks[*i].is_none() && self.sources[*i].n_tries < N_TRIES;
        if let Some(i) = (0..self.sources.len()).find(unknown) {
            return Some(i);
        }
        let known = outlooks.iter().enumerate().filter_map(|(i, outlook)| Some((i, (*outlook)?)));
        let Some((best, outlook)) = known.clone().max_by(|(_, a), (_, b)| a.rate.total_cmp(&b.rate)) else {
            // None was ever measured: each may try by itself.
            return Some(0);
        };
        let least = LEAST_LOSS / outlook.rate;
        let loss = |other: &Outlook| (1.0 / other.rate - 1.0 / outlook.rate).max(least) + other.begin;
        let other = known.filter(|(i, _)| *i != best).max_by(|(_, a), (_, b)| a.rate.total_cmp(&b.rate));
        if let Some((i, cost)) = other.map(|(i, other)| (i, loss(&other))).filter(|(_, cost)| *cost <= self.allowance) {
            self.allowance -= cost;
            return Some(i);
        }
        let gains = !self.plain_too || plain.is_none_or(|plain| outlook.rate * plain > 1.0);
        // A source that does not gain looks by itself whether that has changed; where it must read a long text first, not
        // before there is time for that.
        if !gains && outlook.begin > self.allowance {
            return None;
        }
        self.allowance -= if gains { 0.0 } else { outlook.begin };
        Some(best)
    }

    /// Learns from a step what its drafts were worth.
    fn learn(&mut self, step: &ObservedStep<'_>) {
        if !step.warm_up {
            for s in step.sequences {
                if let Some(i) = self.used[s.slot] {
                    self.sources[i].control.verified(s.slot, s.n_drafted, s.n_accepted);
                }
            }
        }
        let Some(took) = step.took else { return };
        let n_seqs = step.sequences.len();
        self.allowance = (self.allowance + ALLOWANCE * took.as_secs_f64()).min(4.0 * took.as_secs_f64().max(0.05));
        let n_drafted = step.sequences.first().map_or(0, |s| s.n_drafted);
        let by = step.sequences.first().and_then(|s| self.used[s.slot]);
        let alike =
            step.sequences.iter().all(|s| s.n_drafted == n_drafted && (n_drafted == 0 || self.used[s.slot] == by));
        // A draft that was made and dropped makes no plain step of it.
        let dropped = n_drafted == 0 && step.sequences.iter().any(|s| self.used[s.slot].is_some());
        match by.filter(|_| n_drafted > 0) {
            _ if !alike || dropped => {}
            Some(i) => {
                self.sources[i].control.took(n_seqs, n_drafted, took);
                self.sources[i].n_tries = 0;
            }
            None => self.sources.iter_mut().for_each(|s| s.control.took(n_seqs, 0, took)),
        }
    }
}

impl Drop for BestOf {
    fn drop(&mut self) {
        for source in &self.sources {
            if let Some((kept, known)) = source.kept.as_ref().zip(source.control.known()) {
                kept.keep(known);
            }
        }
    }
}

impl Proposer for BestOf {
    fn info(&self) -> ProposerInfo {
        let add = |a: ProposerInfo, b: ProposerInfo| ProposerInfo {
            max_depth: a.max_depth.max(b.max_depth),
            wants_hidden: a.wants_hidden || b.wants_hidden,
            n_hidden: a.n_hidden.max(b.n_hidden),
            max_saved_bytes: a.max_saved_bytes.max(b.max_saved_bytes),
            state_bytes: a.state_bytes + b.state_bytes,
            warm_up_steps: a.warm_up_steps + b.warm_up_steps,
            computed: a.computed + b.computed,
        };
        self.sources.iter().map(|s| s.proposer.info()).fold(ProposerInfo::default(), add)
    }

    fn change(&mut self, slot: usize, change: SequenceChange<'_>) -> Result<(), SavedDraftError> {
        self.used[slot] = None;
        for source in &mut self.sources {
            // Whoever has kept nothing finds bytes of another kind, and begins anew.
            source.proposer.change(slot, change)?;
            if let SequenceChange::Begin { tokens, .. } = change {
                source.control.begin(slot);
                source.lag[slot] = tokens.len();
            }
        }
        Ok(())
    }

    fn observe(&mut self, runner: &mut Runner, step: &ObservedStep<'_>) -> Result<(), RunError> {
        self.learn(step);
        let drafted = |s: &&ObservedSequence<'_>| s.n_drafted > 0;
        for i in 0..self.sources.len() {
            // Nobody is to learn from drafts of another, nor from the time of steps that held them.
            let own = |s: &ObservedSequence<'_>| self.used[s.slot] == Some(i);
            let of_others = step.sequences.iter().filter(drafted).any(|s| !own(s));
            let of_source = step.sequences.iter().map(|s| match own(s) {
                true => *s,
                false => ObservedSequence { n_drafted: 0, n_accepted: 0, ..*s },
            });
            let sequences: Vec<_> = of_source.collect();
            let (took, built) = (step.took.filter(|_| !of_others), step.built.filter(|_| !of_others));
            let expected = if self.sources.len() > 1 { &[] } else { step.expected };
            let source = &mut self.sources[i];
            source.proposer.observe(runner, &ObservedStep { sequences: &sequences, took, built, expected, ..*step })?;
            step.sequences.iter().for_each(|s| source.lag[s.slot] += s.tokens.len());
        }
        step.sequences.iter().for_each(|s| self.used[s.slot] = None);
        Ok(())
    }

    fn propose(
        &mut self,
        runner: &mut Runner,
        target: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        let warm_up = requests.iter().any(|r| r.warm_up);
        self.n_warm += usize::from(warm_up);
        let in_turn = self.n_warm % self.sources.len();
        let chosen: Vec<Option<usize>> = requests
            .iter()
            .map(|r| if warm_up { Some(in_turn) } else { self.choose(r.slot, requests.len()) })
            .collect();
        let mut drafts = vec![Vec::new(); requests.len()];
        for (number, source) in self.sources.iter_mut().enumerate() {
            let which: Vec<usize> = (0..requests.len()).filter(|&i| chosen[i] == Some(number)).collect();
            if which.is_empty() {
                continue;
            }
            let asked: Vec<DraftRequest> = which.iter().map(|&i| requests[i]).collect();
            let start = Instant::now();
            let made = source.proposer.propose(runner, target, &asked)?;
            let any = made.iter().any(|draft| !draft.is_empty());
            let lag: usize = asked.iter().map(|r| source.lag[r.slot].saturating_sub(FEW)).sum();
            if any && lag > FEW {
                source.catch_up = Some(start.elapsed().as_secs_f64() / lag as f64);
            }
            source.n_tries += 1;
            for (i, draft) in which.into_iter().zip(made) {
                if !draft.is_empty() {
                    let slot = requests[i].slot;
                    (self.used[slot], source.lag[slot]) = (Some(number), 0);
                }
                drafts[i] = draft;
            }
        }
        Ok(drafts)
    }

    fn save(&mut self, slot: usize, n_tokens: usize) -> Result<Vec<u8>, RunError> {
        for source in &mut self.sources {
            let saved = source.proposer.save(slot, n_tokens)?;
            if !saved.is_empty() {
                return Ok(saved);
            }
        }
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A source by name only: its drafts are made up here.
    struct Named;

    impl Proposer for Named {
        fn info(&self) -> ProposerInfo {
            ProposerInfo { max_depth: 3, ..ProposerInfo::default() }
        }

        fn propose(
            &mut self,
            _: &mut Runner,
            _: &TargetState<'_>,
            requests: &[DraftRequest],
        ) -> Result<Vec<Vec<TokenId>>, RunError> {
            Ok(vec![Vec::new(); requests.len()])
        }
    }

    /// What a draft of three tokens of each source costs, in plain steps, and how often a token of it is accepted.
    struct World {
        best: BestOf,
        state: u64,
        tokens: f64,
        time: f64,
        used: [usize; 3],
    }

    impl World {
        fn new() -> Self {
            let best = BestOf::new(vec![Box::new(Named), Box::new(Named)], 1, Depth::Auto);
            Self { best, state: 99, tokens: 0.0, time: 0.0, used: [0; 3] }
        }

        fn random(&mut self) -> f64 {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.state >> 33) as f64 / (1u64 << 31) as f64
        }

        fn step(&mut self, sources: [(f64, f64); 2]) {
            // What a source's own control does: a few plain steps first, and none where drafts do not pay.
            let known = self.best.sources[0].control.plain(1).is_some();
            let chosen = self.best.choose(0, 1).filter(|_| known);
            let (cost, accepted) = chosen.map_or((0.0, 0.0), |i| sources[i]);
            let n_drafted = if chosen.is_some() { 3 } else { 0 };
            let n_accepted = (0..n_drafted).take_while(|_| self.random() < accepted).count();
            self.best.used[0] = chosen;
            chosen.into_iter().for_each(|i| self.best.sources[i].n_tries += 1);
            let tokens = vec![TokenId(0); 1 + n_accepted];
            let seconds = 0.01 * (1.0 + cost);
            let sequence = ObservedSequence {
                slot: 0,
                tokens: &tokens,
                hidden: &[],
                hidden_before: &[],
                next: None,
                n_drafted,
                n_accepted,
            };
            let took = Some(Duration::from_secs_f64(seconds));
            self.best.learn(&ObservedStep { sequences: &[sequence], took, built: None, expected: &[], warm_up: false });
            self.used[chosen.unwrap_or(2)] += 1;
            self.tokens += tokens.len() as f64;
            self.time += seconds;
        }

        /// Tokens in the time of a plain step, from here on, and which sources were used.
        fn run(&mut self, n: usize, sources: [(f64, f64); 2]) -> (f64, [usize; 3]) {
            (self.tokens, self.time, self.used) = (0.0, 0.0, [0; 3]);
            (0..n).for_each(|_| self.step(sources));
            (0.01 * self.tokens / self.time, self.used)
        }
    }

    #[test]
    fn the_source_that_gains_more_is_used_whichever_comes_first() {
        for sources in [[(0.3, 0.8), (0.3, 0.3)], [(0.3, 0.3), (0.3, 0.8)], [(0.2, 0.7), (1.5, 0.8)]] {
            let better = usize::from(sources[1].1 > sources[0].1 && sources[1].0 <= sources[0].0);
            let mut world = World::new();
            world.run(60, sources);
            let (_, used) = world.run(1000, sources);
            assert!(used[better] > 930, "{sources:?}: {used:?}");
        }
    }

    #[test]
    fn a_text_that_changes_changes_the_source() {
        let mut world = World::new();
        world.run(500, [(0.3, 0.9), (0.3, 0.2)]);
        world.run(1500, [(0.3, 0.2), (0.3, 0.9)]);
        let (rate, used) = world.run(500, [(0.3, 0.2), (0.3, 0.9)]);
        assert!(used[1] > 450 && rate > 2.0, "{used:?}, {rate}");
    }

    #[test]
    fn a_source_that_must_read_a_long_text_first_is_weighed_with_that() {
        let mut world = World::new();
        world.run(200, [(0.4, 0.6), (0.3, 0.8)]);
        world.best.allowance = 0.0;
        assert_eq!(world.best.choose(0, 1), Some(1));
        let begin = |best: &mut BestOf, n: usize| {
            best.allowance = 0.0;
            best.sources[1].catch_up = Some(0.001);
            (best.sources[0].lag[0], best.sources[1].lag[0]) = (0, n);
        };
        begin(&mut world.best, 40);
        assert_eq!(world.best.choose(0, 1), Some(1), "40 ms are soon made good");
        begin(&mut world.best, 4000);
        assert_eq!(world.best.choose(0, 1), Some(0), "4 s are not");
        // Alone, and worse than plain decoding with that.
        begin(&mut world.best, 4000);
        world.best.sources.remove(0);
        assert_eq!(world.best.choose(0, 1), None);
    }
}
