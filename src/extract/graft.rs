//! `extract-nextn graft`.

use std::path::PathBuf;

use convert::heads::{Graft, HeadSource, WeightType, graft};

use super::{Outcome, work};

/// Options of `graft`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Model without an MTP layer (the first shard; the output is one file)
    target: PathBuf,
    /// Source of the MTP layer: GGUF file, .safetensors file, or checkpoint folder (its shards suffice)
    head: PathBuf,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Type of the head's matrices: keep, or one to convert them to, such as q8_0, bf16
    #[arg(long = "type", value_name = "TYPE", default_value = "keep", value_parser = WeightType::parse)]
    dtype: WeightType,
    /// Accept a layer of a model with another vocabulary
    #[arg(long)]
    other_tokenizer: bool,
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
    let target = convert::Source::open(&args.target)?;
    let head = HeadSource::open(&args.head)?;
    let how = Graft { dtype: args.dtype, other_tokenizer: args.other_tokenizer };
    let next = "measure what it gains: nextn-bench speed -m {}";
    work::write(graft(target, head, how)?, &args.output, args.json, next)?;
    Ok(0)
}
