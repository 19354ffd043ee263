//! Placing tensors on one device: over the maps of their files where it can use them, copied where it cannot. Owns the
//! descriptions until [`crate::Weights`] takes them. Knows nothing of which tensor goes where.

use std::ffi::CString;
use std::ops::Range;
use std::sync::Arc;

use ggml_sys as sys;

use crate::device::Device;
use crate::dtype::Dtype;
use crate::error::Error;
use crate::mapping::Mapping;
use crate::progress::Counted;
use crate::raw::{Buffer, Context};
use crate::weight_part::PartBytes;
use crate::weight_tensor::{Arena, WeightTensor, mark_as_weights};

/// ggml's kernels load whole vectors; data at other addresses is copied once.
const ALIGNMENT: usize = 32;

/// A tensor that is to be placed.
pub(crate) struct Planned {
    pub(crate) name: CString,
    pub(crate) dtype: Dtype,
    pub(crate) ne: [i64; 4],
    pub(crate) mapping: usize,
    pub(crate) range: Range<usize>,
    /// What is taken of these bytes; all of them if `None`.
    pub(crate) part: Option<PartBytes>,
    /// Among the devices of the weights.
    pub(crate) place: usize,
    /// [`crate::WeightsBuilder::replaceable`] was asked for.
    pub(crate) replaceable: bool,
    /// [`crate::WeightsBuilder::join_rows`] was asked for.
    pub(crate) joined: bool,
}

impl Planned {
    /// Bytes of what is taken.
    pub(crate) fn n_bytes(&self) -> usize {
        self.part.as_ref().map_or(self.range.len(), |part| part.n_bytes)
    }

    /// The bytes in its file.
    pub(crate) fn data<'m>(&self, maps: &'m [Arc<Mapping>]) -> &'m [u8] {
        &maps[self.mapping].bytes()[self.range.clone()]
    }
}

/// The tensors of one device.
pub(crate) struct OnDevice {
    device: Device,
    mapped: Vec<usize>,
    copied: Vec<usize>,
    mapped_arena: Arena,
    copied_arena: Arena,
}

impl OnDevice {
    /// Describes those of `planned` that are to lie on a device, which has this number, into their places in `tensors`.
    ///
    /// # Errors
    /// [`Error::Alloc`]: no room for descriptions.
    pub(crate) fn describe(
        planned: &[Planned],
        maps: &[Arc<Mapping>],
        (device, place): (Device, usize),
        tensors: &mut [Option<WeightTensor>],
    ) -> Result<Self, Error> {
        let arena = || Arena::new(device, planned.len());
        let over_maps = device.takes_host_memory();
        let (mapped, copied) = (Vec::new(), Vec::new());
        let mut on = OnDevice { device, mapped, copied, mapped_arena: arena()?, copied_arena: arena()? };
        for (i, p) in planned.iter().enumerate().filter(|(_, p)| p.place == place) {
            let address = maps[p.mapping].bytes()[p.range.start..].as_ptr() as usize;
            let mapped = over_maps && !p.replaceable && p.part.is_none() && address.is_multiple_of(ALIGNMENT);
            let (list, arena) = match mapped {
                true => (&mut on.mapped, &mut on.mapped_arena),
                false => (&mut on.copied, &mut on.copied_arena),
            };
            list.push(i);
            // `add` has checked the dimensions.
            tensors[i] = Some(arena.tensor(p.dtype, p.ne, &p.name)?);
        }
        let is_misaligned = |p: &Planned| !p.replaceable && p.part.is_none();
        let n_misaligned = on.copied.iter().filter(|&&i| is_misaligned(&planned[i])).count();
        if over_maps && n_misaligned > 0 {
            tracing::warn!(n_misaligned, "tensors not aligned to {ALIGNMENT} bytes in the file are copied into memory");
        }
        Ok(on)
    }

    /// Lays the tensors over their maps where the device can use them.
    ///
    /// # Errors
    /// [`Error::Device`]: the device refuses a map.
    pub(crate) fn lay_over_maps(
        &self,
        planned: &[Planned],
        maps: &[Arc<Mapping>],
        tensors: &[Option<WeightTensor>],
        buffers: &mut Vec<Buffer>,
    ) -> Result<(), Error> {
        for (index, map) in maps.iter().enumerate() {
            let here: Vec<usize> = self.mapped.iter().copied().filter(|&i| planned[i].mapping == index).collect();
            if here.is_empty() {
                continue;
            }
            let max = here.iter().map(|&i| planned[i].range.len()).max().unwrap_or(0);
            // ggml asserts that a buffer begins aligned. Files' maps do; data of the program may not, but the tensors here
            // are aligned, so none begins before this address.
            let skipped = map.bytes().as_ptr().align_offset(ALIGNMENT);
            let usable = &map.bytes()[skipped.min(map.bytes().len())..];
            let (base, len, device) = (usable.as_ptr(), usable.len(), self.device);
            // SAFETY: the memory lives as long as `mappings`, which `Weights` drops after its buffers. It is read-only:
            // nothing writes to a buffer marked as weights.
            let buffer =
                unsafe { sys::ggml_backend_dev_buffer_from_host_ptr(device.raw(), base.cast_mut().cast(), len, max) };
            let refused =
                || Error::Device { device: device.name(), what: format!("cannot use the map of {}", map.label()) };
            // SAFETY: just made, no other owner.
            let buffer = unsafe { Buffer::own(buffer) }.ok_or_else(refused)?;
            mark_as_weights(&buffer);
            for i in here {
                let Some(t) = tensors[i] else { continue };
                let address = map.bytes()[planned[i].range.clone()].as_ptr();
                // SAFETY: the range lies within the map (checked by `add`) and begins aligned, so within the buffer.
                let status =
                    unsafe { sys::ggml_backend_tensor_alloc(buffer.as_ptr(), t.0.as_ptr(), address.cast_mut().cast()) };
                if status != sys::GGML_STATUS_SUCCESS {
                    return Err(refused());
                }
            }
            buffers.push(buffer);
        }
        Ok(())
    }

    /// Bytes that [`OnDevice::copy`] copies.
    pub(crate) fn copied_bytes(&self, planned: &[Planned]) -> usize {
        self.copied.iter().map(|&i| planned[i].n_bytes()).sum()
    }

    /// Copies tensor by tensor from the map, so that nothing is held twice but by the system's cache.
    ///
    /// # Errors
    /// [`Error::Alloc`]: no room.
    pub(crate) fn copy(
        &self,
        planned: &[Planned],
        maps: &[Arc<Mapping>],
        tensors: &[Option<WeightTensor>],
        buffers: &mut Vec<Buffer>,
        copied: &mut Counted<'_>,
    ) -> Result<(), Error> {
        buffers.extend(self.copied_arena.allocate("weights")?);
        for &i in &self.copied {
            let (Some(t), p) = (tensors[i], &planned[i]) else { continue };
            let whole = p.data(maps);
            let part = p.part.as_ref().map(|part| part.gather(whole));
            let data = part.as_deref().unwrap_or(whole);
            // SAFETY: the tensor was allocated above and has as many bytes (checked by `add` and `add_part`).
            unsafe { sys::ggml_backend_tensor_set(t.0.as_ptr(), data.as_ptr().cast(), 0, data.len()) };
            copied.add(data.len());
        }
        Ok(())
    }

    /// The descriptions, which live as long as the tensors.
    pub(crate) fn into_contexts(self) -> [Context; 2] {
        [self.mapped_arena, self.copied_arena].map(Arena::into_context)
    }
}
