//! One request while it is served: where it stands, its sampler and stop matcher, and the events it owes its reader.

use std::collections::VecDeque;
use std::time::Instant;

use text::{TokenId, Vocab};
use tokio::sync::mpsc::error::TrySendError;

use crate::constraint::Constrained;
use crate::embed::Pooled;
use crate::event::{Event, FinishReason, Guess, Piece, PromptProgress, Summary, Timings};
use crate::handle::Submission;
use crate::request::GenerateRequest;
use crate::sample::{Ahead, Sampler, TokenLogprob, logprobs};
use crate::slots::SlotWork;
use crate::stop::{StopMatcher, StopOutcome};
use crate::thinking::Budget;

/// Checkpoints that one prompt asks for at most, beside the one at its first border: at its last ones.
const LAST_BORDERS: usize = 3;

/// Why a sequence ends whose numbers cannot be gone on from.
pub(crate) const NOT_FINITE: &str = "the model computed numbers that are not finite (NaN or infinity) for this request: the model file may \
    be damaged (`extract-nextn verify` checks it), or a slot that was loaded";

/// Tokens that are computed sooner than a prompt is cut once more for them.
const NEAR: usize = 16;

/// A request that has a slot.
pub(crate) struct Sequence {
    pub(crate) request: GenerateRequest,
    /// Its slot in the cache.
    pub(crate) slot: usize,
    /// Tokens of prompt and answer that the state does not hold yet: the rest of the prompt, then the last token.
    pub(crate) pending: VecDeque<TokenId>,
    /// Guesses of the tokens after the pending ones, to be judged by the next step.
    pub(crate) draft: Vec<TokenId>,
    /// Positions of the prompt where a checkpoint is to be taken, ascending.
    pub(crate) checkpoints: VecDeque<usize>,
    /// Tokens of the prompt between further checkpoints, which are taken where a pass ends.
    pub(crate) checkpoint_every: Option<usize>,
    /// Where the last checkpoint was taken, or the state was taken up.
    last_checkpoint: usize,
    /// Its prompt begins as one that is being computed: it waits to take that state over.
    pub(crate) waits: bool,
    pub(crate) n_prompt_done: usize,
    /// Number of the last step that it took part in; before the first, of the last step before it came.
    pub(crate) last_step: u64,
    sampler: Sampler,
    constraint: Option<Constrained>,
    stops: StopMatcher,
    thinking: Budget,
    pooled: Option<Pooled>,
    events: tokio::sync::mpsc::Sender<Event>,
    outbox: VecDeque<Event>,
    pub(crate) timings: Timings,
    started: Instant,
    first_token: Option<Instant>,
    pub(crate) finished: bool,
    /// It ended badly: nothing of its state may be used again.
    pub(crate) is_spoiled: bool,
}

impl Sequence {
    /// A sequence on `slot`, whose state already holds the first `n_cached` tokens of the prompt.
    pub(crate) fn new(submission: Submission, slot: usize, n_cached: usize, last_step: u64) -> Self {
        let Submission { request, sampler, constraint, events, submitted, _place } = submission;
        tracing::debug!(slot, n_cached, n_prompt = request.prompt().len(), waited = ?submitted.elapsed(), "request starts");
        let may_think = constraint.as_ref().is_none_or(|constraint| constraint.may_think());
        let timings = Timings { prompt_tokens: request.prompt().len(), cached_tokens: n_cached, ..Timings::default() };
        Self {
            slot,
            pending: request.prompt()[n_cached..].iter().copied().collect(),
            draft: Vec::new(),
            checkpoints: due_checkpoints(&request, n_cached),
            checkpoint_every: None,
            last_checkpoint: n_cached,
            waits: false,
            n_prompt_done: n_cached,
            last_step,
            sampler,
            constraint: constraint.map(Constrained::new),
            stops: request.stop_matcher(),
            thinking: Budget::new(request.options().thinking.clone(), may_think),
            pooled: request.options().embed.map(Pooled::new),
            events,
            outbox: VecDeque::new(),
            timings,
            started: Instant::now(),
            first_token: None,
            finished: false,
            is_spoiled: false,
            request,
        }
    }

    /// What it does, for people.
    pub(crate) fn work(&self) -> SlotWork {
        SlotWork {
            prompt_tokens: self.request.prompt().len(),
            prompt_done: self.n_prompt_done,
            cached_tokens: self.timings.cached_tokens,
            generated_tokens: self.timings.generated_tokens,
            max_tokens: self.request.max_tokens(),
        }
    }

    /// True while the prompt is not computed.
    pub(crate) fn is_prefill(&self) -> bool {
        self.n_prompt_done < self.request.prompt().len()
    }

    /// True when nothing was computed for it yet.
    pub(crate) fn is_new(&self) -> bool {
        self.is_prefill() && self.n_prompt_done == self.timings.cached_tokens
    }

    /// The state holds the first `n` tokens of the prompt, without having computed more of them.
    pub(crate) fn skip_to(&mut self, n: usize) {
        self.pending.drain(..n.saturating_sub(self.n_prompt_done));
        (self.n_prompt_done, self.last_checkpoint, self.timings.cached_tokens) = (n, n, n);
        self.checkpoints.retain(|&at| at > n);
    }

    /// A checkpoint is wanted at this position of the prompt, or shortly before it, if it is still to come.
    pub(crate) fn want_checkpoint(&mut self, at: usize) {
        let place = self.checkpoints.partition_point(|&other| other <= at);
        let before = place.checked_sub(1).map(|i| self.checkpoints[i]);
        if at > self.n_prompt_done && before.is_none_or(|before| before + NEAR < at) {
            self.checkpoints.insert(place, at);
        }
    }

    /// True when a checkpoint is due where the prompt stands now; it is only said once.
    pub(crate) fn takes_checkpoint(&mut self) -> bool {
        let at = self.n_prompt_done;
        let border = self.checkpoints.pop_front_if(|due| *due == at).is_some();
        let due = border || self.checkpoint_every.is_some_and(|every| at >= self.last_checkpoint + every);
        if due {
            self.last_checkpoint = at;
        }
        due
    }

    /// True when nobody reads the answer any more.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// True when it was cancelled before anything was picked: nobody has looked at what its rows gave.
    pub(crate) fn is_unseen(&self) -> bool {
        !self.finished && self.timings.generated_tokens == 0
    }

    /// True when the reader lags behind: nothing is computed for it until it has caught up.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// So many rows of the prompt were computed.
    pub(crate) fn prompt_advanced(&mut self, n_rows: usize) {
        self.n_prompt_done += n_rows;
        let (done, cached, total) = (self.n_prompt_done, self.timings.cached_tokens, self.request.prompt().len());
        self.outbox.push_back(Event::Prompt(PromptProgress { done, cached, total }));
    }

    /// True when hidden rows are wanted, and no tokens.
    pub(crate) fn embeds(&self) -> bool {
        self.pooled.is_some()
    }

    /// Takes the hidden rows that a step computed, `[n_embd]` each; the last ones end the request.
    pub(crate) fn pool(&mut self, rows: &[f32], n_embd: usize) {
        let Some(pooled) = &mut self.pooled else { return };
        pooled.take(rows, n_embd);
        let finite = pooled.row().iter().all(|x| x.is_finite());
        if !self.is_prefill() {
            self.timings.prompt_ms = millis(self.started.elapsed());
            if finite { self.finish(FinishReason::Complete) } else { self.spoil(NOT_FINITE.into()) }
        }
    }

    /// Tokens that a draft may hold: as the request says, and the answer's last token is never drafted, since nothing would be
    /// left to pick.
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

    /// How its next tokens will be picked, as far as a draft can make use of it.
    pub(crate) fn ahead(&self) -> Option<Ahead> {
        self.sampler.ahead()
    }

    /// True when every pick is the likeliest token and nothing else of the logits is wanted.
    pub(crate) fn takes_the_best(&self) -> bool {
        self.constraint.is_none() && self.sampler.is_greedy() && self.request.options().logprobs.is_none()
    }

    /// Takes a draft up to the first token that the constraint does not allow, or none where too little of it is left.
    pub(crate) fn take_draft(&mut self, mut draft: Vec<TokenId>) {
        if let Some(c) = &mut self.constraint {
            draft.truncate(c.constraint.n_fitting(&draft));
        }
        if draft.len() < self.request.options().min_draft {
            draft.clear();
        }
        self.draft = draft;
    }

    /// Picks tokens from the logits after the last pending token and after each token of the draft, for as long as the
    /// picks agree with the draft. Gives the number of drafted tokens kept.
    pub(crate) fn judge<'l>(&mut self, scores: impl Fn(usize) -> Scores<'l>, vocab: &Vocab) -> usize {
        let draft = std::mem::take(&mut self.draft);
        self.timings.cycles += usize::from(self.timings.generated_tokens > 0);
        let mut pieces = Vec::with_capacity(draft.len() + 1);
        let mut n_kept = 0;
        loop {
            let (piece, end) = match self.pick(&scores(n_kept), vocab) {
                Ok(picked) => picked,
                Err(why) => {
                    self.timings.count_draft(draft.len(), n_kept);
                    self.give(pieces, draft.len());
                    self.fail(why);
                    return n_kept;
                }
            };
            let (mut token, mut end) = (piece.token, end);
            pieces.push(piece);
            let mut forced = if end.is_none() { self.forced() } else { Vec::new() }.into_iter();
            loop {
                let right = draft.get(n_kept) == Some(&token);
                if let (true, Some(piece)) = (right, pieces.last_mut()) {
                    piece.guess.depth = n_kept + 1;
                }
                if !right || end.is_some() {
                    // A guess is right although the answer ends with it.
                    self.timings.count_draft(draft.len(), n_kept + usize::from(right));
                    let failed = self.close(&mut end, token, forced, &mut pieces, vocab).err();
                    self.give(pieces, draft.len());
                    match (failed, end) {
                        (Some(why), _) => self.fail(why),
                        (None, Some(reason)) => self.finish(reason),
                        (None, None) => {}
                    }
                    return n_kept;
                }
                n_kept += 1;
                // What the grammar forces is taken as it is, drafted or not: its way to cut a text into tokens holds.
                let Some(next) = forced.next() else { break };
                match self.take_forced(next, vocab) {
                    Ok((piece, ending)) => {
                        pieces.push(piece);
                        (token, end) = (next, ending);
                    }
                    Err(why) => {
                        self.timings.count_draft(draft.len(), n_kept);
                        self.give(pieces, draft.len());
                        self.fail(why);
                        return n_kept;
                    }
                }
            }
        }
    }

    /// Ends a step's picks where there is no end yet: `token` and what is forced after it are to be computed next.
    ///
    /// # Errors
    /// Those of the constraint.
    fn close(
        &mut self,
        end: &mut Option<FinishReason>,
        token: TokenId,
        forced: impl Iterator<Item = TokenId>,
        pieces: &mut Vec<Piece>,
        vocab: &Vocab,
    ) -> Result<(), String> {
        if end.is_some() {
            return Ok(());
        }
        self.pending.push_back(token);
        for token in forced {
            let (piece, ending) = self.take_forced(token, vocab)?;
            pieces.push(piece);
            *end = ending;
            if end.is_some() {
                break;
            }
            self.pending.push_back(token);
        }
        Ok(())
    }

    /// Owes the reader the tokens of a cycle whose draft had `n_drafted`.
    fn give(&mut self, mut pieces: Vec<Piece>, n_drafted: usize) {
        pieces.iter_mut().for_each(|piece| piece.guess.n_drafted = n_drafted);
        if !pieces.is_empty() {
            self.outbox.push_back(Event::Tokens(pieces));
        }
    }

    /// The tokens that the constraint forces next, which need no logits.
    fn forced(&mut self) -> Vec<TokenId> {
        // Log probabilities are those of the model, which has not been asked.
        if self.request.options().logprobs.is_some() || self.thinking.is_forcing() {
            return Vec::new();
        }
        self.constraint.as_mut().map(|c| c.constraint.forced()).unwrap_or_default()
    }

    /// Takes a token that the constraint forces; says whether the answer ends with it.
    ///
    /// # Errors
    /// Those of the constraint.
    fn take_forced(&mut self, token: TokenId, vocab: &Vocab) -> Result<(Piece, Option<FinishReason>), String> {
        let mut complete = false;
        if let Some(c) = &mut self.constraint {
            c.constraint.accept(token)?;
            complete = c.constraint.is_complete();
        }
        Ok(self.took(token, None, false, complete, vocab))
    }

    /// Picks the next token and says whether the answer ends with it.
    ///
    /// # Errors
    /// Those of the constraint, and [`NOT_FINITE`].
    fn pick(&mut self, scores: &Scores<'_>, vocab: &Vocab) -> Result<(Piece, Option<FinishReason>), String> {
        if let Scores::NotFinite = scores {
            self.is_spoiled = true;
            return Err(NOT_FINITE.into());
        }
        let (mut ends, mut complete) = (false, false);
        let forced = self.thinking.next();
        let token = match &mut self.constraint {
            None => forced.unwrap_or_else(|| match scores {
                Scores::Best(token) => *token,
                scores => self.sampler.sample(scores.logits()),
            }),
            Some(c) => {
                let token = match forced {
                    Some(token) => token,
                    None => c.sample(&mut self.sampler, scores.logits())?,
                };
                ends = vocab.is_eog(token);
                if !ends {
                    c.constraint.accept(token)?;
                    complete = c.constraint.is_complete();
                }
                token
            }
        };
        let logprob = self.request.options().logprobs.map(|n| logprobs(scores.logits(), token, n));
        Ok(self.took(token, logprob, ends, complete, vocab))
    }

    /// Books a token; `ends` the answer, or makes it `complete`.
    fn took(
        &mut self,
        token: TokenId,
        logprob: Option<TokenLogprob>,
        mut ends: bool,
        complete: bool,
        vocab: &Vocab,
    ) -> (Piece, Option<FinishReason>) {
        let may_think = self.constraint.as_ref().is_none_or(|c| c.constraint.may_think());
        self.thinking.picked(token, may_think);
        self.sampler.accept(token);
        let now = Instant::now();
        let first = *self.first_token.get_or_insert_with(|| {
            self.timings.prompt_ms = millis(now - self.started);
            now
        });
        self.timings.generated_tokens += 1;
        self.timings.generated_ms = millis(now - first);
        let options = self.request.options();
        ends |= vocab.is_eog(token) && !options.ignore_eos;
        let text: &[u8] = if ends { &[] } else { vocab.bytes(token).unwrap_or_default() };
        let (bytes, stop) = match self.stops.push(text) {
            StopOutcome::Text(bytes) => (bytes.to_vec(), None),
            StopOutcome::Stopped { text, which } => (text.to_vec(), Some(which)),
        };
        let end = if ends {
            Some(FinishReason::EndOfGeneration(token))
        } else if let Some(which) = stop {
            Some(FinishReason::Stop(self.request.options().stops[which].clone()))
        } else if complete {
            Some(FinishReason::Complete)
        } else if self.timings.generated_tokens >= self.request.max_tokens() {
            let by_context = self.request.limited_by_context();
            Some(if by_context { FinishReason::Context } else { FinishReason::Length })
        } else {
            None
        };
        (Piece { token, bytes, logprob, guess: Guess::default(), at: now }, end)
    }

    fn finish(&mut self, reason: FinishReason) {
        let rest = self.stops.finish();
        let embedding = self.pooled.as_ref().map(Pooled::row);
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

    /// The engine could not go on. An answer that is complete stays so: it has its last event.
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

/// Where to take checkpoints in a prompt: at its first border and at its last ones, as far as they are still to come.
fn due_checkpoints(request: &GenerateRequest, n_cached: usize) -> VecDeque<usize> {
    let borders = &request.options().borders;
    let n_last = borders.len().saturating_sub(LAST_BORDERS);
    let kept = borders.iter().enumerate().filter(|&(i, _)| i == 0 || i >= n_last).map(|(_, &b)| b);
    let to_come = kept.filter(|&b| b > n_cached);
    if request.options().cache { to_come.collect() } else { VecDeque::new() }
}

pub(crate) fn millis(d: std::time::Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

/// What a pick is made from.
pub(crate) enum Scores<'l> {
    /// Those of all tokens.
    Logits(&'l [f32]),
    /// The token with the highest; only for sequences that take the best.
    Best(TokenId),
    /// The model gave no numbers to pick by.
    NotFinite,
}

impl<'l> Scores<'l> {
    fn logits(&self) -> &'l [f32] {
        match self {
            Scores::Logits(logits) => logits,
            Scores::Best(_) | Scores::NotFinite => &[],
        }
    }
}
