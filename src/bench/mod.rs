//! `nextn-bench`: logits, greedy text, tokens, prompts, perplexity and speed of a model file, as JSON or tables.
//! Owns its command line and its output. Each command prints one JSON value, or a table for people.

mod generate;
mod logits;
mod npy;
mod perplexity;
mod setup;
mod speculation;
mod speed;
mod words;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use setup::{Input, Setup};

use crate::devices::DeviceFlags;

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
        device: DeviceFlags,
    },
    /// Measure tokens per second of prompt passes and of generation
    Speed(speed::Args),
}

/// Runs one command.
///
/// # Errors
/// A file that cannot be read, a model that does not open, a pass that was not computed.
pub fn run(args: Args) -> anyhow::Result<()> {
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
            setup::say(crate::devices::table())
        }
        Command::Speed(args) => speed::run(&args),
    }
}
