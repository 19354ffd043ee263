//! `extract-nextn convert`.

use std::path::PathBuf;

use anyhow::bail;
use convert::Kind;
use convert::checkpoint::{Checkpoint, Options, Projector};
use convert::heads::is_draft_head;
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
    /// Make the projector of a checkpoint that sees (f32, f16, bf16 or q8_0) instead of the model
    #[arg(long, conflicts_with_all = ["no_head", "imatrix", "head_type", "plain"])]
    mmproj: bool,
    /// Leave out the MTP layer
    #[arg(long)]
    no_head: bool,
    /// Convert an EAGLE-3 or DFlash head for this model: a checkpoint folder or a GGUF file
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["no_head", "mmproj"])]
    target: Option<PathBuf>,
    /// Name of the model [default: from the folder's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    how: quantize::How,
}

/// Runs it.
pub fn run(args: &Args) -> Outcome {
    args.how.check_output(&args.output)?;
    let options = Options { without_head: args.no_head, target: args.target.as_deref(), name: args.name.as_deref() };
    match Kind::of(&args.folder)? {
        Kind::Checkpoint => {}
        Kind::Gguf => {
            bail!("{}: is a GGUF file; `extract-nextn quantize` gives it another type", args.folder.display())
        }
        Kind::Safetensors => {
            bail!("{}: has no config.json: the folder of a whole checkpoint expected", args.folder.display())
        }
    }
    if args.mmproj {
        let projector = Projector::open(&args.folder, args.name.as_deref())?;
        if projector.hears {
            eprintln!("note: the checkpoint hears too; the file has the tower that sees alone");
        }
        return args.how.write(projector.model, args.file_type, &args.output, quantize::Next::Projector);
    }
    let checkpoint = Checkpoint::open(&args.folder, options)?;
    if checkpoint.sees {
        eprintln!("note: the checkpoint sees; `extract-nextn convert --mmproj` makes its projector, a file of its own");
    }
    if is_draft_head(checkpoint.config.architecture()) {
        return args.how.write(checkpoint.model, args.file_type, &args.output, quantize::Next::Assistant);
    }
    if checkpoint.n_head_layers == 0 && !args.no_head {
        let promised = checkpoint.config.n_head_layers.is_some_and(|n| n > 0);
        let why = if promised {
            "config.json promises a NextN layer, but its tensors are not there"
        } else {
            "no NextN layer"
        };
        eprintln!("note: {why}; the file has none. `extract-nextn graft` adds one");
    }
    args.how.write(checkpoint.model, args.file_type, &args.output, quantize::Next::Checkpoint)
}
