//! Which devices take memory for state part by part, and in which parts. Owns the choice between a GPU's granules and pretended ones.

use crate::device::{Device, DeviceKind};

impl Device {
    /// Bytes of a granule, where memory for state can be put behind reserved addresses part by part; `None` where all of it is
    /// taken at once, or page by page when it is written.
    pub fn granule(self) -> Option<usize> {
        match self.kind() {
            DeviceKind::Cpu => crate::pretended_granules::granule(),
            _ => crate::cuda_granules::granule(self),
        }
    }

    /// As [`Device::granule`], where several granules can show the same memory.
    pub fn shown_granule(self) -> Option<usize> {
        self.granule().filter(|_| self.kind() == DeviceKind::Cpu || crate::cuda_granules::can_show(self))
    }

    /// True when state on it takes memory as it is written: what is not can be used for something else.
    pub fn takes_state_as_written(self) -> bool {
        self.kind() == DeviceKind::Cpu && self.takes_host_memory() || self.granule().is_some()
    }
}
