//! Numbers and descriptions of weights, and the memory that they get on a device: what `weights.rs` and `expert_cache.rs` share.

use std::ffi::CStr;
use std::ptr::NonNull;

use ggml_sys as sys;

use crate::device::Device;
use crate::dtype::Dtype;
use crate::error::Error;
use crate::raw::{Buffer, Context};
use crate::rpc::no_room;

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

/// Descriptions of weights on one device.
pub(crate) struct Arena {
    device: Device,
    context: Context,
    n_bytes: usize,
}

impl Arena {
    /// For `n_tensors` at most.
    pub(crate) fn new(device: Device, n_tensors: usize) -> Result<Self, Error> {
        let context = Context::new(n_tensors.max(1), 0);
        let context = context.ok_or_else(|| Error::no_arena(n_tensors * 512, "tensor descriptions"))?;
        Ok(Self { device, context, n_bytes: 0 })
    }

    /// Describes a tensor, whose dimensions are at least 1. A long name is cut.
    pub(crate) fn tensor(&mut self, dtype: Dtype, ne: [i64; 4], name: &CStr) -> Result<WeightTensor, Error> {
        // SAFETY: the arena has room for all tensors that it was made for; `ne` has four dimensions of at least 1.
        let t = unsafe { sys::ggml_new_tensor(self.context.as_ptr(), dtype.raw(), 4, ne.as_ptr()) };
        let t = NonNull::new(t).ok_or_else(|| Error::no_arena(512, "a tensor's description"))?;
        // SAFETY: `t` was just made; the name is NUL-terminated and is copied.
        unsafe { sys::ggml_set_name(t.as_ptr(), name.as_ptr()) };
        // SAFETY: `t` was just made.
        self.n_bytes += unsafe { sys::ggml_nbytes(t.as_ptr()) };
        Ok(WeightTensor(t))
    }

    /// Gives all tensors memory on the device; `what` they are, should there be no room.
    pub(crate) fn allocate(&self, what: &'static str) -> Result<Option<Buffer>, Error> {
        if self.n_bytes == 0 {
            return Ok(None);
        }
        let buffer_type = self.device.buffer_type();
        // SAFETY: the arena holds just the tensors to place; the buffer type is static.
        let buffer = unsafe { sys::ggml_backend_alloc_ctx_tensors_from_buft(self.context.as_ptr(), buffer_type) };
        // SAFETY: just made, no other owner.
        let buffer = unsafe { Buffer::own(buffer) };
        let buffer = buffer.ok_or_else(|| no_room(self.device, self.n_bytes, what))?;
        mark_as_weights(&buffer);
        Ok(Some(buffer))
    }

    /// What keeps the descriptions alive.
    pub(crate) fn into_context(self) -> Context {
        self.context
    }
}
