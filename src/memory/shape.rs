//! What the saved state of one sequence must be like to fit a memory: types, widths, lengths, finite values.
//! Plain data without device tensors, so that state is checked wherever it comes in, while the memory computes elsewhere.

use crate::cache_type::CacheType;
use crate::error::Error;
use crate::layout::{Kv, LayerState, StateLayout};
use crate::ring::n_kept;
use crate::saved::{Checkpoint, SavedSequence, check_floats};
use crate::slots::Memory;

/// The shape of one sequence's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateShape {
    layout: StateLayout,
    type_k: CacheType,
    type_v: CacheType,
    v_transposed: bool,
    /// Of each layer, as numbers: elements of keys and of values that are rotated together. Empty where none are.
    rotations: Vec<u64>,
    n_ctx: usize,
    /// Layers with a window keep the cells of the window only.
    rings: bool,
}

impl Memory {
    /// The shape of each of its sequences.
    pub fn shape(&self) -> StateShape {
        let c = &self.config;
        let (type_k, type_v, v_transposed, n_ctx) = (c.type_k, c.type_v, c.v_transposed, c.n_ctx);
        let (layout, rotations, rings) = (self.layout.clone(), self.rotation_words(), self.has_rings());
        StateShape { layout, type_k, type_v, v_transposed, rotations, n_ctx, rings }
    }
}

impl StateShape {
    /// Positions at most.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Bytes of the recurrent state; 0 without recurrent layers.
    pub fn recurrent_bytes(&self) -> usize {
        let of_layer = |layer: &LayerState| match layer {
            LayerState::Recurrent(r) => r.n_bytes(),
            LayerState::None | LayerState::Kv(_) => 0,
        };
        self.layout.layers.iter().map(of_layer).sum()
    }

    /// Bytes of a checkpoint at a position; 0 where any position can be gone back to.
    pub fn checkpoint_bytes(&self, position: usize) -> usize {
        self.recurrent_bytes() + self.cell_bytes(position, |window| window.is_some() && self.rings)
    }

    /// The earliest position, but for 0, that a saved sequence of `len` positions can be cut to once it is loaded.
    pub fn rewinds_to(&self, len: usize) -> usize {
        let cut = |layer: &LayerState| match layer {
            LayerState::Kv(kv) => n_kept(kv.window, self.rings, len) == len,
            LayerState::None => true,
            LayerState::Recurrent(_) => false,
        };
        if self.layout.layers.iter().all(cut) { 0 } else { len }
    }

    /// Bytes of the cells that a sequence of `len` positions keeps, in layers of some windows.
    fn cell_bytes(&self, len: usize, of: impl Fn(Option<usize>) -> bool) -> usize {
        self.rows(len).filter(|row| of(row.window)).map(|row| row.n_cells * row.n_bytes).sum()
    }

    /// Bytes that [`SavedSequence::write_to`] appends for a sequence of `len` positions.
    pub fn saved_bytes(&self, len: usize) -> usize {
        8 * (4 + self.words().len()) + self.recurrent_bytes() + self.cell_bytes(len, |_| true)
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
        let (found, expected) = (saved.cells.len(), self.cell_bytes(saved.len, |_| true));
        if found != expected {
            return refuse(format!("{expected} bytes of cells expected for {} positions, {found} found", saved.len));
        }
        let (found, expected) = (saved.recurrent.len(), self.recurrent_bytes());
        if found != expected {
            return refuse(format!("{found} bytes of recurrent state, {expected} expected"));
        }
        Ok(())
    }

    /// Checks that all values of a sequence that passed [`StateShape::check`] are finite; of quantised cells, their scales.
    ///
    /// # Errors
    /// [`Error::Saved`] names the part.
    pub fn check_values(&self, saved: &SavedSequence) -> Result<(), Error> {
        check_floats(&saved.recurrent)?;
        self.check_cells(&saved.cells.in_a_row(), saved.len, |_| true)
    }

    /// As [`StateShape::check_values`], of a checkpoint that passed [`StateShape::check_checkpoint`].
    ///
    /// # Errors
    /// As [`StateShape::check_values`].
    pub fn check_checkpoint_values(&self, checkpoint: &Checkpoint) -> Result<(), Error> {
        let n_recurrent = self.recurrent_bytes();
        let (recurrent, cells) = checkpoint.rows.split_at_checked(n_recurrent).unwrap_or((&checkpoint.rows, &[]));
        check_floats(recurrent)?;
        self.check_cells(cells, checkpoint.position, |window| window.is_some() && self.rings)
    }

    fn check_cells(&self, mut rest: &[u8], len: usize, of: impl Fn(Option<usize>) -> bool) -> Result<(), Error> {
        for row in self.rows(len).filter(|row| of(row.window)) {
            let (cells, after) = rest.split_at_checked(row.n_cells * row.n_bytes).unwrap_or((rest, &[]));
            rest = after;
            if !row.kept_as.is_finite(cells, row.d) {
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
        let (found, expected) = (checkpoint.rows.len(), self.checkpoint_bytes(checkpoint.position));
        if found != expected {
            return Err(Error::Saved(format!("{found} bytes of state that cannot be cut, {expected} expected")));
        }
        Ok(())
    }

    /// Each tensor's part of the cells of a sequence of `len` positions, in the order in which cells are saved.
    fn rows(&self, len: usize) -> impl Iterator<Item = CellRows> {
        let of_layer = move |layer: &LayerState| {
            let (window, n_heads, widths) = match *layer {
                LayerState::Kv(kv) => (kv.window, kv.n_head_kv, [kv.d_k, if kv.latent { 0 } else { kv.d_v }]),
                LayerState::None | LayerState::Recurrent(_) => (None, 0, [0; 2]),
            };
            let n_cells = n_kept(window, self.rings, len);
            // A memory with heads that no block divides is not made.
            let n_bytes = move |t: CacheType, d: usize| n_heads * t.head_bytes(d).unwrap_or(0);
            [self.type_k, self.type_v]
                .into_iter()
                .zip(widths)
                .filter(move |(_, d)| *d > 0 && n_heads > 0)
                .map(move |(kept_as, d)| CellRows { window, n_cells, kept_as, d, n_bytes: n_bytes(kept_as, d) })
        };
        self.layout.layers.iter().flat_map(of_layer)
    }

    /// What tells shapes apart whose sequences do not fit each other.
    pub fn identity(&self) -> Vec<u64> {
        self.words()
    }

    /// The shape as numbers, the context left out: what a saved sequence carries along.
    pub(crate) fn words(&self) -> Vec<u64> {
        let mut words = vec![self.type_k.id(), self.type_v.id(), self.v_transposed.into()];
        for layer in &self.layout.layers {
            let numbers = match layer {
                LayerState::None => [0; 4],
                // Heads of none tell a latent layer: its one head holds keys and values.
                LayerState::Kv(kv) => [1, if kv.latent { 0 } else { kv.n_head_kv }, kv.d_k, kv.d_v],
                LayerState::Recurrent(r) => [2 + r.n_conv, r.n_channels, r.n_heads, r.d_state],
            };
            words.extend(numbers.map(|n| n as u64));
            match layer {
                LayerState::Kv(Kv { window: Some(window), .. }) => words.extend([*window as u64, self.rings.into()]),
                LayerState::Recurrent(r) if r.d_head != r.d_state => words.push(r.d_head as u64),
                _ => {}
            }
        }
        words.extend(&self.rotations);
        words
    }
}

/// One tensor's part of cells.
struct CellRows {
    window: Option<usize>,
    n_cells: usize,
    kept_as: CacheType,
    /// Elements of a head.
    d: usize,
    /// Of one cell.
    n_bytes: usize,
}
