//! Steps that may all be taken back: a sequence is held where it stands, steps go on from there and commit, and later it
//! goes back at the cost of nothing.
//! Owns which plane of recurrent state must stay. For drafts by a model of its own, whose tokens nobody has verified.

use crate::error::Error;
use crate::slots::{Held, Memory, Slot, SlotStatus};

impl Memory {
    /// Holds the sequence where it stands: until it is let go, held elsewhere, cut, restored, loaded or reset, [`Memory::take_back`] goes
    /// back there. Steps from here on keep one snapshot each. With recurrent state the memory must have been made for two.
    ///
    /// # Errors
    /// [`Error::Slot`]: the slot is not in use. [`Error::Step`]: the state is lost, or there is one plane only.
    pub fn hold(&mut self, slot: &Slot) -> Result<(), Error> {
        let index = self.index(slot)?;
        let state = self.sound(index)?;
        if self.layout.is_recurrent() && self.config.n_planes() < 2 {
            let what = format!("slot {index}: a sequence with recurrent state is held in a memory of 2 snapshots");
            return Err(Error::Step(what));
        }
        self.slots[index].held = Some(Held { len: state.len, plane: state.plane, heads: state.heads });
        Ok(())
    }

    /// Holds the sequence no longer: it stays where it stands.
    ///
    /// # Errors
    /// [`Error::Slot`]: the slot is not in use.
    pub fn let_go(&mut self, slot: &Slot) -> Result<(), Error> {
        let index = self.index(slot)?;
        self.slots[index].held = None;
        Ok(())
    }

    /// The position that [`Memory::take_back`] goes back to; `None` where the sequence is not held.
    ///
    /// # Errors
    /// [`Error::Slot`]: the slot is not in use.
    pub fn held_at(&self, slot: &Slot) -> Result<Option<usize>, Error> {
        Ok(self.slots[self.index(slot)?].held.map(|held| held.len))
    }

    /// Forgets what steps have added since the sequence was held; also a step that was dropped. It stays held. In layers with
    /// a window at most `max_rows` positions can have been added ([`crate::MemoryConfig::max_rows`]).
    ///
    /// # Errors
    /// [`Error::Slot`]: the slot is not in use. [`Error::Step`]: the sequence is not held, or the cells of its windows have
    /// been written over. [`Error::Device`]: spoiled cells could not be cleared.
    pub fn take_back(&mut self, slot: &Slot) -> Result<(), Error> {
        let index = self.index(slot)?;
        let Some(held) = self.slots[index].held else {
            return Err(Error::Step(format!("slot {index}: a sequence that is not held cannot be taken back")));
        };
        let reach = self.config.max_rows.unwrap_or(usize::MAX);
        if self.has_rings() && self.slots[index].n_stepped.saturating_sub(held.len) > reach {
            let what = format!("slot {index}: more than {reach} positions behind its windows cannot be taken back");
            return Err(Error::Step(what));
        }
        self.wipe(index, held.len)?;
        let state = &mut self.slots[index];
        (state.len, state.plane, state.heads, state.lost) = (held.len, held.plane, held.heads, false);
        Ok(())
    }
}

impl SlotStatus {
    /// The plane that a step of one snapshot writes: the first that is not held.
    pub(crate) fn free_plane(&self) -> Option<u32> {
        self.held.map(|held| u32::from(held.plane == 0))
    }
}
