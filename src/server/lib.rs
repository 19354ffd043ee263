//! `nextn-server`: options, loading, signals, and the settings of programs that use it. Wires engines and the `api` crate together.
//! Knows no endpoint and no tensors. Doc-hidden in the library: only the binary uses it.

pub mod args;
mod config;
mod connect;
mod folder;
mod foreign;
mod load;
mod run;
mod store;
mod values;
mod worker;

use std::ffi::OsString;
use std::io;

use config::Wrong;
use program::exit::{Exit, Failure};

/// All that the program takes: the options of a server, and the command beside it.
pub fn command() -> clap::Command {
    connect::beside(args::command())
}

/// Runs `nextn-server` with the arguments of this process, and gives its exit code.
pub fn main() -> Exit {
    let words: Vec<OsString> = program::short_names::spelled_out(std::env::args_os()).collect();
    if words.get(1).is_some_and(|word| word == connect::WORD) {
        return connect::main(words);
    }
    let foreign::Translated { words, notes } = foreign::translated(words.into_iter());
    let resolved = match config::resolve(words) {
        Ok(resolved) => resolved,
        Err(Wrong::Usage(error)) => {
            // `--help` comes here too, with code 0. A closed output has nobody to tell.
            let _ = error.print();
            return if error.exit_code() == 0 { Exit::Success } else { Exit::Usage };
        }
        Err(Wrong::File(words)) => return Failure::message(Exit::Usage, words).report(&mut io::stderr()),
    };
    match run::run(resolved, &notes, command) {
        Ok(()) => Exit::Success,
        Err(failure) => failure.report(&mut io::stderr()),
    }
}
