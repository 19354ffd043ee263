//! The sampling options as typed. Owns their names and ranges; how they become the engine's parameters is in `settings`.

use clap::Args as ClapArgs;
use engine::sample::{SampleError, Stage};

/// Every flag is optional: a missing one leaves the model file's value, or else the built-in one.
#[derive(Clone, Debug, Default, ClapArgs)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingFlags {
    /// Temperature; 0 always takes the likeliest token
    #[arg(long, value_name = "T", value_parser = not_negative, allow_negative_numbers = true)]
    pub temp: Option<f32>,

    /// Keep the K likeliest tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    pub top_k: Option<u32>,

    /// Keep the likeliest tokens that together reach P; 1 keeps all
    #[arg(long, value_name = "P", value_parser = share, allow_negative_numbers = true)]
    pub top_p: Option<f32>,

    /// Keep tokens at least P times as likely as the likeliest; 0 keeps all
    #[arg(long, value_name = "P", value_parser = share, allow_negative_numbers = true)]
    pub min_p: Option<f32>,

    /// Seed of the random numbers; the same seed gives the same answer [default: a new one each time]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Locally typical sampling: keep a mass of P; 1 is off
    #[arg(long, value_name = "P", value_parser = share, allow_negative_numbers = true)]
    pub typical: Option<f32>,

    /// Keep logits within N standard deviations of the best; 0 and below is off
    #[arg(long, value_name = "N", value_parser = finite, allow_negative_numbers = true)]
    pub top_n_sigma: Option<f32>,

    /// XTC: probability of dropping the likeliest tokens; 0 is off
    #[arg(long, value_name = "P", value_parser = share, allow_negative_numbers = true)]
    pub xtc_probability: Option<f32>,

    /// XTC: tokens above this probability may be dropped, all but the least of them
    #[arg(long, value_name = "P", value_parser = share, allow_negative_numbers = true)]
    pub xtc_threshold: Option<f32>,

    /// Penalty on tokens seen lately: their logits are divided by it; 1 is off
    #[arg(long, value_name = "X", value_parser = not_negative, allow_negative_numbers = true)]
    pub repeat_penalty: Option<f32>,

    /// Tokens back that the penalties look at; 0 is off, -1 is all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(-1..), allow_negative_numbers = true)]
    pub repeat_last_n: Option<i32>,

    /// Taken off the logit of every token seen; 0 is off
    #[arg(long, value_name = "X", value_parser = finite, allow_negative_numbers = true)]
    pub presence_penalty: Option<f32>,

    /// Taken off the logit once for every time a token was seen; 0 is off
    #[arg(long, value_name = "X", value_parser = finite, allow_negative_numbers = true)]
    pub frequency_penalty: Option<f32>,

    /// DRY: strength of the penalty on repeated sequences; 0 is off
    #[arg(long, value_name = "X", value_parser = not_negative, allow_negative_numbers = true)]
    pub dry_multiplier: Option<f32>,

    /// DRY: growth of the penalty with every token of the repetition
    #[arg(long, value_name = "X", value_parser = not_negative, allow_negative_numbers = true)]
    pub dry_base: Option<f32>,

    /// DRY: longest repetition without a penalty
    #[arg(long, value_name = "N")]
    pub dry_allowed_length: Option<u32>,

    /// DRY: tokens back that it looks at; 0 is off, -1 is all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(-1..), allow_negative_numbers = true)]
    pub dry_penalty_last_n: Option<i32>,

    /// DRY: text that ends a repetition; may be given more than once and replaces the built-in ones
    #[arg(long, value_name = "STRING", allow_hyphen_values = true)]
    pub dry_sequence_breaker: Vec<String>,

    /// Mirostat version; 0 is off. It replaces top-k, top-p, min-p and typical
    #[arg(long, value_name = "V", value_parser = clap::value_parser!(u8).range(0..=2))]
    pub mirostat: Option<u8>,

    /// Mirostat: learning rate
    #[arg(long, alias = "mirostat-eta", value_name = "X", value_parser = not_negative, allow_negative_numbers = true)]
    pub mirostat_lr: Option<f32>,

    /// Mirostat: surprise aimed at
    #[arg(long, alias = "mirostat-tau", value_name = "X", value_parser = not_negative, allow_negative_numbers = true)]
    pub mirostat_ent: Option<f32>,

    /// Dynamic temperature: the temperature moves so far to both sides; 0 is off
    #[arg(long, value_name = "X", value_parser = not_negative, allow_negative_numbers = true)]
    pub dynatemp_range: Option<f32>,

    /// Dynamic temperature: exponent of the entropy
    #[arg(long, value_name = "X", value_parser = not_negative, allow_negative_numbers = true)]
    pub dynatemp_exp: Option<f32>,

    /// The truncating samplers leave at least so many tokens
    #[arg(long, value_name = "N")]
    pub min_keep: Option<u32>,

    /// Samplers in the order of use, with `;` or `,` between them
    /// [default: penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature]
    #[arg(long, value_name = "ORDER", value_parser = samplers)]
    pub samplers: Option<Order>,

    /// Added to the logit of token ID; `-inf` forbids it. May be given more than once
    #[arg(long, value_name = "ID=BIAS", value_parser = logit_bias)]
    pub logit_bias: Vec<(u32, f32)>,
}

/// The stages of `--samplers`; a type of its own, so that clap takes the list as one value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Order(pub Vec<Stage>);

fn samplers(value: &str) -> Result<Order, SampleError> {
    let names = value.split([';', ',']).map(str::trim).filter(|name| !name.is_empty());
    names.map(str::parse).collect::<Result<_, _>>().map(Order)
}

fn number(value: &str) -> Result<f32, String> {
    value.parse::<f32>().map_err(|_| "a number is expected".to_owned())
}

fn finite(value: &str) -> Result<f32, String> {
    let x = number(value)?;
    if x.is_finite() { Ok(x) } else { Err("a finite number is expected".to_owned()) }
}

fn not_negative(value: &str) -> Result<f32, String> {
    let x = finite(value)?;
    if x >= 0.0 { Ok(x) } else { Err("0 or more is expected".to_owned()) }
}

pub(crate) fn share(value: &str) -> Result<f32, String> {
    let x = finite(value)?;
    if (0.0..=1.0).contains(&x) { Ok(x) } else { Err("a number from 0 to 1 is expected".to_owned()) }
}

fn logit_bias(value: &str) -> Result<(u32, f32), String> {
    let expected = || "ID=BIAS is expected, a token id and a number, for example 151=-1.5 or 151=-inf".to_owned();
    let (id, bias) = value.split_once('=').ok_or_else(expected)?;
    let id = id.trim().parse().map_err(|_| expected())?;
    let bias = bias.trim().parse::<f32>().map_err(|_| expected())?;
    if bias.is_nan() || bias == f32::INFINITY { Err(expected()) } else { Ok((id, bias)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_are_pairs() {
        assert_eq!(logit_bias("15=-1.5"), Ok((15, -1.5)));
        assert_eq!(logit_bias("15=-inf"), Ok((15, f32::NEG_INFINITY)));
        for bad in ["", "15", "=1", "a=1", "1=b", "-1=2", "1=nan", "1=inf", "4294967296=1"] {
            assert!(logit_bias(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn orders_take_both_separators() {
        assert_eq!(samplers("top_k; temp"), Ok(Order(vec![Stage::TopK, Stage::Temperature])));
        assert_eq!(samplers("min-p,xtc").unwrap().0, [Stage::MinP, Stage::Xtc]);
        assert_eq!(samplers("").unwrap().0, []);
        assert!(samplers("top_k;bottom_k").unwrap_err().to_string().contains("bottom_k"));
    }

    #[test]
    fn numbers_keep_their_ranges() {
        assert_eq!(share("0.25"), Ok(0.25));
        assert!(share("1.01").is_err() && share("nan").is_err());
        assert_eq!(finite("-2"), Ok(-2.0));
        assert!(finite("inf").is_err() && finite("1e39").is_err());
        assert!(not_negative("-0.1").is_err());
    }
}
