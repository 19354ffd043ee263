//! `extract-nextn strip`.

use std::path::PathBuf;

use super::{Outcome, work};

/// Options of `strip`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// GGUF file (the first shard; the output is one file)
    file: PathBuf,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Overwrite the file if it is there
    #[arg(long)]
    force: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Outcome {
    work::check_output(&args.output, args.force)?;
    let new = convert::heads::strip(convert::Source::open(&args.file)?)?;
    work::write(new, &args.output, args.json, "chat with it: nextn-cli -m {}")?;
    Ok(0)
}
