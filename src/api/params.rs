//! Fields that every generating endpoint knows: sampling, limits, log probabilities, speculation.
//! Owns their names (OpenAI's, and llama.cpp's where OpenAI has none) and their ranges. Knows no prompt.

use engine::RequestOptions;
use engine::sample::{Mirostat, SamplingParams, Stage};
use serde::Deserialize;
use serde_json::Value;
use text::{Special, TokenId, Vocab};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::registry::Served;

/// The fields, as they come. All of them may be left out or null.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct Params {
    /// Most tokens to generate; -1 is until the context is full.
    pub max_tokens: Option<i64>,
    /// OpenAI's newer name for `max_tokens`.
    pub max_completion_tokens: Option<i64>,
    /// llama.cpp's name for `max_tokens`.
    pub n_predict: Option<i64>,
    /// Answers to each prompt.
    pub n: Option<i64>,
    /// Divides the logits; 0 always takes the likeliest token.
    pub temperature: Option<f32>,
    /// Half the width of the dynamic temperature's range; 0 is off.
    pub dynatemp_range: Option<f32>,
    /// Exponent of the dynamic temperature.
    pub dynatemp_exponent: Option<f32>,
    /// Keep the likeliest tokens by number; 0 keeps all.
    pub top_k: Option<i64>,
    /// Keep the likeliest tokens by the sum of their probabilities; 1 keeps all.
    pub top_p: Option<f32>,
    /// Keep tokens at least this likely relative to the likeliest; 0 keeps all.
    pub min_p: Option<f32>,
    /// Locally typical sampling; 1 is off.
    pub typical_p: Option<f32>,
    /// Keep logits within so many standard deviations of the largest; 0 and below is off.
    pub top_n_sigma: Option<f32>,
    /// Chance that XTC acts; 0 is off.
    pub xtc_probability: Option<f32>,
    /// Tokens above this probability may be dropped by XTC.
    pub xtc_threshold: Option<f32>,
    /// Penalty on tokens seen lately; 1 is off.
    pub repeat_penalty: Option<f32>,
    /// Another name of `repeat_penalty`.
    pub repetition_penalty: Option<f32>,
    /// Tokens back that the penalties look at; -1 is all.
    pub repeat_last_n: Option<i32>,
    /// Taken off the logit of every token seen.
    pub presence_penalty: Option<f32>,
    /// Taken off the logit once for every time a token was seen.
    pub frequency_penalty: Option<f32>,
    /// Strength of the DRY penalty; 0 is off.
    pub dry_multiplier: Option<f32>,
    /// Growth of the DRY penalty.
    pub dry_base: Option<f32>,
    /// Longest repetition without a DRY penalty.
    pub dry_allowed_length: Option<u32>,
    /// Tokens back that DRY looks at; -1 is all.
    pub dry_penalty_last_n: Option<i32>,
    /// Texts that end a repetition.
    pub dry_sequence_breakers: Option<Vec<String>>,
    /// Mirostat version; 0 is off.
    pub mirostat: Option<u8>,
    /// The surprise that mirostat holds.
    pub mirostat_tau: Option<f32>,
    /// Mirostat's learning rate.
    pub mirostat_eta: Option<f32>,
    /// The truncating samplers leave at least so many tokens.
    pub min_keep: Option<u32>,
    /// Samplers in the order of use.
    pub samplers: Option<Vec<String>>,
    /// Seed of the random numbers; -1 is a new one each time.
    pub seed: Option<i64>,
    /// A text or up to 64 of them that end the answer.
    #[schema(value_type = Option<Value>)]
    pub stop: Option<OneOrMany>,
    /// Go on past the model's end of its turn.
    pub ignore_eos: Option<bool>,
    /// Biases by token: `{"15": -1.5}`, or `[[15, -1.5], ["text", false]]`.
    #[schema(value_type = Option<Value>)]
    pub logit_bias: Option<Value>,
    /// llama.cpp's name for the number of log probabilities.
    pub n_probs: Option<i64>,
    /// Take up and keep state of earlier requests with the same beginning.
    pub cache_prompt: Option<bool>,
    /// Most tokens of a draft for this request; 0 is without speculation.
    #[serde(rename = "speculative.n_max")]
    pub speculative_n_max: Option<i64>,
    /// Drafts of fewer tokens are not used.
    #[serde(rename = "speculative.n_min")]
    pub speculative_n_min: Option<i64>,
    /// A draft ends before the first token that the head finds less probable than this, 0 to 1; 0 ends none.
    #[serde(rename = "speculative.p_min")]
    pub speculative_p_min: Option<f32>,
    /// llama.cpp's context shift, which is not done here: checked and left alone.
    pub n_discard: Option<i64>,
    /// As `n_discard`.
    pub n_keep: Option<i64>,
    /// The slot to answer in, if it is free; -1 is any.
    pub id_slot: Option<i64>,
    /// Answer in a stream of events.
    pub stream: Option<bool>,
    /// Options of the stream.
    pub stream_options: Option<StreamOptions>,
    /// Give the timings so far with every part of a stream.
    pub timings_per_token: Option<bool>,
    /// Tell in a stream how far the prompt is.
    pub return_progress: Option<bool>,
    /// Give token ids with the text.
    pub return_tokens: Option<bool>,
}

/// OpenAI's options of a stream.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub struct StreamOptions {
    /// Send the usage at the end.
    pub include_usage: Option<bool>,
}

/// One text or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "a text or a list of texts expected")]
pub enum OneOrMany {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

/// What the fields mean for one request.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// For the engine; borders are added with the prompt.
    pub options: RequestOptions,
    /// Answers to each prompt.
    pub n: usize,
    /// Answer in a stream.
    pub stream: bool,
    /// Send the usage at the end of a stream.
    pub include_usage: bool,
    /// Timings with every part of a stream.
    pub timings_per_token: bool,
    /// Tell how far the prompt is.
    pub return_progress: bool,
    /// Give token ids.
    pub return_tokens: bool,
}

impl Params {
    /// Checks the fields and puts them over the model's defaults. Tokenises: call it where blocking is allowed.
    ///
    /// # Errors
    /// 400 with the field and its range.
    pub fn wanted(self, served: &Served) -> Result<Wanted, ApiError> {
        let max_tokens = self.max_tokens()?;
        let n = self.n_answers()?;
        range("n_discard", self.n_discard.unwrap_or(0), 0, i64::MAX)?;
        range("n_keep", self.n_keep.unwrap_or(0), -1, i64::MAX)?;
        let n_max = self.speculative_n_max.map(|n| range("speculative.n_max", n, 0, 1 << 20)).transpose()?;
        let n_min = self.speculative_n_min.unwrap_or(served.min_draft as i64);
        let n_min = range("speculative.n_min", n_min, 0, 1 << 20)?;
        let p_min = self.speculative_p_min.unwrap_or(served.draft_p_min);
        if !(0.0..=1.0).contains(&p_min) {
            let message = format!("speculative.p_min: 0 to 1 expected, {p_min} found");
            return Err(ApiError::field("speculative.p_min", message));
        }
        let slot = range("id_slot", self.id_slot.unwrap_or(-1), -1, served.n_sequences as i64 - 1)?;
        let n_probs = self.n_probs.map(|n| range("n_probs", n, 0, engine::MAX_LOGPROBS as i64)).transpose()?;
        let vocab = served.model.vocab();
        let stops = match self.stop.clone() {
            None => Vec::new(),
            Some(OneOrMany::One(text)) => vec![text],
            Some(OneOrMany::Many(texts)) => texts,
        };
        let options = RequestOptions {
            max_tokens,
            stops,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            logprobs: n_probs.filter(|&n| n > 0).map(|n| n as usize),
            cache: self.cache_prompt.unwrap_or(true),
            max_draft: n_max.map(|n| n as usize),
            min_draft: n_min as usize,
            draft_p_min: p_min,
            slot: usize::try_from(slot).ok(),
            sampling: self.sampling(&served.sampling, vocab)?,
            ..RequestOptions::default()
        };
        options.sampling.validate(served.engine.limits().n_vocab)?;
        Ok(Wanted {
            options,
            n,
            stream: self.stream.unwrap_or(false),
            include_usage: self.stream_options.and_then(|o| o.include_usage).unwrap_or(false),
            timings_per_token: self.timings_per_token.unwrap_or(false),
            return_progress: self.return_progress.unwrap_or(false),
            return_tokens: self.return_tokens.unwrap_or(false),
        })
    }

    /// Answers to each prompt. Checks nothing else.
    ///
    /// # Errors
    /// 400 with the range.
    pub fn n_answers(&self) -> Result<usize, ApiError> {
        Ok(range("n", self.n.unwrap_or(1), 1, MAX_N)? as usize)
    }

    fn max_tokens(&self) -> Result<Option<usize>, ApiError> {
        let given = [
            ("max_completion_tokens", self.max_completion_tokens),
            ("max_tokens", self.max_tokens),
            ("n_predict", self.n_predict),
        ];
        let Some((name, n)) = given.into_iter().find_map(|(name, n)| Some((name, n?))) else { return Ok(None) };
        match n {
            -1 => Ok(None),
            n => Ok(Some(range(name, n, 1, i64::MAX)? as usize)),
        }
    }

    fn sampling(&self, defaults: &SamplingParams, vocab: &Vocab) -> Result<SamplingParams, ApiError> {
        let mut p = defaults.clone();
        set(&mut p.temperature, self.temperature);
        set(&mut p.dynatemp_range, self.dynatemp_range);
        set(&mut p.dynatemp_exponent, self.dynatemp_exponent);
        if let Some(k) = self.top_k {
            p.top_k = range("top_k", k.max(0), 0, u32::MAX.into())? as u32;
        }
        set(&mut p.top_p, self.top_p);
        set(&mut p.min_p, self.min_p);
        set(&mut p.typical_p, self.typical_p);
        set(&mut p.top_n_sigma, self.top_n_sigma);
        set(&mut p.xtc_probability, self.xtc_probability);
        set(&mut p.xtc_threshold, self.xtc_threshold);
        set(&mut p.repeat_penalty, self.repeat_penalty.or(self.repetition_penalty));
        set(&mut p.penalty_last_n, self.repeat_last_n);
        set(&mut p.presence_penalty, self.presence_penalty);
        set(&mut p.frequency_penalty, self.frequency_penalty);
        set(&mut p.dry_multiplier, self.dry_multiplier);
        set(&mut p.dry_base, self.dry_base);
        set(&mut p.dry_allowed_length, self.dry_allowed_length);
        set(&mut p.dry_penalty_last_n, self.dry_penalty_last_n);
        set(&mut p.dry_sequence_breakers, self.dry_sequence_breakers.clone());
        set(&mut p.min_keep, self.min_keep);
        set(&mut p.mirostat_tau, self.mirostat_tau);
        set(&mut p.mirostat_eta, self.mirostat_eta);
        if let Some(version) = self.mirostat {
            p.mirostat = match version {
                0 => Mirostat::Off,
                1 => Mirostat::V1,
                2 => Mirostat::V2,
                n => return Err(ApiError::field("mirostat", format!("mirostat: 0, 1 or 2 expected, {n} found"))),
            };
        }
        if let Some(names) = &self.samplers {
            let stages: Result<Vec<Stage>, _> = names.iter().map(|name| name.parse()).collect();
            p.stages = stages?;
        }
        if let Some(seed) = self.seed {
            p.seed = u64::try_from(seed).ok();
        }
        if let Some(bias) = &self.logit_bias {
            p.logit_bias.extend(logit_bias(bias, vocab)?);
        }
        Ok(p)
    }
}

/// For endpoints that give one answer.
///
/// # Errors
/// 400 when more were asked for.
pub(crate) fn one_answer(params: &Params) -> Result<(), ApiError> {
    match params.n_answers()? {
        1 => Ok(()),
        n => Err(ApiError::field("n", format!("n: this endpoint gives 1 answer, {n} were asked for"))),
    }
}

fn set<T>(to: &mut T, from: Option<T>) {
    if let Some(value) = from {
        *to = value;
    }
}

/// A number within its range.
///
/// # Errors
/// 400 with the name, the range and what was found.
pub(crate) fn range(name: &str, n: i64, min: i64, max: i64) -> Result<i64, ApiError> {
    if (min..=max).contains(&n) {
        return Ok(n);
    }
    let expected = if max == i64::MAX { format!("at least {min}") } else { format!("{min} to {max}") };
    Err(ApiError::field(name, format!("{name}: {expected} expected, {n} found")))
}

/// Biases in OpenAI's form or llama.cpp's; `false` forbids a token, a text stands for each of its tokens.
fn logit_bias(bias: &Value, vocab: &Vocab) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let wrong = |what: &str| ApiError::field("logit_bias", format!("logit_bias: {what}"));
    let amount = |value: &Value| match value {
        Value::Bool(false) => Ok(f32::NEG_INFINITY),
        value => value.as_f64().map(|x| x as f32).ok_or_else(|| wrong("a bias has to be a number or false")),
    };
    let tokens = |text: &str| -> Vec<TokenId> {
        match text.parse() {
            Ok(id) => vec![TokenId(id)],
            Err(_) => vocab.encode(text, Special::Plain),
        }
    };
    let mut found = Vec::new();
    match bias {
        Value::Null => {}
        Value::Object(map) => {
            for (key, value) in map {
                let amount = amount(value)?;
                found.extend(tokens(key).into_iter().map(|id| (id, amount)));
            }
        }
        Value::Array(pairs) => {
            for pair in pairs {
                let Some([token, value]) = pair.as_array().map(Vec::as_slice) else {
                    return Err(wrong("a list of pairs [token, bias] is expected"));
                };
                let amount = amount(value)?;
                match token {
                    Value::String(text) => {
                        found.extend(vocab.encode(text, Special::Plain).into_iter().map(|id| (id, amount)));
                    }
                    token => {
                        let id = token.as_u64().and_then(|id| u32::try_from(id).ok());
                        found.push((TokenId(id.ok_or_else(|| wrong("a token is an id or a text"))?), amount));
                    }
                }
            }
        }
        _ => return Err(wrong("an object or a list of pairs is expected")),
    }
    if found.len() > MAX_BIASES {
        return Err(wrong(&format!("at most {MAX_BIASES} tokens expected, {} found", found.len())));
    }
    Ok(found)
}

/// Answers to one prompt at most.
pub(crate) const MAX_N: i64 = 16;

/// Tokens with a bias at most: each costs at every step.
const MAX_BIASES: usize = 4096;
