//! Where tensors lie among the granules of a buffer. Owns the size of granules, and the buffer's making on a GPU or, pretended, on the
//! host. Knows nothing of who holds what.

use std::ptr::NonNull;

use ggml_sys as sys;

use crate::cuda_granules::CudaGranules;
use crate::device::{Device, DeviceKind};
use crate::granules::{Backing, Granules};
use crate::pages::Pages;
use crate::pretended_granules::HostGranules;
use crate::raw::Buffer;

/// Puts unallocated tensors, with their bytes, of a device into granules, and tells where each begins; `None`, and the tensors have
/// no place, if it has no room for as many addresses. `pages` gets what must outlive the buffer.
pub(crate) fn in_granules(
    device: Device,
    tensors: &[(NonNull<sys::ggml_tensor>, usize)],
    pages: &mut Vec<Pages>,
) -> Option<(Buffer, Granules, Vec<usize>)> {
    let least = device.granule()?;
    let padded = |(t, n_bytes): &(NonNull<sys::ggml_tensor>, usize)| {
        // SAFETY: an unallocated tensor and a static type of buffers.
        unsafe { sys::ggml_backend_buft_get_alloc_size(device.buffer_type(), t.as_ptr()) }.max(*n_bytes)
    };
    let sizes: Vec<usize> = tensors.iter().map(padded).collect();
    let n_of = |granule: usize| sizes.iter().try_fold(0usize, |n, size| n.checked_add(size.div_ceil(granule)));
    // Each takes time when the buffer is made.
    let mut granule = least;
    while n_of(granule)? > MOST_GRANULES {
        granule = granule.checked_mul(2)?;
    }
    let n = n_of(granule)?;
    let (buffer, backing): (Buffer, Box<dyn Backing>) = match device.kind() {
        DeviceKind::Cpu => {
            let n_bytes = n.checked_mul(granule)?;
            let mut memory = Pages::new(n_bytes)?;
            let start = memory.start();
            pages.push(memory);
            // SAFETY: the pages live as long as the buffer, and begin at a page, so they are aligned.
            let buffer =
                unsafe { sys::ggml_backend_dev_buffer_from_host_ptr(device.raw(), start.cast(), n_bytes, n_bytes) };
            // SAFETY: just made, no other owner.
            let buffer = unsafe { Buffer::own(buffer) }?;
            // SAFETY: so many granules, zeros, which live as long as this (`Inner`).
            (buffer, Box::new(unsafe { HostGranules::new(start, n, granule) }))
        }
        _ => {
            let (buffer, granules) = CudaGranules::new(device, n, granule)?;
            (buffer, Box::new(granules))
        }
    };
    // SAFETY: the buffer is alive.
    let base = unsafe { sys::ggml_backend_buffer_get_base(buffer.as_ptr()) }.cast::<u8>();
    let (mut at, mut places) = (0, Vec::with_capacity(tensors.len()));
    for ((t, _), size) in tensors.iter().zip(sizes) {
        // SAFETY: the tensor's place lies within the buffer, as counted above.
        let address = unsafe { base.add(at) };
        // SAFETY: an unallocated tensor, and a place for it within the buffer, aligned.
        let status = unsafe { sys::ggml_backend_tensor_alloc(buffer.as_ptr(), t.as_ptr(), address.cast()) };
        assert!(status == sys::GGML_STATUS_SUCCESS, "a place in granules needs no memory, status {status}");
        places.push(at);
        at += size.next_multiple_of(granule);
    }
    Some((buffer, Granules::new(backing, n, granule), places))
}

/// Granules of a device's state at most: larger ones where there would be more.
pub const MOST_GRANULES: usize = 1 << 17;
