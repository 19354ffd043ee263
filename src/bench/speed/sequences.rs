//! Generation through the engine: at several draft depths, for one and for several sequences, the rounds taken in turns.

use std::sync::Arc;

use anyhow::ensure;
use model::Model;
use session::options::CalibrationPlace;
use text::TokenId;

use super::super::draft::{Bench, Draft, Generated, degenerate};
use super::super::setup::Setup;
use super::super::stats::ratio_of_medians;
use super::measured::{Args, Drafted, Measured, tokens};

/// One way to generate.
struct Way {
    n_sequences: usize,
    draft: Draft,
    tokens_per_second: Vec<f64>,
    pass_ms: Vec<f64>,
    /// Of the last round.
    replies: Vec<Generated>,
    same_tokens: bool,
}

pub(super) fn run(args: &Args, setup: &Setup, model: &Arc<Model>, n_ctx: usize) -> anyhow::Result<Vec<Measured>> {
    if (args.draft.is_empty() && args.parallel.is_empty()) || args.n_gen == 0 {
        return Ok(Vec::new());
    }
    ensure!(args.n_gen > 1, "generation through the engine needs at least two tokens: raise -n");
    let mut drafts = args.draft.clone();
    drafts.retain(|&d| d != Draft::Off);
    drafts.insert(0, Draft::Off);
    let mut counts: Vec<usize> = args.parallel.iter().map(|&n| n.into()).collect();
    if counts.is_empty() {
        counts.push(1);
    }
    let mut ways: Vec<Way> = Vec::new();
    for &n_sequences in &counts {
        ways.extend(drafts.iter().map(|&draft| Way::new(n_sequences, draft)));
    }
    // As in programs, `auto` begins with what was measured before: here in earlier rounds.
    let measured = tempfile::tempdir()?;
    for round in 0..=args.repeat {
        for way in &mut ways {
            way.round(args, setup, model, n_ctx, CalibrationPlace::Folder(measured.path().to_owned()))?;
            if round == 0 {
                way.forget_times();
            }
        }
        // The first way of each count does not draft.
        for same_count in ways.chunk_by_mut(|a, b| a.n_sequences == b.n_sequences) {
            let plain: Vec<Vec<TokenId>> = same_count[0].replies.iter().map(|a| a.tokens.clone()).collect();
            for way in same_count {
                way.same_tokens &= way.replies.iter().zip(&plain).all(|(a, b)| a.tokens == *b);
            }
        }
    }
    let mut tests = Vec::new();
    for same_count in ways.chunk_by(|a, b| a.n_sequences == b.n_sequences) {
        tests.extend(same_count.iter().map(|way| way.measured(args, setup, n_ctx, &same_count[0].tokens_per_second)));
    }
    Ok(tests)
}

impl Way {
    fn new(n_sequences: usize, draft: Draft) -> Self {
        Self {
            n_sequences,
            draft,
            tokens_per_second: Vec::new(),
            pass_ms: Vec::new(),
            replies: Vec::new(),
            same_tokens: true,
        }
    }

    fn round(
        &mut self,
        args: &Args,
        setup: &Setup,
        model: &Arc<Model>,
        n_ctx: usize,
        place: CalibrationPlace,
    ) -> anyhow::Result<()> {
        let asked = session::prompt_of(model, &args.prompt)?;
        // Prompts of the same length that differ at their start.
        let before = |i: usize| tokens(n_ctx + i, model.hparams().n_vocab).split_off(i);
        let prompts: Vec<Vec<TokenId>> =
            (0..self.n_sequences).map(|i| before(i).into_iter().chain(asked.iter().copied()).collect()).collect();
        let mut config = setup.engine(n_ctx + asked.len() + args.n_gen);
        config.n_sequences = self.n_sequences;
        // Made anew for each round: threads of an idle engine would still spin now and then.
        let bench = Bench::calibrated(model, config, (self.draft, args.draft_vocab), setup, place)?;
        let (replies, _) = bench.together(&prompts, args.n_gen)?;
        // Replies overlap but for their prompts: the slowest says how long all of them took.
        let slowest = replies.iter().map(|a| a.timings.generated_ms).fold(0.0, f64::max);
        let n_tokens: usize = replies.iter().map(|a| a.timings.generated_tokens - 1).sum();
        let n_cycles = replies.iter().map(|a| a.timings.steps).max().unwrap_or(0).max(1);
        self.tokens_per_second.push(1e3 * n_tokens as f64 / slowest.max(1e-6));
        self.pass_ms.push(slowest / n_cycles as f64);
        self.replies = replies;
        Ok(())
    }

    /// A warm-up round does not count.
    fn forget_times(&mut self) {
        self.tokens_per_second.clear();
        self.pass_ms.clear();
    }

    fn measured(&self, args: &Args, setup: &Setup, n_ctx: usize, plain: &[f64]) -> Measured {
        let sum = |of: fn(&Generated) -> usize| self.replies.iter().map(of).sum::<usize>() as f64;
        let (drafted, accepted) = (sum(|a| a.timings.drafted), sum(|a| a.timings.accepted));
        let cycles = sum(|a| a.timings.steps).max(1.0);
        let slowest = self.replies.iter().map(|a| a.timings.generated_ms).fold(0.0, f64::max);
        let n_cycles = self.replies.iter().map(|a| a.timings.steps).max().unwrap_or(0).max(1) as f64;
        // What several sequences share counts for each of them.
        let most = |of: fn(&Generated) -> f64| self.replies.iter().map(of).fold(0.0, f64::max) / n_cycles;
        let (pass, draft) = (most(|a| a.timings.verify_ms), most(|a| a.timings.draft_ms));
        let caches = setup.caches();
        let many = if self.n_sequences > 1 { format!("x{} ", self.n_sequences) } else { String::new() };
        Measured {
            name: format!("{many}draft{}", self.draft),
            n_prompt: 0,
            n_gen: args.n_gen,
            n_sequences: self.n_sequences,
            n_ctx,
            cache: format!("{}:{}", caches.0, caches.1),
            tokens_per_second: self.tokens_per_second.clone(),
            pass_ms: self.pass_ms.clone(),
            drafted: Some(Drafted {
                depth: self.draft,
                to_plain: ratio_of_medians(&self.tokens_per_second, plain),
                acceptance: accepted / drafted.max(1.0),
                acceptance_by_depth: self.replies[0].timings.acceptance_by_depth(),
                tokens_per_cycle: sum(|a| a.timings.generated_tokens - 1) / cycles,
                same_tokens: self.same_tokens,
                cycle_ms: [pass, draft, (slowest / n_cycles - pass - draft).max(0.0)],
                launches: most(|a| a.timings.launches as f64),
                bytes_copied: most(|a| a.timings.bytes_copied as f64),
                degenerate: self.replies.iter().find_map(|a| degenerate(&a.tokens)),
            }),
            ..Measured::default()
        }
    }
}
