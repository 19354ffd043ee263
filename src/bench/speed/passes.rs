//! Prompts, generation and forward passes over a few tokens, straight on the runner: nothing but the model is measured.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use memory::{Checkpoint, Memory, Slot};
use model::{Model, Pass, PassOutput, Rows, Runner};
use text::TokenId;

use super::super::setup::{Setup, argmax};
use super::super::weigh::Weight;
use super::measured::{Args, Measured, name_of, tokens};

/// Prompts are computed in chunks of this many tokens, as the engine does.
const N_BATCH: usize = 512;

/// Forward passes over a few tokens in a round.
const N_PASSES: usize = 8;

/// One kind of test.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Prompt(usize),
    Generate(usize),
    Rows(usize),
}

/// A model with one sequence that stands after some tokens.
struct Rig {
    runner: Runner,
    memory: Memory,
    slot: Slot,
    output: PassOutput,
    /// Where every round begins.
    start: Checkpoint,
    n_vocab: usize,
}

pub(super) fn run(
    args: &Args,
    setup: &Setup,
    model: &Arc<Model>,
    weight: &Weight,
    n_ctx: usize,
) -> anyhow::Result<Vec<Measured>> {
    let prompts = args.n_prompt.iter().filter(|&&p| p > 0).map(|&p| Kind::Prompt(p));
    let generation = (args.n_gen > 0).then_some(Kind::Generate(args.n_gen));
    let rows = args.rows.iter().map(|&n| Kind::Rows(n.into()));
    let kinds: Vec<Kind> = prompts.chain(generation).chain(rows).collect();
    let Some(longest) = kinds.iter().map(|k| k.n_positions()).max() else { return Ok(Vec::new()) };
    let n_snapshots = args.rows.iter().copied().max().unwrap_or(1).into();
    let mut rig = Rig::new(setup, model, n_ctx, n_ctx + longest, n_snapshots)?;
    let mut tests: Vec<Measured> = kinds.iter().map(|kind| kind.test(setup, weight, n_ctx)).collect();
    // The tests take turns, so that a machine that changes its mind does so to all of them.
    for round in 0..=args.repeat {
        for (kind, test) in kinds.iter().zip(&mut tests) {
            let (took, outside) = rig.round(*kind)?;
            if round > 0 {
                let seconds = took.as_secs_f64();
                test.tokens_per_second.push(kind.n_tokens() as f64 / seconds);
                test.pass_ms.push(1e3 * seconds / kind.n_passes() as f64);
                test.outside.push(outside);
            }
        }
    }
    Ok(tests)
}

impl Kind {
    fn n_positions(self) -> usize {
        match self {
            Kind::Prompt(n) | Kind::Generate(n) => n,
            Kind::Rows(n) => n + N_PASSES,
        }
    }

    fn n_tokens(self) -> usize {
        match self {
            Kind::Prompt(n) | Kind::Generate(n) => n,
            Kind::Rows(n) => n * N_PASSES,
        }
    }

    /// Forward passes of a round; a prompt counts as one.
    fn n_passes(self) -> usize {
        match self {
            Kind::Prompt(_) => 1,
            Kind::Generate(n) => n,
            Kind::Rows(_) => N_PASSES,
        }
    }

    fn test(self, setup: &Setup, weight: &Weight, n_ctx: usize) -> Measured {
        let (n_prompt, n_gen, name, n_rows) = match self {
            Kind::Prompt(n) => (n, 0, name_of(n, 0), None),
            Kind::Generate(n) => (0, n, name_of(0, n), Some(1)),
            Kind::Rows(n) => (n, 0, format!("rows{n}"), Some(n)),
        };
        let caches = setup.caches();
        Measured {
            name,
            n_prompt,
            n_gen,
            n_sequences: 1,
            n_ctx,
            cache: format!("{}:{}", caches.0, caches.1),
            pass_bytes: n_rows.map(|n| weight.pass_bytes(n, n_ctx + n_gen / 2, caches)),
            ..Measured::default()
        }
    }
}

impl Rig {
    fn new(
        setup: &Setup,
        model: &Arc<Model>,
        n_before: usize,
        n_ctx: usize,
        n_snapshots: usize,
    ) -> anyhow::Result<Self> {
        let (runner, mut memory) = setup.runner_with(model, n_ctx, n_snapshots)?;
        let slot = memory.acquire()?.context("a new memory has a free slot")?;
        let start = memory.checkpoint(&slot)?;
        let n_vocab = model.hparams().n_vocab;
        let mut rig = Self { runner, memory, slot, output: PassOutput::default(), start, n_vocab };
        for chunk in tokens(n_before, n_vocab).chunks(N_BATCH) {
            rig.pass(chunk, Rows::None, 1, chunk.len())?;
        }
        rig.start = rig.memory.checkpoint(&rig.slot)?;
        Ok(rig)
    }

    /// One round from the start; gives the time and the share that is not ggml's.
    fn round(&mut self, kind: Kind) -> anyhow::Result<(Duration, f64)> {
        if self.start.position() == 0 {
            self.memory.reset(&self.slot)?;
        } else {
            self.memory.restore(&self.slot, &self.start)?;
        }
        let before = self.runner.stats().compute;
        let begin = Instant::now();
        match kind {
            Kind::Prompt(n) => {
                let mut left = n;
                for chunk in tokens(n, self.n_vocab).chunks(N_BATCH) {
                    left -= chunk.len();
                    let last = [chunk.len() - 1];
                    let rows = if left == 0 { Rows::Some(&last) } else { Rows::None };
                    self.pass(chunk, rows, 1, chunk.len())?;
                }
            }
            Kind::Generate(n) => {
                let mut token = tokens(2, self.n_vocab)[1];
                for _ in 0..n {
                    self.pass(&[token], Rows::All, 1, 1)?;
                    token = argmax(self.output.logits(0));
                }
            }
            Kind::Rows(n) => {
                let all = tokens(n + N_PASSES, self.n_vocab);
                let each: Vec<usize> = (0..n).collect();
                for i in 0..N_PASSES {
                    // As when greedy drafts are checked and all are wrong: the likeliest tokens are wanted, one token stays.
                    self.pass(&all[i..i + n], Rows::Best(&each), n, 1)?;
                }
            }
        }
        let took = begin.elapsed();
        let compute = self.runner.stats().compute - before;
        Ok((took, 1.0 - compute.as_secs_f64() / took.as_secs_f64()))
    }

    fn pass(&mut self, tokens: &[TokenId], rows: Rows<'_>, n_snapshots: usize, keep: usize) -> anyhow::Result<()> {
        let step = self.memory.begin(&[(&self.slot, tokens.len())], n_snapshots)?;
        self.runner.run(step.view(), &Pass { tokens, rows, hidden: false }, &mut self.output)?;
        step.commit(&[keep])?;
        Ok(())
    }
}
