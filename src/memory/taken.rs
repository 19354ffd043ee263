//! How much memory sequences take: on the host the pages that were written, on devices with granules those that were taken for
//! them, elsewhere what was reserved at the start.
//! Owns that count, and giving back what a slot has taken.

use ggml::{Device, StateId};

use crate::cache_type::CacheType;
use crate::error::Error;
use crate::footprint::{Footprint, Run};
use crate::layout::LayerState;
use crate::slots::{LayerTensors, Memory, Slot};

impl Memory {
    /// What a sequence takes here beyond what was reserved at the start.
    pub(crate) fn footprint_of(&self) -> Footprint {
        let mut footprint = Footprint { n_planes: self.config.n_planes(), is_all: true, ..Footprint::default() };
        for (il, (layer, tensors)) in self.layout.layers.iter().zip(&self.layers).enumerate() {
            let page = |id: StateId| self.buffer.page_bytes(id);
            // Tensors of few bytes have their memory from the start where others take granules.
            let is_small = |id: StateId| page(id).is_none() && self.has_granules && !self.config.v_transposed;
            match (layer, tensors) {
                (LayerState::Kv(_), LayerTensors::Kv { k, .. }) if is_small(*k) => {}
                (LayerState::Kv(kv), LayerTensors::Kv { k, v }) => {
                    let Some(page) = page(*k) else {
                        footprint.is_all = false;
                        continue;
                    };
                    let n_cells = self.stride(self.kinds.window_of(il));
                    // Cells of a slot may begin within a granule, and take one more.
                    let within = |id: &StateId, keys| {
                        self.buffer.is_in_granules(*id) && !self.stripe_bytes(il, keys).is_multiple_of(page)
                    };
                    let n_within = usize::from(within(k, true)) + usize::from(k != v && within(v, false));
                    footprint.add(Run { cell_bytes: page, n_cells: 1, page }, n_within);
                    // Blocks of a head were checked when the tensors were made.
                    let row = |t: CacheType, d: usize| kv.n_head_kv * t.head_bytes(d).unwrap_or(0);
                    let k_row = row(self.config.type_k, kv.d_k);
                    footprint.add(Run { cell_bytes: k_row, n_cells, page }, 1);
                    let n_values = kv.d_v * kv.n_head_kv;
                    match self.config.v_transposed {
                        _ if k == v => {}
                        true => {
                            let cell_bytes = self.config.type_v.dtype().block_bytes();
                            footprint.add(Run { cell_bytes, n_cells, page }, n_values);
                        }
                        false => footprint.add(Run { cell_bytes: row(self.config.type_v, kv.d_v), n_cells, page }, 1),
                    }
                }
                (LayerState::Recurrent(_), LayerTensors::Recurrent { conv, .. })
                    if page(*conv).is_none() && !self.has_granules =>
                {
                    footprint.is_all = false;
                }
                (LayerState::Recurrent(_), _) => {
                    for (id, _, n_bytes) in self.recurrent_rows(il, 0, 0) {
                        let Some(page) = page(id) else { continue };
                        match (self.step_log, layer) {
                            (Some(log), LayerState::Recurrent(r)) if self.logs(il) && self.heads_id(il) == Some(id) => {
                                footprint.logged_bytes += n_bytes + log.n_bytes(*r, page);
                            }
                            _ => footprint.plane_bytes += n_bytes,
                        }
                    }
                }
                _ => {}
            }
        }
        footprint
    }

    /// What a sequence takes beyond what was reserved at the start: nothing on devices that reserve all of it.
    pub fn footprint(&self) -> &Footprint {
        &self.footprint
    }

    /// Bytes that a slot has taken so far, by its sequence or by those before it, those that it shares
    /// ([`Memory::shown_by`]) included.
    ///
    /// # Errors
    /// [`Error::Slot`]: the slot is not in use.
    pub fn taken_by(&self, slot: &Slot) -> Result<usize, Error> {
        Ok(self.taken(self.index(slot)?))
    }

    fn taken(&self, index: usize) -> usize {
        let state = &self.slots[index];
        let n_planes = state.n_planes_written.max(state.n_planes_backed);
        self.footprint.of(state.n_taken.max(state.n_backed), n_planes as usize)
    }

    /// Bytes of memory that all of it takes now: of what is taken when it is written only that.
    pub fn taken_bytes(&self) -> usize {
        let own = |index| self.taken(index).saturating_sub(self.shown_bytes(index));
        let now: usize = (0..self.slots.len()).map(own).sum();
        self.reserved_bytes + now + self.shared_bytes(None)
    }

    /// Bytes that were taken at the start.
    pub(crate) fn bytes_at_start(&self) -> usize {
        let of_layer = |tensors: &LayerTensors| match *tensors {
            LayerTensors::None => Vec::new(),
            LayerTensors::Kv { k: a, v: b } | LayerTensors::Recurrent { conv: a, heads: b, .. } if a == b => vec![a],
            LayerTensors::Kv { k: a, v: b } | LayerTensors::Recurrent { conv: a, heads: b, .. } => vec![a, b],
        };
        let later = self.layers.iter().flat_map(of_layer).filter(|&id| self.buffer.page_bytes(id).is_some());
        self.buffer.n_bytes() - later.map(|id| self.buffer.tensor_bytes(id)).sum::<usize>()
    }

    /// Bytes on each device that are taken as sequences are written, if all of them fill the context.
    pub fn growing_bytes(&self) -> Vec<(Device, usize)> {
        let mut all = self.buffer.growing_bytes();
        for (device, n_bytes) in &mut all {
            let between = self.between.iter().filter(|(of, _)| of == device).map(|(_, n)| n).sum();
            *n_bytes = n_bytes.saturating_sub(between);
        }
        all
    }

    /// Forgets the whole sequence and gives back the memory that it took, where all of the state is taken when it is written.
    ///
    /// # Errors
    /// [`Error::Slot`]: the slot is not in use. [`Error::Device`]: the state could not be cleared.
    pub fn discard(&mut self, slot: &Slot) -> Result<(), Error> {
        let index = self.index(slot)?;
        if !self.footprint.is_all {
            return self.clear(index);
        }
        // Pages that go back are zeros, whatever they held.
        self.slots[index].spoiled = false;
        self.stop_showing(index, 0)?;
        self.clear(index)?;
        let state = self.slots[index];
        self.give_back_all(index)?;
        for il in 0..self.layers.len() {
            if let (LayerTensors::Kv { k, v }, true) = (self.layers[il], state.n_taken > 0) {
                for (id, keys) in [(k, true), (v, false)].into_iter().take(if k == v { 1 } else { 2 }) {
                    let stripe = self.stripe_bytes(il, keys);
                    self.buffer.discard(id, index * stripe, stripe)?;
                }
            }
            // The log is on the last plane.
            let log = (self.logs(il) && state.n_planes_written > 0).then_some(self.config.n_planes() as u32 - 1);
            for plane in (0..state.n_planes_written).chain(log) {
                for (id, offset, n_bytes) in self.recurrent_rows(il, index, plane) {
                    // What stays is written before it is read.
                    if self.buffer.page_bytes(id).is_some() {
                        self.buffer.discard(id, offset, n_bytes)?;
                    }
                }
            }
        }
        let state = &mut self.slots[index];
        (state.n_written, state.n_taken, state.n_planes_written) = (0, 0, 0);
        Ok(())
    }

    /// Bytes from a slot's first cell to the next one's in a layer, of its keys or of its values.
    pub(crate) fn stripe_bytes(&self, il: usize, keys: bool) -> usize {
        let LayerState::Kv(kv) = self.layout.layers[il] else { return 0 };
        let (t, d) = if keys { (self.config.type_k, kv.d_k) } else { (self.config.type_v, kv.d_v) };
        kv.n_head_kv * t.head_bytes(d).unwrap_or(0) * self.stride(self.kinds.window_of(il))
    }
}
