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
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Outcome {
    let new = convert::heads::strip(convert::Source::open(&args.file)?)?;
    work::write(new, &args.output, args.json)?;
    Ok(0)
}
