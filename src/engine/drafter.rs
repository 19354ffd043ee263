//! The engine's own side of drafting: a proposer, or none. One that fails is given up, and generations go on without drafts.

use model::{RunError, Runner};
use text::TokenId;

use crate::proposer::{
    DraftRequest, ObservedStep, Proposer, ProposerInfo, SavedDraftError, SequenceChange, TargetState,
};

/// The proposer of an engine, as long as it works.
pub(crate) struct Drafter(pub(crate) Option<Box<dyn Proposer>>);

impl Drafter {
    /// What the engine has to know of the proposer; without one, that nothing is drafted.
    pub(crate) fn info(&self) -> ProposerInfo {
        self.0.as_ref().map(|proposer| proposer.info()).unwrap_or_default()
    }

    /// The sequence of `slot` changes; the error says why saved bytes are refused.
    pub(crate) fn change(&mut self, slot: usize, change: SequenceChange<'_>) -> Result<(), SavedDraftError> {
        match self.0.as_mut().map_or(Ok(()), |proposer| proposer.change(slot, change)) {
            Err(SavedDraftError::Run(error)) => {
                self.stop(&error);
                Ok(())
            }
            done => done,
        }
    }

    pub(crate) fn observe(&mut self, runner: &mut Runner, step: &ObservedStep<'_>) {
        self.or_stop((), |proposer| proposer.observe(runner, step));
    }

    /// A draft for each request; none at all without a proposer.
    pub(crate) fn propose(
        &mut self,
        runner: &mut Runner,
        target: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Vec<Vec<TokenId>> {
        self.or_stop(Vec::new(), |proposer| proposer.propose(runner, target, requests))
    }

    /// What the proposer keeps of the first `n_tokens` of a slot.
    pub(crate) fn save(&mut self, slot: usize, n_tokens: usize) -> Vec<u8> {
        self.or_stop(Vec::new(), |proposer| proposer.save(slot, n_tokens))
    }

    /// What `call` gives; `otherwise` where there is no proposer, or none any more.
    fn or_stop<T>(&mut self, otherwise: T, call: impl FnOnce(&mut dyn Proposer) -> Result<T, RunError>) -> T {
        let Some(proposer) = &mut self.0 else { return otherwise };
        call(&mut **proposer).unwrap_or_else(|error| {
            self.stop(&error);
            otherwise
        })
    }

    fn stop(&mut self, error: &RunError) {
        tracing::error!(%error, "drafting failed: the engine goes on without speculation");
        self.0 = None;
    }
}
