//! The program `nextn-tune`: trains NextN heads for models in GGUF files, on the machine that runs them.
//! Owns training; the target's passes are the runtime's own, derivatives those of a library, files those of the convert crate.
//!
//! Top to bottom: `head` is the command, `train` a step of it; `data`, `answers` and `from_use` are texts, `split` which of them
//! are learned from, `target` what the model makes of them (`known`), `disk` what
//! of that is kept there, [`block`] the head as a function, `loss` and `optimizer` how it changes; `place` is where, `device_loss`
//! the loss on a GPU.
#![forbid(unsafe_code)]

mod answers;
mod batches;
pub mod block;
mod data;
mod device_loss;
mod disk;
mod from_use;
mod head;
mod head_args;
mod known;
mod loss;
mod optimizer;
mod passes;
mod place;
mod progress;
mod split;
mod start;
mod state;
mod target;
mod train;
mod training;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use program::sanitize;
use program::shell::Printed;
use program::terminal::tell;

/// Train NextN (MTP) heads for models in GGUF files
#[derive(Debug, Parser)]
#[command(name = "nextn-tune", version, arg_required_else_help = true, max_term_width = 100)]
#[command(args_conflicts_with_subcommands = true)]
#[command(
    after_help = "A guide: docs/TRAINING.md. Exit codes: 0 done, 1 refused or failed, 2 wrong options, 130 stopped by Ctrl-C."
)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    printed: Printed,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train the model's head, or a new one, and write it to a file of its own
    Head(Box<head_args::Args>),
}

/// Ctrl-C came, and what was done is kept.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("stopped; what was done is kept")]
pub struct Stopped;

/// Runs the program with the arguments of this process, and gives its exit code.
pub fn main() -> ExitCode {
    if let Some(code) = with_variables() {
        return code;
    }
    let args: Args = program::version::parse(std::env::args_os());
    let outcome = match &args.command {
        Some(Command::Head(args)) => head::run(args),
        None => args.printed.print(Args::command()).map_err(Into::into),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Names of tensors and keys come from files, and messages quote them.
            tell(&format!("error: {}", sanitize::clean(&words(&error))));
            ExitCode::from(if error.is::<Stopped>() { INTERRUPTED } else { 1 })
        }
    }
}

/// An error and its causes, but those that its words have already.
fn words(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| match said.as_str() {
        "" => cause,
        said if said.contains(&cause) => said.to_owned(),
        said => format!("{said}: {cause}"),
    })
}

/// The library's own threads, which it counts by these variables alone. One each: training shares out whole parts of a batch.
const THREADS: [&str; 2] = ["RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"];

/// How many pools of memory glibc shares out to threads; other C libraries do not read it. With a pool for each thread, which is
/// glibc's way, what one thread of a batch frees is not there for those of the next: 12 threads took nearly twice as much.
const POOLS: &str = "MALLOC_ARENA_MAX";

/// Runs the program again with these variables set, and gives its exit code; `None` where somebody has set the library's threads.
fn with_variables() -> Option<ExitCode> {
    if THREADS.iter().any(|name| std::env::var_os(name).is_some()) {
        return None;
    }
    let mut again = std::process::Command::new(std::env::current_exe().ok()?);
    again.args(std::env::args_os().skip(1)).envs(THREADS.map(|name| (name, "1")));
    if std::env::var_os(POOLS).is_none() {
        again.env(POOLS, "1");
    }
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;
        // Comes back only if it failed.
        let _ = again.exec();
        None
    }
    #[cfg(not(unix))]
    {
        let code = again.status().ok()?.code()?;
        Some(ExitCode::from(code.clamp(0, 255) as u8))
    }
}

/// As shells number an end by Ctrl-C.
const INTERRUPTED: u8 = 130;
