//! Copies of one sequence's state on the host: checkpoints of what cannot be cut, and whole sequences.

use std::ops::Range;

use ggml::StateId;

use crate::error::Error;
use crate::layout::LayerState;
use crate::slots::{LayerTensors, Memory, MemoryConfig, Slot};

/// The recurrent state at a position. With the attention cells before it still in place, a sequence can go back there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    position: usize,
    rows: Vec<u8>,
}

impl Checkpoint {
    /// Positions before it.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Bytes that it takes on the host.
    pub fn n_bytes(&self) -> usize {
        self.rows.len()
    }
}

/// Everything of one sequence: cells and recurrent state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedSequence {
    len: usize,
    recurrent: Vec<u8>,
    cells: Vec<u8>,
    /// What it was made for: types and widths of every layer.
    shape: Vec<u64>,
}

impl SavedSequence {
    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that it takes on the host.
    pub fn n_bytes(&self) -> usize {
        self.recurrent.len() + self.cells.len()
    }

    /// Appends it as bytes: numbers, then state.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        let lengths = [self.len, self.shape.len(), self.recurrent.len(), self.cells.len()];
        for n in lengths.map(|n| n as u64).iter().chain(&self.shape) {
            out.extend_from_slice(&n.to_le_bytes());
        }
        out.extend_from_slice(&self.recurrent);
        out.extend_from_slice(&self.cells);
    }

    /// Reads what [`SavedSequence::write_to`] wrote; nothing may follow it.
    ///
    /// # Errors
    /// [`Error::Saved`]: the lengths do not agree with the bytes. Whether it fits a memory is found by [`Memory::load`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let cut = || Error::Saved("the saved state is cut off".into());
        let (head, rest) = bytes.split_at_checked(4 * 8).ok_or_else(cut)?;
        let mut lengths = head.as_chunks::<8>().0.iter().map(|&n| usize::try_from(u64::from_le_bytes(n)));
        let mut length = || lengths.next().and_then(Result::ok).ok_or_else(cut);
        let (len, n_shape, n_recurrent, n_cells) = (length()?, length()?, length()?, length()?);
        let (shape, rest) = rest.split_at_checked(n_shape.checked_mul(8).ok_or_else(cut)?).ok_or_else(cut)?;
        let (recurrent, cells) = rest.split_at_checked(n_recurrent).ok_or_else(cut)?;
        if cells.len() != n_cells {
            return Err(Error::Saved(format!("{} bytes of cells, {n_cells} expected", cells.len())));
        }
        let shape = shape.as_chunks::<8>().0.iter().map(|&n| u64::from_le_bytes(n)).collect();
        Ok(Self { len, recurrent: recurrent.to_vec(), cells: cells.to_vec(), shape })
    }
}

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
        if checkpoint.position > self.slots[index].len {
            let len = self.slots[index].len;
            return Err(Error::Saved(format!("it is at position {}, the sequence has {len}", checkpoint.position)));
        }
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
        let recurrent = self.checkpoint(slot)?.rows;
        let index = self.index(slot)?;
        let len = self.slots[index].len;
        let mut cells = Vec::new();
        for (id, offset, n_bytes) in self.cell_ranges(index, 0..len)? {
            let start = cells.len();
            cells.resize(start + n_bytes, 0);
            self.buffer.read(id, offset, &mut cells[start..])?;
        }
        Ok(SavedSequence { len, recurrent, cells, shape: self.shape() })
    }

    /// Replaces the sequence by a saved one.
    ///
    /// # Errors
    /// [`Error::Slot`]; [`Error::Saved`]: made for another model or cache type, or longer than the context.
    /// [`Error::Device`].
    pub fn load(&mut self, slot: &Slot, saved: &SavedSequence) -> Result<(), Error> {
        let index = self.index(slot)?;
        if saved.shape != self.shape() {
            return Err(Error::Saved("it was made for another model or another cache type".into()));
        }
        if saved.len > self.config.n_ctx {
            return Err(Error::Saved(format!("it has {} positions, the context {}", saved.len, self.config.n_ctx)));
        }
        let ranges = self.cell_ranges(index, 0..saved.len)?;
        if ranges.iter().map(|r| r.2).sum::<usize>() != saved.cells.len() {
            return Err(Error::Saved("its length does not agree with its shape".into()));
        }
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

    fn write_recurrent(&mut self, index: usize, bytes: &[u8]) -> Result<(), Error> {
        let rows: Vec<_> = (0..self.layers.len()).flat_map(|il| self.recurrent_rows(il, index, 0)).collect();
        let n_bytes: usize = rows.iter().map(|r| r.2).sum();
        if n_bytes != bytes.len() {
            return Err(Error::Saved(format!("{} bytes of recurrent state, {n_bytes} expected", bytes.len())));
        }
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

    fn shape(&self) -> Vec<u64> {
        let c = &self.config;
        let mut shape = vec![c.type_k.dtype().id().into(), c.type_v.dtype().id().into(), c.v_transposed.into()];
        for layer in &self.layout.layers {
            let numbers = match layer {
                LayerState::None => [0; 4],
                LayerState::Kv(kv) => [1, kv.n_head_kv, kv.d_k, kv.d_v],
                LayerState::Recurrent(r) => [2 + r.n_conv, r.n_channels, r.n_heads, r.d_state],
            };
            shape.extend(numbers.map(|n| n as u64));
        }
        shape
    }
}
