//! `extract-nextn quantize`, and what it shares with `convert`: types, threads, the run.

use std::io::Write;
use std::path::{Path, PathBuf};

use convert::Model;
use convert::quantize::{self, FileType, Imatrix, Recipe};
use convert::stream::{OnFailure, available_threads};

use super::{Outcome, show, work};
use program::sanitize;

/// Options of `quantize`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A GGUF file; of several shards the first (they become one file)
    file: PathBuf,
    /// File to write; the same command resumes an interrupted run
    output: PathBuf,
    /// Type of the file, such as q8_0, q4_k_m
    file_type: FileType,
    /// Also change tensors that are already quantized
    #[arg(long)]
    requantize: bool,
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
    /// Number of CPU threads [default: all cores]
    #[arg(short, long, value_name = "N")]
    threads: Option<usize>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Outcome {
    let model = convert::Source::open(&args.file)?.into_model()?;
    args.how.write(model, args.file_type, &args.output, args.requantize)
}

impl How {
    /// Gives a model its types and writes the file.
    pub fn write(&self, mut model: Model, file_type: FileType, out: &Path, requantize: bool) -> Outcome {
        let imatrix = self.imatrix.as_deref().map(Imatrix::open).transpose()?;
        let recipe =
            Recipe { file_type, head: self.head_type, plain: self.plain, imatrix: imatrix.as_ref(), requantize };
        recipe.apply(&mut model)?;
        let mix = model.mix();
        let n_tensors = model.tensors.len();
        let n_without = model.tensors.iter().filter(|t| t.dtype.block_size() > 1 && t.importance.is_none()).count();
        if imatrix.is_some() && n_without > 0 {
            eprintln!("note: the importance matrix has nothing for {n_without} of {n_tensors} tensors");
        }
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
        }
        Ok(0)
    }
}
