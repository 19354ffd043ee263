//! The options of `nextn-tune head`.

use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};

use clap::ValueEnum;
use convert::heads::WeightType;
use session::options::ComputeOptions;

use crate::loss::MAX_WORDS;

/// Options of `head`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("texts").args(["data", "self_prompts", "from"]).required(true).multiple(true))]
pub(crate) struct Args {
    /// Model, with or without a head (the first shard)
    pub(crate) model: PathBuf,
    /// Texts to learn from: conversations in OpenAI's form, one a line (.jsonl), or plain text
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) data: Vec<PathBuf>,
    /// Prompts, one a line, that the model answers itself: it learns from its own replies
    #[arg(long = "self", value_name = "PROMPTS")]
    pub(crate) self_prompts: Option<PathBuf>,
    /// Folder of nextn-server --learn, or one key's in it: learn from the replies that were kept there
    #[arg(long, value_name = "FOLDER")]
    pub(crate) from: Option<PathBuf>,
    /// Weight of tokens in whose place a draft was refused, beside 1 of all others; known of --from
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub(crate) refused_weight: f32,
    /// Replies to each of these prompts: the first greedy, the others sampled
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) answers: u16,
    /// Temperature of the sampled replies
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    pub(crate) temperature: f32,
    /// File to write: the head alone
    #[arg(short, long, value_name = "FILE", required_unless_present = "measure")]
    pub(crate) output: Option<PathBuf>,
    /// Measure the model's head on all texts, train and write nothing
    #[arg(long, conflicts_with_all = ["output", "init", "heads"])]
    pub(crate) measure: bool,
    /// Head to start from, in a file of its own [default: the model's]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["init", "heads"])]
    pub(crate) head: Option<PathBuf>,
    /// Numbers to start from [default: the model's own head, where it has one]
    #[arg(long, value_enum)]
    pub(crate) init: Option<Init>,
    /// Layers of a new head, one for each draft token; one layer drafts all of them; more mean --init new
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) heads: u8,
    /// Draft tokens to train
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) depth: u8,
    /// Tokens to learn from: texts come again until there were so many
    #[arg(long, value_name = "N", default_value_t = 2_000_000)]
    pub(crate) tokens: u64,
    /// Train for so many minutes instead
    #[arg(long, value_name = "M", conflicts_with = "tokens")]
    pub(crate) minutes: Option<f64>,
    /// Tokens of a step
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch: u32,
    /// Tokens of a text at most; longer ones are cut
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(8..))]
    pub(crate) context: u32,
    /// Learning rate of matrices [default: 0.005 for a head of the model's own, 0.02 for a new one]
    #[arg(long, value_name = "X")]
    pub(crate) rate: Option<f64>,
    /// Weight of the chance of acceptance in the loss, beside the divergence from the model
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub(crate) acceptance: f32,
    /// The model's likeliest words of each token that are learned
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=MAX_WORDS as i64))]
    pub(crate) words: u16,
    /// Words to draft from while training: the most frequent in the texts
    #[arg(long, value_name = "N", default_value_t = 32_768, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) vocab: u32,
    /// Share of the texts that is not learned from, to measure on
    #[arg(long, value_name = "X", default_value_t = 0.05)]
    pub(crate) held_out: f64,
    /// Hold out the latest replies of --from instead, about so many tokens, and at most half of all
    #[arg(long, value_name = "N", conflicts_with = "held_out", requires = "from")]
    pub(crate) hold_latest: Option<u32>,
    /// Measurements on the way
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) measurements: u16,
    /// Also measure the head of this file on what is held out
    #[arg(long, value_name = "FILE", conflicts_with = "measure")]
    pub(crate) rival: Option<PathBuf>,
    /// Write what was measured to a file as JSON
    #[arg(long, value_name = "FILE", conflicts_with = "measure")]
    pub(crate) report: Option<PathBuf>,
    /// End when standard input does, so that nothing is left behind by a program that started this one and is gone
    #[arg(long, hide = true)]
    pub(crate) until_stdin_ends: bool,
    /// Stop when so many measurements in a row found nothing better
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) patience: u16,
    /// Seed of new numbers, of the texts' order and of sampled replies
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Type of the head's matrices: such as q8_0, bf16, f16, q4_k
    #[arg(long = "type", value_name = "TYPE", default_value = "q8_0", value_parser = WeightType::parse)]
    pub(crate) dtype: WeightType,
    /// Write the head without embedding and output matrix, for use beside its model only
    #[arg(long)]
    pub(crate) slim: bool,
    /// Host memory for what the model made of the texts, in MiB; what has no room is computed again
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    pub(crate) cache_size: u32,
    /// Folder for what has no room in memory, instead of computing it again; removed when the head is written
    #[arg(long, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
    /// Disk space for --cache-dir, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 8192, requires = "cache_dir")]
    pub(crate) cache_disk: u32,
    /// Also draw how the drafts got better: a .svg or .png file
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Go on with a training that was broken off
    #[arg(long, conflicts_with = "force")]
    pub(crate) resume: bool,
    /// Overwrite the file if it is there, and begin anew
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) compute: ComputeOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Init {
    /// The model's own head
    Own,
    /// A new one
    New,
}

impl Args {
    /// Checks that nothing is written over what is read. Asked before anything is computed, since a training takes long.
    ///
    /// # Errors
    /// An output is an input, a folder, or another output.
    pub(crate) fn check_outputs(&self) -> anyhow::Result<()> {
        let outputs: Vec<&Path> =
            [&self.output, &self.report, &self.plot].into_iter().flatten().map(|p| &**p).collect();
        if let Some(output) = self.output.as_ref().filter(|output| gguf::is_link_or_device(output)) {
            bail!("{}: is a link or a device; give the name of a file", output.display());
        }
        let inputs = [&self.self_prompts, &self.head, &self.rival].into_iter().flatten();
        let inputs: Vec<&Path> = inputs.chain(&self.data).chain([&self.model]).map(|p| &**p).collect();
        for (i, output) in outputs.iter().enumerate() {
            let shown = output.display();
            ensure!(!output.is_dir(), "{shown}: a folder, the name of a file expected");
            // One that is not there is none of those that are read.
            let place = output.canonicalize().ok();
            let is_input = place.is_some() && inputs.iter().any(|input| input.canonicalize().ok() == place);
            ensure!(!is_input, "{shown}: is one of the inputs; give the output another name");
            ensure!(!outputs[..i].contains(output), "{shown}: is two outputs at once; give each a name of its own");
        }
        Ok(())
    }
}
