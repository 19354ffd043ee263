//! State whose memory is taken before it is written, in granules of a device: who holds bytes of a tensor has memory for them, and
//! gives it back. Which granule has memory, and where tensors lie among them, is said elsewhere.

use std::ops::Range;

use crate::device::Device;
use crate::error::Error;
use crate::granules::{Change, Granules};
use crate::rpc::no_room;
use crate::state::{Held, StateBuffer, StateTensor};
use crate::state_id::StateId;

/// Bytes of a tensor that show the memory of others of it, as whole granules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The tensor.
    pub id: StateId,
    /// Where what is shown begins.
    pub from: usize,
    /// Where it is shown.
    pub to: usize,
    /// How much.
    pub n_bytes: usize,
}

impl StateBuffer {
    /// True when a tensor has memory only where it was taken.
    pub fn is_in_granules(&self, id: StateId) -> bool {
        self.place(id).is_some()
    }

    /// Takes memory, zeros, for what is wanted of tensors in granules and not held; of others all is there. Where bytes of several
    /// holders lie in one granule, it stays until the last of them gives it back.
    ///
    /// # Errors
    /// [`Error::Slot`]: no such tensor, or a range lies outside it. [`Error::Alloc`], and nothing has changed: the device has no room.
    pub fn take(&mut self, all: &[Held]) -> Result<(), Error> {
        self.take_shown(all, &[]).map(drop)
    }

    /// As [`StateBuffer::take`]; of what is wanted, some shows the memory of other bytes until [`StateBuffer::own`] gives it its own:
    /// whole granules, none of which is held. False, and nothing has changed, where they cannot be shown so.
    ///
    /// # Errors
    /// As [`StateBuffer::take`].
    pub fn take_shown(&mut self, all: &[Held], shown: &[Shown]) -> Result<bool, Error> {
        for held in all {
            self.range(held.id, held.offset, held.wanted.max(held.held))?;
        }
        for Shown { id, from, to, n_bytes } in shown {
            self.range(*id, *from, *n_bytes)?;
            self.range(*id, *to, *n_bytes)?;
        }
        let taken = if self.show_all(shown) { self.take_all(all).map(|()| true) } else { Ok(false) };
        if !matches!(taken, Ok(true)) {
            let _access = self.inner.lock();
            for Shown { id, to, n_bytes, .. } in shown {
                if let Some((granules, start)) = self.place(*id) {
                    // SAFETY: the lock keeps graphs off the state, and nobody else reads it.
                    unsafe { granules.hide(&(start + to..start + to + n_bytes)) };
                }
            }
        }
        taken
    }

    fn show_all(&self, shown: &[Shown]) -> bool {
        let _access = self.inner.lock();
        shown.iter().all(|Shown { id, from, to, n_bytes }| {
            self.place(*id).is_some_and(|(granules, start)| {
                // SAFETY: the lock keeps graphs off the state, and nobody else reads it.
                unsafe { granules.show(start + from..start + from + n_bytes, start + to) }
            })
        })
    }

    fn take_all(&self, all: &[Held]) -> Result<(), Error> {
        let _access = self.inner.lock();
        for (i, held) in all.iter().enumerate() {
            let Some((granules, change)) = self.change(held) else { continue };
            // SAFETY: the lock keeps graphs off the state, and nobody else reads it.
            if unsafe { granules.take(change) } {
                continue;
            }
            for taken in &all[..i] {
                if let Some((granules, Change { start, held, wanted })) = self.change(taken) {
                    // SAFETY: as above.
                    unsafe { granules.give_back(Change { start, held: wanted, wanted: held }) };
                }
            }
            let device = self.inner.tensors[held.id.0 as usize].device;
            let missing = all.iter().map(|held| held.wanted.saturating_sub(held.held)).sum();
            return Err(no_room(device, missing, "more of the sequences' state (KV cache and recurrent state)"));
        }
        Ok(())
    }

    /// Gives granules that hold a byte of these ranges (tensor, offset, bytes) and show the memory of others their own, before they
    /// are written. They hold what they held.
    ///
    /// # Errors
    /// [`Error::Slot`]: no such tensor, or a range lies outside it. [`Error::Alloc`], and some still show others' memory: the device
    /// has no room.
    pub fn own(&mut self, ranges: &[(StateId, usize, usize)]) -> Result<(), Error> {
        for &(id, offset, len) in ranges {
            self.range(id, offset, len)?;
            let Some((granules, start)) = self.place(id) else { continue };
            let _access = self.inner.lock();
            // SAFETY: the lock keeps graphs off the state, and nobody else reads it.
            if !unsafe { granules.own(&(start + offset..start + offset + len)) } {
                let device = self.inner.tensors[id.0 as usize].device;
                return Err(no_room(
                    device,
                    granules.n_bytes(),
                    "what sequences no longer have in common of their state",
                ));
            }
        }
        Ok(())
    }

    /// True for a tensor in granules that can show each other's memory.
    pub fn shows_granules(&self, id: StateId) -> bool {
        self.place(id).is_some_and(|(granules, _)| granules.can_show())
    }

    /// Gives back the memory of what is held and not wanted of tensors in granules. What keeps its memory, since it lies in a granule
    /// with something else, is zeros afterwards.
    ///
    /// # Errors
    /// [`Error::Slot`]: no such tensor, or a range lies outside it.
    pub fn give_back(&mut self, all: &[Held]) -> Result<(), Error> {
        for held in all {
            self.range(held.id, held.offset, held.wanted.max(held.held))?;
            let Some((granules, change)) = self.change(held) else { continue };
            let start = change.start - held.offset;
            let access = self.inner.lock();
            // SAFETY: the lock keeps graphs off the state, and nobody else reads it.
            let kept = unsafe { granules.give_back(change) };
            drop(access);
            kept.into_iter().try_for_each(|kept| self.zero(held.id, kept.start - start, kept.len()))?;
        }
        Ok(())
    }

    /// Bytes on each device of tensors that take memory as they are written, or before.
    pub fn growing_bytes(&self) -> Vec<(Device, usize)> {
        let mut all: Vec<(Device, usize)> = Vec::new();
        let ids = (0..self.inner.tensors.len()).map(|i| StateId(i as u32));
        for id in ids.filter(|&id| self.page_bytes(id).is_some()) {
            let StateTensor { device, n_bytes, .. } = self.inner.tensors[id.0 as usize];
            match all.iter_mut().find(|(known, _)| *known == device) {
                Some((_, sum)) => *sum += n_bytes,
                None => all.push((device, n_bytes)),
            }
        }
        all
    }

    /// Bytes that tensors in granules take now.
    pub fn granule_bytes(&self) -> usize {
        self.inner.granules.iter().map(Granules::taken_bytes).sum()
    }

    /// The parts of a range that have memory.
    pub(crate) fn with_memory(&self, id: StateId, offset: usize, len: usize) -> Vec<Range<usize>> {
        match self.place(id) {
            None => std::iter::once(offset..offset + len).collect(),
            Some((granules, start)) => {
                let parts = granules.with_memory(start + offset..start + offset + len);
                parts.into_iter().map(|part| part.start - start..part.end - start).collect()
            }
        }
    }

    /// # Errors
    /// [`Error::Slot`]: some of the range has no memory, or others show it too.
    pub(crate) fn check_own(&self, id: StateId, offset: usize, len: usize) -> Result<(), Error> {
        let Some((granules, start)) = self.place(id) else { return Ok(()) };
        let own = granules.writable(start + offset..start + offset + len);
        let n_bytes: usize = own.iter().map(Range::len).sum();
        if n_bytes == len {
            return Ok(());
        }
        let what =
            format!("of bytes {offset}+{len} only {n_bytes} have memory of their own: take it before they are written");
        Err(Error::Slot { kind: "state", name: id.0.to_string(), what })
    }

    /// The granules of a tensor, and its first byte in them.
    fn place(&self, id: StateId) -> Option<(&Granules, usize)> {
        let (all, start) = self.inner.tensors.get(id.0 as usize)?.in_granules?;
        Some((&self.inner.granules[all], start))
    }

    fn change(&self, held: &Held) -> Option<(&Granules, Change)> {
        let (granules, start) = self.place(held.id)?;
        let (start, Held { held, wanted, .. }) = (start + held.offset, *held);
        Some((granules, Change { start, held, wanted }))
    }
}
