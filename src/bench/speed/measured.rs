//! What is measured: the options, and what was found.

use std::path::PathBuf;

use memory::CacheType;
use serde_json::Value;
use speculate::{Depth, DraftVocabSize};

use super::super::draft::{Draft, Source};
use super::super::machine::Machine;
use super::super::setup::Setup;
use super::super::weigh::Weight;

/// Options of `nextn-bench speed`.
#[derive(Clone, Debug, clap::Args)]
pub(in super::super) struct Args {
    #[command(flatten)]
    pub(in super::super) setup: Setup,
    /// Prompt lengths in tokens; 0 skips the test
    #[arg(short = 'p', long, value_delimiter = ',', default_value = "512")]
    pub(in super::super) n_prompt: Vec<usize>,
    /// Tokens to generate without drafts; 0 skips the test
    #[arg(short = 'n', long, default_value_t = 64)]
    pub(in super::super) n_gen: usize,
    /// Also measure forward passes of N tokens, as in verification
    #[arg(long, value_delimiter = ',', value_name = "N,N,...", value_parser = clap::value_parser!(u16).range(1..=512))]
    pub(in super::super) rows: Vec<u16>,
    /// Also measure generation with drafts of these lengths: numbers (0 is none), auto, async:N, ngram:N [default: auto, for
    /// a model with an MTP layer]
    #[arg(short, long, value_delimiter = ',', value_name = "D,D,...")]
    pub(in super::super) draft: Vec<Draft>,
    /// Draft vocabulary: auto, full, or the first N token ids plus the tokens in context
    #[arg(long, default_value_t)]
    pub(in super::super) draft_vocab: DraftVocabSize,
    /// Also measure N sequences at a time, with each draft length
    #[arg(long, value_delimiter = ',', value_name = "N,N,...", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(in super::super) parallel: Vec<u16>,
    /// Tokens in the context before a test begins
    #[arg(long, value_delimiter = ',', value_name = "N,N,...", default_value = "0")]
    pub(in super::super) depth_ctx: Vec<usize>,
    /// KV cache types to measure, TYPE or KEYS:VALUES [default: --cache-type-k and -v]
    #[arg(long, value_delimiter = ',', value_name = "TYPE,TYPE,...", value_parser = caches)]
    pub(in super::super) cache_types: Vec<(CacheType, CacheType)>,
    /// Prompt of generation with drafts
    #[arg(long, default_value = "Tell me a story about a fox and a river.")]
    pub(in super::super) prompt: String,
    /// Rounds of each test, after a warm-up round
    #[arg(short, long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(in super::super) repeat: u32,
    /// Do not measure memory bandwidth
    #[arg(long)]
    pub(in super::super) no_bandwidth: bool,
    /// Print all that was measured, as Markdown tables
    #[arg(short, long, conflicts_with_all = ["json", "csv"])]
    pub(in super::super) verbose: bool,
    /// Print the result as JSON
    #[arg(long, conflicts_with = "csv")]
    pub(in super::super) json: bool,
    /// Print CSV, one test per line
    #[arg(long)]
    pub(in super::super) csv: bool,
    /// Plot the gain of drafts and where the time goes (.svg or .png)
    #[arg(long, value_name = "FILE")]
    pub(in super::super) plot: Option<PathBuf>,
}

fn caches(s: &str) -> Result<(CacheType, CacheType), String> {
    match s.split_once(':') {
        Some((k, v)) => Ok((k.parse()?, v.parse()?)),
        None => Ok((s.parse()?, s.parse()?)),
    }
}

/// What was measured of one test.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Measured {
    /// Like `pp512`, `tg64`, `rows4`, `draft3`, `x2 draft3`.
    pub(in super::super) name: String,
    pub(in super::super) n_prompt: usize,
    pub(in super::super) n_gen: usize,
    pub(in super::super) n_sequences: usize,
    /// Tokens that stood in the context before.
    pub(in super::super) n_ctx: usize,
    pub(in super::super) cache: String,
    /// Tokens of all sequences a second, round by round.
    pub(in super::super) tokens_per_second: Vec<f64>,
    /// Milliseconds of one forward pass.
    pub(in super::super) pass_ms: Vec<f64>,
    /// Share of each round that is not spent in ggml's graphs, where that is known.
    pub(in super::super) outside: Vec<f64>,
    /// Bytes that one forward pass reads and writes, where that is simple.
    pub(in super::super) pass_bytes: Option<f64>,
    pub(in super::super) drafted: Option<Drafted>,
}

/// What is said of generation with drafts beside its speed.
#[derive(Clone, Debug)]
pub(in super::super) struct Drafted {
    pub(in super::super) depth: Draft,
    /// The median rate divided by that without drafts.
    pub(in super::super) to_plain: f64,
    pub(in super::super) acceptance: f64,
    pub(in super::super) acceptance_by_depth: Vec<f64>,
    pub(in super::super) tokens_per_cycle: f64,
    pub(in super::super) same_tokens: bool,
    /// Milliseconds of an engine step: forward pass, draft, the rest.
    pub(in super::super) cycle_ms: [f64; 3],
    /// Graphs launched in an engine step, drafts included.
    pub(in super::super) launches: f64,
    /// Bytes that go to the device and back in an engine step.
    pub(in super::super) bytes_copied: f64,
    pub(in super::super) degenerate: Option<String>,
}

/// Everything that a run found.
pub(in super::super) struct Findings {
    pub(in super::super) model: Value,
    pub(in super::super) line: String,
    pub(in super::super) n_threads: usize,
    pub(in super::super) repeat: u32,
    pub(in super::super) machine: Machine,
    /// Bytes a second that memory can be read with.
    pub(in super::super) bandwidth: Option<f64>,
    pub(in super::super) tests: Vec<Measured>,
}

impl Args {
    /// With what is measured where nothing else is asked for: the MTP layer's drafts beside plain decoding.
    pub(super) fn with_defaults(&self, has_head: bool) -> Self {
        let mut args = self.clone();
        if args.draft.is_empty() && args.parallel.is_empty() && args.rows.is_empty() && args.n_gen > 1 && has_head {
            args.draft = vec![Draft::On(Source::Head, Depth::Auto)];
        }
        args
    }

    /// More than the headline is asked for.
    pub(super) fn is_detailed(&self) -> bool {
        self.verbose || self.json || self.csv
    }

    /// What `nextn-bench report` measures.
    pub(in super::super) fn for_report(setup: Setup, repeat: u32, draft: Vec<Draft>) -> Self {
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
            verbose: true,
            json: false,
            csv: false,
            plot: None,
        }
    }
}

/// Generated tokens of a test name.
pub(in super::super) fn name_of(n_prompt: usize, n_gen: usize) -> String {
    if n_gen == 0 { format!("pp{n_prompt}") } else { format!("tg{n_gen}") }
}

/// A fixed sequence without structure: speed does not depend on it, expert routing should vary.
pub(in super::super) fn tokens(n: usize, n_vocab: usize) -> Vec<text::TokenId> {
    (0..n as u64).map(|i| text::TokenId((i.wrapping_mul(2_654_435_761) % n_vocab as u64) as u32)).collect()
}

impl Weight {
    /// Bytes that a forward pass of one sequence reads and writes: weights, cells before it, recurrent state both ways.
    pub(super) fn pass_bytes(&self, n_rows: usize, n_ctx: usize, (k, v): (CacheType, CacheType)) -> f64 {
        self.pass(n_rows as u64) + n_ctx as f64 * self.position(k, v) + 2.0 * self.state as f64
    }
}
