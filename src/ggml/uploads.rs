//! Small inputs on their way to a device with memory of its own: they wait until a graph is computed, and those that lie behind each
//! other there are copied at once, since a copy takes longer to begin than to bring a few numbers. Owns the pinned memory of the host
//! that they are copied from.

use std::ops::Range;
use std::ptr::NonNull;

use ggml_sys as sys;

use crate::device::{Device, Stream};
use crate::raw::Buffer;
use crate::staging::pinned;

/// Bytes that wait at most, with what lies between them.
const N_BYTES: usize = 1 << 20;

/// Bytes of an input from which on it is copied by itself.
const TOO_LARGE: usize = 64 << 10;

/// Where something lies on a device: the address of its buffer, its own, and how many bytes it has.
type Place = (usize, usize, usize);

/// An input and what it gets: where it lies on the device, and where its bytes begin among those that wait.
struct Part {
    tensor: NonNull<sys::ggml_tensor>,
    place: Place,
    start: usize,
}

/// Inputs of the next graph.
pub(crate) struct Uploads {
    pinned: Buffer,
    bytes: Vec<u8>,
    parts: Vec<Part>,
}

// SAFETY: the pointers are followed by `Uploads::send` alone, whose caller says that they are good.
unsafe impl Send for Uploads {}

impl Uploads {
    /// `None` for devices that have no pinned memory, and where there is no room.
    pub(crate) fn of(device: Device) -> Option<Self> {
        Some(Self { pinned: pinned(device, N_BYTES)?, bytes: Vec::new(), parts: Vec::new() })
    }

    /// Forgets what waits.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.parts.clear();
    }

    /// Keeps the contents of `tensor`, whose device gives memory in steps of `alignment`; false where they are too large or too many.
    ///
    /// # Safety
    /// The tensor is alive and has memory for them.
    pub(crate) unsafe fn keep(&mut self, tensor: NonNull<sys::ggml_tensor>, bytes: &[u8], alignment: usize) -> bool {
        // Each run ends with bytes of its own, and begins at a step.
        let n_waiting = self.bytes.len() + self.parts.len() * alignment;
        if bytes.len() >= TOO_LARGE || n_waiting + bytes.len() + alignment > N_BYTES {
            return false;
        }
        // SAFETY: the tensor is alive (the caller).
        let t = unsafe { tensor.as_ref() };
        let place = (t.buffer.addr(), t.data.addr(), bytes.len());
        self.parts.push(Part { tensor, place, start: self.bytes.len() });
        self.bytes.extend_from_slice(bytes);
        true
    }

    /// Has the stream copy what waits. The pinned memory is read until the stream was waited for.
    ///
    /// # Safety
    /// The tensors are alive and where they were, on the stream's device, whose memory has this alignment; no earlier copy is under
    /// way.
    pub(crate) unsafe fn send(&mut self, stream: &Stream, alignment: usize) {
        self.parts.sort_unstable_by_key(|part| part.place);
        let places: Vec<Place> = self.parts.iter().map(|part| part.place).collect();
        // SAFETY: the buffer is alive.
        let base = unsafe { sys::ggml_backend_buffer_get_base(self.pinned.as_ptr()) }.cast::<u8>();
        let mut end = 0;
        for run in runs(&places, alignment) {
            let parts = &self.parts[run];
            let Some(first) = parts.first() else { continue };
            let from = base.wrapping_add(end);
            let mut n_bytes = 0;
            for &Part { place: (_, address, n), start, .. } in parts {
                let (bytes, at) = (&self.bytes[start..start + n], address - first.place.1);
                // SAFETY: `keep` took no more than the buffer has room for; nobody else has it, as no copy is under way (the caller).
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), from.wrapping_add(at), n) };
                n_bytes = at + n;
            }
            // SAFETY: the tensor is alive (the caller).
            let mut all = unsafe { *first.tensor.as_ptr() };
            let n = n_bytes as i64;
            (all.type_, all.ne, all.nb) = (sys::GGML_TYPE_I8, [n, 1, 1, 1], [1, n_bytes, n_bytes, n_bytes]);
            // SAFETY: from the first of the run on the device has `n_bytes` bytes, of which those between two tensors are nobody's:
            // memory is given in steps of `alignment`. The pinned memory stays until the next call.
            unsafe {
                sys::ggml_backend_tensor_set_async(stream.backend.as_ptr(), &raw mut all, from.cast(), 0, n_bytes)
            };
            end += n_bytes.next_multiple_of(alignment);
        }
        self.clear();
    }
}

/// Runs of places, which are sorted, in one buffer each, of which each begins at the first step behind the one before.
fn runs(places: &[Place], alignment: usize) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    let mut next = None;
    for (i, &(buffer, address, n_bytes)) in places.iter().enumerate() {
        match all.last_mut() {
            Some(run) if next == Some((buffer, address)) => run.end = i + 1,
            _ => all.push(i..i + 1),
        }
        next = Some((buffer, (address + n_bytes).next_multiple_of(alignment)));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_behind_each_other_is_a_run() {
        assert!(runs(&[], 128).is_empty());
        // A step is left out behind the third; the sixth begins within a step; the last is in another buffer.
        let places = [(1, 256, 4), (1, 384, 128), (1, 512, 1), (1, 768, 130), (1, 1024, 8), (1, 1040, 8), (2, 1152, 4)];
        assert_eq!(runs(&places, 128), [0..3, 3..5, 5..6, 6..7]);
        assert_eq!(runs(&places, 16), [0..1, 1..3, 3..4, 4..6, 6..7]);
    }
}
