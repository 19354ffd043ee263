//! Admission: requests that wait get slots, with whatever cached state begins as their prompts do.

use model::Pictures;

use super::Engine;
use crate::cache::Wish;
use crate::event::Event;
use crate::proposer::SequenceChange;
use crate::sequence::Sequence;

impl Engine {
    /// Gives free slots to waiting requests, in order, and lets prompts that begin alike share what is computed.
    pub(super) fn admit(&mut self) {
        self.waiting.retain(|s| !s.events.is_closed());
        self.is_full = false;
        if self.waiting.is_empty() && self.paused.is_empty() {
            self.cache.stop_arriving(&mut self.state);
            if !(self.is_idle() && self.cache.has_unsaved()) {
                self.cache.stop_leaving();
            }
        }
        self.resume();
        while self.may_admit()
            && let Some(submission) = self.waiting.pop_front()
        {
            if !self.has_room(&Wish::of(submission.id, &submission.request)) {
                self.is_full = true;
                self.waiting.push_front(submission);
                break;
            }
            let request = &submission.request;
            match self.cache.take(&mut self.state, &Wish::of(submission.id, request)) {
                Ok(Some((slot, n_cached))) => {
                    let n_left = request.prompt().len() - n_cached;
                    let every = self.cache.checkpoint_every(n_left).filter(|_| request.options().cache);
                    let pictures = request.pictures().clone();
                    self.begin(slot, &pictures);
                    let mut sequence = Sequence::new(submission, slot, n_cached, self.stats.n_steps);
                    if !self.warming_up {
                        sequence.record(self.config.replies.as_ref());
                    }
                    if let Some(every) = every {
                        sequence.want_checkpoints(every);
                    }
                    self.sequences.push(sequence);
                }
                Ok(None) => {
                    self.waiting.push_front(submission);
                    break;
                }
                // The reader may be gone: there is nobody to tell then.
                Err(error) => drop(submission.events.try_send(Event::Failed(error.to_string()))),
            }
        }
        self.share_prefixes();
    }

    /// Tells the proposer that a slot was taken up by a request with these pictures, and at which tokens it stands.
    pub(super) fn begin(&mut self, slot: usize, pictures: &Pictures) {
        let (tokens, adapters, hidden) = self.cache.begin(slot);
        // Only saved bytes are refused, and there are none.
        let _ = self.state.drafter.change(slot, SequenceChange::Begin { tokens, adapters, hidden, pictures });
    }
}
