//! `extract-nextn convert`.

use std::path::PathBuf;

use anyhow::bail;
use convert::Kind;
use convert::checkpoint::{Checkpoint, Options};
use convert::quantize::FileType;

use super::{Outcome, quantize};

/// Options of `convert`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Checkpoint folder: config.json, tokenizer.json, safetensors
    folder: PathBuf,
    /// File to write; the same command resumes an interrupted run
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Type of the file, such as bf16, q8_0, q4_k_m
    #[arg(long = "type", value_name = "TYPE", default_value = "bf16")]
    file_type: FileType,
    /// Leave out the MTP layer
    #[arg(long)]
    no_head: bool,
    /// Name of the model [default: from the folder's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    how: quantize::How,
}

/// Runs it.
pub fn run(args: &Args) -> Outcome {
    let options = Options { without_head: args.no_head, name: args.name.as_deref() };
    match Kind::of(&args.folder)? {
        Kind::Checkpoint => {}
        Kind::Gguf => {
            bail!("{}: is a GGUF file; `extract-nextn quantize` gives it another type", args.folder.display())
        }
        Kind::Safetensors => {
            bail!("{}: has no config.json: the folder of a whole checkpoint expected", args.folder.display())
        }
    }
    let checkpoint = Checkpoint::open(&args.folder, options)?;
    if checkpoint.n_head_layers == 0 && !args.no_head {
        let promised = checkpoint.config.n_head_layers.is_some_and(|n| n > 0);
        let why = if promised {
            "config.json promises a NextN layer, but its tensors are not there"
        } else {
            "no NextN layer"
        };
        eprintln!("note: {why}; the file has none. `extract-nextn graft` adds one");
    }
    args.how.write(checkpoint.model, args.file_type, &args.output, false)
}
