//! `nextn-cli`: chat with a model, or complete a text, in the terminal.

use std::process::ExitCode;

fn main() -> ExitCode {
    nextn::cli::main().into()
}
