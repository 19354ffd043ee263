//! One request while it is served: where it stands, its sampler and stop matcher, and the events it owes its reader.

use std::collections::VecDeque;
use std::time::Instant;

use model::RunError;
use text::TokenId;
use tokio::sync::mpsc::error::TrySendError;

use crate::busy::Busy;
use crate::constraint::Constrained;
use crate::event::{Event, FinishReason, PromptProgress, Summary, Timings};
use crate::finished::{Recording, ReplySink};
use crate::lines::Lines;
use crate::pooling::{Pooled, Pooling};
use crate::request::GenerateRequest;
use crate::sample::{GumbelPlan, Sampler};
use crate::slot_info::SlotWork;
use crate::stop::StopMatcher;
use crate::submission::{GenerationId, Submission};
use crate::thinking::Budget;

mod scores;
mod verify;

pub(crate) use scores::Scores;

/// Checkpoints that one prompt asks for at most, beside the one at its first boundary: at its last ones.
const LAST_BOUNDARIES: usize = 3;

/// Why a sequence ends whose numbers cannot be gone on from.
pub(crate) const NOT_FINITE: &str = "the model computed numbers that are not finite (NaN or infinity) for this request: the model file may \
    be damaged (`extract-nextn verify` checks it), or a slot that was loaded, or the scale of a LoRA adapter is too large";

/// Tokens that are computed sooner than a prompt is cut once more for them.
const NEAR: usize = 16;
/// Tokens from the end of a prompt at which checkpoints are wanted: a prompt comes again as it was or with other last tokens,
/// or with another question at the end of the same text.
const BEFORE_END: [usize; 2] = [4 + 512, 4];
/// Tokens that such a checkpoint must save, since the prompt is cut once more for it.
const MIN_SAVED: usize = 64;

/// A request that has a slot.
pub(crate) struct Sequence {
    pub(crate) request: GenerateRequest,
    pub(crate) id: GenerationId,
    /// Its slot in the cache.
    pub(crate) slot: usize,
    /// Tokens of prompt and generation that the state does not hold yet: the rest of the prompt, then the last token.
    pub(crate) pending: VecDeque<TokenId>,
    /// Draft of the tokens after the pending ones, to be verified by the next step.
    pub(crate) draft: Vec<TokenId>,
    /// Positions of the prompt where a checkpoint is to be taken, ascending.
    pub(crate) checkpoints: VecDeque<usize>,
    /// Tokens of the prompt between further checkpoints, which are taken where a forward pass ends.
    pub(crate) checkpoint_every: Option<usize>,
    /// Where the last checkpoint was taken, or the state was taken up.
    last_checkpoint: usize,
    /// Its prompt begins as one that is being computed: it waits to take that state over.
    pub(crate) waits: bool,
    /// Tokens of the prompt that the state holds; after a context shift of what was left.
    pub(crate) n_prompt_done: usize,
    /// Tokens that are computed as a prompt is: those of the prompt, after a context shift those that were left.
    n_prefill: usize,
    /// Its state does not begin with its prompt any more.
    is_shifted: bool,
    /// Number of the last step that it took part in; before the first, of the last step before it came.
    pub(crate) last_step: u64,
    sampler: Sampler,
    constraint: Option<Constrained>,
    stops: StopMatcher,
    thinking: Budget,
    lines: Lines,
    /// Until the prompt is complete.
    pooled: Option<Pooled>,
    /// Once it is.
    embedding: Option<Vec<f32>>,
    events: tokio::sync::mpsc::Sender<Event>,
    outbox: VecDeque<Event>,
    /// Of the reply, where it is kept.
    recording: Option<Recording>,
    /// It counts as a request until it is gone.
    _busy: Busy,
    pub(crate) timings: Timings,
    started: Instant,
    first_token: Option<Instant>,
    pub(crate) finished: bool,
    /// It was ended from outside.
    is_cancelled: bool,
    /// It ended badly: nothing of its state may be used again.
    pub(crate) is_spoiled: bool,
}

impl Sequence {
    /// A sequence on `slot`, whose state already holds the first `n_cached` tokens of the prompt.
    pub(crate) fn new(submission: Submission, slot: usize, n_cached: usize, last_step: u64) -> Self {
        let Submission { request, id, sampler, constraint, events, submitted, _permit } = submission;
        tracing::debug!(slot, n_cached, n_prompt = request.prompt().len(), waited = ?submitted.elapsed(), "request starts");
        let may_think = constraint.as_ref().is_none_or(|constraint| constraint.may_think());
        let timings = Timings { prompt_tokens: request.prompt().len(), cached_tokens: n_cached, ..Timings::default() };
        Self {
            id,
            slot,
            pending: request.prompt()[n_cached..].iter().copied().collect(),
            draft: Vec::new(),
            checkpoints: due_checkpoints(&request, n_cached),
            checkpoint_every: None,
            last_checkpoint: n_cached,
            waits: false,
            n_prompt_done: n_cached,
            n_prefill: request.prompt().len(),
            is_shifted: false,
            last_step,
            sampler,
            constraint: constraint.map(Constrained::new),
            stops: request.stop_matcher(),
            thinking: Budget::new(request.options().thinking.clone(), may_think),
            lines: Lines::new(request.options().lines),
            pooled: request.options().embed.map(Pooled::new),
            embedding: None,
            events,
            outbox: VecDeque::new(),
            recording: None,
            _busy: _permit.busy.clone(),
            timings,
            started: Instant::now(),
            first_token: None,
            finished: false,
            is_cancelled: false,
            is_spoiled: false,
            request,
        }
    }

    /// Its reply goes to `sink` as well when it is complete, if the request lets it.
    pub(crate) fn record(&mut self, sink: Option<&ReplySink>) {
        self.recording = Recording::of(&self.request, sink);
    }

    /// What it does, for people.
    pub(crate) fn work(&self) -> SlotWork {
        SlotWork {
            id: self.id.number(),
            options: Box::new(self.request.options().clone()),
            has_new_line: self.lines.has_break,
            prompt_tokens: self.request.prompt().len(),
            prompt_done: if self.is_shifted { self.request.prompt().len() } else { self.n_prompt_done },
            cached_tokens: self.timings.cached_tokens,
            generated_tokens: self.timings.generated_tokens,
            max_tokens: self.request.max_tokens(),
        }
    }

    /// How many of the prompt's next `n` tokens, at least one, to compute in one pass: as many as end in no picture that must be
    /// computed whole, or all of that picture.
    pub(crate) fn with_whole_pictures(&self, n: usize) -> usize {
        let (done, pictures) = (self.n_prompt_done, self.request.pictures());
        match pictures.at(done + n).filter(|span| pictures.are_seen_both_ways() && span.start < done + n) {
            Some(span) if span.start > done => span.start - done,
            Some(span) => span.end - done,
            None => n,
        }
    }

    /// True while the prompt is not computed.
    pub(crate) fn is_prefill(&self) -> bool {
        self.n_prompt_done < self.n_prefill
    }

    /// True when nothing was computed for it yet.
    pub(crate) fn is_new(&self) -> bool {
        self.is_prefill() && self.n_prompt_done == self.timings.cached_tokens && self.first_token.is_none()
    }

    /// The state holds the first `n` tokens of the prompt, without having computed more of them.
    pub(crate) fn skip_to(&mut self, n: usize) {
        self.pending.drain(..n.saturating_sub(self.n_prompt_done));
        (self.n_prompt_done, self.last_checkpoint, self.timings.cached_tokens) = (n, n, n);
        self.checkpoints.retain(|&at| at > n);
    }

    /// It goes on in another slot, whose state holds the first `n` of its tokens.
    pub(crate) fn resume(&mut self, slot: usize, n: usize, tokens: &[TokenId]) {
        (self.slot, self.waits) = (slot, false);
        self.pending = tokens[n..].iter().copied().collect();
        self.n_prompt_done = n.min(self.n_prefill);
        self.last_checkpoint = self.n_prompt_done;
        self.checkpoints.retain(|&at| at > n);
    }

    /// What is left of its tokens are `tokens`, the last one that was sampled included, and the state holds the first `n`.
    pub(crate) fn shift(&mut self, n: usize, tokens: &[TokenId]) {
        self.pending = tokens[n..].iter().copied().collect();
        self.draft.clear();
        (self.n_prompt_done, self.n_prefill, self.is_shifted) = (n, tokens.len(), true);
        self.checkpoints.clear();
        (self.checkpoint_every, self.last_checkpoint) = (None, n);
    }

    /// True after a context shift.
    pub(crate) fn is_shifted(&self) -> bool {
        self.is_shifted
    }

    /// A checkpoint is wanted at this position of the prompt, or shortly before it, if it is still to come.
    pub(crate) fn want_checkpoint(&mut self, at: usize) {
        let at = self.request.pictures().whole(at);
        let at_index = self.checkpoints.partition_point(|&other| other <= at);
        let before = at_index.checked_sub(1).map(|i| self.checkpoints[i]);
        if at > self.n_prompt_done && before.is_none_or(|before| before + NEAR < at) {
            self.checkpoints.insert(at_index, at);
        }
    }

    /// Checkpoints are wanted every so many tokens of the prompt, and shortly before its end.
    pub(crate) fn want_checkpoints(&mut self, every: usize) {
        self.checkpoint_every = Some(every);
        let n_prompt = self.request.prompt().len();
        let embeds = self.embeds();
        for back in BEFORE_END {
            if !embeds && back <= every && n_prompt.saturating_sub(back) >= self.n_prompt_done + MIN_SAVED {
                self.want_checkpoint(n_prompt - back);
            }
        }
    }

    /// True when a checkpoint is due where the prompt stands now; it is only said once.
    pub(crate) fn takes_checkpoint(&mut self) -> bool {
        let at = self.n_prompt_done;
        let at_boundary = self.checkpoints.pop_front_if(|due| *due == at).is_some();
        let due = at_boundary || self.checkpoint_every.is_some_and(|every| at >= self.last_checkpoint + every);
        if due {
            self.last_checkpoint = at;
        }
        due
    }

    /// True when nobody reads the generation any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// True when it was cancelled before anything was sampled: nobody has looked at what its tokens gave.
    pub(crate) fn is_unseen(&self) -> bool {
        (!self.finished || self.is_cancelled) && self.timings.generated_tokens == 0
    }

    /// Ends it where it stands.
    pub(crate) fn cancel(&mut self) {
        if !self.finished {
            self.is_cancelled = true;
            self.finish(FinishReason::Cancelled);
        }
    }

    /// Ends its thinking, if it is thinking.
    pub(crate) fn end_thinking(&mut self) -> bool {
        !self.finished && self.thinking.end()
    }

    /// True when the reader lags behind: nothing is computed for it until it has caught up.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// So many tokens of the prompt were computed.
    pub(crate) fn prompt_advanced(&mut self, n_tokens: usize) {
        // A sequence that was paused may compute tokens after its prompt with it.
        self.n_prompt_done = (self.n_prompt_done + n_tokens).min(self.n_prefill);
        if self.first_token.is_some() {
            return;
        }
        let (done, cached, total) = (self.n_prompt_done, self.timings.cached_tokens, self.request.prompt().len());
        self.outbox.push_back(Event::Prompt(PromptProgress { done, cached, total }));
    }

    /// True when hidden states are wanted, and no tokens.
    pub(crate) fn embeds(&self) -> bool {
        self.request.options().embed.is_some()
    }

    /// Whether the hidden states of the prompt's next `n_tokens` are wanted.
    pub(crate) fn wants_hidden(&self, n_tokens: usize) -> bool {
        let (done, all) = (self.n_prompt_done, self.request.prompt().len());
        self.pooled.as_ref().is_some_and(|pooled| pooled.wants(done..done + n_tokens, all))
    }

    /// Takes the hidden states that a step computed, `[n_embd]` each. After the last ones `rank` may turn the vector into the
    /// numbers of classes, and the request ends.
    pub(crate) fn pool(
        &mut self,
        hidden: &[f32],
        n_embd: usize,
        rank: impl FnOnce(&[f32]) -> Result<Vec<f32>, RunError>,
    ) {
        let Some(pooled) = &mut self.pooled else { return };
        let finite = pooled.take(hidden, n_embd);
        if !finite {
            return self.spoil(NOT_FINITE.into());
        }
        if self.is_prefill() {
            return;
        }
        let Some(pooled) = self.pooled.take() else { return };
        let ranks = pooled.pooling == Pooling::Rank;
        let vector = pooled.into_vector();
        match if ranks { rank(&vector) } else { Ok(vector) } {
            Ok(numbers) if numbers.iter().all(|x| x.is_finite()) => {
                self.timings.prompt_ms = millis(self.started.elapsed());
                self.embedding = Some(numbers);
                self.finish(FinishReason::Complete);
            }
            Ok(_) => self.spoil(NOT_FINITE.into()),
            Err(error) => self.fail(error.to_string()),
        }
    }

    /// Tokens that a draft may hold: as the request says, and the last token of a generation is never drafted, since
    /// nothing would be left to sample.
    pub(crate) fn max_draft(&self) -> usize {
        let room = self.request.max_tokens().saturating_sub(self.timings.generated_tokens + 1);
        let options = self.request.options();
        let max = room.min(options.max_draft.unwrap_or(usize::MAX));
        if max < options.min_draft { 0 } else { max }
    }

    /// The least probability of a drafted token, as the request says.
    pub(crate) fn draft_p_min(&self) -> f32 {
        self.request.options().draft_p_min
    }

    /// How its next tokens will be sampled, as far as a draft can make use of it.
    pub(crate) fn gumbel_plan(&self) -> Option<GumbelPlan> {
        self.sampler.gumbel_plan()
    }

    /// True when every sampled token is the likeliest one and nothing else of the logits is wanted.
    pub(crate) fn takes_the_best(&self) -> bool {
        self.constraint.is_none() && self.sampler.is_greedy() && self.request.options().logprobs.is_none()
    }

    /// How many of the likeliest tokens its next pick depends on at most; `None` when more of the logits is wanted.
    pub(crate) fn n_needed(&self) -> Option<usize> {
        let wants_more = self.constraint.is_some() || self.request.options().logprobs.is_some();
        if wants_more { None } else { self.sampler.n_needed() }
    }

    /// Whether these largest logits after its `i`-th draft token will do.
    pub(crate) fn is_enough(&self, few: &[(TokenId, f32)], i: usize) -> bool {
        self.request.max_tokens() == 0 || self.sampler.is_enough(few, i)
    }

    /// Takes a draft up to the first token that the constraint does not allow, or none where too little of it is left.
    pub(crate) fn take_draft(&mut self, mut draft: Vec<TokenId>) {
        // What repeats the prompt may go on into a picture.
        draft.truncate(draft.iter().position(|id| id.is_of_picture()).unwrap_or(draft.len()));
        if let Some(c) = &mut self.constraint {
            draft.truncate(c.constraint.n_fitting(&draft));
        }
        if draft.len() < self.request.options().min_draft {
            draft.clear();
        }
        self.draft = draft;
    }

    fn finish(&mut self, reason: FinishReason) {
        let rest = self.stops.finish();
        if let Some(recording) = self.recording.take().filter(|_| reason != FinishReason::Cancelled) {
            recording.finish(&self.request);
        }
        let embedding = self.embedding.take();
        tracing::debug!(
            n_prompt = self.timings.prompt_tokens,
            n_cached = self.timings.cached_tokens,
            n_generated = self.timings.generated_tokens,
            prompt_ms = self.timings.prompt_ms,
            generated_ms = self.timings.generated_ms,
            ?reason,
            "request done"
        );
        let summary = Summary { reason, rest, timings: self.timings.clone(), slot: self.slot, embedding };
        self.outbox.push_back(Event::Finished(Box::new(summary)));
        self.finished = true;
    }

    /// The engine could not go on. A generation that is complete stays so: it has its last event.
    pub(crate) fn fail(&mut self, why: String) {
        if !self.finished {
            self.outbox.push_back(Event::Failed(why));
            self.finished = true;
        }
    }

    /// As [`Sequence::fail`], and its state is not to be used again.
    pub(crate) fn spoil(&mut self, why: String) {
        self.is_spoiled = true;
        self.fail(why);
    }

    /// Hands over as many events as the reader has room for.
    pub(crate) fn deliver(&mut self) {
        while let Some(event) = self.outbox.pop_front() {
            match self.events.try_send(event) {
                Ok(()) => {}
                Err(TrySendError::Full(event)) => {
                    self.outbox.push_front(event);
                    return;
                }
                Err(TrySendError::Closed(_)) => self.outbox.clear(),
            }
        }
    }
}

/// Where to take checkpoints in a prompt: at its first boundary and at its last ones, as far as they are still to come.
fn due_checkpoints(request: &GenerateRequest, n_cached: usize) -> VecDeque<usize> {
    let boundaries = &request.options().checkpoint_boundaries;
    let n_last = boundaries.len().saturating_sub(LAST_BOUNDARIES);
    let kept = boundaries.iter().enumerate().filter(|&(i, _)| i == 0 || i >= n_last).map(|(_, &b)| b);
    // State that ends inside of a picture is not taken up.
    let mut to_come: Vec<usize> = kept.map(|b| request.pictures().whole(b)).filter(|&b| b > n_cached).collect();
    to_come.dedup();
    if request.options().cache { to_come.into() } else { VecDeque::new() }
}

pub(crate) fn millis(d: std::time::Duration) -> f64 {
    d.as_secs_f64() * 1e3
}
