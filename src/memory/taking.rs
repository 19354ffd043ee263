//! Memory for cells and recurrent states on devices where it is taken before they are written: in steps, and given back with the
//! sequence. Owns how much of each tensor a slot holds. On the host the system does so by itself, and nothing is to be done.

use ggml::{Held, Shown};

use crate::error::Error;
use crate::size::KV_STEP;
use crate::slots::{LayerTensors, Memory};

impl Memory {
    /// Takes memory for the first `n_cells` cells of a slot and for its first `n_planes` recurrent states, as far as it holds none.
    ///
    /// # Errors
    /// [`Error::Device`], and nothing has changed: no room.
    pub(crate) fn take(&mut self, index: usize, n_cells: usize, n_planes: u32) -> Result<(), Error> {
        self.take_shown(index, n_cells, n_planes, &[]).map(drop)
    }

    /// As [`Memory::take`], the slot holding no cells where some are shown: those granules show the memory of others. False, and nothing
    /// has changed, where the device refuses to show them.
    ///
    /// # Errors
    /// As [`Memory::take`].
    pub(crate) fn take_shown(
        &mut self,
        index: usize,
        n_cells: usize,
        n_planes: u32,
        shown: &[Shown],
    ) -> Result<bool, Error> {
        let state = self.slots[index];
        // A few more, so that not every step asks.
        let n_cells = match n_cells <= state.n_backed {
            true => state.n_backed,
            false => n_cells.next_multiple_of(KV_STEP).min(self.config.n_ctx),
        };
        let n_planes = n_planes.max(state.n_planes_backed);
        if !self.has_granules || (n_cells, n_planes) == (state.n_backed, state.n_planes_backed) {
            return Ok(true);
        }
        let cells = self.cells_held(index, state.n_backed, n_cells);
        let planes = self.planes_held(index, state.n_planes_backed, n_planes);
        if !self.buffer.take_shown(&[cells, planes].concat(), shown)? {
            return Ok(false);
        }
        let state = &mut self.slots[index];
        (state.n_backed, state.n_planes_backed) = (n_cells, n_planes);
        Ok(true)
    }

    /// Gives back the memory of a slot's cells but for the first `n_cells`, which keep theirs; others are zeros.
    pub(crate) fn give_back_cells(&mut self, index: usize, n_cells: usize) -> Result<(), Error> {
        let held = self.slots[index].n_backed;
        if held <= n_cells {
            return Ok(());
        }
        let in_pages = |id| self.buffer.page_bytes(id).is_some() && !self.buffer.is_in_granules(id);
        let on_host = self.layers.iter().any(|layer| matches!(layer, LayerTensors::Kv { k, .. } if in_pages(*k)));
        let state = &mut self.slots[index];
        state.n_backed = n_cells;
        if !on_host {
            state.n_taken = state.n_taken.min(n_cells);
        }
        Ok(self.buffer.give_back(&self.cells_held(index, held, n_cells))?)
    }

    /// Gives back all that a slot holds.
    pub(crate) fn give_back_all(&mut self, index: usize) -> Result<(), Error> {
        let state = self.slots[index];
        if !self.has_granules || (state.n_backed, state.n_planes_backed) == (0, 0) {
            return Ok(());
        }
        let cells = self.cells_held(index, state.n_backed, 0);
        let planes = self.planes_held(index, state.n_planes_backed, 0);
        let state = &mut self.slots[index];
        (state.n_backed, state.n_planes_backed) = (0, 0);
        Ok(self.buffer.give_back(&[cells, planes].concat())?)
    }

    /// The memory for so many cells of a slot, of which so many are held.
    fn cells_held(&self, index: usize, held: usize, wanted: usize) -> Vec<Held> {
        let mut all = Vec::new();
        for (il, tensors) in self.layers.iter().enumerate() {
            let LayerTensors::Kv { k, v } = *tensors else { continue };
            let window = self.kinds.window_of(il);
            let (n_cells, stride) = (self.n_cells(window), self.stride(window));
            let values = (k != v).then_some((v, false));
            for (id, keys) in [(k, true)].into_iter().chain(values) {
                if self.buffer.is_in_granules(id) {
                    let stripe = self.stripe_bytes(il, keys);
                    let bytes = |n: usize| n.min(n_cells) * (stripe / stride);
                    all.push(Held { id, offset: index * stripe, held: bytes(held), wanted: bytes(wanted) });
                }
            }
        }
        all
    }

    /// The same for recurrent states.
    fn planes_held(&self, index: usize, held: u32, wanted: u32) -> Vec<Held> {
        let mut all = Vec::new();
        for il in 0..self.layers.len() {
            for plane in held.min(wanted)..held.max(wanted) {
                for (id, offset, n_bytes) in self.recurrent_rows(il, index, plane) {
                    if self.buffer.is_in_granules(id) {
                        let bytes = |is: bool| if is { n_bytes } else { 0 };
                        all.push(Held { id, offset, held: bytes(plane < held), wanted: bytes(plane < wanted) });
                    }
                }
            }
        }
        all
    }
}
