//! The program `extract-nextn`: options, one file for each command, progress, exit codes.
//! Owns words and drawing; all work is done by the convert crate. Doc-hidden in the library: only the binary uses it.

mod checkpoint;
mod cut;
mod graft;
mod inspect;
mod quantize;
mod show;
mod strip;
mod verify;
mod work;

use std::io;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use program::sanitize;
use program::shell::Printed;
use program::terminal::tell;

/// Inspect, verify, convert and quantize model files, and move NextN (MTP) layers between them
#[derive(Debug, Parser)]
#[command(name = "extract-nextn", version, arg_required_else_help = true, max_term_width = 100)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Layouts, keys and recipes: docs/FILES.md. Exit codes: 0 done, 1 refused or failed, 2 wrong \
                        options; of verify also 3 sound without a NextN layer, 4 damaged; 130 stopped by Ctrl-C.")]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    printed: Printed,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show sizes, types, the MTP layer and the gain to expect
    Inspect(inspect::Args),
    /// Check every tensor and every number for damage
    Verify(verify::Args),
    /// Copy the MTP layer to a file of its own
    Extract(cut::Args),
    /// Add an MTP layer to a model
    Graft(graft::Args),
    /// Remove the MTP layer from a model
    Strip(strip::Args),
    /// Convert a Hugging Face checkpoint to GGUF, with its MTP layer
    Convert(checkpoint::Args),
    /// Quantize or convert a GGUF file to another type
    Quantize(quantize::Args),
}

/// How a command ends.
type Outcome = anyhow::Result<u8>;

/// Runs the program with the arguments of this process, and gives its exit code.
pub fn main() -> ExitCode {
    let args: Args = program::version::parse(std::env::args_os());
    let outcome = match args.command {
        Some(Command::Inspect(args)) => inspect::run(&args),
        Some(Command::Verify(args)) => verify::run(&args),
        Some(Command::Extract(args)) => cut::run(&args),
        Some(Command::Graft(args)) => graft::run(&args),
        Some(Command::Strip(args)) => strip::run(&args),
        Some(Command::Convert(args)) => checkpoint::run(&args),
        Some(Command::Quantize(args)) => quantize::run(&args),
        None => args.printed.print(Args::command()).map(|()| 0).map_err(Into::into),
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        // The reader had enough, as `head` does.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Names of tensors and keys come from files, and messages quote them.
            // The crate's own errors have their causes in their words.
            tell(&format!("error: {}", sanitize::clean(&error.to_string())));
            let stopped = matches!(
                error.downcast_ref::<convert::Error>(),
                Some(convert::Error::Interrupted | convert::Error::Stopped { .. })
            );
            ExitCode::from(if stopped { INTERRUPTED } else { 1 })
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// As shells number an end by Ctrl-C.
const INTERRUPTED: u8 = 130;
