//! What steps say by inputs of where state lies: devices whose kernels take numbers of states and slots get graphs that serve them
//! all.

use ggml::{Device, DeviceKind};

use crate::cache_type::CacheType;
use crate::layout::{Kv, LayerState, Recurrent};
use crate::slots::{Memory, MemoryConfig};

/// Rows of a sequence from which on a mask is large enough to be made by the device.
pub(crate) const ROWS_OF_SPANS: usize = 64;

impl Memory {
    /// Has steps name states and slots by inputs, as far as the devices of all layers, which `place` tells, take them so.
    pub fn name_what_devices_take(&mut self, place: impl Fn(usize) -> Device) {
        let layers = || self.layout.layers.iter().enumerate();
        let on_cpu = |il: usize| place(il).kind() == DeviceKind::Cpu;
        let by_number = |(il, layer): (usize, &LayerState)| match layer {
            LayerState::Recurrent(_) if on_cpu(il) => ggml::take_state_numbers().then_some(usize::MAX),
            LayerState::Recurrent(r) => rows_of_recurrent(*r, place(il)),
            LayerState::None | LayerState::Kv(_) => Some(usize::MAX),
        };
        let least = |least: usize, n: Option<usize>| Some(least.min(n?));
        let states = layers().map(by_number).try_fold(usize::MAX, least);
        let of_slots = |(il, layer): (usize, &LayerState)| match layer {
            _ if on_cpu(il) => None,
            LayerState::Kv(kv) => self.rows_of_cells(*kv, place(il)),
            LayerState::None | LayerState::Recurrent(_) => Some(usize::MAX),
        };
        let slots = states.and_then(|n| layers().map(of_slots).try_fold(n, least));
        if states.is_some() && self.layout.is_recurrent() {
            self.name_states();
        }
        self.name_slots(slots.unwrap_or(0));
    }

    /// Has devices make the masks of prompts, if `can` says so of those of all layers with cells: none is filled and brought to
    /// them then. For models whose rows see the cells up to their own.
    pub fn say_spans(&mut self, can: impl Fn(usize) -> bool) {
        let mut with_cells = self.layout.layers.iter().enumerate().filter(|(_, l)| matches!(l, LayerState::Kv(_)));
        self.says_spans = with_cells.all(|(il, _)| can(il));
    }

    /// Graphs of few rows of a sequence do not depend on its slot.
    pub fn serves_all_slots(&self) -> bool {
        self.names_slots > 0
    }

    /// Rows of a sequence up to which a device attends to cells of slots that an input names.
    fn rows_of_cells(&self, kv: Kv, device: Device) -> Option<usize> {
        let served = !self.config.v_transposed && !kv.latent && kv.window.is_none() && kv.d_k == kv.d_v;
        served.then(|| self.config.rows_read_alike(kv, device)).flatten()
    }
}

impl MemoryConfig {
    /// Rows up to which kernels of ours attend to the cells of a layer on this device, which is no CPU; `None` if they do not.
    pub fn rows_read_alike(&self, kv: Kv, device: Device) -> Option<usize> {
        let kept = |t: CacheType| (t.dtype(), t.turbo(kv.d_k));
        device.queries_alike_over(kv.d_k, kept(self.type_k), kept(self.type_v))
    }
}

/// Rows of a sequence up to which a device computes a convolution, and the delta net behind it if there is one, by numbers.
fn rows_of_recurrent(r: Recurrent, device: Device) -> Option<usize> {
    let size = if r.n_heads == 0 { 0 } else { r.d_state };
    let served = r.n_heads == 0 || r.d_head == r.d_state;
    served.then(|| device.states_by_number(r.n_conv, r.n_channels, size)).flatten()
}
