//! Numbers and descriptions of weights, which `weights.rs` and `expert_cache.rs` share.

use std::ptr::NonNull;

use ggml_sys as sys;

use crate::raw::Buffer;

/// The position of a tensor in its [`Weights`](crate::Weights). One of another model is wrong but harmless: it is checked on use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WeightId(u32);

impl WeightId {
    pub(crate) fn at(index: usize) -> Self {
        Self(u32::try_from(index).expect("fewer tensors than bytes in a file header"))
    }

    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Schedulers compute with what lies in such a buffer where it lies.
pub(crate) fn mark_as_weights(buffer: &Buffer) {
    // SAFETY: the buffer is alive.
    unsafe { sys::ggml_backend_buffer_set_usage(buffer.as_ptr(), sys::GGML_BACKEND_BUFFER_USAGE_WEIGHTS) }
}

/// The description of a weight.
#[derive(Clone, Copy)]
pub(crate) struct WeightTensor(pub(crate) NonNull<sys::ggml_tensor>);

// SAFETY: descriptions are not changed after `build`; graphs over them only read them (see `raw::Context`). Their numbers change
// in `Weights::replace` and `Weights::renew_expert_copies` alone, under a lock that whoever reads them holds.
unsafe impl Send for WeightTensor {}
// SAFETY: as above.
unsafe impl Sync for WeightTensor {}
