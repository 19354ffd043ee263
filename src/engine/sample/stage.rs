//! The stages of the sampler's chain, their names and order, and what can be wrong with what they are given.

use std::fmt;
use std::str::FromStr;

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

    /// The stage of a letter in llama.cpp's short form of an order.
    pub fn of_letter(letter: char) -> Option<Self> {
        let place = LETTERS.chars().position(|known| known == letter)?;
        Self::DEFAULT_ORDER.get(place).copied()
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

/// Most stages in an order; a stage may be named twice.
pub const MAX_STAGES: usize = 32;
/// Most DRY sequence breakers.
pub const MAX_BREAKERS: usize = 64;
/// Longest DRY sequence breaker.
pub const MAX_BREAKER_BYTES: usize = 40;
const MAX_NAME: usize = 64;
/// Of [`Stage::DEFAULT_ORDER`], a letter each.
const LETTERS: &str = "edskypmxt";
const STAGE_NAMES: &str = "penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, temperature";
