//! Tokens per second of prompt passes and of generation, with spread, and the time that is not ggml's.

use std::time::{Duration, Instant};

use anyhow::Context;
use memory::{Memory, Slot};
use model::{Model, Pass, PassOutput, Rows, Runner};
use serde_json::{Value, json};
use speculate::DraftVocabSize;
use text::TokenId;

use super::setup::{Setup, argmax, say};
use super::speculation::{self, Draft, Drafted};

/// Prompts are computed in passes of this many rows, as the engine does.
const N_BATCH: usize = 512;

/// Options of `nextn-bench speed`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) setup: Setup,
    /// Prompt lengths to measure; 0 leaves them out
    #[arg(short = 'p', long, value_delimiter = ',', default_value = "512")]
    n_prompt: Vec<usize>,
    /// Tokens to generate one by one; 0 leaves it out
    #[arg(short = 'n', long, default_value_t = 64)]
    pub(super) n_gen: usize,
    /// Also measure generation with drafts of these depths by the NextN head, through the engine: numbers (0 is none), auto
    #[arg(short, long, value_delimiter = ',', value_name = "D,D,...")]
    pub(super) draft: Vec<Draft>,
    /// Words that drafts are made of: auto, full, or a number of rows
    #[arg(long, default_value_t)]
    pub(super) draft_vocab: DraftVocabSize,
    /// What generation with drafts starts from; in a chat, when the model has a template
    #[arg(long, default_value = "Tell me a story about a fox and a river.")]
    pub(super) prompt: String,
    /// Rounds of each test, after one that does not count
    #[arg(short, long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) repeat: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One test with its rounds.
struct Test {
    n_prompt: usize,
    n_gen: usize,
    tokens_per_second: Vec<f64>,
    /// Share of each round that is not spent in ggml's graphs.
    outside: Vec<f64>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let model = args.setup.open()?;
    let longest = args.n_prompt.iter().copied().max().unwrap_or(0).max(args.n_gen).max(1);
    let (mut runner, mut memory) = args.setup.runner(&model, longest)?;
    let slot = memory.acquire()?.context("a new memory has a free slot")?;
    let prompts = args.n_prompt.iter().filter(|&&p| p > 0).map(|&p| (p, 0));
    let generation = (args.n_gen > 0).then_some((0, args.n_gen));
    let mut bench = Bench { runner: &mut runner, memory: &mut memory, slot: &slot, output: PassOutput::default() };
    let mut tests = Vec::new();
    for (n_prompt, n_gen) in prompts.chain(generation) {
        let mut test = Test { n_prompt, n_gen, tokens_per_second: Vec::new(), outside: Vec::new() };
        for round in 0..=args.repeat {
            let (took, outside) = bench.round(n_prompt, n_gen)?;
            if round > 0 {
                test.tokens_per_second.push((n_prompt + n_gen) as f64 / took.as_secs_f64());
                test.outside.push(outside);
            }
        }
        tests.push(test);
    }
    drop(memory);
    drop(runner);
    let drafts = speculation::run(args, &model)?;
    if args.json { print_json(args, &model, &tests, &drafts) } else { print_table(args, &model, &tests, &drafts) }
}

struct Bench<'a> {
    runner: &'a mut Runner,
    memory: &'a mut Memory,
    slot: &'a Slot,
    output: PassOutput,
}

impl Bench<'_> {
    /// A prompt, then generation, from an empty sequence; gives the time and the share that is not ggml's.
    fn round(&mut self, n_prompt: usize, n_gen: usize) -> anyhow::Result<(Duration, f64)> {
        self.memory.reset(self.slot)?;
        let n_vocab = self.runner.model().hparams().n_vocab as u64;
        // A fixed sequence without structure: speed does not depend on it, expert routing should vary.
        let tokens: Vec<TokenId> =
            (0..n_prompt.max(1) as u64).map(|i| TokenId((i.wrapping_mul(2_654_435_761) % n_vocab) as u32)).collect();
        let before = self.runner.stats().compute;
        let start = Instant::now();
        let mut left = n_prompt;
        for chunk in tokens[..n_prompt].chunks(N_BATCH) {
            left -= chunk.len();
            let last = [chunk.len() - 1];
            self.pass(chunk, if left == 0 { Rows::Some(&last) } else { Rows::None })?;
        }
        let mut token = tokens[tokens.len() - 1];
        for _ in 0..n_gen {
            self.pass(&[token], Rows::All)?;
            token = argmax(self.output.logits(0));
        }
        let took = start.elapsed();
        let compute = self.runner.stats().compute - before;
        Ok((took, 1.0 - compute.as_secs_f64() / took.as_secs_f64()))
    }

    fn pass(&mut self, tokens: &[TokenId], rows: Rows<'_>) -> anyhow::Result<()> {
        let step = self.memory.begin(&[(self.slot, tokens.len())], 1)?;
        self.runner.run(step.view(), &Pass { tokens, rows, hidden: false }, &mut self.output)?;
        step.commit(&[tokens.len()])?;
        Ok(())
    }
}

impl Test {
    fn name(&self) -> String {
        if self.n_gen == 0 { format!("pp{}", self.n_prompt) } else { format!("tg{}", self.n_gen) }
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name(),
            "n_prompt": self.n_prompt,
            "n_gen": self.n_gen,
            "tokens_per_second": self.tokens_per_second,
            "median": median(&self.tokens_per_second),
            "outside_compute": median(&self.outside),
        })
    }
}

fn print_json(args: &Args, model: &Model, tests: &[Test], drafts: &[Drafted]) -> anyhow::Result<()> {
    let d = model.describe();
    let tests: Vec<Value> = tests.iter().map(Test::json).collect();
    let value = json!({
        "model": { "name": d.name, "architecture": d.architecture, "quantization": d.quantization, "n_bytes": d.n_bytes },
        "threads": args.setup.n_threads(),
        "tests": tests,
        "speculation": drafts.iter().map(Drafted::json).collect::<Vec<_>>(),
    });
    say(value)
}

fn print_table(args: &Args, model: &Model, tests: &[Test], drafts: &[Drafted]) -> anyhow::Result<()> {
    say(format_args!("{}, {} threads, {} rounds\n", model.describe(), args.setup.n_threads(), args.repeat))?;
    say("| test | tokens/s, median | lowest | highest | ms a pass or token | outside ggml |")?;
    say("|---|---|---|---|---|---|")?;
    for t in tests {
        let rate = median(&t.tokens_per_second);
        let low = t.tokens_per_second.iter().copied().fold(f64::INFINITY, f64::min);
        let high = t.tokens_per_second.iter().copied().fold(0.0, f64::max);
        let ms = 1e3 * if t.n_gen == 0 { t.n_prompt as f64 } else { 1.0 } / rate;
        let outside = 100.0 * median(&t.outside);
        let name = t.name();
        say(format_args!("| {name} | {rate:.2} | {low:.2} | {high:.2} | {ms:.3} | {outside:.2} % |"))?;
    }
    speculation::print_table(drafts)
}

pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}
