//! Granules of a GPU: functions of our CUDA backend (`vendor/ggml-sys/cuda/granules.cuh`), asked for by name.
//! Owns their types. Backends without them, and old plugins, have no granules.

use std::ffi::c_void;
use std::ops::Range;

use ggml_sys as sys;

use crate::device::Device;
use crate::granules::Backing;
use crate::raw::Buffer;

type GranuleOf = unsafe extern "C" fn(sys::ggml_backend_dev_t) -> usize;
type New = unsafe extern "C" fn(sys::ggml_backend_dev_t, usize, usize) -> sys::ggml_backend_buffer_t;
type Take = unsafe extern "C" fn(sys::ggml_backend_buffer_t, usize, usize) -> i32;
type GiveBack = unsafe extern "C" fn(sys::ggml_backend_buffer_t, usize, usize);
type Show = unsafe extern "C" fn(sys::ggml_backend_buffer_t, usize, usize, usize) -> i32;
type Own = unsafe extern "C" fn(sys::ggml_backend_buffer_t, usize) -> i32;

/// Bytes of a granule of a device; `None` if it has none.
pub(crate) fn granule(device: Device) -> Option<usize> {
    let found = device.function(c"nextn_granule");
    // SAFETY: null or, by this name, of this type.
    let function: Option<GranuleOf> = unsafe { std::mem::transmute(found) };
    // SAFETY: a registry entry of this backend.
    let n_bytes = unsafe { function?(device.raw()) };
    (n_bytes > 0).then_some(n_bytes)
}

/// True where several granules can show the same memory: not by plugins that were made before this could be done.
pub(crate) fn can_show(device: Device) -> bool {
    sharing(device).is_some()
}

fn sharing(device: Device) -> Option<(Show, Own)> {
    let [show, own]: [*mut c_void; 2] =
        [c"nextn_granules_show", c"nextn_granules_own"].map(|name| device.function(name));
    // SAFETY: null or, by this name, of this type.
    let show: Option<Show> = unsafe { std::mem::transmute(show) };
    // SAFETY: as above.
    let own: Option<Own> = unsafe { std::mem::transmute(own) };
    show.zip(own)
}

/// The memory behind the granules of a buffer, which outlives it.
pub(crate) struct CudaGranules {
    buffer: sys::ggml_backend_buffer_t,
    take: Take,
    give_back: GiveBack,
    sharing: Option<(Show, Own)>,
}

// SAFETY: the buffer is a handle that is not bound to a thread; whoever takes granules keeps others off it.
unsafe impl Send for CudaGranules {}
// SAFETY: as above.
unsafe impl Sync for CudaGranules {}

impl CudaGranules {
    /// `n` granules of `n_bytes`, a multiple of [`granule`]'s, all zeros; `None` if the device has no room for that. The buffer must
    /// live as long as they are used.
    pub(crate) fn new(device: Device, n: usize, n_bytes: usize) -> Option<(Buffer, Self)> {
        let [new, take, give_back]: [*mut c_void; 3] =
            [c"nextn_granules_new", c"nextn_granules_take", c"nextn_granules_give_back"].map(|of| device.function(of));
        // SAFETY: null or, by this name, of this type.
        let new: Option<New> = unsafe { std::mem::transmute(new) };
        // SAFETY: as above.
        let take: Option<Take> = unsafe { std::mem::transmute(take) };
        // SAFETY: as above.
        let give_back: Option<GiveBack> = unsafe { std::mem::transmute(give_back) };
        let (new, take, give_back) = (new?, take?, give_back?);
        // SAFETY: a registry entry of this backend, and a size that it named.
        let buffer = unsafe { new(device.raw(), n, n_bytes) };
        // SAFETY: null or just made, no other owner.
        let owned = unsafe { Buffer::own(buffer) }?;
        Some((owned, Self { buffer, take, give_back, sharing: sharing(device) }))
    }
}

impl Backing for CudaGranules {
    unsafe fn take(&self, granules: Range<usize>) -> bool {
        // SAFETY: the buffer is alive, as its maker promised, and nobody uses the granules (the caller).
        unsafe { (self.take)(self.buffer, granules.start, granules.len()) != 0 }
    }

    unsafe fn give_back(&self, granules: Range<usize>) {
        // SAFETY: as above.
        unsafe { (self.give_back)(self.buffer, granules.start, granules.len()) }
    }

    fn can_show(&self) -> bool {
        self.sharing.is_some()
    }

    unsafe fn show(&self, from: Range<usize>, to: usize) -> bool {
        // SAFETY: as above.
        self.sharing.is_some_and(|(show, _)| unsafe { show(self.buffer, from.start, to, from.len()) != 0 })
    }

    unsafe fn own(&self, granule: usize) -> bool {
        // SAFETY: as above.
        self.sharing.is_some_and(|(_, own)| unsafe { own(self.buffer, granule) != 0 })
    }
}
