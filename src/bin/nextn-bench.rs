//! `nextn-bench`: measures a model and shows what it computes.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match nextn::bench::run(nextn::bench::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
