//! A saved sequence on its way into a slot: at once, or some bytes at a time between the steps of other sequences.
//! Owns how far it is. Which bytes a sequence has, and where they belong, is said elsewhere.

use std::collections::VecDeque;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, Ordering};

use ggml::StateId;

use crate::error::Error;
use crate::saved::SavedSequence;
use crate::saved_cells::AT_ONCE;
use crate::slots::{Memory, Slot, others};
use crate::snapshot::Bytes;
use crate::step_log::HeadState;

/// A saved sequence of which some is in its slot. Until all of it is, the slot has no position and takes part in no step; where this is
/// dropped before, that stays so until the slot is reset, discarded or given another sequence.
#[derive(Debug)]
pub struct Loading<S> {
    index: usize,
    /// Tells it from all others.
    number: u64,
    saved: S,
    left: VecDeque<Left>,
    /// Cells from the first that may not be zeros in the end.
    n_written: usize,
    /// Bytes that were written last.
    bytes: Vec<u8>,
}

/// Bytes of a tensor that are not there yet.
#[derive(Debug)]
struct Left {
    id: StateId,
    bytes: Range<usize>,
    source: Source,
}

/// What they will be, with a place among all bytes of that kind.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// Nothing of the sequence: numbers of the one before it may be NaN or infinity.
    Zeros,
    Cells(usize),
    Recurrent(usize),
}

impl<S> Loading<S> {
    /// True when nothing is left to write.
    pub fn is_whole(&self) -> bool {
        self.left.is_empty()
    }

    /// What is being loaded.
    pub fn saved(&self) -> &S {
        &self.saved
    }
}

impl Memory {
    /// Replaces the sequence by a saved one.
    ///
    /// # Errors
    /// [`Error::Slot`]; [`Error::Saved`], and nothing has changed: as [`crate::StateShape::check`]. [`Error::Device`]: the state is
    /// lost.
    pub fn load(&mut self, slot: &Slot, saved: &SavedSequence) -> Result<(), Error> {
        let loading = self.begin_loading(slot, saved, None)?;
        self.finish_loading(loading).map(drop)
    }

    /// Begins to replace the sequence by a saved one; [`Memory::load_more`] goes on. What was there is gone. Where `beside` names
    /// another slot that holds the same first positions, and how many, the cells of these are shared with it as
    /// [`Memory::copy`] does, from here on: the other one may change. The saved ones are used where they cannot be.
    ///
    /// # Errors
    /// As [`Memory::load`]; [`Error::Slot`] of the other slot.
    pub fn begin_loading<S: Deref<Target = SavedSequence>>(
        &mut self,
        slot: &Slot,
        saved: S,
        beside: Option<(&Slot, usize)>,
    ) -> Result<Loading<S>, Error> {
        let index = self.index(slot)?;
        let beside = beside.map(|(other, n)| Ok::<_, Error>((self.index(other)?, n))).transpose()?;
        // Before anything is written: what does not fit leaves the slot as it was.
        self.shape().check(&saved)?;
        let (len, number) = (saved.len, NEXT.fetch_add(1, Ordering::Relaxed));
        let cells = self.cell_ranges(index, len)?;
        let stale = self.stale_ranges(index, len)?;
        let state = &mut self.slots[index];
        let n_written = if state.spoiled { len } else { state.n_written.max(len) };
        (state.len, state.held, state.lost, state.loading) = (0, None, true, None);
        self.stop_showing(index, 0)?;
        let there = match beside.filter(|&(other, _)| other != index && !self.slots[other].lost) {
            Some((other, n)) => self.show(other, index, n.min(len).min(self.slots[other].len))?,
            None => Vec::new(),
        };
        self.take(index, len, 1)?;
        let state = &mut self.slots[index];
        state.writes(len);
        // Its numbers may come from a file, and be anything.
        (state.spoiled, state.loading) = (true, Some(number));
        state.n_planes_written = state.n_planes_written.max(1);
        let mut left: VecDeque<Left> = stale.into_iter().map(|bytes| Left::new(bytes, Source::Zeros)).collect();
        let mut start = 0;
        for (id, offset, n_bytes) in cells {
            let there = there.iter().filter(|(of, _)| *of == id).map(|(_, shown)| shown.clone());
            let others = others(offset..offset + n_bytes, there).into_iter();
            left.extend(others.map(|bytes| Left { id, source: Source::Cells(start + bytes.start - offset), bytes }));
            start += n_bytes;
        }
        start = 0;
        for bytes in (0..self.layers.len()).flat_map(|il| self.recurrent_rows(il, index, 0)) {
            left.push_back(Left::new(bytes, Source::Recurrent(start)));
            start += bytes.2;
        }
        Ok(Loading { index, number, saved, left, n_written, bytes: Vec::new() })
    }

    /// Writes up to 256 KiB more, of which [`Loading::is_whole`] says when they were all.
    ///
    /// # Errors
    /// [`Error::Step`]: the slot was given something else meanwhile, and has that. [`Error::Device`].
    pub fn load_more<S: Deref<Target = SavedSequence>>(&mut self, loading: &mut Loading<S>) -> Result<(), Error> {
        self.check_loads(loading)?;
        let Loading { saved, left, bytes, .. } = loading;
        let Some(next) = left.front_mut() else { return Ok(()) };
        let (at, n) = (next.bytes.start, next.bytes.len().min(AT_ONCE));
        match &mut next.source {
            Source::Zeros => self.buffer.zero(next.id, at, n)?,
            Source::Cells(from) => {
                saved.cells.copy(*from..*from + n, bytes);
                self.buffer.write(next.id, at, bytes)?;
                *from += n;
            }
            Source::Recurrent(from) => {
                self.buffer.write(next.id, at, &saved.recurrent[*from..*from + n])?;
                *from += n;
            }
        }
        next.bytes.start += n;
        left.pop_front_if(|next| next.bytes.is_empty());
        Ok(())
    }

    /// Writes what is left: the slot has the sequence. Gives back what was loaded.
    ///
    /// # Errors
    /// As [`Memory::load_more`].
    pub fn finish_loading<S: Deref<Target = SavedSequence>>(&mut self, mut loading: Loading<S>) -> Result<S, Error> {
        while !loading.is_whole() {
            self.load_more(&mut loading)?;
        }
        self.check_loads(&loading)?;
        let state = &mut self.slots[loading.index];
        (state.plane, state.heads) = (0, HeadState::default());
        (state.lost, state.loading, state.n_written) = (false, None, loading.n_written);
        self.stands_at(loading.index, loading.saved.len);
        Ok(loading.saved)
    }

    fn check_loads<S>(&self, loading: &Loading<S>) -> Result<(), Error> {
        let index = loading.index;
        let is_there = self.slots.get(index).is_some_and(|s| s.in_use && s.loading == Some(loading.number));
        if is_there {
            Ok(())
        } else {
            Err(Error::Step(format!("slot {index} changed while a sequence was loaded into it")))
        }
    }

    /// The cells of a spoiled slot that a sequence of `len` positions does not write over.
    fn stale_ranges(&self, index: usize, len: usize) -> Result<Vec<Bytes>, Error> {
        let state = self.slots[index];
        let mut ranges = Vec::new();
        for il in 0..if state.spoiled { self.layers.len() } else { 0 } {
            let window = self.kinds.window_of(il);
            let stale = others(0..state.n_written.min(self.n_cells(window)), self.kept_cells(window, len));
            ranges.extend(self.layer_ranges(il, index, stale.into_iter())?);
        }
        Ok(ranges)
    }
}

impl Left {
    fn new((id, offset, n_bytes): Bytes, source: Source) -> Self {
        Self { id, bytes: offset..offset + n_bytes, source }
    }
}

/// The number of the next loading.
static NEXT: AtomicU64 = AtomicU64::new(0);
