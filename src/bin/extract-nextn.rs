//! `extract-nextn`: what is in a model file, whether it is sound, and NextN layers out of files and into them.

use std::process::ExitCode;

fn main() -> ExitCode {
    extract::main()
}
