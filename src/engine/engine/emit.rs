//! What goes out of a step: events to their readers, and slots of sequences that are done.

use super::Engine;
use crate::proposer::SequenceChange;
use crate::sequence::Sequence;

impl Engine {
    /// Hands out events. Takes slots back from sequences that are done or that nobody waits for. A reader that lags behind
    /// keeps no slot once its generation is complete.
    pub(super) fn emit(&mut self) {
        self.sequences.iter_mut().for_each(Sequence::deliver);
        self.leaving.iter_mut().for_each(Sequence::deliver);
        self.paused.iter_mut().for_each(|paused| paused.sequence.deliver());
        for paused in self.paused.extract_if(.., |p| p.sequence.finished || p.sequence.is_cancelled()) {
            self.leaving.push(paused.sequence);
        }
        let done = |s: &mut Sequence| s.finished || s.is_cancelled();
        for s in self.sequences.extract_if(.., done).collect::<Vec<_>>() {
            if s.is_spoiled || s.is_unseen() {
                self.state.spoil(&self.cache.get(s.slot).slot);
            }
            if s.is_spoiled {
                // What others keep beside the slot goes, too. Only saved bytes are refused, and there are none.
                self.cache.forget(&mut self.state.memory, s.slot);
                let _ = self.state.drafter.change(s.slot, SequenceChange::Forget);
            } else if s.request.options().cache {
                self.cache.release(s.slot);
            } else {
                self.cache.forget(&mut self.state.memory, s.slot);
            }
            self.leaving.push(s);
        }
        self.leaving.retain(|s| s.is_blocked() && !s.is_cancelled());
    }
}
