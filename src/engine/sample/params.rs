//! What the sampler's parameters mean together: the stages and their order, and what is wrong with a set of parameters.
//! The parameters themselves are rows of `table.rs`. Knows nothing of logits.

use text::TokenId;

use super::stage::{MAX_BREAKER_BYTES, MAX_BREAKERS, MAX_STAGES, SampleError, Stage};
use super::table::{PARAMETERS, SamplingParams};

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
        PARAMETERS.iter().try_for_each(|parameter| parameter.check(self))?;
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
            if bias.is_nan() || bias == f32::INFINITY {
                let range = "a finite number or minus infinity";
                return Err(SampleError::OutOfRange { name: "logit_bias", value: bias.into(), range });
            }
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

    /// Whether no token becomes likelier by the three penalties.
    pub(super) fn only_lowers(&self) -> bool {
        self.repeat_penalty >= 1.0 && self.presence_penalty >= 0.0 && self.frequency_penalty >= 0.0
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

fn check_count(name: &'static str, found: usize, max: usize) -> Result<(), SampleError> {
    if found <= max { Ok(()) } else { Err(SampleError::TooMany { name, found, max }) }
}

/// At or below this a temperature means greedy: dividing by less would leave the range of a float.
pub(super) const MIN_TEMPERATURE: f32 = 1e-6;
