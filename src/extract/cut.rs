//! `extract-nextn extract`.

use std::path::PathBuf;

use clap::ValueEnum;
use convert::heads::{Extract, Layout, WeightType, extract};

use super::{Outcome, work};

/// Options of `extract`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A model with its head, or a head in another layout; of several shards the first
    file: PathBuf,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// What the file holds
    #[arg(long, value_enum, default_value_t = Chosen::Upstream)]
    layout: Chosen,
    /// Type of the matrices: keep, or one to convert them to, such as q8_0, bf16, q4_k
    #[arg(long = "type", value_name = "TYPE", default_value = "keep", value_parser = WeightType::parse)]
    dtype: WeightType,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Chosen {
    /// With embedding and head matrix; loads in llama.cpp as a draft
    Upstream,
    /// Without them: they come from the target. For nextn
    Slim,
    /// As upstream, under the architecture's name with _mtp; for older forks
    Legacy,
}

/// Runs it.
pub fn run(args: &Args) -> Outcome {
    let layout = match args.layout {
        Chosen::Upstream => Layout::Upstream,
        Chosen::Slim => Layout::Slim,
        Chosen::Legacy => Layout::Legacy,
    };
    let new = extract(convert::Source::open(&args.file)?, Extract { layout, dtype: args.dtype })?;
    work::write(new, &args.output, args.json)?;
    Ok(0)
}
