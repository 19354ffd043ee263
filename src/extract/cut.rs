//! `extract-nextn extract`.

use std::path::PathBuf;

use clap::ValueEnum;
use convert::heads::{Extract, Layout, WeightType, extract};

use super::{Outcome, work};

/// Options of `extract`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Model with an MTP layer, or such a layer in another layout (the first shard)
    file: PathBuf,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Layout of the file
    #[arg(long, value_enum, default_value_t = Chosen::Upstream)]
    layout: Chosen,
    /// Type of the matrices: keep, or such as q8_0, bf16, q4_k
    #[arg(long = "type", value_name = "TYPE", default_value = "keep", value_parser = WeightType::parse)]
    dtype: WeightType,
    /// Overwrite the file if it is there
    #[arg(long)]
    force: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Chosen {
    /// With embedding and output matrix; llama.cpp loads it as a draft model
    Upstream,
    /// Without them, for use beside its target model
    Slim,
    /// As upstream, with _mtp in the architecture's name, for older forks
    Legacy,
}

/// Runs it.
pub fn run(args: &Args) -> Outcome {
    let layout = match args.layout {
        Chosen::Upstream => Layout::Upstream,
        Chosen::Slim => Layout::Slim,
        Chosen::Legacy => Layout::Legacy,
    };
    work::check_output(&args.output, args.force)?;
    let new = extract(convert::Source::open(&args.file)?, Extract { layout, dtype: args.dtype })?;
    let next = match args.layout {
        Chosen::Upstream | Chosen::Slim => "draft with it: nextn-cli -m MODEL.gguf --draft-model {}",
        Chosen::Legacy => "check it: extract-nextn verify {}",
    };
    work::write(new, &args.output, args.json, next)?;
    Ok(0)
}
