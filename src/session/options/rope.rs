//! The options that say how positions are rotated, for all programs: llama.cpp's names and meanings, also of its numbers for
//! the model's own value: 0 for frequencies and the original context, -1 for YaRN's.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use model::{RopeOptions, RopeScaling};

/// How positions are rotated, where it shall differ from the model file's.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Long context")]
pub struct RopeArgs {
    /// RoPE scaling: none, linear or yarn [default: the model's]
    #[arg(long, value_name = "KIND", value_parser = scaling())]
    pub rope_scaling: Option<RopeScaling>,

    /// Stretch the context by a factor of N [default: the model's]
    #[arg(long, value_name = "N", value_parser = factor, allow_negative_numbers = true, conflicts_with = "rope_freq_scale")]
    pub rope_scale: Option<f32>,

    /// RoPE base frequency [default: the model's]
    #[arg(long, value_name = "N", value_parser = base, allow_negative_numbers = true)]
    pub rope_freq_base: Option<f32>,

    /// RoPE frequency factor: the context is stretched by 1/N [default: the model's]
    #[arg(long, value_name = "N", value_parser = freq_scale, allow_negative_numbers = true)]
    pub rope_freq_scale: Option<f32>,

    /// YaRN: context of the original training in tokens [default: the model's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=1 << 22))]
    pub yarn_orig_ctx: Option<u32>,

    /// YaRN: share of extrapolation, 0 to 1 [default: 1 with yarn, else 0]
    #[arg(long, value_name = "N", value_parser = share, allow_negative_numbers = true)]
    pub yarn_ext_factor: Option<f32>,

    /// YaRN: factor on queries and keys, without extrapolation only [default: 1]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub yarn_attn_factor: Option<f32>,

    /// YaRN: rotations in the original context below which frequencies are divided [default: the model's, or 1]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub yarn_beta_slow: Option<f32>,

    /// YaRN: rotations in the original context above which frequencies are kept [default: the model's, or 32]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    pub yarn_beta_fast: Option<f32>,
}

fn scaling() -> impl TypedValueParser<Value = RopeScaling> {
    PossibleValuesParser::new(RopeScaling::NAMES).try_map(|word| word.parse())
}

fn number(text: &str, least: f32, most: f32) -> Result<f32, String> {
    match text.parse() {
        Ok(x) if (least..=most).contains(&x) => Ok(x),
        _ => Err(format!("a number from {least} to {most} is expected")),
    }
}

fn factor(text: &str) -> Result<f32, String> {
    number(text, 1e-3, 1e3)
}

/// A number, or that which stands for the model's own.
fn or(own: f32, text: &str, least: f32, most: f32) -> Result<f32, String> {
    if text.parse() == Ok(own) { Ok(own) } else { number(text, least, most) }
}

fn freq_scale(text: &str) -> Result<f32, String> {
    or(0.0, text, 1e-3, 1e3)
}

fn base(text: &str) -> Result<f32, String> {
    or(0.0, text, 1.0, 1e12)
}

fn share(text: &str) -> Result<f32, String> {
    or(-1.0, text, 0.0, 1.0)
}

fn positive(text: &str) -> Result<f32, String> {
    or(-1.0, text, 0.0, 1e6)
}

impl RopeArgs {
    /// As the model wants them.
    pub fn options(&self) -> RopeOptions {
        let positive = |number: Option<f32>| number.filter(|&x| x > 0.0);
        let of_yarn = |number: Option<f32>| number.filter(|&x| x >= 0.0);
        RopeOptions {
            scaling: self.rope_scaling,
            freq_base: positive(self.rope_freq_base),
            freq_scale: positive(self.rope_freq_scale).or(self.rope_scale.map(|factor| 1.0 / factor)),
            yarn_orig_ctx: self.yarn_orig_ctx.filter(|&n| n > 0),
            yarn_ext_factor: of_yarn(self.yarn_ext_factor),
            yarn_attn_factor: of_yarn(self.yarn_attn_factor),
            yarn_beta_fast: of_yarn(self.yarn_beta_fast),
            yarn_beta_slow: of_yarn(self.yarn_beta_slow),
        }
    }

    /// What was given and changes nothing beside the rest, a sentence each.
    pub fn without_effect(&self) -> Vec<String> {
        let (mut words, options) = (Vec::new(), self.options());
        let factor = self.rope_scale.map(|_| "--rope-scale").or(self.rope_freq_scale.map(|_| "--rope-freq-scale"));
        if let (Some(RopeScaling::None), Some(option)) = (self.rope_scaling, factor) {
            words.push(format!("{option} has no effect: --rope-scaling none scales nothing"));
        }
        let is_yarn = self.rope_scaling == Some(RopeScaling::Yarn);
        let extrapolates = options.yarn_ext_factor.map_or(is_yarn, |share| share > 0.0);
        if options.yarn_attn_factor.is_some() && extrapolates {
            let why = "extrapolation implies a factor; --yarn-ext-factor 0 switches it off";
            words.push(format!("--yarn-attn-factor has no effect: {why}"));
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};

    use super::*;

    fn parsed(line: &str) -> Result<RopeArgs, clap::Error> {
        let words = std::iter::once("program").chain(line.split_whitespace());
        let matches = RopeArgs::augment_args(Command::new("program")).try_get_matches_from(words)?;
        RopeArgs::from_arg_matches(&matches)
    }

    #[test]
    fn a_factor_is_the_inverse_of_a_scale() {
        let options = |line: &str| parsed(line).map(|args| args.options());
        assert_eq!(options("").ok(), Some(RopeOptions::default()));
        let (by_factor, by_scale) = (options("--rope-scale 4").unwrap(), options("--rope-freq-scale 0.25").unwrap());
        assert_eq!((by_factor.freq_scale, by_factor), (Some(0.25), by_scale));
        assert!(options("--rope-scale 4 --rope-freq-scale 0.25").is_err(), "which of the two?");
        let own =
            "--rope-freq-base 0 --rope-freq-scale 0 --yarn-orig-ctx 0 --yarn-ext-factor -1 --yarn-attn-factor -1.0";
        assert_eq!(options(own).ok(), Some(RopeOptions::default()), "llama.cpp's words for the model's own");
        assert_eq!(options("--rope-scaling yarn --yarn-orig-ctx 4096").unwrap().scaling, Some(RopeScaling::Yarn));
    }

    #[test]
    fn what_cannot_be_computed_with_is_refused() {
        for line in [
            "--rope-scaling dynamic",
            "--rope-scale 0",
            "--rope-scale -1",
            "--rope-freq-scale nan",
            "--rope-freq-base inf",
            "--rope-freq-base 0.5",
            "--yarn-orig-ctx -1",
            "--yarn-ext-factor -2",
            "--yarn-beta-fast x",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }

    #[test]
    fn options_that_change_nothing_are_named_with_the_reason() {
        let words = |line: &str| parsed(line).unwrap().without_effect().join(" ");
        assert!(words("--rope-scaling none --rope-scale 4").contains("--rope-scale has no effect"));
        assert!(words("--rope-scaling yarn --yarn-attn-factor 2").contains("--yarn-attn-factor has no effect"));
        for line in ["", "--rope-scaling yarn --rope-scale 4", "--yarn-attn-factor 2", "--rope-scaling none"] {
            assert_eq!(words(line), "", "{line}");
        }
    }
}
