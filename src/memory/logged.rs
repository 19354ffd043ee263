//! Layers of a memory that log tokens: which do, and where state and log of a slot lie. The log is on the last plane, which no step
//! of such a memory writes otherwise.

use ggml::{Device, DeviceKind};

use crate::error::Error;
use crate::layout::{LayerState, Recurrent, StateLayout};
use crate::slots::{Memory, MemoryConfig};
use crate::step_log::{HeadState, StepLog};

impl MemoryConfig {
    /// True for a layer on this device that logs, if logs fit.
    fn can_log(layer: &LayerState, device: Device) -> bool {
        let is_delta_net = matches!(layer, LayerState::Recurrent(r) if r.is_delta_net);
        // A log lies where memory comes by itself.
        is_delta_net && device.kind() == DeviceKind::Cpu && device.granule().is_none()
    }

    /// How the delta nets on CPUs log; `None` where they keep snapshots: there is none, a step may not ask for enough of them that a
    /// plane is left for the log, or a log of so many tokens takes more than a plane.
    pub(crate) fn step_log(&self, layout: &StateLayout, place: impl Fn(usize) -> Device) -> Option<StepLog> {
        let logging = layout.layers.iter().enumerate().filter(|(il, layer)| Self::can_log(layer, place(*il)));
        let heads: Vec<Recurrent> = logging.filter_map(|(_, l)| l.recurrent()).collect();
        let largest = heads.iter().map(|r| 4 * r.n_head_state()).max()?;
        let log = StepLog::of(largest, self.n_snapshots);
        let fits = heads.iter().all(|r| ggml::log_capacity(r.d_state).is_some_and(|n| n >= log.capacity));
        // Two planes that may have a state, and the log's.
        (fits && self.n_snapshots >= 3).then_some(log)
    }

    /// True for a layer that logs in a memory that does.
    pub(crate) fn logs(log: Option<StepLog>, layer: &LayerState, device: Device) -> bool {
        log.is_some() && Self::can_log(layer, device)
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
    pub(crate) fn replay(&self, il: usize, index: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let HeadState { first, n_logged, .. } = self.slots[index].heads;
        let (Some(log), Some(r), Some(id)) = (self.step_log, self.layout.layers[il].recurrent(), self.heads_id(il))
        else {
            return Ok(());
        };
        if n_logged == 0 {
            return Ok(());
        }
        let floats =
            |bytes: &[u8]| -> Vec<f32> { bytes.as_chunks().0.iter().map(|x| f32::from_ne_bytes(*x)).collect() };
        let (start, n_bytes) = (self.log_row(index) * bytes.len(), 4 * r.d_state * r.d_head);
        let mut logged = vec![0; log.capacity * ggml::log_entry_bytes(r.d_state)];
        for (h, head) in bytes.chunks_exact_mut(n_bytes).enumerate() {
            self.buffer.read(id, start + h * n_bytes, &mut logged)?;
            let mut state = floats(head);
            ggml::replay(r.d_state, &mut state, &floats(&logged), (first as usize, n_logged as usize));
            for (to, x) in head.as_chunks_mut().0.iter_mut().zip(state) {
                *to = x.to_ne_bytes();
            }
        }
        Ok(())
    }
}
