//! What the saved state of one sequence must be like to fit a memory: types, widths, lengths, finite values.
//! Plain data without device tensors, so that state is checked wherever it comes in, while the memory computes elsewhere.

use crate::error::Error;
use crate::layout::{CacheType, Kv, LayerState, StateLayout};
use crate::saved::{Checkpoint, SavedSequence, check_floats};
use crate::slots::Memory;

/// The shape of one sequence's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateShape {
    layout: StateLayout,
    type_k: CacheType,
    type_v: CacheType,
    v_transposed: bool,
    n_ctx: usize,
}

impl Memory {
    /// The shape of each of its sequences.
    pub fn shape(&self) -> StateShape {
        let c = &self.config;
        let (type_k, type_v, v_transposed, n_ctx) = (c.type_k, c.type_v, c.v_transposed, c.n_ctx);
        StateShape { layout: self.layout.clone(), type_k, type_v, v_transposed, n_ctx }
    }
}

impl StateShape {
    /// Positions at most.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Bytes of the recurrent state, which are also those of a checkpoint; 0 without recurrent layers.
    pub fn recurrent_bytes(&self) -> usize {
        let of_layer = |layer: &LayerState| match layer {
            LayerState::Recurrent(r) => r.n_bytes(),
            LayerState::None | LayerState::Kv(_) => 0,
        };
        self.layout.layers.iter().map(of_layer).sum()
    }

    /// Bytes of one cell of all attention layers.
    fn cell_bytes(&self) -> usize {
        self.rows().map(|(_, n_bytes)| n_bytes).sum()
    }

    /// Bytes that [`SavedSequence::write_to`] appends for a sequence of `len` positions.
    pub fn saved_bytes(&self, len: usize) -> usize {
        8 * (4 + self.words().len()) + self.recurrent_bytes() + len * self.cell_bytes()
    }

    /// Checks types, widths and lengths of a saved sequence, all but its values.
    ///
    /// # Errors
    /// [`Error::Saved`]: made for another model or cache type, longer than the context, or parts of another length.
    pub fn check(&self, saved: &SavedSequence) -> Result<(), Error> {
        let refuse = |what: String| Err(Error::Saved(what));
        if saved.shape != self.words() {
            return refuse("it was made for another model or another cache type".into());
        }
        if saved.len > self.n_ctx {
            return refuse(format!("it has {} positions, the context {}", saved.len, self.n_ctx));
        }
        let (found, expected) = (saved.cells.len(), saved.len * self.cell_bytes());
        if found != expected {
            return refuse(format!("{expected} bytes of cells expected for {} positions, {found} found", saved.len));
        }
        self.check_recurrent(saved.recurrent.len())
    }

    /// Checks that all values of a sequence that passed [`StateShape::check`] are finite; of quantised cells, their scales.
    ///
    /// # Errors
    /// [`Error::Saved`] names the part.
    pub fn check_values(&self, saved: &SavedSequence) -> Result<(), Error> {
        check_floats(&saved.recurrent)?;
        let mut rest = &saved.cells[..];
        for (dtype, row_bytes) in self.rows() {
            let (cells, after) = rest.split_at_checked(saved.len * row_bytes).unwrap_or((rest, &[]));
            rest = after;
            let sound = match dtype {
                CacheType::F32 => cells.as_chunks::<4>().0.iter().all(|&v| f32::from_le_bytes(v).is_finite()),
                CacheType::F16 => cells.as_chunks::<2>().0.iter().all(|&v| is_finite_f16(v)),
                // A block begins with its scale.
                CacheType::Q8_0 | CacheType::Q4_0 => {
                    let mut blocks = cells.chunks(dtype.dtype().block_bytes());
                    blocks.all(|block| block.first_chunk::<2>().is_none_or(|&scale| is_finite_f16(scale)))
                }
            };
            if !sound {
                return Err(Error::Saved("a value of its cells is not finite".into()));
            }
        }
        Ok(())
    }

    /// Checks position and length of a checkpoint of a sequence of `len` positions.
    ///
    /// # Errors
    /// [`Error::Saved`]: it lies behind the sequence's end, or was made for another layout.
    pub fn check_checkpoint(&self, checkpoint: &Checkpoint, len: usize) -> Result<(), Error> {
        if checkpoint.position > len {
            return Err(Error::Saved(format!("it is at position {}, the sequence has {len}", checkpoint.position)));
        }
        self.check_recurrent(checkpoint.rows.len())
    }

    fn check_recurrent(&self, found: usize) -> Result<(), Error> {
        let expected = self.recurrent_bytes();
        if found != expected {
            return Err(Error::Saved(format!("{found} bytes of recurrent state, {expected} expected")));
        }
        Ok(())
    }

    /// Type and bytes of each tensor's part of one cell, in the order in which cells are saved.
    fn rows(&self) -> impl Iterator<Item = (CacheType, usize)> {
        let of_layer = |layer: &LayerState| match *layer {
            LayerState::Kv(kv) => {
                let n_v = if kv.latent { 0 } else { kv.d_v * kv.n_head_kv };
                [(self.type_k, kv.d_k * kv.n_head_kv), (self.type_v, n_v)]
            }
            LayerState::None | LayerState::Recurrent(_) => [(self.type_k, 0); 2],
        };
        // A memory with rows that no block divides is not made.
        let n_bytes = |(t, n): (CacheType, usize)| (t, t.dtype().row_bytes(n as i64).unwrap_or(0));
        self.layout.layers.iter().flat_map(of_layer).filter(|(_, n)| *n > 0).map(n_bytes)
    }

    /// The shape as numbers, the context left out: what a saved sequence carries along.
    pub(crate) fn words(&self) -> Vec<u64> {
        let mut words =
            vec![self.type_k.dtype().id().into(), self.type_v.dtype().id().into(), self.v_transposed.into()];
        for layer in &self.layout.layers {
            let numbers = match layer {
                LayerState::None => [0; 4],
                // Heads of none tell a latent layer: its one head holds keys and values.
                LayerState::Kv(kv) => [1, if kv.latent { 0 } else { kv.n_head_kv }, kv.d_k, kv.d_v],
                LayerState::Recurrent(r) => [2 + r.n_conv, r.n_channels, r.n_heads, r.d_state],
            };
            words.extend(numbers.map(|n| n as u64));
            match layer {
                LayerState::Kv(Kv { window: Some(window), .. }) => words.push(*window as u64),
                LayerState::Recurrent(r) if r.d_head != r.d_state => words.push(r.d_head as u64),
                _ => {}
            }
        }
        words
    }
}

fn is_finite_f16(bytes: [u8; 2]) -> bool {
    u16::from_le_bytes(bytes) & 0x7C00 != 0x7C00
}
