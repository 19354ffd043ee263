//! Copying one sequence's state to the host and back: checkpoints of what cannot be cut, and whole sequences.

use std::ops::Range;

use ggml::StateId;

use crate::error::Error;
use crate::layout::LayerState;
use crate::saved::{Checkpoint, SavedSequence};
use crate::slots::{LayerTensors, Memory, MemoryConfig, Slot};

impl Memory {
    /// Copies the recurrent state at the sequence's end. Without recurrent layers it is empty, and any position can be
    /// gone back to.
    ///
    /// # Errors
    /// [`Error::Slot`], [`Error::Step`]: the state is lost. [`Error::Device`].
    pub fn checkpoint(&self, slot: &Slot) -> Result<Checkpoint, Error> {
        let index = self.index(slot)?;
        let state = self.slots[index];
        if state.lost {
            return Err(Error::Step(format!("slot {index}: a step failed and its state is lost")));
        }
        Ok(Checkpoint { position: state.len, rows: self.read_recurrent(index)? })
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
        self.write_recurrent(index, &checkpoint.rows)?;
        self.slots[index].len = checkpoint.position;
        Ok(())
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
    /// As [`Memory::checkpoint`]; [`Error::Step`]: more than there are, or state that cannot be cut.
    pub fn save_first(&self, slot: &Slot, len: usize) -> Result<SavedSequence, Error> {
        let Checkpoint { position, rows: recurrent } = self.checkpoint(slot)?;
        if len > position || len < position && self.layout.is_recurrent() {
            return Err(Error::Step(format!("a sequence of {position} positions cannot be copied up to {len}")));
        }
        let index = self.index(slot)?;
        let mut cells = Vec::new();
        for (id, offset, n_bytes) in self.cell_ranges(index, 0..len)? {
            let start = cells.len();
            cells.resize(start + n_bytes, 0);
            self.buffer.read(id, offset, &mut cells[start..])?;
        }
        Ok(SavedSequence { len, recurrent, cells, shape: self.shape().words() })
    }

    /// Replaces the sequence by a saved one.
    ///
    /// # Errors
    /// [`Error::Slot`]; [`Error::Saved`], and nothing has changed: as [`crate::StateShape::check`]. [`Error::Device`].
    pub fn load(&mut self, slot: &Slot, saved: &SavedSequence) -> Result<(), Error> {
        let index = self.index(slot)?;
        // Before anything is written: what does not fit leaves the slot as it was.
        self.shape().check(saved)?;
        let ranges = self.cell_ranges(index, 0..saved.len)?;
        // Its numbers may come from a file, and be anything.
        self.wipe(index, 0)?;
        let state = &mut self.slots[index];
        (state.n_written, state.spoiled) = (state.n_written.max(saved.len), true);
        let mut start = 0;
        for (id, offset, n_bytes) in ranges {
            self.buffer.write(id, offset, &saved.cells[start..start + n_bytes])?;
            start += n_bytes;
        }
        self.write_recurrent(index, &saved.recurrent)?;
        self.slots[index].len = saved.len;
        Ok(())
    }

    /// Makes `to` a copy of the first `len` positions of `from`. `checkpoint` has the recurrent state there; it is not needed
    /// at the end of `from`, nor without recurrent layers.
    ///
    /// # Errors
    /// [`Error::Slot`]; [`Error::Step`], [`Error::Saved`], and nothing has changed: more positions than there are, or no
    /// recurrent state of this position. [`Error::Device`]: `to` holds anything.
    pub fn copy(&mut self, from: &Slot, to: &Slot, len: usize, checkpoint: Option<&Checkpoint>) -> Result<(), Error> {
        let (source, target) = (self.index(from)?, self.index(to)?);
        let held = self.slots[source].len;
        let at_end;
        let checkpoint = match checkpoint {
            Some(checkpoint) => checkpoint,
            None if self.layout.is_recurrent() => {
                at_end = self.checkpoint(from)?;
                &at_end
            }
            None => &Checkpoint { position: len, rows: Vec::new() },
        };
        self.shape().check_checkpoint(checkpoint, held)?;
        if checkpoint.position != len {
            let position = checkpoint.position;
            return Err(Error::Step(format!("{len} positions were to be copied, the state is there for {position}")));
        }
        self.wipe(target, 0)?;
        let spoiled = self.slots[source].spoiled;
        let state = &mut self.slots[target];
        (state.n_written, state.spoiled) = (state.n_written.max(len), state.spoiled || spoiled);
        let mut bytes = Vec::new();
        let ranges = self.cell_ranges(source, 0..len)?.into_iter().zip(self.cell_ranges(target, 0..len)?);
        for ((id, offset, n_bytes), (_, to, _)) in ranges {
            bytes.resize(n_bytes, 0);
            self.buffer.read(id, offset, &mut bytes)?;
            self.buffer.write(id, to, &bytes)?;
        }
        self.write_recurrent(target, &checkpoint.rows)?;
        self.slots[target].len = len;
        Ok(())
    }

    fn read_recurrent(&self, index: usize) -> Result<Vec<u8>, Error> {
        let plane = self.slots[index].plane;
        let mut bytes = Vec::new();
        for il in 0..self.layers.len() {
            for (id, offset, n_bytes) in self.recurrent_rows(il, index, plane) {
                let start = bytes.len();
                bytes.resize(start + n_bytes, 0);
                self.buffer.read(id, offset, &mut bytes[start..])?;
            }
        }
        Ok(bytes)
    }

    /// `bytes`: as many as the shape says.
    fn write_recurrent(&mut self, index: usize, bytes: &[u8]) -> Result<(), Error> {
        let rows: Vec<_> = (0..self.layers.len()).flat_map(|il| self.recurrent_rows(il, index, 0)).collect();
        let mut start = 0;
        for (id, offset, n_bytes) in rows {
            self.buffer.write(id, offset, &bytes[start..start + n_bytes])?;
            start += n_bytes;
        }
        (self.slots[index].plane, self.slots[index].lost) = (0, false);
        Ok(())
    }

    /// Tensor, offset and length of the bytes that hold these cells of a slot.
    pub(crate) fn cell_ranges(&self, index: usize, cells: Range<usize>) -> Result<Vec<(StateId, usize, usize)>, Error> {
        let MemoryConfig { n_ctx, type_k, type_v, v_transposed, .. } = self.config;
        let mut ranges = Vec::new();
        let (first, len) = (cells.start, cells.len());
        if len == 0 {
            return Ok(ranges);
        }
        for (layer, tensors) in self.layout.layers.iter().zip(&self.layers) {
            let (LayerState::Kv(kv), LayerTensors::Kv { k, v }) = (layer, tensors) else { continue };
            let k_row = type_k.dtype().row_bytes((kv.d_k * kv.n_head_kv) as i64)?;
            ranges.push((*k, (index * n_ctx + first) * k_row, len * k_row));
            if kv.latent {
                continue;
            }
            if v_transposed {
                let (size, n) = (type_v.dtype().block_bytes(), kv.d_v * kv.n_head_kv);
                let row = |element| ((index * n + element) * n_ctx + first) * size;
                ranges.extend((0..n).map(|element| (*v, row(element), len * size)));
            } else {
                let v_row = type_v.dtype().row_bytes((kv.d_v * kv.n_head_kv) as i64)?;
                ranges.push((*v, (index * n_ctx + first) * v_row, len * v_row));
            }
        }
        Ok(ranges)
    }
}
