//! `nextn-tune`: trains NextN heads.

use std::process::ExitCode;

fn main() -> ExitCode {
    tune::main()
}
