//! `nextn-bench speed`: prompts, generation, passes over a few rows, drafts and several sequences, in one run.
//! Owns the options and the order of the tests; how each is done and shown is in the files beside.

mod passes;
mod picture;
mod sequences;
mod show;

use std::path::PathBuf;

use anyhow::{Context, ensure};
use memory::CacheType;
use serde_json::Value;
use speculate::DraftVocabSize;

use super::draft::{self, Draft};
use super::machine::{self, Machine};
use super::setup::{Setup, warn};
use super::weigh::Weight;

/// Options of `nextn-bench speed`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) setup: Setup,
    /// Prompt lengths to measure; 0 leaves them out
    #[arg(short = 'p', long, value_delimiter = ',', default_value = "512")]
    n_prompt: Vec<usize>,
    /// Tokens to generate one by one; 0 leaves it out
    #[arg(short = 'n', long, default_value_t = 64)]
    n_gen: usize,
    /// Also measure passes over so many rows, as they judge drafts
    #[arg(long, value_delimiter = ',', value_name = "N,N,...", value_parser = clap::value_parser!(u16).range(1..=512))]
    rows: Vec<u16>,
    /// Also measure generation with drafts of these depths by the NextN head, through the engine: numbers (0 is none), auto
    #[arg(short, long, value_delimiter = ',', value_name = "D,D,...")]
    draft: Vec<Draft>,
    /// Words that drafts are made of: auto, full, or a number of rows
    #[arg(long, default_value_t)]
    draft_vocab: DraftVocabSize,
    /// Also measure so many answers at a time, with each of the drafts
    #[arg(long, value_delimiter = ',', value_name = "N,N,...", value_parser = clap::value_parser!(u16).range(1..=64))]
    parallel: Vec<u16>,
    /// Tokens that are in the context before a test begins
    #[arg(long, value_delimiter = ',', value_name = "N,N,...", default_value = "0")]
    depth_ctx: Vec<usize>,
    /// Types of cached keys and values to measure, each as TYPE or KEYS:VALUES; --cache-type-k and -v if absent
    #[arg(long, value_delimiter = ',', value_name = "TYPE,TYPE,...", value_parser = caches)]
    cache_types: Vec<(CacheType, CacheType)>,
    /// What generation with drafts starts from; in a chat, when the model has a template
    #[arg(long, default_value = "Tell me a story about a fox and a river.")]
    prompt: String,
    /// Rounds of each test, after one that does not count
    #[arg(short, long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Do not measure how fast memory can be read
    #[arg(long)]
    no_bandwidth: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print comma-separated values, one test a line
    #[arg(long)]
    csv: bool,
    /// Draw what drafting gains and where its time goes, as an .svg or .png file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

fn caches(s: &str) -> Result<(CacheType, CacheType), String> {
    match s.split_once(':') {
        Some((k, v)) => Ok((k.parse()?, v.parse()?)),
        None => Ok((s.parse()?, s.parse()?)),
    }
}

/// What was measured of one test.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    /// Like `pp512`, `tg64`, `rows4`, `draft3`, `x2 draft3`.
    pub(super) name: String,
    pub(super) n_prompt: usize,
    pub(super) n_gen: usize,
    pub(super) n_sequences: usize,
    /// Tokens that stood in the context before.
    pub(super) n_ctx: usize,
    pub(super) cache: String,
    /// Tokens of all sequences a second, round by round.
    pub(super) tokens_per_second: Vec<f64>,
    /// Milliseconds of one pass.
    pub(super) pass_ms: Vec<f64>,
    /// Share of each round that is not spent in ggml's graphs, where that is known.
    pub(super) outside: Vec<f64>,
    /// Bytes that one pass reads and writes, where that is simple.
    pub(super) pass_bytes: Option<f64>,
    pub(super) drafted: Option<Drafted>,
}

/// What is said of generation with drafts beside its speed.
#[derive(Clone, Debug)]
pub(super) struct Drafted {
    pub(super) depth: Draft,
    /// Rates divided by those without drafts, round by round.
    pub(super) ratios: Vec<f64>,
    pub(super) acceptance: f64,
    pub(super) acceptance_by_depth: Vec<f64>,
    pub(super) tokens_per_cycle: f64,
    pub(super) same_tokens: bool,
    /// Milliseconds of a cycle: pass, draft, the rest.
    pub(super) cycle_ms: [f64; 3],
    /// Graphs launched in a cycle, drafts included.
    pub(super) launches: f64,
    /// Bytes that go to the device and back in a cycle.
    pub(super) bytes_copied: f64,
    pub(super) degenerate: Option<String>,
}

/// Everything that a run found.
pub(super) struct Findings {
    pub(super) model: Value,
    pub(super) line: String,
    pub(super) n_threads: usize,
    pub(super) repeat: u32,
    pub(super) machine: Machine,
    /// Bytes a second that memory can be read with.
    pub(super) bandwidth: Option<f64>,
    pub(super) tests: Vec<Measured>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let picture = args.plot.as_deref().map(super::plot::Format::of).transpose()?;
    let found = measure(args)?;
    show::show(args, &found)?;
    if let (Some(path), Some(format)) = (&args.plot, picture) {
        ensure!(
            found.tests.iter().any(|t| t.drafted.is_some()),
            "there is nothing to draw: --plot shows drafts, give -d 1,2,3"
        );
        let bytes = picture::draw(&found, format)?;
        std::fs::write(path, bytes).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// Runs all tests.
pub(super) fn measure(args: &Args) -> anyhow::Result<Findings> {
    let model = args.setup.open()?;
    warn(draft::without_effect(&args.draft, args.draft_vocab, &model));
    let weight = args.setup.weight()?;
    let n_threads = args.setup.n_threads();
    let bandwidth = (!args.no_bandwidth).then(|| machine::bandwidth(n_threads, machine::BANDWIDTH_BYTES));
    let own = [args.setup.caches()];
    let caches = if args.cache_types.is_empty() { &own[..] } else { &args.cache_types };
    let mut tests = Vec::new();
    for &cache in caches {
        let setup = args.setup.with_caches(cache);
        for &n_ctx in &args.depth_ctx {
            tests.extend(passes::run(args, &setup, &model, &weight, n_ctx)?);
            tests.extend(sequences::run(args, &setup, &model, n_ctx)?);
        }
    }
    let d = model.describe();
    Ok(Findings {
        model: serde_json::json!({
            "name": d.name,
            "architecture": d.architecture,
            "quantization": d.quantization,
            "n_bytes": d.n_bytes,
            "n_params": d.n_params,
            "bytes_per_token": weight.pass(1),
        }),
        line: d.to_string(),
        n_threads,
        repeat: args.repeat,
        machine: Machine::this(),
        bandwidth,
        tests,
    })
}

impl Args {
    /// What `nextn-bench report` measures.
    pub(super) fn for_report(setup: Setup, repeat: u32, draft: Vec<Draft>) -> Self {
        Self {
            setup,
            n_prompt: vec![512],
            n_gen: 64,
            rows: vec![1, 2, 4, 8],
            draft,
            draft_vocab: DraftVocabSize::default(),
            parallel: Vec::new(),
            depth_ctx: vec![0],
            cache_types: Vec::new(),
            prompt: "Tell me a story about a fox and a river.".into(),
            repeat,
            no_bandwidth: false,
            json: false,
            csv: false,
            plot: None,
        }
    }
}

impl Findings {
    pub(super) fn json(&self) -> Value {
        show::json(self)
    }

    pub(super) fn table(&self) -> String {
        show::table(self)
    }
}

/// Generated tokens of a test name.
pub(super) fn name_of(n_prompt: usize, n_gen: usize) -> String {
    if n_gen == 0 { format!("pp{n_prompt}") } else { format!("tg{n_gen}") }
}

/// A fixed sequence without structure: speed does not depend on it, expert routing should vary.
pub(super) fn tokens(n: usize, n_vocab: usize) -> Vec<text::TokenId> {
    (0..n as u64).map(|i| text::TokenId((i.wrapping_mul(2_654_435_761) % n_vocab as u64) as u32)).collect()
}

impl Weight {
    /// Bytes that a pass of one sequence reads and writes: weights, cells before it, recurrent state both ways.
    fn pass_bytes(&self, n_rows: usize, n_ctx: usize, (k, v): (CacheType, CacheType)) -> f64 {
        self.pass(n_rows as u64) + n_ctx as f64 * self.position(k, v) + 2.0 * self.state as f64
    }
}
