//! Which checkpoints are kept: within one budget for all slots, denser towards the end of a sequence, where the next prompt
//! most often parts from it.

use std::cmp::Reverse;
use std::sync::Arc;

use memory::Memory;

use super::SlotCache;
use crate::slot_file::{MAX_CHECKPOINTS, SlotCheckpoint};

impl SlotCache {
    /// Tokens between checkpoints of a prompt of which `n` tokens are to be computed: so many that half of the budget holds
    /// them all. `None`: none are taken but at message boundaries.
    pub(crate) fn checkpoint_every(&self, n: usize) -> Option<usize> {
        let every = self.limits.checkpoint_every;
        let of_one = self.shape.checkpoint_bytes(self.shape.n_ctx());
        let room = self.limits.checkpoint_bytes.checked_div(of_one).unwrap_or(0).min(MAX_CHECKPOINTS);
        (every > 0 && room > 0).then(|| every.max(n.div_ceil((room / 2).max(1))))
    }

    /// Keeps a checkpoint of the state as it is, within the budget.
    pub(crate) fn checkpoint(&mut self, memory: &Memory, index: usize) -> Result<(), memory::Error> {
        let s = &self.slots[index];
        let (position, hidden_bytes) = (s.tokens.len(), size_of_val(&s.hidden[..]));
        let there = s.checkpoints.iter().any(|c| c.state.position() == position);
        if position == 0 || there || !self.make_room(index, 1, self.shape.checkpoint_bytes(position) + hidden_bytes) {
            return Ok(());
        }
        // Of state that can be cut anywhere it has no bytes, and only tells where a boundary is.
        let s = &mut self.slots[index];
        let state = memory.checkpoint(&s.slot)?;
        s.checkpoints.push(Arc::new(SlotCheckpoint { state, hidden: s.hidden.clone() }));
        Ok(())
    }

    /// Drops checkpoints until `index` may have `n` more, of so many bytes together; false where they never fit.
    pub(super) fn make_room(&mut self, index: usize, n: usize, n_bytes: usize) -> bool {
        while self.slots[index].checkpoints.len() + n > MAX_CHECKPOINTS {
            self.drop_weakest(index);
        }
        // Of state that can be cut anywhere there is only the hidden state, which is small.
        if !self.forgets() {
            return true;
        }
        if n_bytes > self.limits.checkpoint_bytes {
            return false;
        }
        while self.checkpoint_bytes() + n_bytes > self.limits.checkpoint_bytes {
            // Whoever has most gives, a conversation that waits sooner than one that runs.
            let slots = self.slots.iter().enumerate().filter(|(_, s)| !s.checkpoints.is_empty());
            let richest = slots.max_by_key(|(_, s)| (s.checkpoints.len(), !s.busy, Reverse(s.last_used)));
            let Some((richest, _)) = richest else { return false };
            self.drop_weakest(richest);
        }
        true
    }

    /// Bytes of all checkpoints; one that several slots share counts once.
    pub(crate) fn checkpoint_bytes(&self) -> usize {
        let all = self.slots.iter().flat_map(|s| &s.checkpoints);
        let mut all: Vec<(*const SlotCheckpoint, usize)> =
            all.map(|kept| (Arc::as_ptr(kept), kept.n_bytes())).collect();
        all.sort_unstable();
        all.dedup();
        all.iter().map(|(_, n_bytes)| n_bytes).sum()
    }

    fn drop_weakest(&mut self, index: usize) {
        let s = &mut self.slots[index];
        let positions: Vec<usize> = s.checkpoints.iter().map(|c| c.state.position()).collect();
        if !positions.is_empty() {
            s.checkpoints.remove(weakest(&positions, s.tokens.len()));
        }
    }
}

/// The checkpoint whose neighbours stand in for it best: where the gap that it leaves is smallest, seen from the sequence's
/// end. The first is most often the end of the system text, which many conversations share, and stays.
fn weakest(positions: &[usize], end: usize) -> usize {
    let gap = |&i: &usize| {
        let next = positions.get(i + 1).copied().unwrap_or(end).max(positions[i]);
        (next - positions[i - 1]) as f64 / (end.saturating_sub(positions[i]) + 1) as f64
    };
    (1..positions.len()).min_by(|a, b| gap(a).total_cmp(&gap(b))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::weakest;

    #[test]
    fn the_first_and_the_last_checkpoints_stay_and_those_between_grow_rarer_with_their_distance() {
        let mut positions: Vec<usize> = (1..=32).map(|i| 500 * i).collect();
        let end = 16_010;
        while positions.len() > 8 {
            positions.remove(weakest(&positions, end));
        }
        assert_eq!((positions[0], positions[7]), (500, 16_000), "{positions:?}");
        let gaps: Vec<usize> = positions[1..].windows(2).map(|w| w[1] - w[0]).collect();
        assert!(gaps.is_sorted_by(|a, b| a >= b), "{positions:?}");
        assert_eq!(weakest(&[10, 100], 120), 1);
        assert_eq!(weakest(&[10], 120), 0);
    }
}
