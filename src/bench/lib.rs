//! `nextn-bench`: what a model computes, how fast, how well, against others and against its own past, as JSON or tables.
//! Owns its command line and its output. Each command prints one JSON value, or a table for people.

mod acceptance;
mod compare;
mod draft;
mod estimate;
mod eval;
mod generate;
mod http;
mod kld;
mod logits;
mod machine;
mod memory;
mod npy;
mod perplexity;
mod plot;
mod report;
mod sanity;
mod setup;
mod speed;
mod stats;
mod synth;
mod weigh;
mod words;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use setup::{Input, Setup};

use program::logging;
use session::options::DeviceOptions;

/// Measures a model and shows what it computes.
#[derive(Debug, Parser)]
#[command(name = "nextn-bench", version, about, propagate_version = true)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print logits and hidden rows of every position as one JSON object
    Logits {
        #[command(flatten)]
        setup: Setup,
        #[command(flatten)]
        input: Input,
        /// Also print so many chained drafts of the NextN head, after the greedy next token
        #[arg(long, default_value_t = 0, value_name = "D")]
        draft: u8,
        /// Write the logits of all positions to this NumPy file instead of printing them
        #[arg(long, value_name = "FILE.npy")]
        full: Option<PathBuf>,
        /// Write the hidden rows of all positions to this NumPy file instead of printing them
        #[arg(long, value_name = "FILE.npy")]
        hidden: Option<PathBuf>,
    },
    /// Print a greedy continuation of exactly N tokens as one JSON object
    Generate {
        #[command(flatten)]
        setup: Setup,
        #[command(flatten)]
        input: Input,
        /// Tokens to generate; end-of-generation tokens are ignored
        #[arg(short = 'n', long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
        n_tokens: u32,
        /// Tokens to draft in each cycle with the model's NextN head, over its whole vocabulary; 0 does not speculate
        #[arg(long, default_value_t = 0, value_name = "D")]
        draft: u8,
    },
    /// Print the token ids of a text as one JSON array
    Tokenize {
        /// GGUF file; the embedded model if absent
        #[arg(short, long, value_name = "FILE")]
        model: Option<PathBuf>,
        /// UTF-8 text, taken byte for byte; special tokens are recognised
        #[arg(long, value_name = "FILE")]
        text_file: PathBuf,
    },
    /// Print the prompt that the model's chat template makes of a conversation as one JSON string
    Render {
        /// GGUF file; the embedded model if absent
        #[arg(short, long, value_name = "FILE")]
        model: Option<PathBuf>,
        /// JSON object: messages, and optionally tools, add_generation_prompt, enable_thinking
        #[arg(long, value_name = "FILE")]
        chat_file: PathBuf,
    },
    /// Print the perplexity of a text
    Perplexity {
        #[command(flatten)]
        setup: Setup,
        /// UTF-8 text
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Positions of a window; the second half of each counts
        #[arg(short, long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..))]
        ctx_size: u32,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Print the devices that can compute here
    Devices {
        #[command(flatten)]
        device: DeviceOptions,
    },
    /// Say what a model takes of the memory of GPUs, as counted here and as the devices say
    Memory(memory::Args),
    /// Measure prompts, generation, passes over a few rows, drafts, several sequences
    Speed(Box<speed::Args>),
    /// Write a synthetic model of real dimensions
    Synth(synth::Args),
    /// Say what this machine could do at best with a file or a shape, and what memory it takes
    Estimate(estimate::Args),
    /// Measure how often drafts are right, by domain, depth and draft vocabulary
    Acceptance(acceptance::Args),
    /// Compare a model's predictions with those of a better file of it
    Kld(kld::Args),
    /// Do the same work on another engine, in turns, and compare answers and speeds
    Compare(Box<compare::Args>),
    /// Answer questions with known answers, without and with drafts
    Eval(eval::Args),
    /// Check a served model against what it did before on this machine
    Sanity(sanity::Args),
    /// Measure some files and write a report of machine, build and results
    Report(report::Args),
}

/// Runs one command.
///
/// # Errors
/// A file that cannot be read, a model that does not open, a pass that was not computed.
pub fn run(args: Args) -> anyhow::Result<()> {
    logging::start("warn", logging::Lines::Person { colours: false, detailed: false }).map_err(anyhow::Error::msg)?;
    match args.command {
        Command::Logits { setup, input, draft, full, hidden } => {
            logits::run(&setup, &input, draft.into(), full, hidden)
        }
        Command::Generate { setup, input, n_tokens, draft } => {
            generate::run(&setup, &input, n_tokens as usize, draft.into())
        }
        Command::Tokenize { model, text_file } => words::tokenize(model.as_deref(), &text_file),
        Command::Render { model, chat_file } => words::render(model.as_deref(), &chat_file),
        Command::Perplexity { setup, file, ctx_size, json } => perplexity::run(&setup, &file, ctx_size as usize, json),
        Command::Devices { device } => {
            device.load_backends()?;
            setup::say(session::options::device_table())
        }
        Command::Memory(args) => memory::run(&args),
        Command::Speed(args) => speed::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Estimate(args) => estimate::run(&args),
        Command::Acceptance(args) => acceptance::run(&args),
        Command::Kld(args) => kld::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Sanity(args) => sanity::run(&args),
        Command::Report(args) => report::run(&args),
    }
}
