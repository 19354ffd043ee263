//! Copying one sequence's state to the host: checkpoints of what cannot be cut, with the way back, and whole sequences; and to
//! another slot.

use std::collections::VecDeque;
use std::ops::Range;

use ggml::StateId;

use crate::cache_type::CacheType;
use crate::error::Error;
use crate::layout::LayerState;
use crate::saved::{Checkpoint, SavedSequence};
use crate::saved_cells::CellsWriter;
use crate::slots::{LayerTensors, Memory, MemoryConfig, Slot, others};
use crate::step_log::HeadState;

/// A copy of a sequence that is being made, some bytes at a time.
#[derive(Debug)]
pub struct Saving {
    index: usize,
    /// Whose slot it is, and how the sequence stands there.
    stands_at: (u64, usize, u32, HeadState),
    /// Positions that are copied.
    len: usize,
    recurrent: Vec<u8>,
    /// Of the recurrent state, what is not read yet, and the layer.
    left: VecDeque<(usize, Bytes)>,
    /// Of the cells, with their numbers; of the first, bytes before `at` are read.
    ranges: VecDeque<(usize, Bytes)>,
    at: usize,
    cells: CellsWriter,
    shape: Vec<u64>,
}

impl Saving {
    /// True when nothing is left to copy.
    pub fn is_whole(&self) -> bool {
        self.left.is_empty() && self.ranges.is_empty()
    }
}

impl Memory {
    /// Copies the recurrent state at the sequence's end, and the cells of windows. It is empty where any position can be gone
    /// back to: [`Memory::forgets`].
    ///
    /// # Errors
    /// [`Error::Slot`], [`Error::Step`]: the state is lost. [`Error::Device`].
    pub fn checkpoint(&self, slot: &Slot) -> Result<Checkpoint, Error> {
        let index = self.index(slot)?;
        let state = self.sound(index)?;
        let mut rows = self.read_recurrent(index)?;
        self.read_cells(self.ring_ranges(index, state.len)?, &mut rows)?;
        Ok(Checkpoint { position: state.len, rows })
    }

    /// Goes back to a checkpoint of this sequence: cells from its position on are forgotten. The cells before it must be
    /// those that it was taken with.
    ///
    /// # Errors
    /// [`Error::Slot`]; [`Error::Saved`]: made for another layout, or the sequence is shorter. [`Error::Device`].
    pub fn restore(&mut self, slot: &Slot, checkpoint: &Checkpoint) -> Result<(), Error> {
        let index = self.index(slot)?;
        self.shape().check_checkpoint(checkpoint, self.slots[index].len)?;
        self.wipe(index, checkpoint.position)?;
        self.write_checkpoint(index, checkpoint)
    }

    /// Copies the whole sequence.
    ///
    /// # Errors
    /// As [`Memory::checkpoint`].
    pub fn save(&self, slot: &Slot) -> Result<SavedSequence, Error> {
        self.save_first(slot, self.len(slot)?)
    }

    /// Copies the first `len` positions of a sequence; with recurrent state that is all of it.
    ///
    /// # Errors
    /// As [`Memory::checkpoint`]; [`Error::Step`]: more than there are, or state that cannot be cut there.
    pub fn save_first(&self, slot: &Slot, len: usize) -> Result<SavedSequence, Error> {
        self.finish_saving(self.begin_copy(slot, len, None)?)
    }

    /// Begins a copy of the whole sequence, with which [`Memory::save_more`] goes on. Cells that are the same in `beside` are in
    /// common with it: of each, memory is taken once.
    ///
    /// # Errors
    /// As [`Memory::checkpoint`].
    pub fn begin_saving(&self, slot: &Slot, beside: Option<&SavedSequence>) -> Result<Saving, Error> {
        self.begin_copy(slot, self.len(slot)?, beside)
    }

    /// Copies some 256 KiB more, of which [`Saving::is_whole`] says when they were all. The sequence must not have changed.
    ///
    /// # Errors
    /// [`Error::Step`]: it is not what it was. [`Error::Device`].
    pub fn save_more(&self, saving: &mut Saving) -> Result<(), Error> {
        let state = self.slots[saving.index];
        if state.lost || (state.epoch, state.len, state.plane, state.heads) != saving.stands_at {
            return Err(Error::Step(format!("the sequence of slot {} changed while it was copied", saving.index)));
        }
        if let Some((il, bytes)) = saving.left.pop_front() {
            self.read_recurrent_row(saving.index, il, bytes, &mut saving.recurrent)?;
        } else if let Some(&(i, (id, offset, n_bytes))) = saving.ranges.front() {
            let at = saving.at;
            saving.at += saving.cells.push((i, n_bytes), at, |into| self.buffer.read(id, offset + at, into))?;
            if saving.at >= n_bytes {
                saving.ranges.pop_front();
                saving.at = 0;
            }
        }
        Ok(())
    }

    /// Copies what is left, and gives the sequence.
    ///
    /// # Errors
    /// As [`Memory::save_more`].
    pub fn finish_saving(&self, mut saving: Saving) -> Result<SavedSequence, Error> {
        while !saving.is_whole() {
            self.save_more(&mut saving)?;
        }
        let Saving { len, recurrent, cells, shape, .. } = saving;
        Ok(SavedSequence { len, recurrent, cells: cells.finish(), shape })
    }

    fn begin_copy(&self, slot: &Slot, len: usize, beside: Option<&SavedSequence>) -> Result<Saving, Error> {
        let index = self.index(slot)?;
        let state = self.sound(index)?;
        if len > state.len || len < self.earliest(&state) {
            return Err(Error::Step(format!("a sequence of {} positions cannot be copied up to {len}", state.len)));
        }
        let recurrent = self.current_recurrent(index);
        let (shape, ranges) = (self.shape().words(), self.cell_ranges(index, len)?);
        let beside = beside.filter(|other| other.shape == shape).map(|other| &other.cells);
        let cells = CellsWriter::new(ranges.iter().map(|(.., n)| n).sum(), ranges.len(), beside);
        Ok(Saving {
            index,
            stands_at: (state.epoch, state.len, state.plane, state.heads),
            len,
            recurrent: Vec::with_capacity(self.shape().recurrent_bytes()),
            left: recurrent.into(),
            ranges: ranges.into_iter().enumerate().collect(),
            at: 0,
            cells,
            shape,
        })
    }

    /// Makes `to` a copy of the first `len` positions of `from`. Cells that need no copy of their own until one of the two
    /// writes over them are shared. `checkpoint` has what cannot be cut there; it is not needed
    /// where `from` could be cut to them.
    ///
    /// # Errors
    /// [`Error::Slot`]; [`Error::Step`], [`Error::Saved`], and nothing has changed: more positions than there are, or no
    /// recurrent state of this position. [`Error::Device`]: `to` holds anything.
    pub fn copy(&mut self, from: &Slot, to: &Slot, len: usize, checkpoint: Option<&Checkpoint>) -> Result<(), Error> {
        let (source, target) = (self.index(from)?, self.index(to)?);
        let held = self.slots[source].len;
        let at_cut;
        let checkpoint = match checkpoint {
            Some(checkpoint) => checkpoint,
            None if self.layout.is_recurrent() => {
                at_cut = self.checkpoint(from)?;
                &at_cut
            }
            None if len < self.earliest(&self.slots[source]) => {
                let what =
                    format!("{len} of {held} positions were to be copied, the cells of windows are there no more");
                return Err(Error::Step(what));
            }
            None => {
                let mut rows = Vec::new();
                self.read_cells(self.ring_ranges(source, len.min(held))?, &mut rows)?;
                at_cut = Checkpoint { position: len, rows };
                &at_cut
            }
        };
        self.shape().check_checkpoint(checkpoint, held)?;
        if checkpoint.position != len {
            let position = checkpoint.position;
            return Err(Error::Step(format!("{len} positions were to be copied, the state is there for {position}")));
        }
        self.wipe(target, 0)?;
        self.stop_showing(target, 0)?;
        let there = self.show(source, target, len)?;
        let spoiled = self.slots[source].spoiled;
        let state = &mut self.slots[target];
        state.writes(len);
        state.spoiled |= spoiled;
        let mut bytes = Vec::new();
        let ranges = self.plain_ranges(source, len)?.into_iter().zip(self.plain_ranges(target, len)?);
        for ((id, offset, n_bytes), (_, to, _)) in ranges {
            let there = there.iter().filter(|(of, _)| *of == id).map(|(_, shown)| shown.clone());
            for left in others(to..to + n_bytes, there) {
                bytes.resize(left.len(), 0);
                self.buffer.read(id, offset + left.start - to, &mut bytes)?;
                self.buffer.write(id, left.start, &bytes)?;
            }
        }
        self.write_checkpoint(target, checkpoint)
    }

    /// Appends the bytes of these ranges.
    fn read_cells(&self, ranges: Vec<Bytes>, into: &mut Vec<u8>) -> Result<(), Error> {
        for (id, offset, n_bytes) in ranges {
            let start = into.len();
            into.resize(start + n_bytes, 0);
            self.buffer.read(id, offset, &mut into[start..])?;
        }
        Ok(())
    }

    /// The sequence now has so many positions, and of those before them its windows' cells alone.
    pub(crate) fn stands_at(&mut self, index: usize, len: usize) {
        let state = &mut self.slots[index];
        (state.len, state.n_stepped, state.filled_at, state.held) = (len, len, len, None);
    }

    /// `checkpoint`: of this shape.
    fn write_checkpoint(&mut self, index: usize, checkpoint: &Checkpoint) -> Result<(), Error> {
        let mut start = self.shape().recurrent_bytes();
        self.write_recurrent(index, &checkpoint.rows[..start])?;
        for (id, offset, n_bytes) in self.ring_ranges(index, checkpoint.position)? {
            self.buffer.write(id, offset, &checkpoint.rows[start..start + n_bytes])?;
            start += n_bytes;
        }
        self.stands_at(index, checkpoint.position);
        Ok(())
    }

    fn read_recurrent(&self, index: usize) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        for (il, row) in self.current_recurrent(index) {
            self.read_recurrent_row(index, il, row, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// Where the recurrent state of a sequence lies, and the layers.
    fn current_recurrent(&self, index: usize) -> Vec<(usize, Bytes)> {
        let of_layer = |il| self.current_rows(il, index).into_iter().map(move |bytes| (il, bytes));
        (0..self.layers.len()).flat_map(of_layer).collect()
    }

    /// Appends a row of the recurrent state of a layer, with the tokens that were logged since.
    fn read_recurrent_row(
        &self,
        index: usize,
        il: usize,
        (id, offset, n_bytes): Bytes,
        into: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let start = into.len();
        into.resize(start + n_bytes, 0);
        self.buffer.read(id, offset, &mut into[start..])?;
        match self.logs(il) && self.heads_id(il) == Some(id) {
            true => self.replay(il, index, &mut into[start..]),
            false => Ok(()),
        }
    }

    /// `bytes`: as many as the shape says.
    fn write_recurrent(&mut self, index: usize, bytes: &[u8]) -> Result<(), Error> {
        self.take(index, 0, 1)?;
        let rows: Vec<_> = (0..self.layers.len()).flat_map(|il| self.recurrent_rows(il, index, 0)).collect();
        let mut start = 0;
        for (id, offset, n_bytes) in rows {
            self.buffer.write(id, offset, &bytes[start..start + n_bytes])?;
            start += n_bytes;
        }
        let state = &mut self.slots[index];
        (state.plane, state.heads, state.lost, state.loading) = (0, HeadState::default(), false, None);
        state.n_planes_written = state.n_planes_written.max(1);
        Ok(())
    }

    /// The bytes that hold the cells which a sequence of `len` positions keeps.
    pub(crate) fn cell_ranges(&self, index: usize, len: usize) -> Result<Vec<Bytes>, Error> {
        self.ranges_of(index, len, |_| true)
    }

    /// Those of layers that keep all positions.
    fn plain_ranges(&self, index: usize, len: usize) -> Result<Vec<Bytes>, Error> {
        self.ranges_of(index, len, |window| window.is_none() || !self.has_rings())
    }

    /// Those of the others.
    fn ring_ranges(&self, index: usize, len: usize) -> Result<Vec<Bytes>, Error> {
        self.ranges_of(index, len, |window| window.is_some() && self.has_rings())
    }

    fn ranges_of(&self, index: usize, len: usize, of: impl Fn(Option<usize>) -> bool) -> Result<Vec<Bytes>, Error> {
        let mut ranges = Vec::new();
        for il in 0..self.layers.len() {
            let window = self.kinds.window_of(il);
            if of(self.window(window)) {
                ranges.extend(self.layer_ranges(il, index, self.kept_cells(window, len))?);
            }
        }
        Ok(ranges)
    }

    /// The bytes that hold these cells of a slot in a layer: keys, then values.
    pub(crate) fn layer_ranges(
        &self,
        il: usize,
        index: usize,
        cells: impl Iterator<Item = Range<usize>> + Clone,
    ) -> Result<Vec<Bytes>, Error> {
        let MemoryConfig { type_k, type_v, v_transposed, .. } = self.config;
        let (LayerState::Kv(kv), LayerTensors::Kv { k, v }) = (self.layout.layers[il], self.layers[il]) else {
            return Ok(Vec::new());
        };
        let (n_cells, stride) = (self.config.n_cells(kv.window), self.stride(self.kinds.window_of(il)));
        // Heads that no block divides were refused when the tensors were made.
        let row = |t: CacheType, d: usize| kv.n_head_kv * t.head_bytes(d).unwrap_or(0);
        let k_row = row(type_k, kv.d_k);
        let rows = |id, row| cells.clone().map(move |c| (id, (index * stride + c.start) * row, c.len() * row));
        let mut ranges: Vec<Bytes> = rows(k, k_row).collect();
        if kv.latent {
            return Ok(ranges);
        }
        if v_transposed {
            let (size, n) = (type_v.dtype().block_bytes(), kv.d_v * kv.n_head_kv);
            for element in 0..n {
                let row = (index * n + element) * n_cells;
                ranges.extend(cells.clone().map(|c| (v, (row + c.start) * size, c.len() * size)));
            }
        } else {
            ranges.extend(rows(v, row(type_v, kv.d_v)));
        }
        Ok(ranges)
    }
}

/// A tensor, and offset and length of bytes in it.
pub(crate) type Bytes = (StateId, usize, usize);
