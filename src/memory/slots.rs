//! The memory: tensors of all slots, and who uses which.

use std::ops::Range;

use ggml::{Device, DeviceKind, Dtype, StateBuffer, StateId, StateSpec};

use crate::cache_type::CacheType;
use crate::error::Error;
use crate::footprint::Footprint;
use crate::layout::{CellKinds, LayerState, StateLayout, number};
use crate::shown::Shown;
use crate::step_log::{HeadState, HeadStep, StepLog};

/// Windows and kinds of values that the layers of a memory may have, at most.
pub const MAX_KINDS: usize = 64;

/// How much state to keep.
#[derive(Clone, Copy, Debug)]
pub struct MemoryConfig {
    /// Sequences at a time.
    pub n_slots: usize,
    /// Positions of one sequence; rounded up to a multiple of 256.
    pub n_ctx: usize,
    /// Type of the keys.
    pub type_k: CacheType,
    /// Type of the values.
    pub type_v: CacheType,
    /// Keep values as `[cell, element]`, as the unfused attention wants them; plain types only.
    pub v_transposed: bool,
    /// Snapshots that a step may ask for: rollback reaches one row less. 1 is enough for plain decoding.
    pub n_snapshots: usize,
    /// Never write over the state that a step started from, so that a dropped step changes nothing. Costs twice the
    /// recurrent state. Without it, a dropped step loses the sequence's recurrent state.
    pub transactional: bool,
    /// Rows of one sequence that a step has at most: layers with a window then keep the cells of the window and of so many
    /// rows. `None` is any number, and cells for all positions.
    pub max_rows: Option<usize>,
    /// Rotate the keys and values of quantised types whose heads allow it: they lose less by rounding.
    pub rotate: bool,
}

/// The right to use one sequence's state. Given back by [`Memory::release`].
#[derive(Debug, PartialEq, Eq)]
pub struct Slot {
    pub(crate) index: u32,
    pub(crate) epoch: u64,
}

impl Slot {
    /// Its number, below `n_slots`.
    pub fn index(&self) -> usize {
        self.index as usize
    }
}

/// Where a held sequence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) len: usize,
    pub(crate) plane: u32,
    pub(crate) heads: HeadState,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotStatus {
    pub(crate) epoch: u64,
    pub(crate) in_use: bool,
    /// Positions held.
    pub(crate) len: usize,
    /// The plane of the recurrent state after `len` positions.
    pub(crate) plane: u32,
    /// The same in layers that log.
    pub(crate) heads: HeadState,
    /// What the last step does or did there.
    pub(crate) head_step: HeadStep,
    /// A dropped step has overwritten the recurrent state, or a sequence is not all loaded: only a reset, a restore or a load helps.
    pub(crate) lost: bool,
    /// The number of the [`crate::Loading`] that is not done: the state is lost until then.
    pub(crate) loading: Option<u64>,
    /// Cells that were written since they were last zeroed, by this sequence or by those before it.
    pub(crate) n_written: usize,
    /// Some of these may hold NaN or infinity.
    pub(crate) spoiled: bool,
    /// Cells that took memory since it was given back, zeroed or not.
    pub(crate) n_taken: usize,
    /// Cells that memory was taken for before they are written, where a device wants that.
    pub(crate) n_backed: usize,
    /// The same of recurrent states, from the first.
    pub(crate) n_planes_backed: u32,
    /// Recurrent states that were written since memory was taken for them, from the first; the others are zeros.
    pub(crate) n_planes_written: u32,
    /// One past the last position that steps of this sequence have written, kept or not.
    pub(crate) n_stepped: usize,
    /// The position at which the cells of windows were filled, and those before them were not.
    pub(crate) filled_at: usize,
    /// Where steps can be taken back to.
    pub(crate) held: Option<Held>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum LayerTensors {
    None,
    /// The same tensor twice in a latent layer.
    Kv {
        k: StateId,
        v: StateId,
    },
    /// The same tensor twice in a layer without heads.
    Recurrent {
        conv: StateId,
        heads: StateId,
        /// Tokens are logged in the place of snapshots of the heads.
        logs: bool,
    },
}

/// State of all sequences.
#[derive(Debug)]
pub struct Memory {
    pub(crate) layout: StateLayout,
    pub(crate) kinds: CellKinds,
    pub(crate) config: MemoryConfig,
    pub(crate) buffer: StateBuffer,
    pub(crate) layers: Vec<LayerTensors>,
    /// The matrices by which keys and values of each layer are rotated.
    pub(crate) rotations: Vec<(Option<StateId>, Option<StateId>)>,
    pub(crate) slots: Vec<SlotStatus>,
    /// See [`Memory::stride`].
    pub(crate) strides: Vec<usize>,
    /// Bytes between slots, which have no memory, on each device.
    pub(crate) between: Vec<(Device, usize)>,
    /// For each slot what of its first cells it shows and does not own, in order.
    pub(crate) shown: Vec<Vec<Shown>>,
    pub(crate) footprint: Footprint,
    /// Bytes that were taken at the start.
    pub(crate) reserved_bytes: usize,
    /// See [`Memory::name_states`].
    pub(crate) names_states: bool,
    /// See [`Memory::name_slots`].
    pub(crate) names_slots: usize,
    /// See [`Memory::say_spans`].
    pub(crate) says_spans: bool,
    /// Of the layers that log.
    pub(crate) step_log: Option<StepLog>,
    /// All of it lies on CPUs.
    pub(crate) on_cpu: bool,
    /// Memory for some of it is taken before it is written.
    pub(crate) has_granules: bool,
}

impl MemoryConfig {
    /// A type of our own that keys or values are kept in.
    fn turbo_type(&self) -> Option<CacheType> {
        [self.type_k, self.type_v].into_iter().find(|t| t.is_turbo())
    }
}

impl SlotStatus {
    /// So many cells from the first are written, or will be.
    pub(crate) fn writes(&mut self, n_cells: usize) {
        (self.n_written, self.n_taken) = (self.n_written.max(n_cells), self.n_taken.max(n_cells));
    }
}

impl Memory {
    /// Has every step name the recurrent state that a sequence goes on from by an input ([`crate::StepView::state_rows`]): for
    /// devices whose ops take numbers of states, so that a graph serves a sequence whatever was kept of its last step.
    /// Otherwise one sequence's is a part of the graph, which needs no copy.
    pub(crate) fn name_states(&mut self) {
        self.names_states = true;
    }

    /// Has steps of up to `n_rows` rows of each sequence name slots by an input too ([`Segment::names_slots`]), so that a graph
    /// serves every slot: for devices whose kernels for attention and recurrent layers take numbers of slots.
    ///
    /// [`Segment::names_slots`]: crate::Segment::names_slots
    pub(crate) fn name_slots(&mut self, n_rows: usize) {
        self.names_slots = n_rows;
    }

    /// Allocates state for `config.n_slots` sequences on `device`, zeroed.
    ///
    /// # Errors
    /// As [`Memory::placed`].
    pub fn new(device: Device, layout: StateLayout, config: MemoryConfig) -> Result<Self, Error> {
        Self::placed(|_| device, layout, config)
    }

    /// Allocates state for `config.n_slots` sequences, zeroed, each layer's on the device that `place` names for it.
    ///
    /// # Errors
    /// [`Error::Layout`]: no slots, no positions, no snapshots, a quantised type whose block does not divide a head,
    /// transposed values of a quantised type, a type of our own on a GPU without kernels for it, an empty window, or more than [`MAX_KINDS`] of windows. [`Error::Device`]: no
    /// room.
    pub fn placed(
        place: impl Fn(usize) -> Device,
        layout: StateLayout,
        mut config: MemoryConfig,
    ) -> Result<Self, Error> {
        let refuse = |what: String| Err(Error::Layout(what));
        if config.n_slots == 0 || config.n_ctx == 0 || config.n_snapshots == 0 {
            return refuse("a memory needs at least one slot, one position and one snapshot".into());
        }
        if config.v_transposed && !config.type_v.is_plain() {
            return refuse(format!("values of type {} need flash attention: switch it on, or use f16", config.type_v));
        }
        if config.v_transposed && config.type_k.is_turbo() {
            return refuse(format!("keys of type {} need flash attention: switch it on, or use q8_0", config.type_k));
        }
        let kinds = CellKinds::of(&layout);
        if kinds.windows.len().max(kinds.values.len()) > MAX_KINDS {
            let n = kinds.windows.len().max(kinds.values.len());
            return refuse(format!(
                "attention layers of {n} windows or widths of values, at most {MAX_KINDS} expected"
            ));
        }
        if kinds.windows.contains(&Some(0)) {
            return refuse("a window of attention has no position, at least 1 expected".into());
        }
        let no_past = |l: &LayerState| matches!(l, LayerState::Recurrent(r) if r.n_conv_state() == 0);
        if layout.layers.iter().any(no_past) {
            return refuse("a recurrent layer without a convolution".into());
        }
        if let Some(kv) = layout.latent().find(|kv| kv.n_head_kv != 1 || kv.d_v > kv.d_k) {
            let (n, d_k, d_v) = (kv.n_head_kv, kv.d_k, kv.d_v);
            return refuse(format!(
                "latent rows of {n} heads of {d_k} elements with values of {d_v}: one head expected"
            ));
        }
        config = config.rounded();
        let with_state = || layout.layers.iter().enumerate().filter(|(_, layer)| **layer != LayerState::None);
        // Where one device reserves all of it, nobody counts what others take.
        let as_written = with_state().all(|(il, _)| place(il).takes_state_as_written());
        let strides = if as_written { config.strides(&layout, &kinds, &place)? } else { Vec::new() };
        let (mut specs, mut parts, mut between) = (Vec::new(), Vec::new(), Vec::new());
        for (il, layer) in layout.layers.iter().enumerate() {
            let device = place(il);
            if let (LayerState::Kv(kv), Some(t)) = (layer, config.turbo_type())
                && device.kind() != DeviceKind::Cpu
                && (kv.latent || kv.d_k != kv.d_v || config.rows_read_alike(*kv, device).is_none())
            {
                return refuse(format!(
                    "{} keeps layer {il}, and has no kernels for its cells of type {t}: use q4_0, or -ngl 0",
                    device.name()
                ));
            }
            let spec = |(what, dtype, ne)| StateSpec { name: format!("{what}.{il}"), dtype, ne, device };
            let stride = strides.get(kinds.window_of(il)).copied().unwrap_or(0);
            let (tensors, n_between) = config.tensors_apart(layer, stride)?;
            specs.extend(tensors.into_iter().map(spec));
            between.push((device, n_between));
            if as_written {
                parts.extend(config.part_bytes(layer)?);
            }
        }
        let n_of_layers = specs.len();
        let mut matrices: Vec<(Device, usize)> = Vec::new();
        let rotations: Vec<_> = layout
            .layers
            .iter()
            .enumerate()
            .map(|(il, layer)| {
                let LayerState::Kv(kv) = layer else { return (None, None) };
                let mut numbered = |n: usize| number(&mut matrices, (place(il), n));
                let (k, v) = config.rotation(kv);
                (k.map(&mut numbered), v.map(&mut numbered))
            })
            .collect();
        specs.extend(matrices.iter().map(|&(device, n)| StateSpec {
            name: format!("rotation.{n}"),
            dtype: Dtype::F32,
            ne: [n as i64, n as i64, 1, 1],
            device,
        }));
        let on_cpu = specs.iter().all(|spec| spec.device.kind() == DeviceKind::Cpu);
        let (mut buffer, ids) = StateBuffer::with_parts(&specs, &parts)?;
        for (&id, &(_, n)) in ids[n_of_layers..].iter().zip(&matrices) {
            buffer.write(id, 0, &MemoryConfig::rotation_matrix(n))?;
        }
        let has_granules = ids.iter().any(|&id| buffer.is_in_granules(id));
        let matrix = |i: usize| ids[n_of_layers + i];
        let rotations = rotations.into_iter().map(|(k, v)| (k.map(matrix), v.map(matrix))).collect();
        let mut ids = ids.into_iter();
        let mut next = || ids.next().expect("a spec was pushed for each tensor of a layer");
        let step_log = config.step_log(&layout, &place);
        let layers = layout.layers.iter().enumerate().map(|(il, layer)| match layer {
            LayerState::None => LayerTensors::None,
            LayerState::Kv(kv) => {
                let k = next();
                LayerTensors::Kv { k, v: if kv.latent { k } else { next() } }
            }
            LayerState::Recurrent(r) => {
                let conv = next();
                let heads = if r.n_head_state() > 0 { next() } else { conv };
                LayerTensors::Recurrent { conv, heads, logs: MemoryConfig::logs(step_log, layer, place(il)) }
            }
        });
        let layers = layers.collect();
        let slots = vec![SlotStatus::default(); config.n_slots];
        if config.n_slots > 1 {
            // A large page for each layer and slot would be taken by the first cells of each.
            buffer.in_small_pages();
        }
        let footprint = Footprint::default();
        let shown = vec![Vec::new(); config.n_slots];
        let memory = Self {
            layout,
            kinds,
            config,
            buffer,
            layers,
            rotations,
            slots,
            strides,
            between,
            shown,
            footprint,
            reserved_bytes: 0,
            names_states: false,
            names_slots: 0,
            says_spans: false,
            step_log,
            on_cpu,
            has_granules,
        };
        Ok(Self { footprint: memory.footprint_of(), reserved_bytes: memory.bytes_at_start(), ..memory })
    }

    /// What was asked for, the context rounded up.
    pub fn config(&self) -> &MemoryConfig {
        &self.config
    }

    /// Bytes on the device if all sequences fill the context: [`Memory::taken_bytes`] says what is taken.
    pub fn n_bytes(&self) -> usize {
        self.buffer.n_bytes() - self.between.iter().map(|(_, n_bytes)| n_bytes).sum::<usize>()
    }

    /// Takes a free slot with an empty sequence; `None` when all are in use.
    ///
    /// # Errors
    /// [`Error::Device`]: the state could not be cleared.
    pub fn acquire(&mut self) -> Result<Option<Slot>, Error> {
        let Some(index) = self.slots.iter().position(|s| !s.in_use) else { return Ok(None) };
        self.clear(index)?;
        let state = &mut self.slots[index];
        state.in_use = true;
        state.epoch += 1;
        Ok(Some(Slot { index: index as u32, epoch: state.epoch }))
    }

    /// Gives a slot back; what it held is gone.
    pub fn release(&mut self, slot: Slot) {
        if let Ok(index) = self.index(&slot) {
            self.slots[index].in_use = false;
        }
    }

    /// Positions that the sequence holds.
    ///
    /// # Errors
    /// [`Error::Slot`]: the slot is not in use.
    pub fn len(&self, slot: &Slot) -> Result<usize, Error> {
        Ok(self.slots[self.index(slot)?].len)
    }

    /// True when the sequence has no position.
    ///
    /// # Errors
    /// [`Error::Slot`]: the slot is not in use.
    pub fn is_empty(&self, slot: &Slot) -> Result<bool, Error> {
        Ok(self.len(slot)? == 0)
    }

    /// Forgets the whole sequence.
    ///
    /// # Errors
    /// [`Error::Slot`]: the slot is not in use. [`Error::Device`]: the state could not be cleared.
    pub fn reset(&mut self, slot: &Slot) -> Result<(), Error> {
        let index = self.index(slot)?;
        self.clear(index)
    }

    /// Says that cells of this slot may hold NaN or infinity: a step gave numbers that are not finite, or nobody has looked at
    /// them. The sequence stays; its cells are zeroed where it is reset or goes back, before others see them. Where a step
    /// is dropped or a sequence is loaded the memory knows by itself.
    ///
    /// # Errors
    /// [`Error::Slot`]: the slot is not in use.
    pub fn spoil(&mut self, slot: &Slot) -> Result<(), Error> {
        let index = self.index(slot)?;
        self.slots[index].spoiled = true;
        Ok(())
    }

    /// Forgets positions from `len` on. A sequence with recurrent state can only keep all or nothing, and one behind windows
    /// what [`Memory::rewinds_to`] says.
    ///
    /// # Errors
    /// [`Error::Slot`]: the slot is not in use. [`Error::Step`]: `len` is more than there is, or the state cannot be cut.
    pub fn truncate(&mut self, slot: &Slot, len: usize) -> Result<(), Error> {
        let index = self.index(slot)?;
        let state = &mut self.slots[index];
        if len == state.len && !state.lost {
            return Ok(());
        }
        if len == 0 {
            return self.clear(index);
        }
        if len > state.len || self.layout.is_recurrent() {
            let what = format!("a sequence of {} positions cannot be cut to {len}", state.len);
            return Err(Error::Step(what));
        }
        let (state, earliest) = (*state, self.earliest(&self.slots[index]));
        if len < earliest {
            let what = format!(
                "a sequence of {} positions cannot be cut to {len}: the cells of its windows reach back to {earliest}",
                state.len
            );
            return Err(Error::Step(what));
        }
        self.wipe(index, len)?;
        (self.slots[index].len, self.slots[index].held) = (len, None);
        Ok(())
    }

    pub(crate) fn index(&self, slot: &Slot) -> Result<usize, Error> {
        let index = slot.index as usize;
        let known = self.slots.get(index).is_some_and(|s| s.in_use && s.epoch == slot.epoch);
        if known { Ok(index) } else { Err(Error::Slot(slot.index)) }
    }

    /// How a slot stands.
    ///
    /// # Errors
    /// [`Error::Step`]: its state is lost.
    pub(crate) fn sound(&self, index: usize) -> Result<SlotStatus, Error> {
        let state = self.slots[index];
        if state.lost {
            let why = if state.loading.is_some() { "a sequence is not all loaded" } else { "a step failed" };
            return Err(Error::Step(format!("slot {index}: {why} and its state is lost; reset the sequence")));
        }
        Ok(state)
    }

    /// Zeroes the recurrent state of a slot. Cells of attention need no clearing, they are masked; but a masked cell is
    /// multiplied by zero, which takes a finite number: spoiled ones are zeroed, too.
    pub(crate) fn clear(&mut self, index: usize) -> Result<(), Error> {
        self.wipe(index, 0)?;
        // What was never written is zeros, and writing takes memory.
        let is_written = self.slots[index].n_planes_written > 0;
        for il in 0..if is_written { self.layers.len() } else { 0 } {
            for (id, offset, n_bytes) in self.recurrent_rows(il, index, 0) {
                self.buffer.zero(id, offset, n_bytes)?;
            }
        }
        let state = &mut self.slots[index];
        (state.len, state.plane, state.lost, state.loading) = (0, 0, false, None);
        state.heads = HeadState::default();
        (state.n_stepped, state.filled_at, state.held) = (0, 0, None);
        Ok(())
    }

    /// Zeroes the cells of a spoiled slot from position `first` on. Of a ring stays what a sequence of so many positions keeps.
    pub(crate) fn wipe(&mut self, index: usize, first: usize) -> Result<(), Error> {
        let state = self.slots[index];
        if !state.spoiled || first >= state.n_written {
            return Ok(());
        }
        self.stop_showing(index, first)?;
        for il in 0..self.layers.len() {
            let window = self.kinds.window_of(il);
            let n_written = state.n_written.min(self.n_cells(window));
            for cells in others(0..n_written, self.kept_cells(window, first)) {
                for (id, offset, n_bytes) in self.layer_ranges(il, index, std::iter::once(cells))? {
                    self.buffer.zero(id, offset, n_bytes)?;
                }
            }
        }
        let state = &mut self.slots[index];
        (state.n_written, state.spoiled, state.filled_at) = (first, first > 0, state.filled_at.max(first));
        Ok(())
    }

    /// The recurrent tensors of layer `il` with offset and length of the row of a slot on a plane; empty for others.
    pub(crate) fn recurrent_rows(&self, il: usize, index: usize, plane: u32) -> Vec<(StateId, usize, usize)> {
        let row = plane as usize * self.config.n_slots + index;
        self.rows_of_recurrent(il, row, row)
    }

    /// The same where a sequence stands, in layers that log as the state was written last.
    pub(crate) fn current_rows(&self, il: usize, index: usize) -> Vec<(StateId, usize, usize)> {
        let row = self.slots[index].plane as usize * self.config.n_slots + index;
        self.rows_of_recurrent(il, row, if self.logs(il) { self.read_row(index) } else { row })
    }

    /// True for a layer that logs tokens.
    pub(crate) fn logs(&self, il: usize) -> bool {
        matches!(self.layers.get(il), Some(LayerTensors::Recurrent { logs: true, .. }))
    }

    /// The tensor of a recurrent layer's matrices.
    pub(crate) fn heads_id(&self, il: usize) -> Option<StateId> {
        match self.layers.get(il) {
            Some(LayerTensors::Recurrent { heads, .. }) => Some(*heads),
            _ => None,
        }
    }

    fn rows_of_recurrent(&self, il: usize, of_conv: usize, of_heads: usize) -> Vec<(StateId, usize, usize)> {
        let (LayerTensors::Recurrent { conv, heads, .. }, Some(r)) =
            (self.layers[il], self.layout.layers[il].recurrent())
        else {
            return Vec::new();
        };
        let (n_conv, n_heads) = (4 * r.n_conv_state(), 4 * r.n_head_state());
        let rows = [(conv, of_conv * n_conv, n_conv), (heads, of_heads * n_heads, n_heads)];
        rows.into_iter().filter(|(.., n_bytes)| *n_bytes > 0).collect()
    }
}

/// What is left of `all` without the parts `of` it, which may come in any order.
pub(crate) fn others(all: Range<usize>, of: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut of: Vec<_> = of.collect();
    of.sort_unstable_by_key(|part| part.start);
    let mut at = all.start;
    let mut left = Vec::new();
    for part in of {
        left.push(at..part.start.min(all.end));
        at = at.max(part.end);
    }
    left.push(at..all.end);
    left.retain(|part| part.start < part.end);
    left
}
