//! Cells of layers with a window: a ring for each slot, in which a position's cell is its remainder, so that later positions
//! take the places of those that no token sees any more.
//! Owns which positions are still there, and so how far back a sequence can be cut.

use std::ops::Range;

use crate::error::Error;
use crate::size::KV_STEP;
use crate::slots::{Memory, MemoryConfig, Slot, SlotStatus};

impl MemoryConfig {
    /// Cells of each slot in layers of a window: those of the window before a step's first row, and those of its rows. A step
    /// of which nothing is kept has then overwritten none that the next one sees.
    pub(crate) fn n_cells(&self, window: Option<usize>) -> usize {
        let config = self.rounded();
        match (window, config.max_rows) {
            (Some(window), Some(max_rows)) => {
                let needed = window.saturating_add(max_rows).saturating_sub(1).max(1);
                needed.checked_next_multiple_of(KV_STEP).unwrap_or(needed).min(config.n_ctx)
            }
            _ => config.n_ctx,
        }
    }
}

/// Positions before a sequence's end that the next one sees beside itself; all of them where cells are kept for all.
pub(crate) fn n_kept(window: Option<usize>, rings: bool, len: usize) -> usize {
    match window {
        Some(window) if rings => len.min(window.saturating_sub(1)),
        _ => len,
    }
}

/// The cells of positions, in their order, among `n_cells`: two parts where the ring begins anew between them.
pub(crate) fn cells_of(positions: Range<usize>, n_cells: usize) -> impl Iterator<Item = Range<usize>> + Clone {
    let (len, first) = (positions.len().min(n_cells), positions.start % n_cells);
    let n_before = len.min(n_cells - first);
    [first..first + n_before, 0..len - n_before].into_iter().filter(|cells| !cells.is_empty())
}

impl Memory {
    /// True when layers with a window keep the cells of the window only.
    pub(crate) fn has_rings(&self) -> bool {
        self.config.max_rows.is_some() && self.kinds.windows.iter().any(Option::is_some)
    }

    /// True when a sequence cannot go back to any earlier position: [`Memory::rewinds_to`] tells how far.
    pub fn forgets(&self) -> bool {
        self.layout.is_recurrent() || self.has_rings()
    }

    /// The earliest position, but for 0, that a sequence can be cut to without a checkpoint.
    ///
    /// # Errors
    /// [`Error::Slot`]: the slot is not in use.
    pub fn rewinds_to(&self, slot: &Slot) -> Result<usize, Error> {
        Ok(self.earliest(&self.slots[self.index(slot)?]))
    }

    pub(crate) fn earliest(&self, state: &SlotStatus) -> usize {
        if self.layout.is_recurrent() {
            return state.len;
        }
        let of_window = |window: &usize| {
            let n_seen = window.saturating_sub(1);
            let overwritten = state.n_stepped.saturating_sub(self.config.n_cells(Some(*window)));
            let oldest = overwritten.max(state.filled_at.saturating_sub(n_seen));
            if oldest == 0 { 0 } else { oldest + n_seen }
        };
        let rings = self.kinds.windows.iter().flatten().filter(|_| self.has_rings());
        rings.map(of_window).max().unwrap_or(0).min(state.len)
    }

    /// The cells of layers of a window (its number) that a sequence of `len` positions keeps, in the order of positions.
    pub(crate) fn kept_cells(&self, window: usize, len: usize) -> impl Iterator<Item = Range<usize>> + Clone {
        let n_kept = n_kept(self.window(window), self.has_rings(), len);
        cells_of(len - n_kept..len, self.n_cells(window))
    }

    /// The window of this number.
    pub(crate) fn window(&self, number: usize) -> Option<usize> {
        self.kinds.windows.get(number).copied().flatten()
    }

    /// Cells of each slot in layers of a window (its number).
    pub(crate) fn n_cells(&self, window: usize) -> usize {
        self.config.n_cells(self.window(window))
    }
}
