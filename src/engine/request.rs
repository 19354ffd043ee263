//! A request to generate: the prompt's tokens and everything that shapes the generation, valid by construction.
//! Owns the limits check. Knows nothing of templates, JSON or channels.

use std::sync::Arc;

use model::{AdapterSet, AdapterSetError, Pictures};
use sha2::{Digest, Sha256};
use text::TokenId;

use crate::constraint::Grammar;
use crate::lines::LineLimits;
use crate::pooling::Pooling;
use crate::sample::{SampleError, SamplingParams};
use crate::stop::{StopError, StopMatcher};
use crate::thinking::Thinking;

/// What one engine can take: every request is checked against it before it is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Positions of one sequence: prompt and generation together.
    pub n_ctx: usize,
    /// Tokens of the vocabulary.
    pub n_vocab: usize,
    /// LoRA adapters that are loaded with the model.
    pub n_adapters: usize,
    /// Tokens of one forward pass.
    pub n_batch: usize,
}

/// The largest number of alternatives that a request may ask for with each token.
pub const MAX_LOGPROBS: usize = 20;

/// Whose cached state a request may take up. State that was computed in one scope, or put into a slot by it, is reused
/// within that scope only, also after a restart, so a scope is to have the same number then: what was asked in another one can be told neither from the generation nor from how much was cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scope(pub u64);

impl Scope {
    /// Of whoever has this key: the same in every run of every program, and no other one's.
    pub fn of_key(key: &str) -> Self {
        let digest: [u8; 32] = Sha256::digest(key).into();
        let [first, ..] = digest.as_chunks::<8>().0 else { return Self::default() };
        // Never that of requests without a key.
        Self(u64::from_le_bytes(*first) | 1)
    }
}

/// What the caller wants; plain data, turned into a [`GenerateRequest`] by [`GenerateRequest::new`].
#[derive(Clone, Debug)]
pub struct RequestOptions {
    /// Most tokens to generate; `None` is until the context is full. 0 computes the prompt, and keeps its state where it is cached.
    pub max_tokens: Option<usize>,
    /// How a token is picked.
    pub sampling: SamplingParams,
    /// Strings that end the generation; they are not part of it.
    pub stops: Vec<String>,
    /// Go on past end-of-generation tokens; with a grammar they always end the generation.
    pub ignore_eos: bool,
    /// With `Some(n)` every token carries its log probability and those of the `n` likeliest, `n` up to [`MAX_LOGPROBS`].
    pub logprobs: Option<usize>,
    /// Those of the sampler, after all its stages, in place of the model's: the likeliest are those that it may pick.
    pub sampler_logprobs: bool,
    /// Token offsets in the prompt where a later request is likely to part from this one (ends of messages), ascending.
    /// A state checkpoint is kept at the last ones.
    pub checkpoint_boundaries: Vec<usize>,
    /// Use and keep cached state of earlier requests with the same beginning.
    pub cache: bool,
    /// Whose state that is.
    pub scope: Scope,
    /// The reply may be kept to learn from, where the engine does that and `cache` is set.
    pub keep: bool,
    /// LoRA adapters that prompt and generation are computed with. State that other adapters made is not reused.
    pub adapters: AdapterSet,
    /// Pictures in the prompt: their places there may hold any tokens, and get ids made of the pictures' content.
    pub pictures: Pictures,
    /// What the generation must be made of.
    pub grammar: Option<Arc<dyn Grammar>>,
    /// Most tokens of a draft; `None` is as many as the proposer makes, 0 is without speculation. Answers are the same.
    pub max_draft: Option<usize>,
    /// Drafts of fewer tokens are not used.
    pub min_draft: usize,
    /// A draft ends before the first token that the MTP layer finds less probable than this, 0 to 1; 0 ends none.
    pub draft_p_min: f32,
    /// The slot to take if it is free; otherwise, or where there is no such slot, the one that saves most.
    pub slot: Option<usize>,
    /// A limit on thinking.
    pub thinking: Option<Thinking>,
    /// Limits that end the generation at a line, as one that is as long as it may be.
    pub lines: LineLimits,
    /// Go on when the context is full; `None` ends the generation there. Not of prompts with pictures.
    pub shift: Option<ContextShift>,
    /// Give the prompt's hidden states, pooled, and no tokens. They need all of the prompt: nothing is cached then, unless the
    /// prompt is ranked by its last one.
    pub embed: Option<Pooling>,
}

/// How a generation goes on that has filled the context: over the tokens at its beginning and those at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContextShift {
    /// Tokens of the prompt that stay, half of the context at most; `None`: the prompt's first message.
    pub keep: Option<usize>,
    /// Tokens behind them that go, a sixteenth of what there is at least; `None`: half of it.
    pub discard: Option<usize>,
}

impl Default for RequestOptions {
    fn default() -> Self {
        Self {
            max_tokens: None,
            sampling: SamplingParams::default(),
            stops: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            sampler_logprobs: false,
            checkpoint_boundaries: Vec::new(),
            cache: true,
            scope: Scope::default(),
            keep: true,
            adapters: AdapterSet::default(),
            pictures: Pictures::default(),
            grammar: None,
            max_draft: None,
            min_draft: 0,
            draft_p_min: 0.0,
            slot: None,
            thinking: None,
            lines: LineLimits::default(),
            shift: None,
            embed: None,
        }
    }
}

/// A request that an engine with the given [`Limits`] can serve.
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    prompt: Vec<TokenId>,
    options: RequestOptions,
    limits: Limits,
    max_tokens: usize,
    stops: StopMatcher,
}

impl GenerateRequest {
    /// Checks prompt and options against `limits`.
    ///
    /// # Errors
    /// An empty prompt, a token id outside the vocabulary, a prompt that leaves no room for a generation, sampling
    /// parameters out of range, pictures that lie outside of the prompt or must be computed in one pass and are longer, adapters that are not there, too many or empty stop strings, too many log probabilities,
    /// boundaries out of order.
    pub fn new(mut prompt: Vec<TokenId>, mut options: RequestOptions, limits: Limits) -> Result<Self, RequestError> {
        if prompt.is_empty() {
            return Err(RequestError::EmptyPrompt);
        }
        check_pictures(&options.pictures, prompt.len(), limits)?;
        let pictures = options.pictures.clone();
        let forced = options.thinking.iter().flat_map(|thinking| &thinking.forced);
        let words = prompt.iter().enumerate().filter(|(i, _)| pictures.at(*i).is_none()).map(|(_, id)| id);
        if let Some(&id) = words.chain(forced).find(|id| id.0 as usize >= limits.n_vocab) {
            return Err(RequestError::Token { id: id.0, n_vocab: limits.n_vocab });
        }
        pictures.write_ids(&mut prompt);
        let n_generated = usize::from(options.embed.is_none());
        if prompt.len() + n_generated > limits.n_ctx {
            return Err(RequestError::PromptTooLong { n_prompt: prompt.len(), n_ctx: limits.n_ctx });
        }
        options.sampling.validate(limits.n_vocab)?;
        AdapterSet::new(options.adapters.scales(), limits.n_adapters)?;
        if let Some(n) = options.logprobs.filter(|&n| n > MAX_LOGPROBS) {
            return Err(RequestError::Logprobs { n });
        }
        // Cached tokens have no hidden states any more.
        options.cache &= matches!(options.embed, None | Some(Pooling::Rank));
        let ascending = options.checkpoint_boundaries.windows(2).all(|w| w[0] < w[1]);
        if !ascending || options.checkpoint_boundaries.last().is_some_and(|&b| b > prompt.len()) {
            return Err(RequestError::Boundaries { n_prompt: prompt.len() });
        }
        if !options.pictures.is_empty() || options.embed.is_some() {
            options.shift = None;
        }
        let room = limits.n_ctx - prompt.len();
        let max_tokens = match options.shift {
            // As many as the context has where nobody says how many: a generation without an end ends there.
            Some(_) => options.max_tokens.unwrap_or(limits.n_ctx),
            None => options.max_tokens.unwrap_or(room).min(room),
        };
        let stops = StopMatcher::new(&options.stops)?;
        Ok(Self { prompt, options, limits, max_tokens, stops })
    }

    /// The prompt's tokens.
    pub fn prompt(&self) -> &[TokenId] {
        &self.prompt
    }

    /// The pictures in it.
    pub fn pictures(&self) -> &Pictures {
        &self.options.pictures
    }

    /// Everything else that was asked for.
    pub fn options(&self) -> &RequestOptions {
        &self.options
    }

    /// What it was checked against.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Most tokens this request can generate: what was asked for, cut to the room that the context leaves unless it shifts.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// How it goes on when the context is full.
    pub fn shift(&self) -> Option<ContextShift> {
        self.options.shift
    }

    /// True when the context, not the caller, sets [`GenerateRequest::max_tokens`].
    pub fn limited_by_context(&self) -> bool {
        self.options.shift.is_none() && self.options.max_tokens.is_none_or(|n| n > self.max_tokens)
    }

    pub(crate) fn stop_matcher(&self) -> StopMatcher {
        self.stops.clone()
    }
}

fn check_pictures(pictures: &Pictures, n_prompt: usize, limits: Limits) -> Result<(), RequestError> {
    if let Some(last) = pictures.spans().last().filter(|last| last.end > n_prompt) {
        return Err(RequestError::Picture { end: last.end, n_prompt });
    }
    let (n_tokens, n_batch) = (pictures.longest(), limits.n_batch);
    if pictures.are_seen_both_ways() && n_tokens > n_batch {
        return Err(RequestError::LongPicture { n_tokens, n_batch });
    }
    Ok(())
}

/// Why a request cannot be served as it stands.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// There is nothing to continue.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// A token id that the model does not have.
    #[error("token id {id} is outside the vocabulary of {n_vocab} tokens")]
    Token {
        /// The id found.
        id: u32,
        /// Tokens of the vocabulary.
        n_vocab: usize,
    },
    /// The prompt fills the context.
    #[error("the prompt has {n_prompt} tokens and the context {n_ctx}: shorten the prompt or raise the context size")]
    PromptTooLong {
        /// Tokens in the prompt.
        n_prompt: usize,
        /// Positions of one sequence.
        n_ctx: usize,
    },
    /// More alternatives than the engine reports.
    #[error("{n} log probabilities per token were asked for, at most {MAX_LOGPROBS} are given")]
    Logprobs {
        /// What was asked for.
        n: usize,
    },
    /// Boundaries that do not ascend or lie outside the prompt.
    #[error("checkpoint boundaries must ascend and lie within the prompt's {n_prompt} tokens")]
    Boundaries {
        /// Tokens in the prompt.
        n_prompt: usize,
    },
    /// A picture that is not in the prompt.
    #[error("a picture ends at token {end} of a prompt of {n_prompt} tokens")]
    Picture {
        /// Where it ends.
        end: usize,
        /// Tokens in the prompt.
        n_prompt: usize,
    },
    /// A picture whose tokens see one another is computed in one pass.
    #[error(
        "a picture of {n_tokens} tokens is computed in one pass, and passes have {n_batch} tokens at most: raise the batch size \
         (--batch-size) or send a smaller picture"
    )]
    LongPicture {
        /// Tokens of the picture.
        n_tokens: usize,
        /// Tokens of a pass.
        n_batch: usize,
    },
    /// A sampling parameter out of range.
    #[error(transparent)]
    Sampling(#[from] SampleError),
    /// Adapters that are not there.
    #[error(transparent)]
    Adapters(#[from] AdapterSetError),
    /// Stop strings out of range.
    #[error(transparent)]
    Stop(#[from] StopError),
}
