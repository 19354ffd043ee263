//! Prompts that begin alike and come together, as those of one request with several completions do: the first is computed,
//! and the others wait to take its state over.

use super::Engine;
use crate::cache::{MIN_COPY, Wish};
use crate::sequence::Sequence;

impl Engine {
    /// Lets sequences for which nothing was computed yet wait for one before them that has their beginning still to compute,
    /// and gives those that waited enough a copy of its state. Nobody waits for a sequence that makes no progress.
    pub(super) fn share_prefixes(&mut self) {
        if !self.cache.shares() {
            return;
        }
        for i in 0..self.sequences.len() {
            let s = &self.sequences[i];
            if !s.is_new() || !s.request.options().cache {
                continue;
            }
            let waited = s.waits;
            let leader = leader(&self.sequences[..i], s);
            self.sequences[i].waits = leader.is_some();
            match leader {
                Some((leader, n)) if self.cache.forgets() => self.sequences[leader].want_checkpoint(n),
                Some(_) => {}
                None if waited => self.join(i),
                None => {}
            }
        }
    }

    /// Takes over what another slot has of a sequence's prompt.
    fn join(&mut self, i: usize) {
        let s = &mut self.sequences[i];
        let (slot, n_done) = (s.slot, s.n_prompt_done);
        match self.cache.join(&mut self.state, &Wish::of(s.id, &s.request), slot, n_done) {
            Ok(n) if n > n_done => {
                s.skip_to(n);
                let pictures = s.request.pictures().clone();
                self.begin(slot, &pictures);
            }
            Ok(_) => {}
            Err(error) => s.fail(error.to_string()),
        }
    }
}

/// The sequence among those `before` it that will have most of `s`'s prompt, and how much of it.
fn leader(before: &[Sequence], s: &Sequence) -> Option<(usize, usize)> {
    let (prompt, of_s) = (s.request.prompt(), s.request.options());
    let shared = |l: &Sequence| {
        let of_l = l.request.options();
        let own = of_l.scope == of_s.scope && of_l.adapters == of_s.adapters;
        let leads = own
            && l.is_prefill()
            && !l.is_shifted()
            && of_l.cache
            && !l.finished
            && !l.is_cancelled()
            && !l.is_blocked();
        let common = l.request.prompt().iter().zip(prompt).take_while(|(a, b)| a == b).count().min(prompt.len() - 1);
        let common = s.request.pictures().whole(common);
        (leads && common > l.n_prompt_done && common >= s.n_prompt_done + MIN_COPY).then_some(common)
    };
    let mut best = None;
    for (i, l) in before.iter().enumerate() {
        best = best.max(shared(l).map(|n| (n, std::cmp::Reverse(i))));
    }
    best.map(|(n, std::cmp::Reverse(i))| (i, n))
}
