//! Weights whose rows lie joined once more, eight by eight, as the CPU's kernels like them best (`kernels::join_rows`).
//! Owns the copies. Products read them; everything else, and what the kernels leave to ggml, reads the weights as they lie in the
//! file.

use std::collections::HashMap;
use std::num::NonZero;
use std::ops::Range;
use std::ptr::NonNull;
use std::thread::available_parallelism;

use ggml_sys as sys;
use kernels::WeightType;

use crate::device::{Device, DeviceKind};
use crate::dtype::Dtype;
use crate::error::Error;
use crate::mapping::Mapping;
use crate::progress::Counted;
use crate::raw::{Buffer, Context};
use crate::weight_tensor::{Arena, WeightTensor};

/// A weight that shall have a copy, and where its bytes are.
pub(crate) struct ToJoin<'m> {
    pub(crate) tensor: WeightTensor,
    /// Its [`joined_type`].
    pub(crate) ty: WeightType,
    pub(crate) mapping: &'m Mapping,
    pub(crate) range: Range<usize>,
}

/// The copies, by the weights that they are of.
#[derive(Default)]
pub(crate) struct JoinedRows {
    of: HashMap<usize, WeightTensor>,
    n_bytes: usize,
}

/// The type of a weight `[n_in, n_out, n_matrices]` on this device of which the kernels read joined rows.
pub(crate) fn joined_type(device: Device, dtype: Dtype, ne: [i64; 4]) -> Option<WeightType> {
    let ty = WeightType::of(dtype.raw()).filter(|_| device.kind() == DeviceKind::Cpu)?;
    let [k, n_rows] = [ne[0], ne[1]].map(|n| usize::try_from(n).unwrap_or(0));
    (k.is_multiple_of(ty.format().block()) && kernels::reads_joined(ty, n_rows)).then_some(ty)
}

impl JoinedRows {
    /// Joins rows on all processors, weight by weight, so that little more than the copies takes memory.
    pub(crate) fn build(
        weights: &[ToJoin<'_>],
        buffers: &mut Vec<Buffer>,
        contexts: &mut Vec<Context>,
        copied: &mut Counted<'_>,
    ) -> Result<Self, Error> {
        let mut arena = Arena::new(Device::cpu()?, weights.len())?;
        let mut joined = Self::default();
        let mut copies = Vec::with_capacity(weights.len());
        for of in weights {
            // SAFETY: descriptions of weights are alive.
            let t = unsafe { of.tensor.0.as_ref() };
            let copy = arena.tensor(Dtype::from_raw(t.type_), t.ne, c"joined rows")?;
            joined.of.insert(of.tensor.0.as_ptr() as usize, copy);
            joined.n_bytes += of.range.len();
            copies.push((copy, of));
        }
        let Some(buffer) = arena.allocate("joined rows (--repack)")? else { return Ok(joined) };
        ask_for_large_pages(&buffer);
        let n_threads = available_parallelism().map_or(1, NonZero::get);
        for (copy, ToJoin { ty, mapping, range, .. }) in copies {
            let data = &mapping.bytes()[range.clone()];
            // SAFETY: descriptions are alive with `arena`.
            let t = unsafe { copy.0.as_ref() };
            // SAFETY: the copy has memory of the host, as many bytes as the weight (the same type and shape), which nobody else
            // knows of yet.
            let to = unsafe { std::slice::from_raw_parts_mut(t.data.cast::<u8>(), data.len()) };
            join_on(n_threads, *ty, data, t.ne[0] as usize, to);
            mapping.give_back(range.clone());
            copied.add(data.len());
        }
        buffers.push(buffer);
        contexts.push(arena.into_context());
        Ok(joined)
    }

    /// The copy of a weight.
    pub(crate) fn of(&self, weight: *const sys::ggml_tensor) -> Option<NonNull<sys::ggml_tensor>> {
        self.of.get(&(weight as usize)).map(|copy| copy.0)
    }

    /// Bytes of all copies.
    pub(crate) fn n_bytes(&self) -> usize {
        self.n_bytes
    }
}

/// Has the system take large pages for memory that nothing was written to yet: rows are read one after the other, all of them for each
/// token.
fn ask_for_large_pages(buffer: &Buffer) {
    #[cfg(target_os = "linux")]
    {
        const LARGE: usize = 2 << 20;
        // SAFETY: the buffer is alive.
        let first = unsafe { sys::ggml_backend_buffer_get_base(buffer.as_ptr()) } as usize;
        // SAFETY: as above.
        let end = first + unsafe { sys::ggml_backend_buffer_get_size(buffer.as_ptr()) };
        let (first, end) = (first.next_multiple_of(LARGE), end / LARGE * LARGE);
        if first < end {
            // A system without them refuses, and there is nothing to do then.
            // SAFETY: pages within the buffer; what they hold does not change.
            let _ = unsafe { rustix::mm::madvise(first as *mut _, end - first, rustix::mm::Advice::LinuxHugepage) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = buffer;
}

/// Joins rows of `k` values on so many threads.
fn join_on(n_threads: usize, ty: WeightType, rows: &[u8], k: usize, to: &mut [u8]) {
    let group = kernels::JOINED_ROWS * ty.row_bytes(k);
    let part = (rows.len() / group).div_ceil(n_threads).max(1) * group;
    std::thread::scope(|scope| {
        for (rows, to) in rows.chunks(part).zip(to.chunks_mut(part)) {
            scope.spawn(move || kernels::join_rows(ty, rows, k, to));
        }
    });
}
