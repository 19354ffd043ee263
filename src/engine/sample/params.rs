//! What a request may ask of the sampler.
//! Owns names, defaults, ranges and the order of stages. Knows nothing of logits.

use std::fmt;
use std::str::FromStr;

use text::TokenId;

/// How to choose tokens. Every field has a neutral value that switches it off; [`Default`] is llama.cpp's.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Seed of the request's random stream; `None` takes a fresh one, which [`super::Sampler::seed`] tells.
    pub seed: Option<u64>,
    /// The stages that run, in this order. A parameter whose stage is missing here has no effect, temperature included.
    /// The logit bias comes before all of them. Mirostat replaces the list.
    pub stages: Vec<Stage>,
    /// Divides the logits; 1 is neutral, up to 1e-6 (or below zero) is greedy.
    pub temperature: f32,
    /// Half the width of the dynamic temperature's range, around `temperature`; 0 is off.
    pub dynatemp_range: f32,
    /// Exponent that maps the entropy, as a share of the largest possible, into that range; 1 is linear.
    pub dynatemp_exponent: f32,
    /// Keep the `top_k` most likely tokens; 0 is off.
    pub top_k: u32,
    /// Keep the fewest tokens whose probabilities sum to at least this, 0 to 1; 1 is off.
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the likeliest, 0 to 1; 0 is off.
    pub min_p: f32,
    /// Keep the tokens whose surprise is nearest to the entropy until their sum exceeds this, 0 to 1; 1 is off.
    pub typical_p: f32,
    /// Keep logits within this many standard deviations of the largest; 0 and below is off.
    pub top_n_sigma: f32,
    /// Chance per token that XTC acts, 0 to 1; 0 is off.
    pub xtc_probability: f32,
    /// XTC removes all tokens at least this likely except the least likely of them; above 0.5 is off.
    pub xtc_threshold: f32,
    /// No truncating stage leaves fewer tokens than this, as long as there are as many; 0 counts as 1.
    pub min_keep: u32,
    /// How many last tokens, prompt included, the three penalties look at; 0 is off, -1 is all of them.
    pub penalty_last_n: i32,
    /// Divides positive logits of tokens seen and multiplies negative ones; 1 is neutral.
    pub repeat_penalty: f32,
    /// Subtracted once from the logit of a token seen; 0 is neutral.
    pub presence_penalty: f32,
    /// Subtracted from the logit once for each time the token was seen; 0 is neutral.
    pub frequency_penalty: f32,
    /// DRY: penalty for the first token beyond `dry_allowed_length`; 0 is off.
    pub dry_multiplier: f32,
    /// DRY: factor for each further token of the repetition; below 1 is off.
    pub dry_base: f32,
    /// DRY: length of a repeated run that is still free, in tokens.
    pub dry_allowed_length: u32,
    /// DRY: how many last tokens, prompt included, are searched; 0 is off, -1 is all of them.
    pub dry_penalty_last_n: i32,
    /// DRY: texts that a repetition does not reach across; at most [`MAX_BREAKERS`] of 1 to [`MAX_BREAKER_BYTES`] bytes.
    pub dry_sequence_breakers: Vec<String>,
    /// Mirostat, which runs in place of the stages after bias and temperature.
    pub mirostat: Mirostat,
    /// Mirostat: the surprise to hold, in bits.
    pub mirostat_tau: f32,
    /// Mirostat: how far one token's error moves the bound.
    pub mirostat_eta: f32,
    /// Added to the logits of single tokens before anything else; minus infinity bans one. Doubles add up.
    pub logit_bias: Vec<(TokenId, f32)>,
}

/// Which mirostat runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mirostat {
    /// None: the stages run.
    #[default]
    Off,
    /// The first one: estimates Zipf's exponent from the 100 likeliest tokens and cuts at a rank.
    V1,
    /// The second one: cuts at a surprise.
    V2,
}

/// One stage of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Repetition, presence and frequency penalties.
    Penalties,
    /// Penalty for continuing a repetition.
    Dry,
    /// Cut by standard deviations below the largest logit.
    TopNSigma,
    /// Cut by rank.
    TopK,
    /// Cut by distance from the entropy.
    Typical,
    /// Cut by cumulative probability.
    TopP,
    /// Cut by probability relative to the largest.
    MinP,
    /// Exclude the top choices.
    Xtc,
    /// Temperature, fixed or dynamic.
    Temperature,
}

/// What is wrong with sampling parameters.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// A number outside its range.
    #[error("{name}: {range} expected, {value} found")]
    OutOfRange {
        /// The parameter.
        name: &'static str,
        /// What it was.
        value: f64,
        /// What it may be.
        range: &'static str,
    },
    /// A list with too many entries.
    #[error("{name}: at most {max} entries expected, {found} found")]
    TooMany {
        /// The parameter.
        name: &'static str,
        /// How many there were.
        found: usize,
        /// How many there may be.
        max: usize,
    },
    /// A breaker that is empty or too long.
    #[error("dry_sequence_breakers[{index}]: 1 to {MAX_BREAKER_BYTES} bytes expected, {n_bytes} found")]
    BreakerLength {
        /// Which one.
        index: usize,
        /// Its length.
        n_bytes: usize,
    },
    /// A bias for a token that does not exist.
    #[error("logit_bias: token ids below {n_vocab} expected, {id} found")]
    UnknownToken {
        /// The id asked for.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// A name that is no stage.
    #[error("samplers: one of {STAGE_NAMES} expected, {name:?} found")]
    UnknownStage {
        /// The name as given, shortened.
        name: String,
    },
    /// There is nothing to choose from.
    #[error("n_vocab: 1 to 2^32 - 1 expected, {n_vocab} found")]
    VocabularySize {
        /// What it was.
        n_vocab: usize,
    },
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            seed: None,
            stages: Stage::DEFAULT_ORDER.to_vec(),
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            top_n_sigma: -1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            min_keep: 0,
            penalty_last_n: 64,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: 64,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(String::from).to_vec(),
            mirostat: Mirostat::Off,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            logit_bias: Vec::new(),
        }
    }
}

impl SamplingParams {
    /// Always the likeliest token: temperature 0, all else neutral.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..Self::default() }
    }

    /// Checks every parameter, used or not.
    ///
    /// # Errors
    /// A number that is NaN, infinite (a bias may be minus infinity) or outside its range; a bias for a token at or
    /// above `n_vocab`; too many stages or breakers; a breaker that is empty or too long; an empty vocabulary.
    pub fn validate(&self, n_vocab: usize) -> Result<(), SampleError> {
        if n_vocab == 0 || n_vocab > u32::MAX as usize {
            return Err(SampleError::VocabularySize { n_vocab });
        }
        for (name, value) in [
            ("temperature", self.temperature),
            ("top_n_sigma", self.top_n_sigma),
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ] {
            check(name, value, "a finite number", value.is_finite())?;
        }
        for (name, value) in [
            ("dynatemp_range", self.dynatemp_range),
            ("dynatemp_exponent", self.dynatemp_exponent),
            ("dry_multiplier", self.dry_multiplier),
            ("dry_base", self.dry_base),
            ("mirostat_tau", self.mirostat_tau),
            ("mirostat_eta", self.mirostat_eta),
        ] {
            check(name, value, "a finite number of at least 0", value.is_finite() && value >= 0.0)?;
        }
        for (name, value) in [
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("typical_p", self.typical_p),
            ("xtc_probability", self.xtc_probability),
            ("xtc_threshold", self.xtc_threshold),
        ] {
            check(name, value, "0 to 1", (0.0..=1.0).contains(&value))?;
        }
        let positive = self.repeat_penalty.is_normal() && self.repeat_penalty > 0.0;
        check("repeat_penalty", self.repeat_penalty, "a finite number above 0", positive)?;
        for (name, n) in [("penalty_last_n", self.penalty_last_n), ("dry_penalty_last_n", self.dry_penalty_last_n)] {
            if n < -1 {
                return Err(SampleError::OutOfRange { name, value: n.into(), range: "-1 (all), 0 (off) or a count" });
            }
        }
        check_count("samplers", self.stages.len(), MAX_STAGES)?;
        check_count("dry_sequence_breakers", self.dry_sequence_breakers.len(), MAX_BREAKERS)?;
        for (index, n_bytes) in self.dry_sequence_breakers.iter().map(String::len).enumerate() {
            if n_bytes == 0 || n_bytes > MAX_BREAKER_BYTES {
                return Err(SampleError::BreakerLength { index, n_bytes });
            }
        }
        for &(TokenId(id), bias) in &self.logit_bias {
            if id as usize >= n_vocab {
                return Err(SampleError::UnknownToken { id, n_vocab });
            }
            check("logit_bias", bias, "a finite number or minus infinity", bias < f32::INFINITY)?;
        }
        Ok(())
    }

    pub(super) fn min_keep(&self) -> usize {
        self.min_keep.max(1) as usize
    }

    pub(super) fn penalises(&self) -> bool {
        self.penalty_last_n != 0
            && (self.repeat_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0)
    }

    pub(super) fn dries(&self) -> bool {
        self.dry_multiplier != 0.0 && self.dry_base >= 1.0 && self.dry_penalty_last_n != 0
    }

    /// The stages that can change anything, in order.
    pub(super) fn active_stages(&self) -> Vec<Stage> {
        let acts = |stage: &Stage| match stage {
            Stage::Penalties => self.penalises(),
            Stage::Dry => self.dries(),
            Stage::TopNSigma => self.top_n_sigma > 0.0,
            Stage::TopK => self.top_k > 0,
            Stage::Typical => self.typical_p < 1.0,
            Stage::TopP => self.top_p < 1.0,
            Stage::MinP => self.min_p > 0.0,
            Stage::Xtc => self.xtc_probability > 0.0 && self.xtc_threshold <= 0.5,
            Stage::Temperature => self.temperature != 1.0 || self.dynatemp_range > 0.0,
        };
        self.stages.iter().copied().filter(acts).collect()
    }
}

impl Stage {
    /// llama.cpp's order.
    pub const DEFAULT_ORDER: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::Typical,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
    ];

    /// llama.cpp's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::TopNSigma => "top_n_sigma",
            Self::TopK => "top_k",
            Self::Typical => "typ_p",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
            Self::Temperature => "temperature",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Takes llama.cpp's names with its freedoms: any case, `-` or nothing for `_`, and the short names `temp`, `typ` and
/// `nucleus`.
impl FromStr for Stage {
    type Err = SampleError;

    fn from_str(name: &str) -> Result<Self, SampleError> {
        let plain = |s: &str| s.chars().filter(|c| !"_-".contains(*c)).collect::<String>().to_ascii_lowercase();
        let wanted = match plain(if name.len() <= MAX_NAME { name } else { "" }).as_str() {
            "temp" => "temperature".to_owned(),
            "typ" | "typical" | "typicalp" => "typp".to_owned(),
            "nucleus" => "topp".to_owned(),
            other => other.to_owned(),
        };
        let found = Self::DEFAULT_ORDER.into_iter().find(|s| plain(s.name()) == wanted);
        found.ok_or_else(|| SampleError::UnknownStage { name: name.chars().take(MAX_NAME).collect() })
    }
}

fn check(name: &'static str, value: f32, range: &'static str, ok: bool) -> Result<(), SampleError> {
    if ok { Ok(()) } else { Err(SampleError::OutOfRange { name, value: value.into(), range }) }
}

fn check_count(name: &'static str, found: usize, max: usize) -> Result<(), SampleError> {
    if found <= max { Ok(()) } else { Err(SampleError::TooMany { name, found, max }) }
}

/// Most stages in an order; a stage may be named twice.
pub const MAX_STAGES: usize = 32;
/// Most DRY sequence breakers.
pub const MAX_BREAKERS: usize = 64;
/// Longest DRY sequence breaker.
pub const MAX_BREAKER_BYTES: usize = 40;
/// At or below this a temperature means greedy: dividing by less would leave the range of a float.
pub(super) const MIN_TEMPERATURE: f32 = 1e-6;
const MAX_NAME: usize = 64;
const STAGE_NAMES: &str = "penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, temperature";
