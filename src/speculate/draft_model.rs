//! Drafts by a small model of its own, which speaks in the same tokens as the target and knows nothing else of it.
//! Owns that model's state for each sequence, and which tokens are in it.
//!
//! Nothing is computed for a sequence until a draft is asked for; then all tokens that the state lacks go through the model
//! first. The chain of draft tokens is computed on top and stays in the state: of what was accepted nothing is computed
//! again. The rest is cut off before the next draft, or, where the state cannot be cut, the sequence goes back to where the
//! chain began ([`Memory::hold`]).

use std::sync::Arc;

use engine::{
    DraftRequest, EngineConfig, ObservedStep, Proposer, ProposerInfo, SavedDraftError, SequenceChange, TargetState,
};
use memory::{Memory, MemoryConfig, Slot};
use model::{Facts, MemoryPlan, Model, Pass, PassOutput, Rows, RunError, Runner};
use text::TokenId;

use crate::calibration::Calibration;
use crate::depth::Depth;
use crate::pace::Pace;
use crate::pick::{Pick, pick};

/// Rows of one pass over a prompt at most.
const N_BATCH: usize = 512;

/// Tokens that sequences lack after a step, at most: more of them go first, by themselves.
pub(crate) const FEW: usize = 8;

/// A model of its own as a proposer.
pub struct DraftModel {
    runner: Runner,
    memory: Memory,
    slots: Vec<DraftSequence>,
    /// Tokens of the target: drafts of others are none.
    n_vocab: usize,
    pace: Pace,
    output: PassOutput,
}

/// One sequence.
struct DraftSequence {
    slot: Slot,
    /// All that is known, with the token that was sampled last.
    tokens: Vec<TokenId>,
    /// The last of them was sampled after the step that was observed last: it comes again.
    ahead: bool,
    /// What the state holds: tokens of the sequence, and draft tokens behind them.
    cells: Vec<TokenId>,
    /// Draft tokens handed out, where they ended before one that was too improbable.
    cut_at: Option<usize>,
}

impl DraftSequence {
    /// Tokens from the first that the state and the sequence share; the last one is always to be computed, since a draft
    /// begins with what comes of it.
    fn n_shared(&self) -> usize {
        let shared = self.cells.iter().zip(&self.tokens).take_while(|(a, b)| a == b).count();
        shared.min(self.tokens.len().saturating_sub(1))
    }

    fn n_missing(&self) -> usize {
        self.tokens.len() - self.cells.len().min(self.tokens.len())
    }
}

impl DraftModel {
    /// `draft` for the sequences of an engine of `target` made with `engine`.
    ///
    /// # Errors
    /// No room for its state, or no threads.
    pub fn new(draft: &Arc<Model>, target: &Model, engine: &EngineConfig, depth: Depth) -> Result<Self, RunError> {
        let config = Self::state(engine, draft.facts(), target.facts(), depth);
        let mut memory = draft.memory(config)?;
        let mut slots = Vec::new();
        while let Some(slot) = memory.acquire()? {
            slots.push(DraftSequence { slot, tokens: vec![], ahead: false, cells: vec![], cut_at: None });
        }
        Ok(Self {
            runner: Runner::new(Arc::clone(draft), engine.n_threads())?,
            memory,
            pace: Pace::new(depth, slots.len(), depth.max()),
            slots,
            n_vocab: target.hparams().n_vocab,
            output: PassOutput::default(),
        })
    }

    /// Begins with what earlier engines measured, and keeps there what this one does.
    pub fn calibrate(&mut self, calibration: &Calibration) {
        self.pace.calibrate(calibration.of("draft"));
    }

    /// Its state for the sequences of an engine of the target: of positions as many, and those of a chain.
    fn state(engine: &EngineConfig, draft: &Facts, target: &Facts, depth: Depth) -> MemoryConfig {
        let n_ctx = engine.plain_state(target).n_ctx.saturating_add(depth.max() + FEW);
        MemoryConfig { n_ctx, n_snapshots: 2, max_rows: Some(N_BATCH), ..engine.plain_state(draft) }
    }

    /// What it keeps beside its weights.
    pub(crate) fn memory_plan(engine: &EngineConfig, draft: &Facts, target: &Facts, depth: Depth) -> MemoryPlan {
        let state = Self::state(engine, draft, target, depth);
        MemoryPlan {
            state,
            head: None,
            own_head: false,
            draft_words: None,
            n_batch: N_BATCH,
            n_out: engine.n_sequences,
            flash_attention: !state.v_transposed,
            n_runners: 1,
            beside: 0,
        }
    }

    /// Bytes of its state.
    pub fn state_bytes(&self) -> usize {
        self.memory.n_bytes()
    }

    /// Takes out of the state what is not of the sequence.
    fn rewind(&mut self, slot: usize) -> Result<(), RunError> {
        let Self { memory, slots, .. } = self;
        let s = &mut slots[slot];
        let n_shared = s.n_shared();
        if n_shared < s.cells.len() {
            if memory.rewinds_to(&s.slot)? <= n_shared {
                memory.truncate(&s.slot, n_shared)?;
            } else if memory.held_at(&s.slot)?.is_some_and(|len| len <= n_shared) {
                memory.take_back(&s.slot)?;
            } else {
                memory.reset(&s.slot)?;
            }
        }
        s.cells.truncate(memory.len(&s.slot)?);
        memory.let_go(&s.slot)?;
        Ok(())
    }

    /// Computes tokens that the state lacks until only a few are left, by powers of two, so that graphs are few. True when
    /// there were any.
    fn prefill(&mut self, slot: usize) -> Result<bool, RunError> {
        let mut any = false;
        loop {
            let n_missing = self.slots[slot].n_missing();
            if n_missing <= FEW {
                return Ok(any);
            }
            let n = (1 << (n_missing - 1).ilog2()).min(N_BATCH);
            self.pass(&[(slot, n)], Rows::None)?;
            any = true;
        }
    }

    /// One pass over the next `n` tokens of each of these sequences, which stay in the state.
    fn pass(&mut self, parts: &[(usize, usize)], rows: Rows<'_>) -> Result<(), RunError> {
        let Self { memory, slots, runner, output, .. } = self;
        let n_vocab = runner.model().hparams().n_vocab;
        let known = |id: &TokenId| if (id.0 as usize) < n_vocab { *id } else { TokenId(0) };
        let mut tokens = Vec::new();
        for &(slot, n) in parts {
            let s = &slots[slot];
            tokens.extend(s.tokens[s.cells.len()..][..n].iter().map(known));
        }
        let claims: Vec<_> = parts.iter().map(|&(slot, n)| (&slots[slot].slot, n)).collect();
        let step = memory.begin(&claims, 1)?;
        runner.run(step.view(), &Pass { tokens: &tokens, rows, hidden: false }, output)?;
        step.commit(&parts.iter().map(|(_, n)| *n).collect::<Vec<_>>())?;
        for &(slot, n) in parts {
            let s = &mut slots[slot];
            s.cells.extend_from_slice(&s.tokens[s.cells.len()..][..n]);
        }
        Ok(())
    }

    /// One pass over these draft tokens, one of each sequence.
    fn chain(&mut self, next: &[(usize, TokenId)], best: bool) -> Result<(), RunError> {
        let Self { memory, slots, runner, output, .. } = self;
        let tokens: Vec<TokenId> = next.iter().map(|(_, token)| *token).collect();
        let claims: Vec<_> = next.iter().map(|(slot, _)| (&slots[*slot].slot, 1)).collect();
        let all: Vec<usize> = (0..next.len()).collect();
        let rows = if best { Rows::Best(&all) } else { Rows::Some(&all) };
        let step = memory.begin(&claims, 1)?;
        runner.run(step.view(), &Pass { tokens: &tokens, rows, hidden: false }, output)?;
        step.commit(&vec![1; next.len()])?;
        next.iter().for_each(|&(slot, token)| slots[slot].cells.push(token));
        Ok(())
    }

    /// Drafts of up to `depth` tokens.
    fn draft(&mut self, requests: &[DraftRequest], depth: usize) -> Result<Vec<Vec<TokenId>>, RunError> {
        let mut drafts = vec![Vec::new(); requests.len()];
        let mut left: Vec<usize> = (0..requests.len()).filter(|&i| requests[i].max > 0).collect();
        left.retain(|&i| !self.slots[requests[i].slot].tokens.is_empty());
        for &i in &left {
            self.rewind(requests[i].slot)?;
            let caught_up = self.prefill(requests[i].slot)?;
            self.pace.caught_up(caught_up);
        }
        if left.is_empty() {
            return Ok(drafts);
        }
        let best = requests.iter().all(|r| r.gumbel.is_none() && r.p_min <= 0.0);
        let parts: Vec<_> =
            left.iter().map(|&i| (requests[i].slot, self.slots[requests[i].slot].n_missing())).collect();
        let last = parts.iter().scan(0, |n, part| {
            *n += part.1;
            Some(*n - 1)
        });
        let last: Vec<usize> = last.collect();
        self.pass(&parts, if best { Rows::Best(&last) } else { Rows::Some(&last) })?;
        for &i in &left {
            self.memory.hold(&self.slots[requests[i].slot].slot)?;
        }
        for n_drafted in 0..depth {
            let mut next = Vec::new();
            let mut going = Vec::new();
            for (row, &i) in left.iter().enumerate() {
                let request = &requests[i];
                match self.picked(row, request, n_drafted) {
                    Pick::Token(token) => {
                        drafts[i].push(token);
                        if drafts[i].len() < request.max.min(depth) && self.knows(token) {
                            next.push((request.slot, token));
                            going.push(i);
                        }
                    }
                    Pick::Improbable => self.slots[request.slot].cut_at = Some(n_drafted),
                    Pick::None => {}
                }
            }
            left = going;
            if next.is_empty() {
                break;
            }
            self.chain(&next, best)?;
        }
        Ok(drafts)
    }

    fn picked(&self, row: usize, request: &DraftRequest, n_before: usize) -> Pick {
        match self.output.best.get(row) {
            Some(best) if best.is_number() && (best.token.0 as usize) < self.n_vocab => Pick::Token(best.token),
            Some(_) => Pick::None,
            None if !self.output.is_finite(row) => Pick::None,
            None => pick(self.output.logits(row), self.n_vocab, request, n_before),
        }
    }

    fn knows(&self, token: TokenId) -> bool {
        (token.0 as usize) < self.runner.model().hparams().n_vocab
    }
}

impl Proposer for DraftModel {
    fn info(&self) -> ProposerInfo {
        ProposerInfo { computed: self.runner.stats(), state_bytes: self.memory.n_bytes(), ..self.pace.info() }
    }

    fn change(&mut self, slot: usize, change: SequenceChange<'_>) -> Result<(), SavedDraftError> {
        let s = &mut self.slots[slot];
        (s.ahead, s.cut_at) = (false, None);
        match change {
            SequenceChange::Begin { tokens, .. } => {
                s.tokens.clear();
                s.tokens.extend_from_slice(tokens);
                self.pace.begin(slot);
            }
            // Its own state is of tokens alone: what it shares with the new ones is found when they are known.
            SequenceChange::Load { .. } | SequenceChange::Copy { .. } => {}
            SequenceChange::Forget => {
                (s.tokens, s.cells) = (Vec::new(), Vec::new());
                self.memory.spoil(&s.slot).and_then(|()| self.memory.discard(&s.slot)).map_err(RunError::from)?;
            }
        }
        Ok(())
    }

    fn observe(&mut self, _: &mut Runner, step: &ObservedStep<'_>) -> Result<(), RunError> {
        for s in step.sequences {
            let own = &mut self.slots[s.slot];
            if !step.warm_up {
                let ended_at_cut = own.cut_at.take() == Some(s.n_drafted) && s.n_accepted == s.n_drafted;
                self.pace.verified(s, ended_at_cut);
            }
            let known = usize::from(std::mem::take(&mut own.ahead) && !s.tokens.is_empty());
            own.tokens.extend(s.tokens[known..].iter().copied().chain(s.next));
            own.ahead = s.next.is_some();
        }
        self.pace.took(step);
        Ok(())
    }

    fn propose(
        &mut self,
        runner: &mut Runner,
        _: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        let depth = self.pace.choose(requests);
        self.pace.begin_drafts();
        requests.iter().for_each(|r| self.slots[r.slot].cut_at = None);
        if depth == 0 {
            return Ok(vec![Vec::new(); requests.len()]);
        }
        runner.rest();
        let drafts = self.draft(requests, depth)?;
        self.runner.rest();
        self.pace.differ(drafts.iter().any(|draft| draft.len() != depth));
        Ok(drafts)
    }
}
