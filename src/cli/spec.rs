//! The options of drafting, the same in every program that generates.

use std::path::PathBuf;

use clap::Args;
use engine::Exact;
use speculate::{Depth, DraftMode, DraftVocabSize, Mode, SpecConfig};

use super::sampling::share;

/// Where drafts come from and how long they are.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Drafting")]
pub struct SpecFlags {
    /// Source of drafts: auto (the model's NextN head where it has one), off, nextn, ngram
    /// (what followed the same words before), nextn+ngram
    #[arg(long, alias = "spec-type", value_name = "MODE", default_value_t, env = "NEXTN_SPEC", hide_env_values = true, value_parser = mode)]
    pub spec: Mode,

    /// Most tokens of a draft: auto (by measured speed), or a number; 0 is off
    #[arg(long, alias = "draft", alias = "draft-n", alias = "spec-draft-n-max", value_name = "N", default_value_t)]
    pub draft_max: Depth,

    /// Fewest tokens of a draft: shorter ones are not used
    #[arg(long, aliases = ["draft-n-min", "spec-draft-n-min"], value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=16))]
    pub draft_min: u16,

    /// End a draft before a token that the head finds less probable than this, 0 to 1; 0 ends none
    #[arg(long, alias = "spec-draft-p-min", value_name = "P", default_value_t = 0.0, value_parser = share, allow_negative_numbers = true)]
    pub draft_p_min: f32,

    /// Words that the head drafts from: auto (by the model's size), full, or the first N and those of the text
    #[arg(long, value_name = "N", default_value_t)]
    pub draft_vocab: DraftVocabSize,

    /// Where drafts are computed: auto (what is faster), fused (between passes), async (on a thread of their own)
    #[arg(long, value_name = "MODE", default_value_t)]
    pub draft_mode: DraftMode,

    /// Answers whose bits depend on nothing beside them: on, off, or passes of so many rows.
    /// On a CPU drafts change no answer of a single sequence either way
    #[arg(long, value_name = "WHEN", default_value_t, num_args = 0..=1, default_missing_value = "on")]
    pub exact: Exact,

    /// GGUF file with a NextN head for the model [default: the head inside the model's file]
    #[arg(long, aliases = ["model-draft", "spec-draft-model"], value_name = "FILE")]
    pub draft_model: Option<PathBuf>,
}

/// Our words, and llama.cpp's of `--spec-type`.
fn mode(word: &str) -> Result<Mode, String> {
    let ngram = |word: &str| word.starts_with("ngram-");
    match word {
        "none" => Ok(Mode::Off),
        "draft-mtp" => Ok(Mode::NextN),
        word if ngram(word) => Ok(Mode::Ngram),
        word => match word.split_once(',') {
            Some(("draft-mtp", other)) | Some((other, "draft-mtp")) if ngram(other) => Ok(Mode::NextNgram),
            _ => word.parse(),
        },
    }
}

impl SpecFlags {
    /// As the proposer wants them.
    pub fn config(&self) -> SpecConfig {
        SpecConfig { mode: self.spec, depth: self.draft_max, vocab: self.draft_vocab, draft_mode: self.draft_mode }
    }
}
