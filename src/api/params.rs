//! Fields that every generating endpoint knows: sampling, limits, log probabilities, speculation.
//! Owns their names (OpenAI's, and llama.cpp's where OpenAI has none) and their ranges. Knows no prompt.

use std::time::Duration;

use engine::{ContextShift, LineLimits, RequestOptions, Timings};
use model::AdapterSet;
use serde::Deserialize;
use serde_json::Value;
use session::options::SamplingOptions;
use text::{Special, TokenId, Vocab};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::json::Input;
use crate::registry::Served;
use crate::wire::TimingsBody;

/// The fields, as they come. All of them may be left out or null.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct Params {
    /// Those of the sampler, by the engine's table of parameters.
    #[serde(skip)]
    #[schema(ignore)]
    pub sampling: SamplingOptions,
    /// Most tokens to generate; -1 is until the context is full.
    pub max_tokens: Option<i64>,
    /// OpenAI's newer name for `max_tokens`.
    pub max_completion_tokens: Option<i64>,
    /// llama.cpp's name for `max_tokens`; 0 computes the prompt and generates nothing.
    pub n_predict: Option<i64>,
    /// Replies to each prompt.
    pub n: Option<i64>,
    /// llama.cpp's name for `n`.
    pub n_cmpl: Option<i64>,
    /// A text or up to 64 of them that end the reply.
    #[schema(value_type = Option<Value>)]
    pub stop: Option<OneOrMany>,
    /// Go on past the model's end of its turn.
    pub ignore_eos: Option<bool>,
    /// Biases by token: `{"15": -1.5}`, or `[[15, -1.5], ["text", false]]`.
    #[schema(value_type = Option<Value>)]
    pub logit_bias: Option<Value>,
    /// llama.cpp's name for the number of log probabilities; a larger one than this server gives is cut.
    pub n_probs: Option<i64>,
    /// Milliseconds from the first token on, after which the reply ends with its line; 0 and -1 are without limit.
    pub t_max_predict_ms: Option<i64>,
    /// Blanks that every line after the first begins with; the reply ends before a line that has fewer.
    pub n_indent: Option<i64>,
    /// Take up and keep state of earlier requests with the same beginning.
    pub cache_prompt: Option<bool>,
    /// Keep what the endpoint keeps; with false the reply is not kept to train on either.
    pub store: Option<bool>,
    /// Most tokens of a draft for this request; 0 is without speculation.
    #[serde(rename = "speculative.n_max")]
    pub speculative_n_max: Option<i64>,
    /// Drafts of fewer tokens are not used.
    #[serde(rename = "speculative.n_min")]
    pub speculative_n_min: Option<i64>,
    /// A draft ends before the first token that the MTP layer finds less probable than this, 0 to 1; 0 ends none.
    #[serde(rename = "speculative.p_min")]
    pub speculative_p_min: Option<f32>,
    /// LoRA adapters of this request, `[{"id": 0, "scale": 0.5}]`: those that are not named get 0, and an empty list is as none.
    pub lora: Option<Vec<LoraScale>>,
    /// Tokens that go in a context shift, where the server does that; 0 is half of what may go.
    pub n_discard: Option<i64>,
    /// Tokens of the prompt that stay in one; -1 is all of it.
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
    /// Tell in `__verbose` what `/completion` tells: the prompt, all settings, the text as it was generated.
    pub verbose: Option<bool>,
    /// Give the probabilities that the sampler draws by, in place of the model's log probabilities.
    pub post_sampling_probs: Option<bool>,
}

/// OpenAI's options of a stream.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(expecting = "an object")]
pub struct StreamOptions {
    /// Send the usage at the end.
    pub include_usage: Option<bool>,
}

/// A LoRA adapter and its factor.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(expecting = "an object with `id` and `scale` expected")]
pub struct LoraScale {
    /// Its number.
    pub id: usize,
    /// Its factor; 0 leaves it out.
    pub scale: f32,
}

impl LoraScale {
    /// The adapters of a list.
    ///
    /// # Errors
    /// 400 with `field` for an adapter that is not there, one that is named twice, and a factor that is not finite.
    pub(crate) fn set(scales: &[Self], served: &Served, field: &str) -> Result<AdapterSet, ApiError> {
        let set = AdapterSet::new(scales.iter().map(|one| (one.id, one.scale)), served.model().adapters().len());
        set.map_err(|error| ApiError::field(field, format!("{field}: {error}")))
    }
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
    /// For the engine; checkpoint boundaries are added with the prompt.
    pub options: RequestOptions,
    /// Replies to each prompt.
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
    /// Tell of the prompt and the settings; `None`: as the server is set.
    pub verbose: Option<bool>,
    /// Log probabilities are the sampler's.
    pub post_sampling_probs: bool,
}

impl Wanted {
    /// The timings for a part of a stream, where they are wanted.
    pub(crate) fn timings_so_far(&self, so_far: &Timings) -> Option<TimingsBody> {
        self.timings_per_token.then(|| TimingsBody::from(so_far))
    }

    /// The timings of a whole reply: numbers, and the list of shares only for those who ask for timings.
    pub(crate) fn timings_of(&self, all: &Timings) -> TimingsBody {
        let body = TimingsBody::from(all);
        if self.timings_per_token { body } else { body.without_list() }
    }
}

impl Params {
    /// Reads them from a body.
    ///
    /// # Errors
    /// As [`Input::read`].
    pub async fn read(input: &Input) -> Result<Self, ApiError> {
        let fields: Self = input.read().await?;
        Ok(Self { sampling: input.read().await?, ..fields })
    }

    /// Checks the fields and puts them over the model's defaults. Tokenises: call it where blocking is allowed.
    ///
    /// # Errors
    /// 400 with the field and its range.
    pub fn wanted(self, served: &Served) -> Result<Wanted, ApiError> {
        let most = served.request_options().max_tokens;
        let max_tokens = self.max_tokens()?.into_iter().chain(most).min();
        let n = self.n_replies()?;
        let discard = range("n_discard", self.n_discard.unwrap_or(0), 0, i64::MAX)?;
        let keep = self.n_keep.map(|n| range("n_keep", n, -1, i64::MAX)).transpose()?;
        let shift = served.request_options().shift.map(|shift| ContextShift {
            keep: keep.map(|n| usize::try_from(n).unwrap_or(usize::MAX)).or(shift.keep),
            discard: usize::try_from(discard).ok().filter(|&n| n > 0).or(shift.discard),
        });
        let n_max = self.speculative_n_max.map(|n| range("speculative.n_max", n, 0, 1 << 20)).transpose()?;
        let n_min = self.speculative_n_min.unwrap_or(served.drafts().min as i64);
        let n_min = range("speculative.n_min", n_min, 0, 1 << 20)?;
        let p_min = self.speculative_p_min.unwrap_or(served.drafts().p_min);
        if !(0.0..=1.0).contains(&p_min) {
            let message = format!("speculative.p_min: 0 to 1 expected, {p_min} found");
            return Err(ApiError::field("speculative.p_min", message));
        }
        let slot = range("id_slot", self.id_slot.unwrap_or(-1), -1, served.n_sequences() as i64 - 1)?;
        let n_probs = range("n_probs", self.n_probs.unwrap_or(0), 0, i64::MAX)?.min(engine::MAX_LOGPROBS as i64);
        let mut stops = match self.stop.clone() {
            None => Vec::new(),
            Some(OneOrMany::One(text)) => vec![text],
            Some(OneOrMany::Many(texts)) => texts,
        };
        // Forms of clients send their empty fields.
        stops.retain(|stop| !stop.is_empty());
        let lines = self.lines()?;
        let post_sampling_probs = self.post_sampling_probs.unwrap_or(false);
        let mut options = RequestOptions {
            max_tokens,
            stops,
            ignore_eos: self.ignore_eos.unwrap_or(served.request_options().ignore_eos),
            logprobs: (n_probs > 0).then_some(n_probs as usize),
            lines,
            shift,
            sampler_logprobs: post_sampling_probs,
            cache: self.cache_prompt.unwrap_or(true),
            keep: self.store.unwrap_or(true),
            max_draft: n_max.map(|n| n as usize),
            min_draft: n_min as usize,
            draft_p_min: p_min,
            slot: usize::try_from(slot).ok(),
            ..served.request_options()
        };
        if let Some(scales) = self.lora.as_deref().filter(|scales| !scales.is_empty()) {
            options.adapters = LoraScale::set(scales, served, "lora")?;
        }
        self.sampling.apply(&mut options.sampling)?;
        if let Some(bias) = &self.logit_bias {
            options.sampling.logit_bias.extend(logit_bias(bias, served.vocab())?);
        }
        options.sampling.validate(served.engine().limits().n_vocab)?;
        Ok(Wanted {
            options,
            n,
            stream: self.stream.unwrap_or(false),
            include_usage: self.stream_options.and_then(|o| o.include_usage).unwrap_or(false),
            timings_per_token: self.timings_per_token.unwrap_or(false),
            return_progress: self.return_progress.unwrap_or(false),
            return_tokens: self.return_tokens.unwrap_or(false),
            verbose: self.verbose,
            post_sampling_probs,
        })
    }

    /// Replies to each prompt. Checks nothing else.
    ///
    /// # Errors
    /// 400 with the range.
    pub fn n_replies(&self) -> Result<usize, ApiError> {
        let (name, n) = if let Some(n) = self.n_cmpl { ("n_cmpl", n) } else { ("n", self.n.unwrap_or(1)) };
        Ok(range(name, n, 1, MAX_N)? as usize)
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
            n => Ok(Some(range(name, n, -1, i64::MAX)? as usize)),
        }
    }

    fn lines(&self) -> Result<LineLimits, ApiError> {
        let ms = range("t_max_predict_ms", self.t_max_predict_ms.unwrap_or(0), -1, i64::MAX)?;
        Ok(LineLimits {
            max_time: u64::try_from(ms).ok().filter(|&ms| ms > 0).map(Duration::from_millis),
            min_indent: range("n_indent", self.n_indent.unwrap_or(0), 0, i64::MAX)? as usize,
        })
    }
}

/// For endpoints that give one reply.
///
/// # Errors
/// 400 when more were asked for.
pub(crate) fn one_answer(params: &Params) -> Result<(), ApiError> {
    match params.n_replies()? {
        1 => Ok(()),
        n => Err(ApiError::field("n", format!("n: this endpoint gives 1 answer, {n} were asked for"))),
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

/// Replies to one prompt at most.
pub(crate) const MAX_N: i64 = 16;

/// Tokens with a bias at most: each costs at every step.
const MAX_BIASES: usize = 4096;
