//! Drafts by an assistant: a head that reads the main model's cells and keeps none of its own.
//! Owns, for each sequence, the token that was sampled last and the hidden state before it: all that a draft begins with. So
//! nothing is prefilled, saved or rolled back. It must never draft while the main model writes its cells.

use std::sync::Arc;

use engine::sample::GumbelPlan;
use engine::{DraftRequest, EngineConfig, ObservedStep, Proposer, ProposerInfo, SavedDraftError, SequenceChange};
use engine::{ObservedSequence, TargetState};
use model::{AdapterSet, Draft, DraftOutput, DraftVocab, Model, RunError, Runner};
use text::TokenId;

use crate::calibration::Calibration;
use crate::gumbel::NoiseMaker;
use crate::nextn::NextNConfig;
use crate::pace::Pace;

/// An assistant as a proposer.
pub struct Assistant {
    info: ProposerInfo,
    n_embd: usize,
    slots: Vec<SlotDraft>,
    /// The whole vocabulary if `None`.
    vocab: Option<DraftVocab>,
    pace: Pace,
    output: DraftOutput,
    noise: NoiseMaker,
}

/// One sequence.
#[derive(Default)]
struct SlotDraft {
    /// The token that was sampled last; none where that is not known.
    token: Option<TokenId>,
    /// The hidden state of the token before it: `[n_embd]`.
    hidden: Vec<f32>,
    /// What the sequence is computed with.
    adapters: AdapterSet,
    /// Draft tokens handed out, where they ended before one that was too improbable.
    cut_at: Option<usize>,
}

impl SlotDraft {
    /// Takes what a step leaves behind.
    fn take(&mut self, s: &ObservedSequence<'_>, n_embd: usize) {
        self.token = s.next;
        self.hidden.clear();
        match s.hidden.len().checked_sub(n_embd).filter(|_| !s.tokens.is_empty()) {
            Some(last) => self.hidden.extend_from_slice(&s.hidden[last..]),
            None => self.hidden.extend_from_slice(s.hidden_before),
        }
    }

    fn is_ready(&self, n_embd: usize) -> bool {
        self.token.is_some() && self.hidden.len() == n_embd
    }
}

impl Assistant {
    /// The assistant of `model` for the sequences of an engine made with `config`; `None` when its head is none.
    ///
    /// # Errors
    /// No room for the words that it drafts from.
    pub fn new(model: &Arc<Model>, engine: &EngineConfig, config: NextNConfig) -> Result<Option<Self>, RunError> {
        if !model.head_reads_target() {
            return Ok(None);
        }
        let n_slots = engine.n_sequences;
        let vocab = config.vocab.make(model)?;
        let pace = Pace::new(config.depth, n_slots, config.depth.max());
        Ok(Some(Self {
            info: ProposerInfo { wants_hidden: true, ..pace.info() },
            n_embd: model.hparams().n_embd,
            slots: (0..n_slots).map(|_| SlotDraft::default()).collect(),
            vocab,
            pace,
            output: DraftOutput::default(),
            noise: NoiseMaker::new(model, engine),
        }))
    }

    /// Begins with what earlier engines measured, and keeps there what this one does.
    pub fn calibrate(&mut self, calibration: &Calibration) {
        self.pace.calibrate(calibration.of("assistant"));
    }

    /// Remembers which drafts were accepted, and which tokens the text is made of.
    fn learn(&mut self, model: &Model, step: &ObservedStep<'_>) -> Result<(), RunError> {
        for s in step.sequences {
            let cut_at = self.slots[s.slot].cut_at.take();
            let ended_at_cut = cut_at == Some(s.n_drafted) && s.n_accepted == s.n_drafted;
            self.pace.verified(s, ended_at_cut);
            if let Some(vocab) = &mut self.vocab {
                vocab.see(model, s.tokens.iter().copied().chain(s.next))?;
            }
        }
        Ok(())
    }

    /// One pass over sequences with the same adapters; their drafts, in their order.
    fn pass(
        &mut self,
        runner: &mut Runner,
        target: &TargetState<'_>,
        which: &[DraftRequest],
        depth: usize,
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        let slots: Vec<usize> = which.iter().map(|r| r.slot).collect();
        let first = &self.slots[slots[0]];
        runner.use_adapters(&first.adapters)?;
        let tokens: Vec<TokenId> = slots.iter().filter_map(|&slot| self.slots[slot].token).collect();
        let hidden: Vec<f32> = slots.iter().flat_map(|&slot| &self.slots[slot].hidden).copied().collect();
        let plans: Vec<(Option<GumbelPlan>, usize)> = which.iter().map(|r| (r.gumbel, 0)).collect();
        let vocab = self.vocab.as_ref();
        let noise = self.noise.make(&plans, depth, vocab);
        let probs = which.iter().any(|r| r.p_min > 0.0);
        let n_entries = vec![1; which.len()];
        let (tokens, hidden, n_entries) = (&tokens[..], &hidden[..], &n_entries[..]);
        let draft = Draft { tokens, hidden, n_entries, depth, vocab, noise, probs, ..Draft::default() };
        runner.draft_at_end(target.ends(&slots)?.view(), &draft, &mut self.output)?;
        let drafts = which.iter().enumerate().map(|(i, request)| {
            let mut draft = self.output.tokens[i].clone();
            draft.truncate(request.max);
            let probs = self.output.probs.get(i).map_or(&[][..], |probs| &probs[..draft.len().min(probs.len())]);
            let cut_at = probs.iter().position(|p| request.p_min > 0.0 && (p.is_nan() || *p < request.p_min));
            draft.truncate(cut_at.unwrap_or(draft.len()));
            (cut_at, draft)
        });
        let drafts: Vec<_> = drafts.collect();
        Ok(slots
            .iter()
            .zip(drafts)
            .map(|(&slot, (cut_at, draft))| {
                self.slots[slot].cut_at = cut_at;
                draft
            })
            .collect())
    }
}

impl Proposer for Assistant {
    fn info(&self) -> ProposerInfo {
        self.info
    }

    fn change(&mut self, slot: usize, change: SequenceChange<'_>) -> Result<(), SavedDraftError> {
        let s = &mut self.slots[slot];
        // What a draft begins with comes with the next step.
        (s.token, s.cut_at) = (None, None);
        if let SequenceChange::Begin { adapters, .. } = change {
            s.adapters.clone_from(adapters);
            self.pace.begin(slot);
        }
        Ok(())
    }

    fn observe(&mut self, runner: &mut Runner, step: &ObservedStep<'_>) -> Result<(), RunError> {
        if !step.warm_up {
            self.learn(runner.model(), step)?;
        }
        self.pace.took(step);
        step.sequences.iter().for_each(|s| self.slots[s.slot].take(s, self.n_embd));
        Ok(())
    }

    fn propose(
        &mut self,
        runner: &mut Runner,
        target: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        let slots: Vec<usize> = requests.iter().map(|r| r.slot).collect();
        let depth = self.pace.choose(requests);
        let mut drafts = vec![Vec::new(); requests.len()];
        slots.iter().for_each(|&slot| self.slots[slot].cut_at = None);
        let is_ready = |i: &usize| self.slots[slots[*i]].is_ready(self.n_embd);
        let mut left: Vec<usize> = (0..requests.len()).filter(|i| depth > 0 && is_ready(i)).collect();
        while let Some(&first) = left.first() {
            let adapters = self.slots[slots[first]].adapters.clone();
            let alike: Vec<usize>;
            (alike, left) = left.into_iter().partition(|&i| self.slots[slots[i]].adapters == adapters);
            let which: Vec<DraftRequest> = alike.iter().map(|&i| requests[i]).collect();
            for (i, draft) in alike.into_iter().zip(self.pass(runner, target, &which, depth)?) {
                drafts[i] = draft;
            }
        }
        self.pace.begin_drafts();
        self.pace.differ(drafts.iter().any(|draft| draft.len() != depth));
        Ok(drafts)
    }
}
