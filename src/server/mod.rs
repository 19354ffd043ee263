//! `nextn-server`: options, loading, signals. Wires engines and the `api` crate together.
//! Knows no endpoint and no tensors. Doc-hidden in the library: only the binary uses it.

pub mod args;
mod load;
mod logging;
mod run;

use std::io;

use clap::Parser;

use crate::cli::exit::Exit;
use args::Args;

/// Runs `nextn-server` with the arguments of this process, and gives its exit code.
pub fn main() -> Exit {
    let args = match Args::try_parse_from(std::env::args_os().map(args::spelled_out)) {
        Ok(args) => args,
        Err(error) => {
            // `--help` and `--version` come here too, with code 0. A closed output has nobody to tell.
            let _ = error.print();
            return if error.exit_code() == 0 { Exit::Success } else { Exit::Usage };
        }
    };
    match run::run(args) {
        Ok(()) => Exit::Success,
        Err(failure) => failure.report(&mut io::stderr()),
    }
}
