//! Sampling the tokens of one engine step, and with them verifying its draft.

use std::time::Instant;

use text::{TokenId, Vocab};

use super::{NOT_FINITE, Scores, Sequence, millis};
use crate::event::{DraftPosition, Event, FinishReason, Piece};
use crate::sample::{Candidate, TokenLogprob, logprobs};
use crate::stop::StopOutcome;

/// What came of a draft.
#[derive(Default)]
struct Verified {
    /// The tokens of the step.
    pieces: Vec<Piece>,
    /// Draft tokens whose state is kept.
    n_accepted: usize,
    /// Draft tokens that are what was sampled: one more where the generation ends with it.
    n_agreed: usize,
}

impl Sequence {
    /// Samples tokens from the logits after the last pending token and after each token of the draft, for as long as they
    /// agree with the draft. Gives the number of accepted draft tokens.
    pub(crate) fn verify<'l>(&mut self, scores: impl Fn(usize) -> Scores<'l>, vocab: &Vocab) -> usize {
        let draft = std::mem::take(&mut self.draft);
        if self.request.max_tokens() == 0 {
            self.end_of_prompt(&scores(0));
            return 0;
        }
        self.timings.steps += usize::from(self.timings.generated_tokens > 0);
        let mut verified = Verified { pieces: Vec::with_capacity(draft.len() + 1), ..Verified::default() };
        let end = self.sample_along(&draft, scores, vocab, &mut verified);
        self.timings.count_draft(draft.len(), verified.n_agreed);
        self.give(verified.pieces, draft.len());
        match end {
            Ok(Some(reason)) => self.finish(reason),
            Ok(None) => {}
            Err(why) => self.fail(why),
        }
        verified.n_accepted
    }

    /// The prompt is computed, and no tokens were asked for.
    fn end_of_prompt(&mut self, scores: &Scores<'_>) {
        if let Scores::NotFinite = scores {
            self.is_spoiled = true;
            return self.fail(NOT_FINITE.into());
        }
        self.timings.prompt_ms = millis(self.started.elapsed());
        self.finish(FinishReason::Length);
    }

    /// Samples for as long as the draft agrees; gives the end of the generation if it comes.
    ///
    /// # Errors
    /// Those of the constraint, and [`NOT_FINITE`].
    fn sample_along<'l>(
        &mut self,
        draft: &[TokenId],
        scores: impl Fn(usize) -> Scores<'l>,
        vocab: &Vocab,
        verified: &mut Verified,
    ) -> Result<Option<FinishReason>, String> {
        loop {
            let (mut piece, mut end) = self.sample(&scores(verified.n_accepted), vocab)?;
            let mut forced = if end.is_none() { self.forced() } else { Vec::new() }.into_iter();
            loop {
                let token = piece.token;
                let agrees = draft.get(verified.n_accepted) == Some(&token);
                if agrees {
                    verified.n_agreed = verified.n_accepted + 1;
                    piece.draft.depth = verified.n_agreed;
                }
                verified.pieces.push(piece);
                match end {
                    Some(_) => return Ok(end),
                    None if !agrees => return self.take_all_forced(token, forced, &mut verified.pieces, vocab),
                    None => verified.n_accepted += 1,
                }
                // What the grammar forces is taken as it is, drafted or not: its way to cut a text into tokens holds.
                let Some(next) = forced.next() else { break };
                (piece, end) = self.take_forced(next, vocab)?;
            }
        }
    }

    /// After the last token that was sampled: that one and those forced after it are to be computed next.
    ///
    /// # Errors
    /// Those of the constraint.
    fn take_all_forced(
        &mut self,
        token: TokenId,
        forced: impl Iterator<Item = TokenId>,
        pieces: &mut Vec<Piece>,
        vocab: &Vocab,
    ) -> Result<Option<FinishReason>, String> {
        self.pending.push_back(token);
        for token in forced {
            let (piece, end) = self.take_forced(token, vocab)?;
            pieces.push(piece);
            if end.is_some() {
                return Ok(end);
            }
            self.pending.push_back(token);
        }
        Ok(None)
    }

    /// Owes the reader the tokens of a step whose draft had `n_drafted`.
    fn give(&mut self, mut pieces: Vec<Piece>, n_drafted: usize) {
        pieces.iter_mut().for_each(|piece| piece.draft.n_drafted = n_drafted);
        if let Some(recording) = &mut self.recording {
            recording.take(&pieces, n_drafted);
        }
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

    /// Takes a token that the constraint forces; says whether the generation ends with it.
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

    /// Samples the next token and says whether the generation ends with it.
    ///
    /// # Errors
    /// Those of the constraint, and [`NOT_FINITE`].
    fn sample(&mut self, scores: &Scores<'_>, vocab: &Vocab) -> Result<(Piece, Option<FinishReason>), String> {
        if let Scores::NotFinite = scores {
            self.is_spoiled = true;
            return Err(NOT_FINITE.into());
        }
        let after = self.distribution(scores)?;
        let (mut ends, mut complete) = (false, false);
        let forced = self.thinking.next();
        let token = match &mut self.constraint {
            None => forced.unwrap_or_else(|| match scores {
                Scores::Best(token) => *token,
                Scores::Few(few) => self.sampler.sample_few(few),
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
        let logprob = self.request.options().logprobs.map(|n| match &after {
            Some(candidates) => TokenLogprob::of_candidates(candidates.iter().map(|c| (c.id, c.p)), token, n),
            None => logprobs(scores.logits(), token, n),
        });
        Ok(self.took(token, logprob, ends, complete, vocab))
    }

    /// What the next token is drawn from, where the request wants to know.
    ///
    /// # Errors
    /// Those of the constraint.
    fn distribution(&mut self, scores: &Scores<'_>) -> Result<Option<Vec<Candidate>>, String> {
        let options = self.request.options();
        if !options.sampler_logprobs || options.logprobs.is_none() {
            return Ok(None);
        }
        let candidates = match &mut self.constraint {
            None => self.sampler.distribution(scores.logits()),
            Some(c) => c.distribution(&mut self.sampler, scores.logits())?,
        };
        Ok(Some(candidates.to_vec()))
    }

    /// Books a token; `ends` the generation, or makes it `complete`.
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
        let cut = self.lines.take(text, now - first);
        let text = cut.map_or(text, |n| &text[..n]);
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
        } else if cut.is_some() {
            Some(FinishReason::Length)
        } else {
            None
        };
        (Piece { token, bytes, logprob, draft: DraftPosition::default(), at: now }, end)
    }
}
