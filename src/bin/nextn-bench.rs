//! `nextn-bench`: measures a model and shows what it computes.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match nextn::bench::run(nextn::bench::Args::parse_from(nextn::short::spelled_out(std::env::args_os()))) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader had enough, as `head` does.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
