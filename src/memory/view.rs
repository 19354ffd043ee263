//! What the graph of a step may read and write: state tensors as views, and the index and mask data that go with them.

use ggml::{Cells, Graph, Logs, PastState, Snapshots, Tensor};

use crate::cache_type::CacheType;
use crate::error::Error;
use crate::layout::{Kv, LayerState, Recurrent};
use crate::size::n_cells_read;
use crate::slots::{LayerTensors, Memory, MemoryConfig, Slot};

/// Sequences of a step that one call of an op can serve: adjacent slots, as many rows each, written to the same planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// The first sequence's slot.
    pub first_slot: usize,
    /// Sequences.
    pub n_seqs: usize,
    /// Rows of each sequence.
    pub n_rows: usize,
    /// Cells that attention reads: a multiple of 256, on other devices than CPUs of 1024 and more, or the whole context.
    pub n_kv: usize,
    /// Plane of the state before the step; `None` where an input says it ([`StepView::state_rows`]): sequences differ, or
    /// the device's ops take it so ([`Memory::name_what_devices_take`]).
    pub read_plane: Option<u32>,
    /// Plane of the newest state after it; older ones follow.
    pub write_plane: u32,
    /// States written: the newest, one row back, and so on.
    pub n_snapshots: usize,
    /// The first sequence's first row among the rows of the view.
    pub first_row: usize,
    /// An input says the slots ([`StepView::slot_numbers`]), so that graphs do not depend on them ([`Memory::name_what_devices_take`]).
    pub names_slots: bool,
    /// Where a row sees cells that follow each other, an input says which ([`StepView::spans`]), and the device makes the mask.
    pub says_spans: bool,
}

impl Segment {
    /// Rows of all its sequences.
    pub fn n_tokens(&self) -> usize {
        self.n_seqs * self.n_rows
    }

    /// The same as far as a graph depends on it.
    fn in_graph(self) -> Self {
        if self.names_slots { Self { first_slot: 0, ..self } } else { self }
    }
}

/// A view with segments of its own: a step widened ([`StepView::over_whole_context`]) or a part of one
/// ([`StepView::part`]).
#[derive(Clone, Debug)]
pub struct OwnedView<'m> {
    memory: &'m Memory,
    rank: OfRank,
    segments: Vec<Segment>,
    skips: Vec<usize>,
    at_end: bool,
    mutual: bool,
}

impl OwnedView<'_> {
    /// The view.
    pub fn view(&self) -> StepView<'_> {
        let Self { memory, rank, segments, skips, at_end, mutual } = self;
        StepView { memory, rank: *rank, segments, skips, at_end: *at_end, mutual: *mutual }
    }

    /// The same with rows that see all rows of their sequence here, later ones too.
    #[must_use]
    pub fn mutual(self) -> Self {
        Self { mutual: true, ..self }
    }
}

impl Memory {
    /// Cells that attention reads of a sequence of so many positions.
    pub(crate) fn n_kv(&self, len: usize) -> usize {
        n_cells_read(len, self.on_cpu).min(self.config.n_ctx)
    }

    /// One row behind the last token of each of these sequences, in ascending order of their slots, which sees the cells
    /// before it and has none of its own: for graphs that read a sequence and add nothing to it.
    ///
    /// # Errors
    /// [`Error::Slot`]: a slot is not in use. [`Error::Step`]: an empty sequence, or slots out of order.
    pub fn ends(&self, slots: &[&Slot]) -> Result<OwnedView<'_>, Error> {
        let mut segments: Vec<Segment> = Vec::new();
        for (first_row, slot) in slots.iter().enumerate() {
            let index = self.index(slot)?;
            let len = self.slots[index].len;
            if len == 0 {
                return Err(Error::Step(format!("slot {index}: an empty sequence has no cells to read")));
            }
            let n_kv = self.n_kv(len);
            match segments.last_mut() {
                Some(last) if last.first_slot + last.n_seqs > index => {
                    return Err(Error::Step("sequences must be in ascending order of their slots".into()));
                }
                Some(last) if last.first_slot + last.n_seqs == index => {
                    last.n_seqs += 1;
                    last.n_kv = last.n_kv.max(n_kv);
                }
                _ => segments.push(Segment {
                    first_slot: index,
                    n_seqs: 1,
                    n_rows: 1,
                    n_kv,
                    read_plane: Some(0),
                    write_plane: 0,
                    n_snapshots: 0,
                    first_row,
                    names_slots: false,
                    says_spans: false,
                }),
            }
        }
        Ok(OwnedView { memory: self, rank: OfRank::ALONE, segments, skips: Vec::new(), at_end: true, mutual: false })
    }
}

/// One of several ranks that compute a model together: those have as many layers each in a memory, rank after rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OfRank {
    index: usize,
    of: usize,
}

impl OfRank {
    pub(crate) const ALONE: Self = Self { index: 0, of: 1 };
}

/// A step's window on the memory.
#[derive(Clone, Copy, Debug)]
pub struct StepView<'m> {
    pub(crate) memory: &'m Memory,
    pub(crate) rank: OfRank,
    pub(crate) segments: &'m [Segment],
    /// By slot: positions between the end of its sequence and its first row here, which rows of another part take. Empty for
    /// none anywhere.
    pub(crate) skips: &'m [usize],
    /// Rows see the cells before theirs, and not their own.
    pub(crate) at_end: bool,
    /// Rows see all rows of their sequence.
    pub(crate) mutual: bool,
}

impl<'m> StepView<'m> {
    /// The same step as if its sequences filled the whole context: the largest graph that its rows can need.
    pub fn over_whole_context(self) -> OwnedView<'m> {
        let n_kv = self.memory.config.n_ctx;
        let segments = self.segments.iter().map(|s| Segment { n_kv, ..*s }).collect();
        let skips = self.skips.to_vec();
        OwnedView { memory: self.memory, rank: self.rank, segments, skips, at_end: self.at_end, mutual: self.mutual }
    }

    /// A part of the step: of each sequence, by its slot, so many rows (the second number) after so many others (the
    /// first). Parts may overlap: what the later one writes stands. For layers without recurrent state.
    pub fn part(self, rows: impl Fn(usize) -> (usize, usize)) -> OwnedView<'m> {
        let mut segments: Vec<Segment> = Vec::new();
        let mut skips = vec![0; self.memory.slots.len()];
        let mut first_row = 0;
        for s in self.segments {
            for (skipped, slot) in skips[s.first_slot..].iter_mut().zip(s.first_slot..s.first_slot + s.n_seqs) {
                let (skip, n_rows) = rows(slot);
                *skipped = skip;
                let end = self.memory.slots[slot].len + skip + n_rows;
                let n_kv = self.memory.n_kv(end);
                match segments.last_mut() {
                    Some(last) if last.first_slot + last.n_seqs == slot && last.n_rows == n_rows => {
                        last.n_seqs += 1;
                        last.n_kv = last.n_kv.max(n_kv);
                    }
                    _ => segments.push(Segment { first_slot: slot, n_seqs: 1, n_rows, n_kv, first_row, ..*s }),
                }
                first_row += n_rows;
            }
        }
        OwnedView { memory: self.memory, rank: self.rank, segments, skips, at_end: self.at_end, mutual: self.mutual }
    }

    /// The same step as rank `index` of `of` sees it, in a memory that was made of the layers of all of them, rank after rank.
    pub fn of_rank(self, index: usize, of: usize) -> Self {
        Self { rank: OfRank { index, of }, ..self }
    }

    /// The place of layer `il` among those of all ranks.
    pub(crate) fn at(&self, il: usize) -> usize {
        self.rank.index * self.n_layers() + il
    }

    /// The position of a slot's first row here.
    pub(crate) fn first_position(&self, slot: usize) -> usize {
        self.memory.slots[slot].len + self.skips.get(slot).copied().unwrap_or(0)
    }

    /// The step's segments, in row order.
    pub fn segments(&self) -> &'m [Segment] {
        self.segments
    }

    /// What a graph over the view depends on.
    pub fn shape(&self) -> Vec<Segment> {
        self.segments.iter().map(|s| s.in_graph()).collect()
    }

    /// Rows of the step.
    pub fn n_tokens(&self) -> usize {
        self.segments.iter().map(Segment::n_tokens).sum()
    }

    /// Positions that a sequence may have.
    pub fn n_ctx(&self) -> usize {
        self.memory.config.n_ctx
    }

    /// Layers of the memory, with those that keep nothing; of one rank, where there are several.
    pub fn n_layers(&self) -> usize {
        self.memory.layout.layers.len() / self.rank.of
    }

    /// Values are kept as `[cell, element]`.
    pub fn v_transposed(&self) -> bool {
        self.memory.config.v_transposed
    }

    /// Windows that attention layers have, "all before it" being one; they are numbered. At most [`crate::MAX_KINDS`].
    pub fn n_windows(&self) -> usize {
        self.memory.kinds.windows.len()
    }

    /// False for the window (its number) that is all positions.
    pub fn is_window(&self, window: usize) -> bool {
        self.memory.window(window).is_some()
    }

    /// Cells of a segment's sequences that attention reads in layers of a window (its number).
    pub fn n_kv(&self, window: usize, s: &Segment) -> usize {
        s.n_kv.min(self.memory.n_cells(window))
    }

    /// The number of the window of layer `il`.
    pub fn window_of(&self, il: usize) -> usize {
        self.memory.kinds.window_of(self.at(il))
    }

    /// Kinds of values: elements of one position's values in layers that keep them at the same places, where they are
    /// written one by one; none where they are written in rows. They are numbered. At most [`crate::MAX_KINDS`].
    pub fn v_elements(&self) -> impl Iterator<Item = usize> + 'm {
        let values = if self.memory.config.v_transposed { &self.memory.kinds.values[..] } else { &[] };
        values.iter().map(|&(_, n)| n)
    }

    /// The number of the kind of values of layer `il`.
    pub fn v_kind_of(&self, il: usize) -> usize {
        self.memory.kinds.values_of(self.at(il))
    }

    fn kv(&self, il: usize) -> Option<(Kv, ggml::StateId, ggml::StateId)> {
        match (self.memory.layout.layers.get(self.at(il))?, self.memory.layers.get(self.at(il))?) {
            (LayerState::Kv(kv), LayerTensors::Kv { k, v }) => Some((*kv, *k, *v)),
            _ => None,
        }
    }

    /// Writes keys and values of the step's rows into layer `il`. `k: [d_k * n_head_kv, n_tokens]`,
    /// `v: [d_v * n_head_kv, n_tokens]`; `rows: [n_tokens]` and `elements: [n_tokens * d_v * n_head_kv]` are inputs filled
    /// from [`StepView::kv_rows`] and [`StepView::v_element_rows`] for the layer's window and kind of values; `elements` only
    /// for transposed values.
    pub fn store_kv<'g>(
        &self,
        g: &Graph<'g>,
        il: usize,
        (k, v): (Tensor<'g>, Tensor<'g>),
        rows: Tensor<'g>,
        elements: Option<Tensor<'g>>,
    ) {
        let Some((kv, k_id, v_id)) = self.kv(il) else { return };
        let n_cells = (self.memory.stride(self.window_of(il)) * self.memory.config.n_slots) as i64;
        let (type_k, type_v) = (self.memory.config.type_k, self.memory.config.type_v);
        store_rows(g, (g.state(&self.memory.buffer, k_id), n_cells), (k, rows), (type_k, kv.d_k));
        let cache = g.state(&self.memory.buffer, v_id);
        match elements {
            Some(elements) => {
                let v = finite(g, cache, type_v, v);
                let v = g.reshape(v, [1, v.n_elements()]); // was [d_v * n_head_kv, n_tokens]
                let cache = g.reshape(cache, [1, cache.n_elements()]); // was [n_ctx, d_v * n_head_kv, n_slots]
                g.keep(g.set_rows(cache, v, elements));
            }
            None => store_rows(g, (cache, n_cells), (v, rows), (type_v, kv.d_v)),
        }
    }

    /// Writes the latent rows `x: [d_k, n_tokens]` of the step into layer `il`; `rows` as for [`StepView::store_kv`].
    pub fn store_latent<'g>(&self, g: &Graph<'g>, il: usize, x: Tensor<'g>, rows: Tensor<'g>) {
        let Some((kv, id, _)) = self.kv(il) else { return };
        let n_cells = (self.memory.stride(self.window_of(il)) * self.memory.config.n_slots) as i64;
        let cache = g.state(&self.memory.buffer, id); // [d_k, stride, n_slots]
        store_rows(g, (cache, n_cells), (x, rows), (self.memory.config.type_k, kv.d_k));
    }

    /// The slots of a segment's sequences: contents of the input i32 `[n_seqs]`.
    pub fn slot_numbers(&self, s: &Segment, into: &mut Vec<i32>) {
        into.clear();
        into.extend((s.first_slot..s.first_slot + s.n_seqs).map(|slot| slot as i32));
    }

    /// Slots that there are.
    pub fn n_slots(&self) -> usize {
        self.memory.config.n_slots
    }

    /// The keys of a segment's sequences: `[d_k, n_kv, n_head_kv, n_seqs]`; where the segment names slots, of the first ones, to
    /// be read by number.
    pub fn k<'g>(&self, g: &Graph<'g>, il: usize, s: &Segment) -> Option<Cells<'g>> {
        let (kv, id, _) = self.kv(il)?;
        let turbo = self.memory.config.type_k.turbo(kv.d_k);
        let d = turbo.map_or(Some(kv.d_k), |turbo| turbo.n_bytes(kv.d_k))?;
        let rows = self.cells(g, id, [d, self.n_kv(self.window_of(il), s), kv.n_head_kv], s);
        Some(Cells { rows, turbo })
    }

    /// The values of a segment's sequences: `[d_v, n_kv, n_head_kv, n_seqs]`, or `[n_kv, d_v, n_head_kv, n_seqs]` when
    /// they are transposed. Those of a latent layer never are. Where the segment names slots, as [`StepView::k`].
    pub fn v<'g>(&self, g: &Graph<'g>, il: usize, s: &Segment) -> Option<Cells<'g>> {
        let (kv, _, id) = self.kv(il)?;
        let n_kv = self.n_kv(self.window_of(il), s);
        if kv.latent || !self.memory.config.v_transposed {
            let MemoryConfig { type_k, type_v, .. } = self.memory.config;
            let turbo = if kv.latent { type_k.turbo(kv.d_k) } else { type_v.turbo(kv.d_v) };
            let d = turbo.map_or(Some(kv.d_v), |turbo| turbo.n_bytes(kv.d_v))?;
            return Some(Cells { rows: self.cells(g, id, [d, n_kv, kv.n_head_kv], s), turbo });
        }
        let cache = g.state(&self.memory.buffer, id); // [n_ctx, d_v * n_head_kv, n_slots]
        let nb = cache.nb();
        let ne = [n_kv as i64, kv.d_v as i64, kv.n_head_kv as i64, s.n_seqs as i64];
        let rows = g.view(cache, ne, [nb[1], nb[1] * kv.d_v, nb[2]], s.in_graph().first_slot * nb[2]);
        Some(Cells { rows, turbo: None })
    }

    /// `[d, n_kv, n_head_kv, n_seqs]`.
    fn cells<'g>(&self, g: &Graph<'g>, id: ggml::StateId, [d, n_kv, n_head_kv]: [usize; 3], s: &Segment) -> Tensor<'g> {
        let cache = g.state(&self.memory.buffer, id); // [d * n_head_kv, stride, n_slots]
        let nb = cache.nb();
        let head = nb[1] / n_head_kv;
        let ne = [d as i64, n_kv as i64, n_head_kv as i64, s.n_seqs as i64];
        g.view(cache, ne, [nb[1], head, nb[2]], s.in_graph().first_slot * nb[2])
    }

    fn recurrent(&self, il: usize) -> Option<(Recurrent, ggml::StateId, ggml::StateId)> {
        match (self.memory.layout.layers.get(self.at(il))?, self.memory.layers.get(self.at(il))?) {
            (LayerState::Recurrent(r), LayerTensors::Recurrent { conv, heads, .. }) => Some((*r, *conv, *heads)),
            _ => None,
        }
    }

    /// The last inputs of the convolution of a segment's sequences: `[n_conv, n_channels, n_seqs]`, time fastest. `rows`: see
    /// [`StepView::state_rows`].
    pub fn conv<'g>(&self, g: &Graph<'g>, il: usize, s: &Segment, rows: Option<Tensor<'g>>) -> Option<PastState<'g>> {
        let (r, id, _) = self.recurrent(il)?;
        let (n_conv, n_channels) = (r.n_conv as i64, r.n_channels as i64);
        self.past(g, id, s, rows, |n| [n_conv, n_channels, n, 1])
    }

    /// The matrices of a segment's sequences: `[d_state, d_head, n_heads, n_seqs]`. `rows`: see [`StepView::state_rows`].
    pub fn heads<'g>(&self, g: &Graph<'g>, il: usize, s: &Segment, rows: Option<Tensor<'g>>) -> Option<PastState<'g>> {
        let (r, _, id) = self.recurrent(il)?;
        let [d_state, d_head, n_heads] = [r.d_state, r.d_head, r.n_heads].map(|n| n as i64);
        self.past(g, id, s, rows, |n| [d_state, d_head, n_heads, n])
    }

    /// The rows of the recurrent tensors that a segment without one plane reads, one for each sequence: contents of the
    /// input i32 `[n_seqs]`.
    pub fn state_rows(&self, s: &Segment, into: &mut Vec<i32>) {
        let n_slots = self.memory.config.n_slots;
        let row = |slot: usize| (self.memory.slots[slot].plane as usize * n_slots + slot) as i32;
        into.clear();
        into.extend((s.first_slot..s.first_slot + s.n_seqs).map(row));
    }

    /// True when some layer logs tokens, so that steps have the inputs of [`StepView::logged_rows`].
    pub fn logs_some(&self) -> bool {
        !self.at_end && self.memory.step_log.is_some()
    }

    /// Where the matrices of a segment's sequences lie in a layer that logs tokens, among all states `[d_state, d_head, n_heads,
    /// n_states]`, and their logs. `rows`, `places` and `steps` are inputs filled from [`StepView::logged_rows`]. `None` for other
    /// layers.
    pub fn logged_heads<'g>(
        &self,
        g: &Graph<'g>,
        il: usize,
        [rows, places, steps]: [Tensor<'g>; 3],
    ) -> Option<(PastState<'g>, Logs<'g>)> {
        let capacity = self.memory.step_log.filter(|_| self.memory.logs(self.at(il)))?.capacity;
        let (r, _, id) = self.recurrent(il)?;
        let [d_state, d_head, n_heads] = [r.d_state, r.d_head, r.n_heads].map(|n| n as i64);
        let all = g.state(&self.memory.buffer, id); // [row, n_slots * n_planes]
        let all = g.reshape(all, [d_state, d_head, n_heads, all.ne()[1]]);
        Some((PastState::Among(all, rows), Logs { places, steps, capacity }))
    }

    /// Contents of the inputs i32 `[n_seqs]`, `[2 * n_seqs]` and `[3 * n_seqs]` of [`StepView::logged_heads`]: the states that the
    /// segment's sequences read; those that they write, and their logs; entries before the step, and what it does
    /// ([`Logs::steps`]).
    pub fn logged_rows(&self, s: &Segment, [rows, places, steps]: [&mut Vec<i32>; 3]) {
        [&mut *rows, &mut *places, &mut *steps].into_iter().for_each(Vec::clear);
        for slot in s.first_slot..s.first_slot + s.n_seqs {
            rows.push(self.memory.read_row(slot) as i32);
            places.extend([self.memory.written_row(slot), self.memory.log_row(slot)].map(|row| row as i32));
            let state = &self.memory.slots[slot];
            steps.extend(state.heads.numbers(state.head_step));
        }
    }

    /// What the sequences of a segment stood at before the step, `ne(n)` being the shape of `n` states: a window on one plane, or
    /// all there is and the rows that the input names.
    fn past<'g>(
        &self,
        g: &Graph<'g>,
        id: ggml::StateId,
        s: &Segment,
        rows: Option<Tensor<'g>>,
        ne: impl Fn(i64) -> [i64; 4],
    ) -> Option<PastState<'g>> {
        match s.read_plane {
            Some(plane) => {
                let window = self.planes(g, id, s, plane, 1); // [row, n_seqs, 1]
                Some(PastState::Own(g.reshape(window, ne(s.n_seqs as i64))))
            }
            None => {
                let all = g.state(&self.memory.buffer, id); // [row, n_slots * n_planes]
                Some(PastState::Among(g.reshape(all, ne(all.ne()[1])), rows?))
            }
        }
    }

    /// Where the convolution's last inputs are to be written, as they were after the segment's last rows: `n_conv * n_channels`
    /// numbers of each sequence. `slots`: see [`StepView::slot_numbers`]. `None` for a layer without recurrent state.
    pub fn conv_planes<'g>(
        &self,
        g: &Graph<'g>,
        il: usize,
        s: &Segment,
        slots: Option<Tensor<'g>>,
    ) -> Option<Snapshots<'g>> {
        let (_, id, _) = self.recurrent(il)?;
        Some(self.snapshots(g, id, s, slots))
    }

    /// Where all snapshots of the matrices are to be written: `d_state * d_head * n_heads` numbers of each sequence. `slots`: see
    /// [`StepView::slot_numbers`]. `None` for a layer without recurrent state.
    pub fn head_planes<'g>(
        &self,
        g: &Graph<'g>,
        il: usize,
        s: &Segment,
        slots: Option<Tensor<'g>>,
    ) -> Option<Snapshots<'g>> {
        let (_, _, id) = self.recurrent(il)?;
        Some(self.snapshots(g, id, s, slots))
    }

    /// Where a segment's snapshots of a state go.
    fn snapshots<'g>(&self, g: &Graph<'g>, id: ggml::StateId, s: &Segment, slots: Option<Tensor<'g>>) -> Snapshots<'g> {
        match slots {
            None => Snapshots::Window(self.planes(g, id, s, s.write_plane, s.n_snapshots)),
            Some(slots) => {
                let all = Segment { first_slot: 0, n_seqs: self.n_slots(), ..*s };
                Snapshots::OfSlots(self.planes(g, id, &all, s.write_plane, s.n_snapshots), slots)
            }
        }
    }

    /// `[row, n_seqs, n_planes]` from `plane` on.
    fn planes<'g>(&self, g: &Graph<'g>, id: ggml::StateId, s: &Segment, plane: u32, n_planes: usize) -> Tensor<'g> {
        let state = g.state(&self.memory.buffer, id); // [row, n_slots * n_planes]
        let (row, n_slots) = (state.nb()[1], self.memory.config.n_slots);
        let ne = [state.ne()[0], s.n_seqs as i64, n_planes as i64, 1];
        let first = plane as usize * n_slots + s.first_slot;
        g.view(state, ne, [row, n_slots * row, n_slots * row], first * row)
    }
}

/// Writes `x` over the rows `rows` of `cache`, which has `n_cells` of all slots and between them, with heads of `d` elements.
fn store_rows<'g>(
    g: &Graph<'g>,
    (cache, n_cells): (Tensor<'g>, i64),
    (x, rows): (Tensor<'g>, Tensor<'g>),
    (kept_as, d): (CacheType, usize),
) {
    let into = g.reshape(cache, [cache.ne()[0], n_cells]); // was [.., stride, n_slots]
    g.keep(match kept_as.turbo(d) {
        Some(turbo) => g.store_turbo(into, x, rows, turbo),
        None => g.set_rows(into, finite(g, cache, kept_as, x), rows),
    });
}

/// `x` as numbers that `cache` keeps as finite ones, NaN too. A masked cell is multiplied by zero, so what is not finite would
/// reach rows that do not see it, and the slot's next sequence. On a GPU two launches for each layer are too dear, and they
/// would come between ops that are computed together: there a slot is cleared when its numbers turn out bad.
fn finite<'g>(g: &Graph<'g>, cache: Tensor<'g>, kept_as: CacheType, x: Tensor<'g>) -> Tensor<'g> {
    if cache.lies_on_host() { g.clamp(x, -kept_as.most(), kept_as.most()) } else { x }
}
