//! Where slots begin in tensors of cells: one right behind the other or, where granules can be shared, each with a granule.
//! Owns that choice. What lies between slots is addresses, without memory.

use ggml::{Device, MOST_GRANULES};

use crate::error::Error;
use crate::layout::{CellKinds, LayerState, StateLayout};
use crate::size::{StateTensor, as_dim};
use crate::slots::{Memory, MemoryConfig};

impl Memory {
    /// Cells from a slot's first to the next one's first, in layers of a window (its number).
    pub(crate) fn stride(&self, window: usize) -> usize {
        self.strides.get(window).copied().unwrap_or_else(|| self.n_cells(window))
    }
}

impl MemoryConfig {
    /// The tensors of a layer's state, slots `stride` cells apart where that is more than a slot has, and the bytes between slots.
    ///
    /// # Errors
    /// As [`MemoryConfig::layer_bytes`].
    pub(crate) fn tensors_apart(&self, layer: &LayerState, stride: usize) -> Result<(Vec<StateTensor>, usize), Error> {
        let (mut tensors, mut n_between) = (self.tensors(layer)?, 0);
        let LayerState::Kv(kv) = layer else { return Ok((tensors, 0)) };
        let more = stride.saturating_sub(self.n_cells(kv.window));
        for (what, dtype, ne) in tensors.iter_mut().filter(|_| more > 0) {
            ne[1] += as_dim(more);
            let row = dtype.row_bytes(ne[0]).map_err(|e| Error::Layout(format!("{what}: {e}")))?;
            n_between += row * more * self.n_slots;
        }
        Ok((tensors, n_between))
    }

    /// The stride of each window, in cells: as many as a slot has, and where all tensors of a window are in granules that can be
    /// shared as many more as slots need to begin with a granule in all of them. `place`: the device of each layer.
    ///
    /// # Errors
    /// As [`MemoryConfig::layer_bytes`].
    pub(crate) fn strides(
        &self,
        layout: &StateLayout,
        kinds: &CellKinds,
        place: impl Fn(usize) -> Device,
    ) -> Result<Vec<usize>, Error> {
        let plain: Vec<usize> = kinds.windows.iter().map(|window| self.n_cells(*window)).collect();
        if self.n_slots == 1 || self.v_transposed {
            return Ok(plain);
        }
        let mut steps = vec![Some(1); plain.len()];
        let (mut rows, mut n_granules) = (Vec::new(), 0);
        for (il, layer) in layout.layers.iter().enumerate() {
            let Some(granule) = place(il).granule() else { continue };
            let parts = self.part_bytes(layer)?.into_iter().zip(self.tensors(layer)?);
            for (part, (what, dtype, ne)) in parts {
                let row = dtype.row_bytes(ne[0]).map_err(|e| Error::Layout(format!("{what}: {e}")))?;
                let LayerState::Kv(kv) = layer else {
                    n_granules += part.saturating_mul(self.n_slots * self.n_planes()).div_ceil(granule);
                    continue;
                };
                let window = kinds.window_of(il);
                rows.push((window, row, granule));
                let is_ring = kv.window.is_some() && self.max_rows.is_some();
                // A small tensor has its memory from the start, what lies between slots too.
                let is_shown = part >= granule && place(il).shown_granule().is_some() && !is_ring;
                let step = |step: usize| least_common_multiple(step, granule / common_divisor(row, granule));
                steps[window] = steps[window].filter(|_| is_shown).and_then(step);
            }
        }
        let strides = plain.iter().zip(steps).map(|(&n, step)| n.checked_next_multiple_of(step.unwrap_or(1)));
        let Some(strides) = strides.collect::<Option<Vec<usize>>>() else { return Ok(plain) };
        for (window, row, granule) in rows {
            let n_bytes = strides[window].saturating_mul(row).saturating_mul(self.n_slots);
            n_granules = n_granules.saturating_add(n_bytes.div_ceil(granule));
        }
        // With more of them each would be larger.
        Ok(if n_granules > MOST_GRANULES { plain } else { strides })
    }
}

fn least_common_multiple(a: usize, b: usize) -> Option<usize> {
    (a / common_divisor(a, b)).checked_mul(b)
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a.max(1) } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiples_are_the_least_that_both_divide() {
        for (a, b, least) in [(1, 7, Some(7)), (2048, 65536, Some(65536)), (12, 18, Some(36)), (usize::MAX, 2, None)] {
            assert_eq!(least_common_multiple(a, b), least, "{a}, {b}");
        }
        assert_eq!((common_divisor(544, 2 << 20), common_divisor(0, 0)), (32, 1));
    }
}
