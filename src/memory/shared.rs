//! Cells that sequences of one beginning have in common: a copy shows the pages of its source, and whoever writes over them
//! gets pages of its own. Owns which cells of a slot are shown so, and what they take.
//!
//! On the host of a Linux system; elsewhere, and of cells behind windows, every sequence has its own.

use std::ops::Range;
use std::sync::Arc;

use ggml::StateId;

use crate::error::Error;
use crate::shown::{Extent, Place, Shown, Stripes};
use crate::slots::{LayerTensors, Memory, Slot};

/// Pages that slots show at one time, at most: a system has room for some tens of thousands of different ones.
const MAX_SHOWN: usize = 8192;

impl Memory {
    /// Has `target` show the first `len` cells of `source`, as far as they are whole pages. Gives the bytes of each tensor
    /// of `target` that are there now.
    pub(crate) fn show(
        &mut self,
        source: usize,
        target: usize,
        len: usize,
    ) -> Result<Vec<(StateId, Range<usize>)>, Error> {
        let stripes = self.stripes();
        let n_shown: usize = self.shown.iter().flatten().map(|shown| shown.extent.places.len()).sum();
        if n_shown + 4 * stripes.len() > MAX_SHOWN {
            return Ok(Vec::new());
        }
        let first = self.shown[source].last().map_or(0, |shown| shown.end);
        if first < len {
            let range = |s: &Stripes| (s.id, source * s.stripe + first * s.row, (len - first) * s.row);
            let ranges: Vec<_> = stripes.iter().map(range).collect();
            if let Some(pages) = self.buffer.share(&ranges)? {
                let place = |(id, bytes): (StateId, Range<usize>)| {
                    let of = *stripes.iter().find(|s| s.id == id)?;
                    Some(Place { of, at: bytes.start - source * of.stripe, n_bytes: bytes.len() })
                };
                let places = pages.parts().filter_map(place).collect();
                let extent = Arc::new(Extent { first, pages, places });
                self.shown[source].push(Shown { extent, end: len });
            }
        }
        let mut there = Vec::new();
        for Shown { extent, end } in self.shown[source].clone() {
            if extent.first >= len {
                break;
            }
            let end = end.min(len);
            self.shown[target].push(Shown { extent: Arc::clone(&extent), end });
            for (part, place) in extent.places.iter().enumerate() {
                let (offset, n_bytes) = (target * place.of.stripe + place.at, place.whole(end));
                if n_bytes > 0 && self.buffer.show(&extent.pages, part, offset, n_bytes)? {
                    there.push((place.of.id, offset..offset + n_bytes));
                }
            }
        }
        Ok(there)
    }

    /// Cells from `first` on of a slot will be written: it shows none of them any more.
    pub(crate) fn stop_showing(&mut self, index: usize, first: usize) -> Result<(), Error> {
        while let Some(Shown { extent, end }) = self.shown[index].pop_if(|shown| shown.end > first) {
            if extent.first < first {
                self.shown[index].push(Shown { extent: Arc::clone(&extent), end: first });
            }
            for place in &extent.places {
                // The page that holds cells before `first` too stays: the system copies it when it is written to.
                let (kept, past) = (place.any(first), place.any(end));
                self.buffer.discard(place.of.id, index * place.of.stripe + place.at + kept, past - kept)?;
            }
            self.give_back(&extent)?;
        }
        Ok(())
    }

    /// What of an extent nobody shows goes back to the system.
    fn give_back(&mut self, extent: &Arc<Extent>) -> Result<(), Error> {
        let ends = self.shown.iter().flatten().filter(|shown| Arc::ptr_eq(&shown.extent, extent));
        let Some(end) = ends.map(|shown| shown.end).max() else { return Ok(()) };
        let kept = extent.places.iter().map(|place| place.any(end));
        Ok(self.buffer.keep_shared(&extent.pages, kept)?)
    }

    /// Bytes of what a slot takes ([`Memory::taken_by`]) that are pages of [`Memory::shared_bytes`].
    ///
    /// # Errors
    /// [`Error::Slot`]: the slot is not in use.
    pub fn shown_by(&self, slot: &Slot) -> Result<usize, Error> {
        Ok(self.shown_bytes(self.index(slot)?))
    }

    pub(crate) fn shown_bytes(&self, index: usize) -> usize {
        self.shown[index].iter().map(|shown| shown.extent.n_bytes(shown.end)).sum()
    }

    /// Bytes of pages that slots show, each counted once, however many show it; but for those that `except` alone shows.
    pub fn shared_bytes(&self, except: Option<&Slot>) -> usize {
        let except = except.map(Slot::index);
        let mut known: Vec<(&Arc<Extent>, usize)> = Vec::new();
        for (_, all) in self.shown.iter().enumerate().filter(|(index, _)| Some(*index) != except) {
            for shown in all {
                match known.iter_mut().find(|(extent, _)| Arc::ptr_eq(extent, &shown.extent)) {
                    Some((_, end)) => *end = shown.end.max(*end),
                    None => known.push((&shown.extent, shown.end)),
                }
            }
        }
        known.into_iter().map(|(extent, end)| extent.n_bytes(end)).sum()
    }

    /// Bytes of the first `len` cells of a slot that other slots show as well.
    ///
    /// # Errors
    /// [`Error::Slot`]: the slot is not in use.
    pub fn common_bytes(&self, slot: &Slot, len: usize) -> Result<usize, Error> {
        let index = self.index(slot)?;
        let others = |extent: &Arc<Extent>| {
            let others = self.shown.iter().enumerate().filter(|(other, _)| *other != index);
            let others = others.flat_map(|(_, all)| all).filter(|shown| Arc::ptr_eq(&shown.extent, extent));
            others.map(|shown| shown.end).max().unwrap_or(0)
        };
        let common = |shown: &Shown| shown.extent.n_bytes(shown.end.min(len).min(others(&shown.extent)));
        Ok(self.shown[index].iter().map(common).sum())
    }

    /// Bytes of the first `len` cells that a copy of them ([`Memory::copy`]) will not take.
    pub fn shareable_bytes(&self, len: usize) -> usize {
        // A page less of each: where cells begin and end is not where pages do.
        self.stripes().iter().map(|s| (len * s.row / s.page * s.page).saturating_sub(s.page)).sum()
    }

    /// The tensors whose slots can show each other's pages: in whole pages of the host, cells in rows.
    fn stripes(&self) -> Vec<Stripes> {
        let mut all = Vec::new();
        for (il, tensors) in self.layers.iter().enumerate() {
            let LayerTensors::Kv { k, v } = *tensors else { continue };
            let window = self.kinds.window_of(il);
            if self.window(window).is_some() && self.has_rings() {
                continue;
            }
            let values = (k != v && !self.config.v_transposed).then_some((v, false));
            for (id, keys) in [(k, true)].into_iter().chain(values) {
                let stripe = self.stripe_bytes(il, keys);
                let page = self.buffer.page_bytes(id).filter(|_| !self.buffer.is_in_granules(id));
                if let Some(page) = page.filter(|&page| stripe.is_multiple_of(page)) {
                    all.push(Stripes { id, row: stripe / self.n_cells(window), stripe, page });
                }
            }
        }
        all
    }
}
