//! What a request gives back: progress, tokens, and how it ended with its timings.
//! Plain data. Knows nothing of channels or sequences.

use std::time::Instant;

use text::TokenId;

use crate::sample::TokenLogprob;

/// One message of a running generation, in order: any number of `Prompt`, then any number of `Tokens`, then one of
/// `Finished` or `Failed`.
#[derive(Clone, Debug)]
pub enum Event {
    /// So many of the prompt's tokens are in the state now.
    Prompt(PromptProgress),
    /// The tokens of one engine step, with the text that they release.
    Tokens(Vec<Piece>),
    /// The generation is complete.
    Finished(Box<Summary>),
    /// The engine could not go on with this request; others are not touched.
    Failed(String),
}

/// How far the prompt is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PromptProgress {
    /// Tokens processed or taken from the cache.
    pub done: usize,
    /// Of those, taken from the cache.
    pub cached: usize,
    /// Tokens of the prompt.
    pub total: usize,
}

/// One generated token.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The token as sampled, end of generation included.
    pub token: TokenId,
    /// Bytes of text that are certain now. Bytes that may still become a stop string come with a later piece; a piece
    /// may hold part of a character.
    pub bytes: Vec<u8>,
    /// Present when the request asked for log probabilities.
    pub logprob: Option<TokenLogprob>,
    /// What its step's draft said of it.
    pub draft: DraftPosition,
    /// When it was sampled.
    pub at: Instant,
}

/// A token's position in the draft that its engine step verified.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DraftPosition {
    /// The token was drafted, at this depth, the first being 1; 0: the model alone knew it.
    pub depth: usize,
    /// Tokens of the draft, those after the first rejected one included.
    pub n_drafted: usize,
}

/// How a generation ended.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Why it ended.
    pub reason: FinishReason,
    /// Bytes held back for a stop string that did not come; the end of the text.
    pub rest: Vec<u8>,
    /// Where the time went.
    pub timings: Timings,
    /// The slot whose state holds it; 0 where it was cancelled before it had one.
    pub slot: usize,
    /// Of a request that asked for it: `[n_embd]`, of one that is not pooled for each token, and of one that is ranked a number
    /// for each class.
    pub embedding: Option<Vec<f32>>,
}

/// Why a generation ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum FinishReason {
    /// The model ended its turn with this token.
    EndOfGeneration(TokenId),
    /// A stop string appeared; it is not part of the text.
    Stop(String),
    /// Nothing more may follow in the request's grammar.
    Complete,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    Context,
    /// [`crate::EngineHandle::cancel`] ended it.
    Cancelled,
}

/// Metrics of one request. Milliseconds are wall time.
#[derive(Clone, Debug, Default)]
pub struct Timings {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of those, taken from cached state.
    pub cached_tokens: usize,
    /// From getting a sequence (the prompt's first forward pass follows at once, or in its turn) to the first sampled token.
    pub prompt_ms: f64,
    /// Tokens sampled, end of generation included.
    pub generated_tokens: usize,
    /// From the first sampled token to the last.
    pub generated_ms: f64,
    /// Engine steps after the prompt.
    pub steps: usize,
    /// Tokens drafted.
    pub drafted: usize,
    /// Draft tokens that were accepted.
    pub accepted: usize,
    /// Drafts verified.
    pub drafts: usize,
    /// Drafts that reached each depth, first depth first; empty without speculation.
    pub drafted_by_depth: Vec<usize>,
    /// Draft tokens that were accepted, by depth, as many as in `drafted_by_depth`.
    pub accepted_by_depth: Vec<usize>,
    /// Draft tokens that were verified, by depth likewise: all before them in their draft were accepted.
    pub verified_by_depth: Vec<usize>,
    /// Of `generated_ms`, forward passes of the main model that verified its tokens; a pass that several sequences share
    /// counts for each.
    pub verify_ms: f64,
    /// Of `generated_ms`, drafting: the MTP prefill and the chain of draft tokens.
    pub draft_ms: f64,
    /// Graphs launched for its steps, drafts included; what several sequences share counts for each.
    pub launches: u64,
    /// Bytes that went to the device and back for them.
    pub bytes_copied: u64,
}

impl Timings {
    /// Counts the draft of a step that gave these tokens.
    pub fn count_draft_of(&mut self, pieces: &[Piece]) {
        let n_drafted = pieces.first().map_or(0, |piece| piece.draft.n_drafted);
        self.count_draft(n_drafted, pieces.iter().filter(|piece| piece.draft.depth > 0).count());
    }

    /// Counts a draft of which the first `n_accepted` tokens were accepted; one of no tokens is none.
    pub(crate) fn count_draft(&mut self, n_drafted: usize, n_accepted: usize) {
        self.drafts += usize::from(n_drafted > 0);
        self.drafted += n_drafted;
        self.accepted += n_accepted;
        if self.drafted_by_depth.len() < n_drafted {
            self.drafted_by_depth.resize(n_drafted, 0);
            self.accepted_by_depth.resize(n_drafted, 0);
            self.verified_by_depth.resize(n_drafted, 0);
        }
        self.drafted_by_depth[..n_drafted].iter_mut().for_each(|n| *n += 1);
        self.accepted_by_depth[..n_accepted].iter_mut().for_each(|n| *n += 1);
        self.verified_by_depth[..n_drafted.min(n_accepted + 1)].iter_mut().for_each(|n| *n += 1);
    }

    /// Share of the drafts that reached a depth which were accepted there, first depth first; empty without speculation.
    pub fn acceptance_by_depth(&self) -> Vec<f64> {
        let depths = self.drafted_by_depth.iter().zip(&self.accepted_by_depth);
        depths.map(|(&drafted, &right)| right as f64 / drafted.max(1) as f64).collect()
    }

    /// Generated tokens a second, `(generated_tokens - 1) / generated_ms`; 0 while fewer than two tokens are out, and where no
    /// step made them: a grammar that allows one text alone needs none.
    pub fn tokens_per_second(&self) -> f64 {
        if self.generated_tokens < 2 || self.steps == 0 || self.generated_ms <= 0.0 {
            return 0.0;
        }
        (self.generated_tokens - 1) as f64 * 1e3 / self.generated_ms
    }

    /// Engine steps a second; 0 while there was none.
    pub fn steps_per_second(&self) -> f64 {
        if self.generated_ms <= 0.0 { 0.0 } else { self.steps as f64 * 1e3 / self.generated_ms }
    }

    /// Of `generated_ms`, everything but forward passes and drafting: sampling, stop strings, handing over.
    pub fn host_ms(&self) -> f64 {
        (self.generated_ms - self.verify_ms - self.draft_ms).max(0.0)
    }

    /// Prompt tokens computed (not taken from the cache) a second.
    pub fn prompt_tokens_per_second(&self) -> f64 {
        if self.prompt_ms <= 0.0 {
            return 0.0;
        }
        (self.prompt_tokens - self.cached_tokens) as f64 * 1e3 / self.prompt_ms
    }
}
