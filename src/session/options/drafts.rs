//! The options of drafting, the same in every program that generates.

use std::path::PathBuf;

use clap::Args;
use engine::{EngineConfig, Exact};
use model::Model;
use speculate::{Calibration, Depth, DraftMode, DraftVocabSize, Mode, SpecConfig};

use super::calibration::CalibrationPlace;

/// Where drafts come from and how long they are.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Speculative decoding")]
pub struct DraftOptions {
    /// Draft source: auto (what is loaded and gains, lookup beside it), off, or nextn, draft, ngram (prompt lookup), joined by +
    ///
    /// Llama.cpp's names for --spec-type are accepted too
    #[arg(long, alias = "spec-type", value_name = "MODE", default_value_t, env = "NEXTN_SPEC", hide_env_values = true, value_parser = mode)]
    pub spec: Mode,

    /// Longest draft in tokens, or auto (by measured speed); 0 is off
    #[arg(long, alias = "draft", alias = "draft-n", alias = "spec-draft-n-max", value_name = "N", default_value_t)]
    pub draft_max: Depth,

    /// Shortest draft in tokens; shorter ones are dropped
    #[arg(long, aliases = ["draft-n-min", "spec-draft-n-min"], value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=16))]
    pub draft_min: u16,

    /// End a draft before a token less probable than P, 0 to 1; 0 is off
    #[arg(long, alias = "spec-draft-p-min", value_name = "P", default_value_t = 0.0, value_parser = probability, allow_negative_numbers = true)]
    pub draft_p_min: f32,

    /// Draft vocabulary: auto, full, or the first N token ids plus the tokens in context
    #[arg(long, value_name = "N", default_value_t)]
    pub draft_vocab: DraftVocabSize,

    /// Compute drafts between forward passes (fused) or on a thread of their own (async); auto is fused
    #[arg(long, value_name = "MODE", default_value_t)]
    pub draft_mode: DraftMode,

    /// Batch-invariant output: on, off, or a fixed batch width N
    ///
    /// On a CPU, drafts never change the output of a single sequence
    #[arg(long, value_name = "WHEN", default_value_t, num_args = 0..=1, default_missing_value = "on")]
    pub exact: Exact,

    /// Where measured step costs and acceptance are kept from run to run: auto (the user's cache folder), off, or a folder
    ///
    /// With them --draft-max auto drafts well from the first token on. A file of a few KiB for each model, no text
    #[arg(long, value_name = "DIR", default_value = "auto", env = "NEXTN_CALIBRATION", hide_env_values = true)]
    pub calibration: CalibrationPlace,

    /// Draft with another GGUF file: a small model of the same tokens, or a head (MTP, EAGLE-3, DFlash); one of each
    ///
    /// --spec auto drafts by an MTP head of a file or the model's own, whichever is accepted more
    #[arg(long, aliases = ["model-draft", "spec-draft-model"], value_name = "FILE")]
    pub draft_model: Vec<PathBuf>,
}

fn probability(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(x) if (0.0..=1.0).contains(&x) => Ok(x),
        _ => Err("a number from 0 to 1 is expected".to_owned()),
    }
}

/// Our words, and llama.cpp's of `--spec-type`, of which several may be joined by commas.
fn mode(words: &str) -> Result<Mode, String> {
    let theirs = |word| match word {
        "none" => Some(Mode::Off),
        "draft-mtp" | "draft-eagle3" | "draft-dflash" => Some(Mode::NextN),
        "draft-simple" => Some(Mode::Draft),
        word if NGRAM.contains(&word) => Some(Mode::Ngram),
        _ => None,
    };
    let several: Option<Vec<Mode>> = words.split(',').map(|word| theirs(word.trim())).collect();
    let has = |mode| several.as_ref().is_some_and(|modes| modes.contains(&mode));
    let theirs = "none, draft-mtp, draft-eagle3, draft-dflash, draft-simple";
    match (has(Mode::NextN), has(Mode::Draft), has(Mode::Ngram)) {
        (false, false, false) if has(Mode::Off) => Ok(Mode::Off),
        _ if has(Mode::Off) => Err(format!("`{words}`: none goes with no other")),
        (false, false, false) => {
            words.parse().map_err(|error| format!("{error}, and none of llama.cpp's {theirs}, {}", NGRAM.join(", ")))
        }
        (true, false, false) => Ok(Mode::NextN),
        (false, true, false) => Ok(Mode::Draft),
        (false, false, true) => Ok(Mode::Ngram),
        (true, true, false) => Ok(Mode::NextNDraft),
        (true, false, true) => Ok(Mode::NextNgram),
        (false, true, true) => Ok(Mode::DraftNgram),
        (true, true, true) => Ok(Mode::NextNDraftNgram),
    }
}

/// llama.cpp's kinds of prompt lookup; here they are one.
const NGRAM: [&str; 5] = ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"];

impl DraftOptions {
    /// As the proposer wants them.
    pub fn config(&self) -> SpecConfig {
        SpecConfig { mode: self.spec, depth: self.draft_max, vocab: self.draft_vocab, draft_mode: self.draft_mode }
    }

    /// Where what engines of this model measure is kept, if it is.
    pub fn calibration(&self, model: &Model, draft: Option<&Model>, engine: &EngineConfig) -> Option<Calibration> {
        let drafting =
            format!("{}, exact {}, vocabulary {}, {}", self.spec, self.exact, self.draft_vocab, self.draft_mode);
        let place = Some(&self.calibration).filter(|_| self.draft_max == Depth::Auto)?;
        place.of((model, draft), engine, &drafting)
    }

    /// Drafts are made with an MTP layer, if there is one.
    pub fn uses_head(&self) -> bool {
        self.spec.uses_head() && self.draft_max != Depth::Fixed(0)
    }

    /// Drafts are made with a draft model, if one is given.
    pub fn uses_draft_model(&self) -> bool {
        self.spec.uses_draft_model() && self.draft_max != Depth::Fixed(0)
    }

    /// What was given and changes nothing beside the rest, a sentence each. `has_head`: the model has one to draft with;
    /// `has_draft`: so has a draft model.
    pub fn without_effect(&self, has_head: bool, has_draft: bool) -> Vec<String> {
        let of_head = [
            ("--draft-model", !self.draft_model.is_empty()),
            ("--draft-mode", self.draft_mode != DraftMode::default()),
            ("--draft-vocab", self.draft_vocab != DraftVocabSize::default()),
            ("--draft-p-min", self.draft_p_min > 0.0),
        ];
        let max = ("--draft-max", self.spec == Mode::Off && !matches!(self.draft_max, Depth::Auto | Depth::Fixed(0)));
        let of_all = [("--draft-min", self.draft_min > 0), max];
        let all = || [&of_head[..], &of_all].concat();
        let (options, why) = match (self.spec, self.draft_max) {
            (Mode::Off, _) | (_, Depth::Fixed(0)) => (all(), "nothing is drafted"),
            (Mode::Ngram, _) => (of_head.to_vec(), "drafts are looked up in the text, without the NextN layer"),
            (Mode::Auto, _) if !has_head && !has_draft => {
                (all(), "the model has no NextN layer, and nothing is drafted")
            }
            (Mode::Draft | Mode::DraftNgram, _) => {
                (of_head[1..3].to_vec(), "a draft model drafts from all of its tokens, between passes")
            }
            (_, Depth::Fixed(max)) if max < self.draft_min.into() => {
                (of_all.to_vec(), "no draft is as long, because --draft-max is smaller: nothing is drafted")
            }
            _ => (Vec::new(), ""),
        };
        let given = options.iter().filter(|(_, given)| *given);
        given.map(|(option, _)| format!("{option} has no effect: {why}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_cpps_sources_are_taken_by_name_and_nothing_that_looks_like_one() {
        for (words, expected) in [
            ("auto", Mode::Auto),
            ("nextn+ngram", Mode::NextNgram),
            ("none", Mode::Off),
            ("draft-mtp", Mode::NextN),
            ("draft-eagle3", Mode::NextN),
            ("draft-dflash,ngram-mod", Mode::NextNgram),
            ("ngram-mod", Mode::Ngram),
            ("ngram-cache,ngram-simple", Mode::Ngram),
            ("draft-mtp,ngram-map-k4v", Mode::NextNgram),
            ("ngram-map-k, draft-mtp", Mode::NextNgram),
            ("draft-simple", Mode::Draft),
            ("draft-simple,ngram-cache", Mode::DraftNgram),
            ("nextn+draft", Mode::NextNDraft),
        ] {
            assert_eq!(mode(words), Ok(expected), "{words}");
        }
        for words in ["ngram-", "ngram-mode", "ngram-x,draft-mtp", "draft-mtp,", "draft-dspark", "nextn,ngram-mod", ""]
        {
            let error = mode(words).expect_err(words);
            assert!(error.contains("nextn+ngram") && error.contains("ngram-map-k4v"), "{error}");
        }
        assert!(mode("none,draft-mtp").is_err());
    }

    #[test]
    fn options_that_change_nothing_are_named_with_the_reason() {
        let given = DraftOptions {
            draft_model: vec!["head.gguf".into()],
            draft_mode: DraftMode::Async,
            draft_vocab: DraftVocabSize::First(100),
            draft_p_min: 0.5,
            draft_min: 2,
            ..DraftOptions::default()
        };
        let without_effect = |spec, draft_max, has_head| {
            let words = DraftOptions { spec, draft_max, ..given.clone() }.without_effect(has_head, false);
            let of = |line: &String| line.split(" has no effect: ").map(str::to_owned).collect::<Vec<_>>();
            words.iter().map(|line| of(line)[0].clone()).collect::<Vec<_>>().join(" ")
        };
        let of_head = "--draft-model --draft-mode --draft-vocab --draft-p-min";
        for mode in [Mode::Auto, Mode::NextN, Mode::NextNgram] {
            assert_eq!(without_effect(mode, Depth::Auto, true), "", "{mode}");
            assert_eq!(without_effect(mode, Depth::Fixed(1), true), "--draft-min", "{mode}");
        }
        assert_eq!(without_effect(Mode::Ngram, Depth::Auto, true), of_head);
        assert_eq!(without_effect(Mode::Off, Depth::Fixed(3), true), format!("{of_head} --draft-min --draft-max"));
        assert_eq!(without_effect(Mode::Auto, Depth::Fixed(0), true), format!("{of_head} --draft-min"));
        assert_eq!(without_effect(Mode::Auto, Depth::Auto, false), format!("{of_head} --draft-min"));
        for mode in [Mode::Auto, Mode::Off, Mode::Ngram] {
            let flags = DraftOptions { spec: mode, ..DraftOptions::default() };
            assert!(flags.without_effect(false, false).is_empty(), "{mode}: nothing was given");
        }
    }
}
