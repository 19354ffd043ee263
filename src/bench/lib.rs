//! `nextn-bench`: what a model computes, how fast, how well, against others and against its own past, as JSON or tables.
//! Owns its command line and its output. Each command prints one JSON value, or a table for people.

mod acceptance;
mod compare;
mod conversation;
mod draft;
mod estimate;
mod eval;
mod generate;
mod http;
mod image;
mod kld;
mod logits;
mod machine;
mod memory;
mod npy;
mod perplexity;
mod report;
mod sanity;
mod setup;
mod speed;
mod stats;
mod synth;
mod weigh;
mod words;

use std::path::PathBuf;

use clap::{CommandFactory, Parser, Subcommand};

use conversation::Sees;
use setup::{Input, Setup};

use program::logging;
use program::shell::Printed;
use session::options::DeviceOptions;

/// Measure a model, and show what it computes
#[derive(Debug, Parser)]
#[command(name = "nextn-bench", version, about, propagate_version = true, arg_required_else_help = true)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    printed: Printed,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print logits and hidden states of every position as JSON
    Logits {
        #[command(flatten)]
        setup: Setup,
        #[command(flatten)]
        input: Input,
        #[command(flatten)]
        sees: Sees,
        /// Also print D draft tokens of the MTP layer, after the greedy next token
        #[arg(long, default_value_t = 0, value_name = "D")]
        draft: u8,
        /// Most tokens of one forward pass
        #[arg(short, long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=4096))]
        batch_size: u32,
        /// Write the logits of all positions to this NumPy file instead of printing them
        #[arg(long, value_name = "FILE.npy")]
        full: Option<PathBuf>,
        /// Write the hidden states of all positions to this NumPy file instead of printing them
        #[arg(long, value_name = "FILE.npy")]
        hidden: Option<PathBuf>,
    },
    /// Print a greedy continuation of exactly N tokens as JSON
    Generate {
        #[command(flatten)]
        setup: Setup,
        #[command(flatten)]
        input: Input,
        #[command(flatten)]
        sees: Sees,
        /// Tokens to generate; end-of-generation tokens are ignored
        #[arg(short = 'n', long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
        n_tokens: u32,
        /// Draft D tokens per step with the draft model if one is given, else the MTP layer; or as -d of `speed`; 0 is off
        #[arg(long, default_value = "0", value_name = "D")]
        draft: draft::Draft,
    },
    /// Print the token ids of a text as JSON
    Tokenize {
        /// GGUF file [default: the embedded model]
        #[arg(short, long, value_name = "FILE")]
        model: Option<PathBuf>,
        /// UTF-8 text; special tokens are recognized
        #[arg(long, value_name = "FILE")]
        text_file: PathBuf,
    },
    /// Print the prompt that the chat template makes of a conversation, as JSON
    Render {
        /// GGUF file [default: the embedded model]
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
        /// Window in tokens; the second half of each counts
        #[arg(short, long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..))]
        ctx_size: u32,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// List devices with their free memory
    Devices {
        #[command(flatten)]
        device: DeviceOptions,
    },
    /// Print the GPU memory of each part of a model, as counted and as measured
    Memory(memory::Args),
    /// Measure prefill, decode, small batches, drafts and several sequences
    Speed(Box<speed::Args>),
    /// Write a synthetic model with the dimensions of a published one
    Synth(synth::Args),
    /// Estimate the best speed and the memory of a file or shape on this machine
    Estimate(estimate::Args),
    /// Measure the acceptance rate by domain, draft length and draft vocabulary
    Acceptance(acceptance::Args),
    /// Measure the KL divergence of a file from a better one of the same model
    Kld(kld::Args),
    /// Compare speed and output with another engine, in turns
    Compare(Box<compare::Args>),
    /// Score questions with known answers, with drafts and without
    Eval(eval::Args),
    /// Print what a projector makes of an image as JSON: size, bytes, embeddings; or its speed
    Image(Box<image::Args>),
    /// Check a served model against its baseline on this machine
    Sanity(sanity::Args),
    /// Measure files and write a report of machine, build and results
    Report(report::Args),
}

/// Runs one command, or prints completions or the manual.
///
/// # Errors
/// A file that cannot be read, a model that does not open, a forward pass that was not computed.
pub fn run(args: Args) -> anyhow::Result<()> {
    logging::start("warn", logging::Lines::Person { colours: false, detailed: false }).map_err(anyhow::Error::msg)?;
    let Some(command) = args.command else { return Ok(args.printed.print(Args::command())?) };
    match command {
        Command::Logits { setup, input, sees, draft, batch_size, full, hidden } => {
            logits::run(&setup, (&input, &sees), draft.into(), batch_size as usize, full, hidden)
        }
        Command::Generate { setup, input, sees, n_tokens, draft } => {
            generate::run(&setup, (&input, &sees), n_tokens as usize, draft)
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
        Command::Image(args) => image::run(&args),
        Command::Sanity(args) => sanity::run(&args),
        Command::Report(args) => report::run(&args),
    }
}
