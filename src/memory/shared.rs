//! Cells that sequences of one beginning have in common: a copy shows the pages or granules of its source, and whoever writes over
//! them gets some of its own. Owns which cells of a slot are shown so, and what they take.
//!
//! On the host of a Linux system the system copies a page when it is written to. A granule of a GPU is copied here, before a step writes
//! to it. Elsewhere, and of cells behind windows, every sequence has its own.

use std::ops::Range;
use std::sync::Arc;

use ggml::StateId;

use crate::error::Error;
use crate::shown::{Extent, Place, Shown, Stripes};
use crate::slots::{LayerTensors, Memory, Slot};

/// Pages of the host that slots show at one time, at most: a system has room for some tens of thousands of different ones.
const MAX_SHOWN: usize = 8192;

impl Memory {
    /// Takes memory for the first `len` cells of `target`, which shows nothing, and for a recurrent state. Has it show those cells of
    /// `source`, as far as they are whole pages or granules. Gives the bytes of each tensor of `target` that are there now.
    ///
    /// # Errors
    /// [`Error::Device`]: no room; `target` shows nothing.
    pub(crate) fn show(
        &mut self,
        source: usize,
        target: usize,
        len: usize,
    ) -> Result<Vec<(StateId, Range<usize>)>, Error> {
        if self.shows_many() {
            self.take(target, len, 1)?;
            return Ok(Vec::new());
        }
        self.share(source, len)?;
        let (mut there, mut granules) = (Vec::new(), Vec::new());
        for Shown { extent, end } in self.shown[source].clone() {
            if extent.first >= len {
                break;
            }
            let end = end.min(len);
            self.shown[target].push(Shown { extent: Arc::clone(&extent), end });
            for place in &extent.places {
                let (id, from, to) =
                    (place.of.id, source * place.of.stripe + place.at, target * place.of.stripe + place.at);
                let n_bytes = place.whole(end);
                let is_there = n_bytes > 0
                    && match (place.part, &extent.pages) {
                        (Some(part), Some(pages)) => self.buffer.show(pages, part, to, n_bytes)?,
                        _ => {
                            granules.push(ggml::Shown { id, from, to, n_bytes });
                            true
                        }
                    };
                if is_there {
                    there.push((id, to..to + n_bytes));
                }
            }
        }
        if !granules.is_empty() {
            self.give_back_cells(target, 0)?;
        }
        let taken = self.take_shown(target, len, 1, &granules);
        if !matches!(taken, Ok(true)) {
            there.clear();
            self.stop_showing(target, 0)?;
        }
        if !taken? {
            self.take(target, len, 1)?;
        }
        Ok(there)
    }

    /// True where slots show so many pages of the host that there is no room for those of another one.
    fn shows_many(&self) -> bool {
        let of_host = |shown: &Shown| shown.extent.places.iter().filter(|place| place.part.is_some()).count();
        let n_shown: usize = self.shown.iter().flatten().map(of_host).sum();
        n_shown > 0 && n_shown + 4 * self.stripes().len() > MAX_SHOWN
    }

    /// Makes an extent of those of the first `len` cells of a slot that are in none: what of them is whole pages or granules.
    fn share(&mut self, source: usize, len: usize) -> Result<(), Error> {
        let first = self.shown[source].last().map_or(0, |shown| shown.end);
        if first >= len {
            return Ok(());
        }
        let (in_granules, in_pages): (Vec<Stripes>, Vec<Stripes>) =
            self.stripes().into_iter().partition(|stripes| stripes.in_granules);
        let range = |s: &Stripes| (s.id, source * s.stripe + first * s.row, (len - first) * s.row);
        let pages = self.buffer.share(&in_pages.iter().map(range).collect::<Vec<_>>())?;
        let place = |(part, (id, bytes)): (usize, (StateId, Range<usize>))| {
            let of = *in_pages.iter().find(|s| s.id == id)?;
            Some(Place { part: Some(part), of, at: bytes.start - source * of.stripe, n_bytes: bytes.len() })
        };
        let mut places: Vec<Place> =
            pages.iter().flat_map(|pages| pages.parts().enumerate().filter_map(place)).collect();
        places.extend(in_granules.into_iter().filter_map(|of| {
            // The granule that holds the cell before the first is in no earlier extent: there it was not whole.
            let [at, end] = [first, len].map(|cell| cell * of.row / of.page * of.page);
            (at < end).then_some(Place { part: None, of, at, n_bytes: end - at })
        }));
        if !places.is_empty() {
            let extent = Arc::new(Extent { first, pages, places });
            self.shown[source].push(Shown { extent, end: len });
        }
        Ok(())
    }

    /// Cells from `first` on of a slot will be written: it shows none of them any more.
    ///
    /// # Errors
    /// [`Error::Device`]: no room for a granule of its own, which holds cells before `first` too; the slot shows what it showed.
    pub(crate) fn stop_showing(&mut self, index: usize, first: usize) -> Result<(), Error> {
        if self.shown[index].last().is_none_or(|shown| shown.end <= first) {
            return Ok(());
        }
        self.stop_showing_granules(index, first)?;
        while let Some(Shown { extent, end }) = self.shown[index].pop_if(|shown| shown.end > first) {
            if extent.first < first {
                self.shown[index].push(Shown { extent: Arc::clone(&extent), end: first });
            }
            for place in extent.places.iter().filter(|place| place.part.is_some()) {
                // The page that holds cells before `first` too stays: the system copies it when it is written to.
                let (kept, past) = (place.any(first), place.any(end));
                self.buffer.discard(place.of.id, index * place.of.stripe + place.at + kept, past - kept)?;
            }
            self.give_back(&extent)?;
        }
        Ok(())
    }

    /// The same of granules: one that holds cells before `first` too is copied, and those of later cells go back.
    fn stop_showing_granules(&mut self, index: usize, first: usize) -> Result<(), Error> {
        let stripes = self.stripes();
        let in_granules = stripes.iter().filter(|stripes| stripes.in_granules);
        let both = in_granules.filter_map(|of| {
            let n_before = first * of.row % of.page;
            (n_before > 0).then_some((of.id, index * of.stripe + first * of.row - n_before, n_before))
        });
        self.buffer.own(&both.collect::<Vec<_>>())?;
        self.give_back_cells(index, first)
    }

    /// What of an extent nobody shows goes back to the system.
    fn give_back(&mut self, extent: &Arc<Extent>) -> Result<(), Error> {
        let Some(pages) = &extent.pages else { return Ok(()) };
        let ends = self.shown.iter().flatten().filter(|shown| Arc::ptr_eq(&shown.extent, extent));
        let Some(end) = ends.map(|shown| shown.end).max() else { return Ok(()) };
        let kept = extent.places.iter().filter(|place| place.part.is_some()).map(|place| place.any(end));
        Ok(self.buffer.keep_shared(pages, kept)?)
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
        // A page of the host less of each: where cells begin and end is not where pages do.
        let left = |s: &Stripes| if s.in_granules { 0 } else { s.page };
        self.stripes().iter().map(|s| (len * s.row / s.page * s.page).saturating_sub(left(s))).sum()
    }

    /// The tensors whose slots can show each other's pages: in whole pages of the host or granules, cells in rows.
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
                let in_granules = self.buffer.is_in_granules(id);
                let page = self.buffer.page_bytes(id).filter(|_| !in_granules || self.buffer.shows_granules(id));
                if let Some(page) = page.filter(|&page| stripe.is_multiple_of(page)) {
                    all.push(Stripes { id, row: stripe / self.stride(window), stripe, page, in_granules });
                }
            }
        }
        all
    }
}
