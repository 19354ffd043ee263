//! What slots show of pages and granules that are not theirs alone: plain data, and the arithmetic of cells and pages.

use std::sync::Arc;

use ggml::{SharedPages, StateId};

/// Cells of a slot that it shows and does not own.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    pub(crate) extent: Arc<Extent>,
    /// Past the last cell; the first one is the extent's.
    pub(crate) end: usize,
}

/// The cells `first..end` of a sequence, as they were when it was first copied: what of them is whole pages, and the whole granules
/// of these and earlier cells that no earlier extent has.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) first: usize,
    /// Of the host, if there are any.
    pub(crate) pages: Option<SharedPages>,
    pub(crate) places: Vec<Place>,
}

/// Where a part of an extent's pages is in every slot that shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Its number among the pages of the host; `None` for granules.
    pub(crate) part: Option<usize>,
    pub(crate) of: Stripes,
    /// Its first byte, counted from the slot's first. Pages begin here.
    pub(crate) at: usize,
    pub(crate) n_bytes: usize,
}

/// What the cells of all slots are in one tensor: rows that lie together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stripes {
    pub(crate) id: StateId,
    /// Bytes of a cell.
    pub(crate) row: usize,
    /// Bytes from a slot's first to the next one's.
    pub(crate) stripe: usize,
    /// Bytes of a page or a granule.
    pub(crate) page: usize,
    pub(crate) in_granules: bool,
}

impl Place {
    /// The bytes of its pages that hold nothing but cells before `end`.
    pub(crate) fn whole(&self, end: usize) -> usize {
        let n_bytes = (end * self.of.row).saturating_sub(self.at).min(self.n_bytes);
        n_bytes / self.of.page * self.of.page
    }

    /// The bytes of its pages that hold a cell before `end`.
    pub(crate) fn any(&self, end: usize) -> usize {
        (end * self.of.row).saturating_sub(self.at).next_multiple_of(self.of.page).min(self.n_bytes)
    }
}

impl Extent {
    /// Bytes of its pages that hold nothing but cells before `end`.
    pub(crate) fn n_bytes(&self, end: usize) -> usize {
        self.places.iter().map(|place| place.whole(end)).sum()
    }
}
