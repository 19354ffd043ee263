//! `extract-nextn graft`.

use std::path::PathBuf;

use convert::heads::{Graft, HeadSource, WeightType, graft};

use super::{Outcome, work};

/// Options of `graft`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model that lacks a head; of several shards the first (they become one file)
    target: PathBuf,
    /// Where the head is: a GGUF file with a head, a .safetensors file, or the folder of a checkpoint or of its shards
    /// that hold the head
    head: PathBuf,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Type of the head's matrices: keep, or one to convert them to, such as q8_0, bf16
    #[arg(long = "type", value_name = "TYPE", default_value = "keep", value_parser = WeightType::parse)]
    dtype: WeightType,
    /// Take a head that was cut from a model with another vocabulary
    #[arg(long)]
    other_tokenizer: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Outcome {
    let target = convert::Source::open(&args.target)?;
    let head = HeadSource::open(&args.head)?;
    let how = Graft { dtype: args.dtype, other_tokenizer: args.other_tokenizer };
    work::write(graft(target, head, how)?, &args.output, args.json)?;
    Ok(0)
}
