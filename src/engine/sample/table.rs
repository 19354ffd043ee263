//! The sampler's parameters, a row each. A new parameter is a row here and the code of the stage that obeys it: the field of
//! [`SamplingParams`], its default and range, the flag, the fields of requests, the key of model files, `/props` and the
//! table in the documents are made from the row.
//! Knows no command line, no JSON and no logits.

use text::TokenId;

use super::stage::{Mirostat, SampleError, Stage};

/// One parameter, with all that it takes to offer it.
#[derive(Debug)]
pub struct Parameter {
    /// The field of [`SamplingParams`].
    pub name: &'static str,
    /// The type of its value.
    pub kind: Kind,
    /// The values that it takes.
    pub range: Range,
    /// What it does, in one line for help texts and schemas.
    pub help: &'static str,
    /// Its flag, without dashes.
    pub flag: &'static str,
    /// Other names of the flag.
    pub aliases: &'static [&'static str],
    /// What the flag's value is called.
    pub value_name: &'static str,
    /// The values of the flag, where these are fewer than those of a request.
    pub flag_range: Option<Range>,
    /// Fields of requests that set it; the first one given counts, and `/props` shows it under the first name. Empty for the
    /// one parameter whose field needs a vocabulary to be read.
    pub fields: &'static [&'static str],
    /// The key after `general.sampling.` of a model file.
    pub file_key: Option<&'static str>,
    get: fn(&SamplingParams) -> Setting,
    set: fn(&mut SamplingParams, &Setting) -> Result<(), SampleError>,
}

/// The type of a parameter's value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A number with a fraction.
    Number,
    /// A whole number.
    Integer,
    /// A seed, or none.
    Seed,
    /// The names of stages, in an order.
    Stages,
    /// A list of texts.
    Texts,
    /// Pairs of a token and a number.
    Biases,
}

/// The value of a parameter, as it comes from a flag, a request or a file.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// Of [`Kind::Number`].
    Number(f32),
    /// Of [`Kind::Integer`].
    Integer(i64),
    /// Of [`Kind::Seed`].
    Seed(Option<u64>),
    /// Of [`Kind::Stages`] and [`Kind::Texts`].
    Texts(Vec<String>),
    /// Of [`Kind::Biases`].
    Biases(Vec<(TokenId, f32)>),
}

/// The values that a parameter takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Range {
    /// Every value of its kind; where the kind has limits of its own, [`SamplingParams::validate`] knows them.
    Any,
    /// A finite number.
    Finite,
    /// A finite number that is not negative.
    NotNegative,
    /// A finite number above 0.
    Positive,
    /// A probability.
    Probability,
    /// A 32-bit count.
    Count,
    /// A 32-bit count; a request may say 0 by a negative number.
    CountOrOff,
    /// A number of last tokens.
    LastTokens,
    /// Mirostat's versions.
    Version,
}

impl Range {
    /// Whether it has `value`.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Self::Any => true,
            Self::Finite => value.is_finite(),
            Self::NotNegative => value.is_finite() && value >= 0.0,
            Self::Positive => (value as f32).is_normal() && value > 0.0,
            Self::Probability => (0.0..=1.0).contains(&value),
            Self::Count => (0.0..=f64::from(u32::MAX)).contains(&value),
            Self::CountOrOff => value <= f64::from(u32::MAX),
            Self::LastTokens => (-1.0..=f64::from(i32::MAX)).contains(&value),
            Self::Version => (0.0..=2.0).contains(&value),
        }
    }

    /// What is expected, in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Any => "any value",
            Self::Finite => "a finite number",
            Self::NotNegative => "0 or more, finite",
            Self::Positive => "a finite number above 0",
            Self::Probability => "0 to 1",
            Self::Count | Self::CountOrOff => "0 to 2^32 - 1",
            Self::LastTokens => "-1 (all), 0 (off) or a count",
            Self::Version => "0, 1 or 2",
        }
    }
}

impl Parameter {
    /// The parameter of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        PARAMETERS.iter().find(|parameter| parameter.name == name)
    }

    /// Its value among `params`.
    pub fn get(&self, params: &SamplingParams) -> Setting {
        (self.get)(params)
    }

    /// Gives it a value.
    ///
    /// # Errors
    /// A value outside of its range, and `params` is what it was.
    pub fn set(&self, params: &mut SamplingParams, setting: &Setting) -> Result<(), SampleError> {
        if let Setting::Integer(n) = setting {
            self.check_range(*n as f64)?;
        }
        (self.set)(params, setting)
    }

    /// A value of a model file, written out, as a setting; `None` where the parameter is none that files have, or where the
    /// text is no value of its kind. A list of stages keeps those that are known.
    pub fn setting_of_file(&self, text: &str) -> Option<Setting> {
        self.file_key?;
        match self.kind {
            Kind::Number => text.trim().parse().ok().map(Setting::Number),
            // Converters write whole numbers as floats, too.
            Kind::Integer => {
                let n = text.trim().parse().ok().filter(|n: &f64| n.is_finite())?;
                Some(Setting::Integer(n as i64))
            }
            Kind::Stages => {
                let known = text.split([';', ',']).filter_map(|name| name.trim().parse::<Stage>().ok());
                let names: Vec<String> = known.map(|stage| stage.name().to_owned()).collect();
                (!names.is_empty()).then_some(Setting::Texts(names))
            }
            Kind::Seed | Kind::Texts | Kind::Biases => None,
        }
    }

    pub(super) fn check(&self, params: &SamplingParams) -> Result<(), SampleError> {
        match self.get(params) {
            Setting::Number(x) => self.check_range(x.into()),
            Setting::Integer(n) => self.check_range(n as f64),
            Setting::Seed(_) | Setting::Texts(_) | Setting::Biases(_) => Ok(()),
        }
    }

    fn check_range(&self, value: f64) -> Result<(), SampleError> {
        let (name, range) = (self.name, self.range.words());
        if self.range.holds(value) { Ok(()) } else { Err(SampleError::OutOfRange { name, value, range }) }
    }
}

/// A type that a parameter may have.
trait Value: Sized {
    const KIND: Kind;
    fn setting(&self) -> Setting;
    /// `None`: the setting is of another kind.
    fn of(setting: &Setting) -> Option<Result<Self, SampleError>>;
}

/// Implements [`Value`] for a type of one kind: how it becomes a setting, and how a setting becomes it.
macro_rules! value {
    ($type:ty, $kind:ident, $variant:ident, |$this:ident| $to:expr, |$from:ident| $of:expr) => {
        impl Value for $type {
            const KIND: Kind = Kind::$kind;

            fn setting(&self) -> Setting {
                let $this = self;
                Setting::$variant($to)
            }

            fn of(setting: &Setting) -> Option<Result<Self, SampleError>> {
                match setting {
                    Setting::$variant($from) => Some($of),
                    _ => None,
                }
            }
        }
    };
}

value!(f32, Number, Number, |x| *x, |x| Ok(*x));
value!(u32, Integer, Integer, |n| i64::from(*n), |n| Ok((*n).clamp(0, i64::from(u32::MAX)) as u32));
value!(i32, Integer, Integer, |n| i64::from(*n), |n| Ok((*n).clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32));
value!(Option<u64>, Seed, Seed, |seed| *seed, |seed| Ok(*seed));
value!(Vec<String>, Texts, Texts, |texts| texts.clone(), |texts| Ok(texts.clone()));
value!(Vec<(TokenId, f32)>, Biases, Biases, |biases| biases.clone(), |biases| Ok(biases.clone()));
value!(Vec<Stage>, Stages, Texts, |stages| stages.iter().map(|stage| stage.name().to_owned()).collect(), |names| names
    .iter()
    .map(|name| name.parse())
    .collect());
value!(Mirostat, Integer, Integer, |version| *version as i64, |n| Ok(match n {
    0 => Mirostat::Off,
    1 => Mirostat::V1,
    _ => Mirostat::V2,
}));

/// What a row leaves out.
const ROW: Parameter = Parameter {
    name: "",
    kind: Kind::Number,
    range: Range::Any,
    help: "",
    flag: "",
    aliases: &[],
    value_name: "N",
    flag_range: None,
    fields: &[],
    file_key: None,
    get: |_| Setting::Seed(None),
    set: |_, _| Ok(()),
};

/// Makes [`SamplingParams`], its defaults and [`PARAMETERS`] from the rows.
macro_rules! parameters {
    ($($(#[doc = $doc:literal])* $name:ident: $type:ty = $default:expr, $range:ident { $($key:ident: $value:expr),* $(,)? })*) => {
        /// How to choose tokens. Every field has a neutral value that switches it off; [`Default`] is llama.cpp's.
        #[derive(Clone, Debug, PartialEq)]
        pub struct SamplingParams {
            $($(#[doc = $doc])* pub $name: $type,)*
        }

        impl Default for SamplingParams {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        /// All parameters, in the order in which help texts and documents list them.
        pub static PARAMETERS: &[Parameter] = &[$(Parameter {
            name: stringify!($name),
            kind: <$type as Value>::KIND,
            range: Range::$range,
            get: |params| params.$name.setting(),
            set: |params, setting| {
                let value = <$type>::of(setting).unwrap_or_else(|| Ok(params.$name.clone()));
                params.$name = value?;
                Ok(())
            },
            $($key: $value,)*
            ..ROW
        },)*];
    };
}

parameters! {
    /// Divides the logits; 1 is neutral, up to 1e-6 (or below zero) is greedy.
    temperature: f32 = 0.8, Finite {
        help: "Temperature; 0 is greedy",
        flag: "temp", value_name: "T", flag_range: Some(Range::NotNegative), fields: &["temperature"], file_key: Some("temp"),
    }
    /// Keep the `top_k` most likely tokens; 0 is off.
    top_k: u32 = 40, CountOrOff {
        help: "Keep the K likeliest tokens; 0 is off",
        flag: "top-k", value_name: "K", flag_range: Some(Range::Count), fields: &["top_k"], file_key: Some("top_k"),
    }
    /// Keep the fewest tokens whose probabilities sum to at least this, 0 to 1; 1 is off.
    top_p: f32 = 0.95, Probability {
        help: "Keep the likeliest tokens up to a total probability of P; 1 is off",
        flag: "top-p", value_name: "P", fields: &["top_p"], file_key: Some("top_p"),
    }
    /// Keep tokens at least this likely relative to the likeliest, 0 to 1; 0 is off.
    min_p: f32 = 0.05, Probability {
        help: "Keep tokens at least P times as likely as the likeliest; 0 is off",
        flag: "min-p", value_name: "P", fields: &["min_p"], file_key: Some("min_p"),
    }
    /// Seed of the request's random stream; `None` takes a fresh one, which [`super::Sampler::seed`] tells.
    seed: Option<u64> = None, Any {
        help: "Random seed; a seed gives the same text again [default: a new one each time]",
        flag: "seed", fields: &["seed"],
    }
    /// Keep the tokens whose surprise is nearest to the entropy until their sum exceeds this, 0 to 1; 1 is off.
    typical_p: f32 = 1.0, Probability {
        help: "Locally typical sampling up to a total probability of P; 1 is off",
        flag: "typical", value_name: "P", fields: &["typical_p"],
    }
    /// Keep logits within this many standard deviations of the largest; 0 and below is off.
    top_n_sigma: f32 = -1.0, Finite {
        help: "Keep logits within N standard deviations of the largest; 0 or less is off",
        flag: "top-n-sigma", fields: &["top_n_sigma"],
    }
    /// Chance per token that XTC acts, 0 to 1; 0 is off.
    xtc_probability: f32 = 0.0, Probability {
        help: "XTC: chance of removing the likeliest tokens; 0 is off",
        flag: "xtc-probability", value_name: "P", fields: &["xtc_probability"], file_key: Some("xtc_probability"),
    }
    /// XTC removes all tokens at least this likely except the least likely of them; above 0.5 is off.
    xtc_threshold: f32 = 0.1, Probability {
        help: "XTC: remove tokens above this probability, except the least likely of them",
        flag: "xtc-threshold", value_name: "P", fields: &["xtc_threshold"], file_key: Some("xtc_threshold"),
    }
    /// Divides positive logits of tokens seen and multiplies negative ones; 1 is neutral.
    repeat_penalty: f32 = 1.0, Positive {
        help: "Penalty on recent tokens, dividing their logits; 1 is off",
        flag: "repeat-penalty", value_name: "X", fields: &["repeat_penalty", "repetition_penalty"],
        file_key: Some("penalty_repeat"),
    }
    /// How many last tokens, prompt included, the three penalties look at; 0 is off, -1 is all of them.
    penalty_last_n: i32 = 64, LastTokens {
        help: "Number of recent tokens to penalize; 0 is off, -1 is the whole context",
        flag: "repeat-last-n", fields: &["repeat_last_n"], file_key: Some("penalty_last_n"),
    }
    /// Subtracted once from the logit of a token seen; 0 is neutral.
    presence_penalty: f32 = 0.0, Finite {
        help: "Subtract X from the logit of every token that occurred; 0 is off",
        flag: "presence-penalty", value_name: "X", fields: &["presence_penalty"],
    }
    /// Subtracted from the logit once for each time the token was seen; 0 is neutral.
    frequency_penalty: f32 = 0.0, Finite {
        help: "Subtract X from a token's logit for each occurrence; 0 is off",
        flag: "frequency-penalty", value_name: "X", fields: &["frequency_penalty"],
    }
    /// DRY: penalty for the first token beyond `dry_allowed_length`; 0 is off.
    dry_multiplier: f32 = 0.0, NotNegative {
        help: "DRY: strength of the penalty on repeated sequences; 0 is off",
        flag: "dry-multiplier", value_name: "X", fields: &["dry_multiplier"],
    }
    /// DRY: factor for each further token of the repetition; below 1 is off.
    dry_base: f32 = 1.75, NotNegative {
        help: "DRY: factor of the penalty for each further repeated token",
        flag: "dry-base", value_name: "X", fields: &["dry_base"],
    }
    /// DRY: length of a repeated run that is still free, in tokens.
    dry_allowed_length: u32 = 2, Count {
        help: "DRY: longest repetition without a penalty, in tokens",
        flag: "dry-allowed-length", fields: &["dry_allowed_length"],
    }
    /// DRY: how many last tokens, prompt included, are searched; 0 is off, -1 is all of them.
    dry_penalty_last_n: i32 = 64, LastTokens {
        help: "DRY: number of recent tokens to search; 0 is off, -1 is the whole context",
        flag: "dry-penalty-last-n", fields: &["dry_penalty_last_n"],
    }
    /// DRY: texts that a repetition does not reach across; at most [`super::MAX_BREAKERS`] of 1 to
    /// [`super::MAX_BREAKER_BYTES`] bytes.
    dry_sequence_breakers: Vec<String> = ["\n", ":", "\"", "*"].map(String::from).to_vec(), Any {
        help: "DRY: text that ends a repetition; repeatable, replaces the built-in ones",
        flag: "dry-sequence-breaker", value_name: "STRING", fields: &["dry_sequence_breakers"],
    }
    /// Mirostat, which runs in place of the stages after bias and temperature.
    mirostat: Mirostat = Mirostat::Off, Version {
        help: "Mirostat version 1 or 2, in place of top-k, top-p, min-p and typical; 0 is off",
        flag: "mirostat", value_name: "V", fields: &["mirostat"], file_key: Some("mirostat"),
    }
    /// Mirostat: how far one token's error moves the bound.
    mirostat_eta: f32 = 0.1, NotNegative {
        help: "Mirostat: learning rate (eta)",
        flag: "mirostat-lr", aliases: &["mirostat-eta"], value_name: "X", fields: &["mirostat_eta"],
        file_key: Some("mirostat_eta"),
    }
    /// Mirostat: the surprise to hold, in bits.
    mirostat_tau: f32 = 5.0, NotNegative {
        help: "Mirostat: target entropy (tau)",
        flag: "mirostat-ent", aliases: &["mirostat-tau"], value_name: "X", fields: &["mirostat_tau"],
        file_key: Some("mirostat_tau"),
    }
    /// Half the width of the dynamic temperature's range, around `temperature`; 0 is off.
    dynatemp_range: f32 = 0.0, NotNegative {
        help: "Dynamic temperature: range to both sides of --temp; 0 is off",
        flag: "dynatemp-range", value_name: "X", fields: &["dynatemp_range"],
    }
    /// Exponent that maps the entropy, as a share of the largest possible, into that range; 1 is linear.
    dynatemp_exponent: f32 = 1.0, NotNegative {
        help: "Dynamic temperature: exponent of the normalized entropy",
        flag: "dynatemp-exp", value_name: "X", fields: &["dynatemp_exponent"],
    }
    /// No truncating stage leaves fewer tokens than this, as long as there are as many; 0 counts as 1.
    min_keep: u32 = 0, Count {
        help: "Keep at least N tokens in every truncating sampler",
        flag: "min-keep", fields: &["min_keep"],
    }
    /// The stages that run, in this order. A parameter whose stage is missing here has no effect, temperature included.
    /// The logit bias comes before all of them. Mirostat replaces the list.
    stages: Vec<Stage> = Stage::DEFAULT_ORDER.to_vec(), Any {
        help: "Samplers in the order of use, with `;` or `,` between them\n\
               [default: penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature]",
        flag: "samplers", value_name: "ORDER", fields: &["samplers"], file_key: Some("sequence"),
    }
    /// Added to the logits of single tokens before anything else; minus infinity bans one. Doubles add up.
    logit_bias: Vec<(TokenId, f32)> = Vec::new(), Any {
        help: "Add BIAS to the logit of a token; `-inf` forbids it; repeatable",
        flag: "logit-bias", value_name: "ID=BIAS",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parameter_gives_back_what_it_was_given() {
        let default = SamplingParams::default();
        for parameter in PARAMETERS {
            let given = match parameter.get(&default) {
                Setting::Number(_) => Setting::Number(0.25),
                Setting::Integer(_) => Setting::Integer(1),
                Setting::Seed(_) => Setting::Seed(Some(u64::MAX)),
                Setting::Texts(_) => Setting::Texts(vec!["top_k".into(), "xtc".into()]),
                Setting::Biases(_) => Setting::Biases(vec![(TokenId(3), -1.0)]),
            };
            let mut params = default.clone();
            parameter.set(&mut params, &given).expect(parameter.name);
            assert_eq!(parameter.get(&params), given, "{}", parameter.name);
            let changed = PARAMETERS.iter().filter(|p| p.get(&params) != p.get(&default)).map(|p| p.name);
            assert_eq!(changed.collect::<Vec<_>>(), [parameter.name]);
        }
    }

    #[test]
    fn names_are_unique_and_defaults_lie_in_their_ranges() {
        let mut flags: Vec<&str> = PARAMETERS.iter().flat_map(|p| p.aliases.iter().copied().chain([p.flag])).collect();
        let mut fields: Vec<&str> = PARAMETERS.iter().flat_map(|p| p.fields).copied().collect();
        for names in [&mut flags, &mut fields] {
            let n = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), n, "{names:?}");
        }
        SamplingParams::default().validate(1).expect("the defaults");
    }
}
