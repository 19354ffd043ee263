//! The pinned staging buffer: memory of the host that a device with memory of its own writes a graph's outputs to, all of
//! them behind the last op, so that nobody waits for one after the other. Owns that memory.

use std::ptr::NonNull;

use ggml_sys as sys;

use crate::device::{Device, DeviceKind, Stream};
use crate::raw::Buffer;

/// Bytes at a time: logits of a few tokens. Larger outputs are copied one by one when they are asked for.
const N_BYTES: usize = 4 << 20;

/// Outputs start at multiples of this.
const ALIGN: usize = 64;

type Part = (NonNull<sys::ggml_tensor>, usize, usize);

/// Memory of the host that a device with memory of its own reads and writes by itself; `None` for devices that have nothing of the
/// kind, and where there is no room.
pub(crate) fn pinned(device: Device, n_bytes: usize) -> Option<Buffer> {
    if device.kind() == DeviceKind::Cpu {
        return None;
    }
    let buffer_type = device.host_buffer_type()?;
    // SAFETY: the buffer type is static.
    let buffer = unsafe { sys::ggml_backend_buft_alloc_buffer(buffer_type.as_ptr(), n_bytes) };
    // SAFETY: just made, no other owner.
    unsafe { Buffer::own(buffer) }
}

/// Outputs of the last graph on the host.
pub(crate) struct StagingBuffer {
    buffer: Buffer,
    /// What was copied last: output, place, bytes.
    parts: Vec<Part>,
}

// SAFETY: the pointers are compared, never followed.
unsafe impl Send for StagingBuffer {}

impl StagingBuffer {
    /// `None` for devices that have nothing of the kind, and where there is no room.
    pub(crate) fn of(device: Device) -> Option<Self> {
        Some(Self { buffer: pinned(device, N_BYTES)?, parts: Vec::new() })
    }

    /// Forgets what was copied before.
    pub(crate) fn clear(&mut self) {
        self.parts.clear();
    }

    /// Has the stream copy all of these, or none where they do not fit. They are here after it was waited for.
    ///
    /// # Safety
    /// The tensors are alive and have memory on the stream's device; nothing reads what was copied before any more.
    pub(crate) unsafe fn copy(&mut self, stream: &Stream, outputs: impl Iterator<Item = NonNull<sys::ggml_tensor>>) {
        let mut end = 0;
        for t in outputs {
            // SAFETY: the tensor is alive (the caller).
            let n = unsafe { sys::ggml_nbytes(t.as_ptr()) };
            // SAFETY: likewise.
            let whole = unsafe { sys::ggml_is_contiguous(t.as_ptr()) };
            self.parts.push((t, end, n));
            end += n.next_multiple_of(ALIGN);
            if end > N_BYTES || !whole {
                return self.parts.clear();
            }
        }
        // SAFETY: the buffer is alive.
        let base = unsafe { sys::ggml_backend_buffer_get_base(self.buffer.as_ptr()) };
        for &(t, at, n) in &self.parts {
            let into = base.cast::<u8>().wrapping_add(at).cast();
            // SAFETY: the tensor has `n` bytes, and so has this part of the buffer, which stays until the next call.
            unsafe { sys::ggml_backend_tensor_get_async(stream.backend.as_ptr(), t.as_ptr(), into, 0, n) };
        }
    }

    /// The bytes of an output, if it was copied. The stream was waited for.
    pub(crate) fn find(&self, output: NonNull<sys::ggml_tensor>) -> Option<&[u8]> {
        let &(_, at, n) = self.parts.iter().find(|(t, ..)| *t == output)?;
        // SAFETY: the buffer is alive.
        let base = unsafe { sys::ggml_backend_buffer_get_base(self.buffer.as_ptr()) };
        // SAFETY: the part lies in the buffer, was written whole, and is written again by `&mut self` only.
        Some(unsafe { std::slice::from_raw_parts(base.cast::<u8>().wrapping_add(at), n) })
    }
}
