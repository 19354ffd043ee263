//! How long the next drafts are, and what was learned of the last: the part that every proposer with a model of some kind has.
//! Owns acceptance, costs and the warning when drafts gain nothing. Knows nothing of how drafts are made.

use engine::{DraftRequest, ObservedSequence, ObservedStep, ProposerInfo};

use crate::acceptance_warning::AcceptanceWarning;
use crate::calibration::{Keeping, OfSource};
use crate::chances::Chances;
use crate::depth::Depth;
use crate::depth_control::DepthControl;

/// Steps of a warm-up with a fixed depth: graphs are built, and the device has seen them more than once.
const FIXED_WARM_UP: usize = 4;

/// The lengths of one proposer's drafts.
pub(crate) struct Pace {
    max_depth: usize,
    /// `None` with a fixed depth.
    control: Option<DepthControl>,
    warning: AcceptanceWarning,
    /// Where what was measured comes from and goes to.
    kept: Option<OfSource>,
    /// When it goes there.
    keeping: Keeping,
    /// The last drafts computed more than a step leaves behind: they are no measure of what their depth costs.
    caught_up: bool,
    /// Nor are they where their lengths differ.
    differ: bool,
}

impl Pace {
    /// For so many sequences, with drafts of up to `max_depth` tokens.
    pub(crate) fn new(depth: Depth, n_slots: usize, max_depth: usize) -> Self {
        let control = (depth == Depth::Auto).then(|| DepthControl::new(n_slots, max_depth));
        Self {
            max_depth,
            control,
            warning: AcceptanceWarning::default(),
            kept: None,
            keeping: Keeping::new(),
            caught_up: false,
            differ: false,
        }
    }

    /// The proposer's graphs do not depend on slots, and so the target's do not: their attention is of one kind.
    pub(crate) fn serve_all_slots(&mut self) {
        if let Some(control) = &mut self.control {
            control.serve_all_slots();
        }
    }

    /// Begins with what earlier engines measured, and keeps there what this one does.
    pub(crate) fn calibrate(&mut self, kept: OfSource) {
        if let Some(control) = &mut self.control {
            control.begin_with(&kept.known());
            self.kept = Some(kept);
        }
    }

    /// What the engine has to know of it.
    pub(crate) fn info(&self) -> ProposerInfo {
        ProposerInfo {
            max_depth: self.max_depth,
            warm_up_steps: self.control.as_ref().map_or(FIXED_WARM_UP, DepthControl::n_warm_up_steps),
            ..ProposerInfo::default()
        }
    }

    /// A new generation begins on `slot`.
    pub(crate) fn begin(&mut self, slot: usize) {
        if let Some(control) = &mut self.control {
            control.begin(slot);
        }
        if self.keeping.is_due() {
            self.keep();
        }
    }

    /// Another head drafts for `slot`: what its drafts are worth is what is known of that head.
    pub(crate) fn follow(&mut self, slot: usize, head: &Chances) {
        if let Some(control) = &mut self.control {
            control.follow(slot, head);
        }
    }

    /// Tokens of a draft for each of these requests.
    pub(crate) fn choose(&mut self, requests: &[DraftRequest]) -> usize {
        let most = requests.iter().map(|r| r.max).max().unwrap_or(0);
        match &mut self.control {
            Some(control) => {
                let slots: Vec<_> = requests.iter().map(|r| r.slot).collect();
                let is_warm_up = requests.iter().any(|r| r.warm_up);
                if is_warm_up { control.choose_unknown(&slots, most) } else { control.choose(&slots, most) }
            }
            None => most.min(self.max_depth),
        }
    }

    /// New drafts are being made.
    pub(crate) fn begin_drafts(&mut self) {
        (self.caught_up, self.differ) = (false, false);
    }

    /// They computed more than a step leaves behind, or did not.
    pub(crate) fn caught_up(&mut self, caught_up: bool) {
        self.caught_up |= caught_up;
    }

    /// Their lengths differ, or do not.
    pub(crate) fn differ(&mut self, differ: bool) {
        self.differ |= differ;
    }

    /// Remembers which drafts were accepted. `ended_at_cut`: the draft of this sequence ended before a token that was too
    /// improbable, and all of it was kept; such a token is not generated either.
    pub(crate) fn verified(&mut self, s: &ObservedSequence<'_>, ended_at_cut: bool) {
        self.warning.verified(s.n_drafted, s.n_accepted);
        if let Some(control) = &mut self.control {
            control.verified(s.slot, s.n_drafted + usize::from(ended_at_cut), s.n_accepted);
        }
    }

    /// Remembers what the step took. Only one whose sequences are all alike tells what so many tokens cost.
    pub(crate) fn took(&mut self, step: &ObservedStep<'_>) {
        let Some(control) = &mut self.control else { return };
        let n_drafted = step.sequences.first().map_or(0, |s| s.n_drafted);
        let alike = step.sequences.iter().all(|s| s.n_drafted == n_drafted) && !self.caught_up && !self.differ;
        if let Some(first) = step.sequences.first().filter(|_| alike && (step.built.is_some() || step.took.is_some())) {
            control.built((first.slot, step.sequences.len(), n_drafted), step.built);
        }
        if let Some(took) = step.took.filter(|_| alike) {
            control.took(step.sequences.len(), n_drafted, took);
            self.keeping.measured();
        }
        if let Some(took) = step.took.filter(|_| self.caught_up && n_drafted > 0 && !step.warm_up) {
            control.caught_up(step.sequences.len(), n_drafted, took);
        }
    }

    /// Keeps what was measured for later engines, where there is enough of it.
    fn keep(&mut self) {
        if let (Some(control), Some(kept)) = (&self.control, &self.kept)
            && self.keeping.keeps()
        {
            control.known().into_iter().for_each(|known| kept.keep(known));
        }
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        self.keep();
    }
}
