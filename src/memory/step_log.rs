//! Logged tokens in the place of snapshots: a delta net's state stays where it was written last, and what tokens have done to it since
//! is kept beside it, a hundredth of its bytes each. Going back is forgetting entries; the next step replays those that are left.
//! Owns which steps write the state, and where logs lie: in the last plane, which no step of such a memory writes otherwise.

use ggml::{Device, DeviceKind, LoggedStep};

use crate::layout::{LayerState, Recurrent, StateLayout};
use crate::slots::{Memory, MemoryConfig, SlotStatus};

/// Tokens that are replayed by each step at most, where the state has left the caches before it is read again: reading it takes
/// longer than they do. Where it is still there, each step writes it.
const MOST_REPLAYED: usize = 8;

/// Bytes of one layer's state from which it has left the caches.
const LARGE: usize = 256 << 10;

/// How the delta nets of a memory log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepLog {
    /// Entries of each log.
    pub(crate) capacity: usize,
    /// Entries that may be there when a step has logged its own without writing the state.
    most: usize,
}

/// Where a sequence's state stands in layers that log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeadState {
    /// The plane of the state that was written last.
    pub(crate) plane: u32,
    /// The entry of the first token since.
    pub(crate) first: u32,
    /// Tokens since.
    pub(crate) n_logged: u32,
}

/// What a step does with the state in layers that log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadStep {
    step: LoggedStep,
    /// The plane that is written, if one is.
    plane: u32,
}

impl Default for HeadStep {
    fn default() -> Self {
        Self { step: LoggedStep::Write, plane: 0 }
    }
}

impl MemoryConfig {
    /// True for a layer on this device that logs, if logs fit.
    fn can_log(layer: &LayerState, device: Device) -> bool {
        matches!(layer, LayerState::Recurrent(r) if r.is_delta_net) && device.kind() == DeviceKind::Cpu
    }

    /// How the delta nets on CPUs log; `None` where they keep snapshots: there is none, a step may not ask for enough of them that a
    /// plane is left for the log, or a log of so many tokens takes more than a plane.
    pub(crate) fn step_log(&self, layout: &StateLayout, place: impl Fn(usize) -> Device) -> Option<StepLog> {
        let logging = layout.layers.iter().enumerate().filter(|(il, layer)| Self::can_log(layer, place(*il)));
        let heads: Vec<Recurrent> = logging.filter_map(|(_, l)| l.recurrent()).collect();
        let largest = heads.iter().map(|r| 4 * r.n_head_state()).max()?;
        let most = if largest >= LARGE { MOST_REPLAYED } else { 0 };
        let capacity = self.n_snapshots + most.max(self.n_snapshots);
        let fits = heads.iter().all(|r| ggml::log_capacity(r.d_state).is_some_and(|n| n >= capacity));
        // Two planes that may have a state, and the log's.
        (fits && self.n_snapshots >= 3).then_some(StepLog { capacity, most })
    }

    /// True for a layer that logs in a memory that does.
    pub(crate) fn logs(log: Option<StepLog>, layer: &LayerState, device: Device) -> bool {
        log.is_some() && Self::can_log(layer, device)
    }
}

impl StepLog {
    /// What a step of so many rows does, of which all but the last `n_snapshots - 1` are kept.
    pub(crate) fn step(
        self,
        config: &MemoryConfig,
        state: &SlotStatus,
        (n_rows, n_snapshots): (usize, usize),
    ) -> HeadStep {
        let HeadState { plane, n_logged, .. } = state.heads;
        let half = config.n_snapshots as u32;
        let to = match state.held {
            Some(held) => u32::from(held.heads.plane == 0),
            None if config.transactional && plane < half => half,
            None => 0,
        };
        let step = match n_logged as usize + n_rows <= self.most {
            _ if n_rows > n_snapshots || state.held.is_some() => LoggedStep::Write,
            true => LoggedStep::Log,
            false if n_snapshots == 1 => LoggedStep::Write,
            false => LoggedStep::WriteAndLog,
        };
        HeadStep { step, plane: to }
    }

    /// Bytes of a sequence's log in a layer, in pages of so many.
    pub(crate) fn n_bytes(self, r: Recurrent, page: usize) -> usize {
        let of_head = (self.capacity * ggml::log_entry_bytes(r.d_state)).next_multiple_of(page);
        r.n_heads * of_head.min(4 * r.d_state * r.d_head)
    }
}

impl SlotStatus {
    /// The state in layers that log after a step of which so many tokens are kept.
    pub(crate) fn heads_after(&self, kept: usize, capacity: usize) -> HeadState {
        let HeadState { plane, first, n_logged } = self.heads;
        match self.head_step.step {
            LoggedStep::Log => HeadState { n_logged: n_logged + kept as u32, ..self.heads },
            LoggedStep::WriteAndLog => HeadState {
                plane: self.head_step.plane,
                first: (first + n_logged) % capacity.max(1) as u32,
                n_logged: kept as u32,
            },
            LoggedStep::Write if kept == 0 => HeadState { plane, first, n_logged },
            LoggedStep::Write => HeadState { plane: self.head_step.plane, ..HeadState::default() },
        }
    }

    /// What [`LoggedStep`] and entries an op is told.
    pub(crate) fn head_numbers(&self) -> [i32; 3] {
        [self.heads.first as i32, self.heads.n_logged as i32, self.head_step.step.number()]
    }
}

impl Memory {
    /// The row of a slot's log among the states of a layer.
    pub(crate) fn log_row(&self, index: usize) -> usize {
        (self.config.n_planes() - 1) * self.config.n_slots + index
    }

    /// The row of the state that a step writes.
    pub(crate) fn written_row(&self, index: usize) -> usize {
        self.slots[index].head_step.plane as usize * self.config.n_slots + index
    }

    /// The row of the state that was written last.
    pub(crate) fn read_row(&self, index: usize) -> usize {
        self.slots[index].heads.plane as usize * self.config.n_slots + index
    }

    /// Has logged tokens happen to the bytes of a slot's state in layer `il`, as it was written last.
    pub(crate) fn replay(&self, il: usize, index: usize, bytes: &mut [u8]) -> Result<(), crate::error::Error> {
        let HeadState { first, n_logged, .. } = self.slots[index].heads;
        let (Some(log), Some(r), Some(id)) = (self.step_log, self.layout.layers[il].recurrent(), self.heads_id(il))
        else {
            return Ok(());
        };
        if n_logged == 0 {
            return Ok(());
        }
        let mut logged = vec![0; bytes.len()];
        self.buffer.read(id, self.log_row(index) * bytes.len(), &mut logged)?;
        let floats =
            |bytes: &[u8]| -> Vec<f32> { bytes.as_chunks().0.iter().map(|x| f32::from_ne_bytes(*x)).collect() };
        let mut states = floats(bytes);
        let entries = (first as usize, n_logged as usize);
        ggml::replay(r.d_state, &mut states, (&floats(&logged), log.capacity), entries);
        for (to, x) in bytes.as_chunks_mut().0.iter_mut().zip(states) {
            *to = x.to_ne_bytes();
        }
        Ok(())
    }
}
