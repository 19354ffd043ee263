//! `extract-nextn quantize`, and what it shares with `convert`: types, threads, the run.

use std::io::Write;
use std::path::{Path, PathBuf};

use convert::Model;
use convert::heads::is_draft_head;
use convert::quantize::{self, FileType, Imatrix, Recipe};
use convert::stream::{OnFailure, available_threads};

use super::{Outcome, show, work};
use program::sanitize;

/// Options of `quantize`.
#[derive(Debug, clap::Args)]
// A group, so that who forgets the type is asked for it alone.
#[command(group(clap::ArgGroup::new("a_type").required(true).args(["file_type", "named_type"])))]
pub struct Args {
    /// A GGUF file; of several shards the first (they become one file)
    file: PathBuf,
    /// File to write; the same command resumes an interrupted run
    #[arg(value_name = "OUTPUT", required_unless_present = "to")]
    output: Option<PathBuf>,
    /// Type of the file, as --type
    #[arg(value_name = "TYPE")]
    file_type: Option<FileType>,
    /// File to write
    #[arg(id = "to", short = 'o', long = "output", value_name = "FILE", conflicts_with = "output")]
    to: Option<PathBuf>,
    /// Type of the file, such as q8_0, q4_k_m
    #[arg(id = "named_type", long = "type", value_name = "TYPE")]
    named_type: Option<FileType>,
    #[command(flatten)]
    how: How,
}

/// What both commands have.
#[derive(Debug, clap::Args)]
pub struct How {
    /// Importance matrix of llama.cpp (GGUF or .dat)
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Type of the MTP layer's matrices [default: q8_0 in quantized files]
    #[arg(long, value_name = "TYPE", value_parser = quantize::tensor_type)]
    head_type: Option<gguf::TensorType>,
    /// Use llama.cpp's mix of types, without more bits for MTP layer and embedding
    #[arg(long)]
    plain: bool,
    /// Also change tensors that are already quantized
    #[arg(long)]
    requantize: bool,
    /// Number of CPU threads [default: all cores]
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// Overwrite the file if it is there
    #[arg(long)]
    force: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// What a file was made of, which says what can be done with it next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Next {
    /// A checkpoint.
    Checkpoint,
    /// That of a draft head for another model.
    Assistant,
    /// The tower of one.
    Projector,
    /// A GGUF file.
    Gguf,
}

/// Runs it.
pub fn run(args: &Args) -> Outcome {
    let required = "clap asks for one of both";
    let out = args.to.as_ref().or(args.output.as_ref()).expect(required);
    let file_type = args.named_type.or(args.file_type).expect(required);
    args.how.check_output(out)?;
    let source = convert::Source::open(&args.file)?;
    let is_head = source.text("general.architecture").is_some_and(is_draft_head);
    let next = if is_head { Next::Assistant } else { Next::Gguf };
    args.how.write(source.into_model()?, file_type, out, next)
}

impl How {
    /// # Errors
    /// The file is there, and --force was not given.
    pub fn check_output(&self, out: &Path) -> anyhow::Result<()> {
        work::check_output(out, self.force)
    }

    /// Gives a model its types and writes the file.
    pub fn write(&self, mut model: Model, file_type: FileType, out: &Path, next: Next) -> Outcome {
        let imatrix = self.imatrix.as_deref().map(Imatrix::open).transpose()?;
        let recipe = Recipe {
            file_type,
            head: self.head_type,
            plain: self.plain,
            imatrix: imatrix.as_ref(),
            requantize: self.requantize,
        };
        recipe.apply(&mut model)?;
        let mix = model.mix();
        let n_tensors = model.tensors.len();
        let n_without = model.tensors.iter().filter(|t| t.dtype.block_size() > 1 && t.importance.is_none()).count();
        if imatrix.is_some() && n_without > 0 {
            eprintln!("note: the importance matrix has nothing for {n_without} of {n_tensors} tensors");
        }
        let is_wide = model.tensors.iter().all(|t| t.dtype.block_size() == 1);
        let job = model.into_job(recipe.stamp())?;
        let n_threads = self.threads.unwrap_or_else(available_threads);
        let started = std::time::Instant::now();
        let done = work::watched("writing", |control| job.run(out, n_threads, control, OnFailure::Remove));
        done??;
        let n_bytes = std::fs::metadata(out)?.len();
        let seconds = started.elapsed().as_secs_f64();
        let mut stdout = std::io::stdout().lock();
        if self.json {
            let mix: serde_json::Map<_, _> = mix.iter().map(|(t, n)| (t.name().to_owned(), (*n).into())).collect();
            let line = serde_json::json!({
                "path": out, "n_bytes": n_bytes, "n_tensors": n_tensors, "bytes_by_type": mix, "seconds": seconds
            });
            writeln!(stdout, "{line}")?;
        } else {
            let path = sanitize::clean_line(&out.display().to_string());
            let mix: Vec<String> = mix.iter().map(|(t, n)| format!("{} {t}", show::bytes(*n))).collect();
            writeln!(stdout, "{path}: {n_tensors} tensors, {}: {}", show::bytes(n_bytes), mix.join(", "))?;
            drop(stdout);
            work::say_next(out, next.words(is_wide));
        }
        Ok(0)
    }
}

impl Next {
    /// What can be done with the file, whose name goes between the braces.
    fn words(self, is_wide: bool) -> &'static str {
        match self {
            Next::Projector => "show it a picture: nextn-cli -m MODEL.gguf --mmproj {} --image FILE",
            Next::Assistant => "draft with it: nextn-cli -m MODEL.gguf --draft-model {}",
            Next::Checkpoint if is_wide => {
                "chat with it: nextn-cli -m {}; make it smaller: extract-nextn quantize --type q4_k_m -o SMALL.gguf {}"
            }
            Next::Checkpoint | Next::Gguf => "chat with it: nextn-cli -m {}; measure it: nextn-bench speed -m {}",
        }
    }
}
