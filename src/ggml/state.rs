//! Device tensors that outlive a step: KV caches, recurrent state.
//! Owns the memory and serialises access to it. Knows nothing of layers or sequences. On the host the memory is taken page by
//! page, when something is written; on a device with granules before that; on other devices all of it at once.

use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ggml_sys as sys;

use crate::device::{Device, DeviceKind};
use crate::dtype::Dtype;
use crate::error::Error;
use crate::granule_places;
use crate::granules::Granules;
use crate::memory_file::File;
use crate::pages::{PAGE, Pages, whole};
use crate::raw::{Buffer, Context};
use crate::rpc::no_room;
use crate::shared_pages::{Part, SharedPages};
use crate::state_id::StateId;

/// What a state tensor is to be.
#[derive(Clone, Debug)]
pub struct StateSpec {
    /// For messages.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Shape in ggml order.
    pub ne: [i64; 4],
    /// Where it lies.
    pub device: Device,
}

#[derive(Clone, Copy)]
pub(crate) struct StateTensor {
    pub(crate) ptr: NonNull<sys::ggml_tensor>,
    pub(crate) n_bytes: usize,
    /// The pages that it lies in, and where; `None` on other devices than the host.
    in_pages: Option<(usize, usize)>,
    /// The granules that it lies in, and where; `None` where it has all of its memory.
    pub(crate) in_granules: Option<(usize, usize)>,
    pub(crate) device: Device,
}

/// Memory of a tensor that somebody holds and wants: bytes from `offset` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The tensor.
    pub id: StateId,
    /// Where it begins.
    pub offset: usize,
    /// Bytes that are held.
    pub held: usize,
    /// Bytes that are wanted.
    pub wanted: usize,
}

// SAFETY: descriptions are not changed after `new`; the data behind them is reached under the lock of `Inner`.
unsafe impl Send for StateTensor {}
// SAFETY: as above.
unsafe impl Sync for StateTensor {}

/// Field order is drop order: descriptions point into the buffer.
pub(crate) struct Inner {
    pub(crate) tensors: Vec<StateTensor>,
    /// Of the buffers whose memory is taken so.
    pub(crate) granules: Vec<Granules>,
    _buffers: Vec<Buffer>,
    _contexts: Vec<Context>,
    /// Of the buffers on the host.
    pages: Vec<Pages>,
    /// Where pages are that several ranges show, made when it is needed; `None` where the system has no such files.
    file: OnceLock<Option<Arc<File>>>,
    /// Held while a graph computes over the state and while the host reads or writes it.
    access: Mutex<()>,
}

impl Inner {
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        // The guarded data is plain memory: a panic elsewhere does not break it.
        self.access.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks each of these states once, in one order everywhere, so that two executors over the same states cannot wait for each
    /// other.
    pub(crate) fn lock_all(states: &mut Vec<Arc<Inner>>) -> Vec<MutexGuard<'_, ()>> {
        states.sort_by_key(|state| Arc::as_ptr(state).addr());
        states.dedup_by(|a, b| Arc::ptr_eq(a, b));
        states.iter().map(|state| state.lock()).collect()
    }

    pub(crate) fn raw(&self, id: StateId) -> Option<NonNull<sys::ggml_tensor>> {
        self.tensors.get(id.0 as usize).map(|t| t.ptr)
    }
}

/// Tensors on devices that keep their contents between steps. Zeroed when made.
pub struct StateBuffer {
    pub(crate) inner: Arc<Inner>,
    n_bytes: usize,
}

impl StateBuffer {
    /// Allocates the tensors and fills them with zeros; ids count from 0 in the order of `specs`.
    ///
    /// # Errors
    /// [`Error::Alloc`]: a device has no room. [`Error::Row`], [`Error::Tensor`]: a spec that cannot be.
    pub fn new(specs: &[StateSpec]) -> Result<(Self, Vec<StateId>), Error> {
        Self::with_parts(specs, &[])
    }

    /// As [`StateBuffer::new`]. `parts`: of the first tensors, bytes that belong together. Where the device has granules
    /// ([`Device::granule`]) and a part is no smaller, the tensor has memory only where that was taken ([`StateBuffer::take`]); the rest
    /// of it is zeros that must not be written.
    ///
    /// # Errors
    /// As [`StateBuffer::new`].
    pub fn with_parts(specs: &[StateSpec], parts: &[usize]) -> Result<(Self, Vec<StateId>), Error> {
        crate::log::install();
        let no_arena = || Error::no_arena(specs.len() * 512, "state descriptions");
        let granules_of = |(i, spec): (usize, &StateSpec)| {
            let part = parts.get(i).copied().unwrap_or(0);
            (spec.device, spec.device.granule().is_some_and(|n| part >= n))
        };
        let places: Vec<(Device, bool)> = specs.iter().enumerate().map(granules_of).collect();
        let mut devices: Vec<(Device, bool)> = Vec::new();
        places.iter().for_each(|place| {
            if !devices.contains(place) {
                devices.push(*place)
            }
        });
        let context = |_: &(Device, bool)| Context::new(specs.len(), 0).ok_or_else(no_arena);
        let contexts = devices.iter().map(context).collect::<Result<Vec<_>, _>>()?;
        let mut bytes = vec![0; devices.len()];
        let mut tensors = Vec::with_capacity(specs.len());
        let mut total = 0usize;
        for (spec, on) in specs.iter().zip(&places) {
            let refused = |what: String| Error::Tensor { name: spec.name.clone(), what };
            if spec.ne.iter().any(|&n| n < 1) {
                return Err(refused(format!("shape {:?} has a dimension below 1", spec.ne)));
            }
            let row = spec.dtype.row_bytes(spec.ne[0])?;
            let n_bytes = spec.ne[1..].iter().try_fold(row, |n, &ne| n.checked_mul(usize::try_from(ne).ok()?));
            let n_bytes = n_bytes.filter(|_| spec.dtype.is_sizeable(spec.ne));
            let n_bytes = n_bytes.ok_or_else(|| refused(format!("shape {:?} is too large", spec.ne)))?;
            total = total.checked_add(n_bytes).ok_or_else(|| refused("the states together are too large".into()))?;
            let place = devices.iter().position(|d| d == on).expect("every spec's device is listed");
            bytes[place] += n_bytes;
            // SAFETY: the arena has room for all specs; four dimensions of at least 1.
            let t = unsafe { sys::ggml_new_tensor(contexts[place].as_ptr(), spec.dtype.raw(), 4, spec.ne.as_ptr()) };
            let ptr = NonNull::new(t).ok_or_else(no_arena)?;
            let name: String = spec.name.chars().filter(|&c| c != '\0').take(60).collect();
            let name = CString::new(name).expect("NULs are filtered out");
            // SAFETY: `ptr` was just made; the name is NUL-terminated and is copied.
            unsafe { sys::ggml_set_name(ptr.as_ptr(), name.as_ptr()) };
            tensors.push((place, StateTensor { ptr, n_bytes, in_pages: None, in_granules: None, device: spec.device }));
        }
        let (mut buffers, mut pages, mut granules) = (Vec::with_capacity(devices.len()), Vec::new(), Vec::new());
        for (place, (&(device, in_granules), context)) in devices.iter().zip(&contexts).enumerate() {
            let bytes = bytes[place];
            let no_room = || no_room(device, bytes, "sequence state (KV cache and recurrent state)");
            let mut here: Vec<_> = tensors.iter_mut().filter(|(p, _)| *p == place).map(|(_, t)| t).collect();
            let unplaced: Vec<_> = here.iter().map(|t| (t.ptr, t.n_bytes)).collect();
            let reserved = in_granules.then(|| granule_places::in_granules(device, &unplaced, &mut pages)).flatten();
            let buffer = if let Some((buffer, all, starts)) = reserved {
                here.iter_mut().zip(starts).for_each(|(t, start)| t.in_granules = Some((granules.len(), start)));
                granules.push(all);
                buffer
            } else if device.kind() == DeviceKind::Cpu && device.takes_host_memory() {
                let (buffer, taken) = in_pages(device, &mut here, pages.len()).ok_or_else(no_room)?;
                pages.push(taken);
                buffer
            } else {
                let kind = device.buffer_type();
                // SAFETY: the arena is alive and holds only unallocated tensors, at least one.
                let buffer = unsafe { sys::ggml_backend_alloc_ctx_tensors_from_buft(context.as_ptr(), kind) };
                // SAFETY: just made, no other owner.
                let buffer = unsafe { Buffer::own(buffer) }.ok_or_else(no_room)?;
                // SAFETY: the buffer is alive. Masked cells are multiplied by zero, so they must be finite.
                unsafe { sys::ggml_backend_buffer_clear(buffer.as_ptr(), 0) };
                buffer
            };
            buffers.push(buffer);
        }
        let tensors: Vec<StateTensor> = tensors.into_iter().map(|(_, t)| t).collect();
        let ids = (0..tensors.len()).map(|i| StateId(i as u32)).collect();
        let (file, access) = (OnceLock::new(), Mutex::new(()));
        let inner = Arc::new(Inner { tensors, granules, _buffers: buffers, _contexts: contexts, pages, file, access });
        Ok((Self { inner, n_bytes: total }, ids))
    }

    /// Bytes of all tensors.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Bytes of a page or a granule, if memory for a tensor is taken so when it is written, or before; `None` where all of it is
    /// taken at once.
    pub fn page_bytes(&self, id: StateId) -> Option<usize> {
        let tensor = self.inner.tensors.get(id.0 as usize)?;
        let granule = || tensor.in_granules.map(|(all, _)| self.inner.granules[all].n_bytes());
        tensor.in_pages.map(|_| PAGE).or_else(granule)
    }

    /// Bytes of a tensor; 0 if there is none of this number.
    pub fn tensor_bytes(&self, id: StateId) -> usize {
        self.inner.tensors.get(id.0 as usize).map_or(0, |t| t.n_bytes)
    }

    /// Takes the memory of the host in small pages, even where the system would take large ones.
    pub fn in_small_pages(&self) {
        self.inner.pages.iter().for_each(Pages::in_small_pages);
    }

    /// Copies bytes out of a tensor, from `offset` on.
    ///
    /// # Errors
    /// [`Error::Slot`]: no such tensor, or the range lies outside it.
    pub fn read(&self, id: StateId, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        let ptr = self.range(id, offset, into.len())?;
        let _access = self.inner.lock();
        // SAFETY: the range lies within the tensor; the lock keeps graphs off it.
        unsafe { sys::ggml_backend_tensor_get(ptr.as_ptr(), into.as_mut_ptr().cast(), offset, into.len()) };
        Ok(())
    }

    /// Copies bytes into a tensor, from `offset` on.
    ///
    /// # Errors
    /// [`Error::Slot`]: no such tensor, the range lies outside it, or it was not taken, or others show it.
    pub fn write(&mut self, id: StateId, offset: usize, from: &[u8]) -> Result<(), Error> {
        let ptr = self.range(id, offset, from.len())?;
        self.check_own(id, offset, from.len())?;
        let _access = self.inner.lock();
        // SAFETY: the range lies within the tensor; the lock keeps graphs off it.
        unsafe { sys::ggml_backend_tensor_set(ptr.as_ptr(), from.as_ptr().cast(), offset, from.len()) };
        Ok(())
    }

    /// Fills `len` bytes of a tensor with zeros, from `offset` on.
    ///
    /// # Errors
    /// [`Error::Slot`]: no such tensor, the range lies outside it, or others show it.
    pub fn zero(&mut self, id: StateId, offset: usize, len: usize) -> Result<(), Error> {
        let ptr = self.range(id, offset, len)?;
        let parts = self.with_memory(id, offset, len);
        parts.iter().try_for_each(|part| self.check_own(id, part.start, part.len()))?;
        let _access = self.inner.lock();
        for part in parts {
            // SAFETY: the range lies within the tensor; the lock keeps graphs off it.
            unsafe { sys::ggml_backend_tensor_memset(ptr.as_ptr(), 0, part.start, part.len()) };
        }
        Ok(())
    }

    /// As [`StateBuffer::zero`]; whole pages of the host go back to the system. Not for tensors in granules, whose memory is given
    /// back ([`StateBuffer::give_back`]) and is zeros then.
    ///
    /// # Errors
    /// As [`StateBuffer::zero`].
    pub fn discard(&mut self, id: StateId, offset: usize, len: usize) -> Result<(), Error> {
        self.range(id, offset, len)?;
        if self.is_in_granules(id) {
            return Ok(());
        }
        let Some((pages, start)) = self.inner.tensors[id.0 as usize].in_pages else {
            return self.zero(id, offset, len);
        };
        let bytes = start + offset..start + offset + len;
        let access = self.inner.lock();
        // SAFETY: the lock keeps graphs off the state, and nobody else reads it.
        let left = unsafe { self.inner.pages[pages].give_back(bytes) };
        drop(access);
        left.into_iter().try_for_each(|left| self.zero(id, left.start - start, left.len()))
    }

    /// Puts the whole pages within these ranges (tensor, offset, bytes) where other ranges can show them too, until one of
    /// them is written to. The ranges hold what they held. `None` where that is not possible, or not worth it: on other
    /// devices than the host, on other systems than Linux, of few pages.
    ///
    /// # Errors
    /// [`Error::Slot`]: no such tensor, or a range lies outside it.
    pub fn share(&mut self, ranges: &[(StateId, usize, usize)]) -> Result<Option<SharedPages>, Error> {
        let mut parts: Vec<Part> = Vec::new();
        let mut n_bytes = 0;
        for &(id, offset, len) in ranges {
            self.range(id, offset, len)?;
            let Some((_, start)) = self.inner.tensors[id.0 as usize].in_pages else { continue };
            let pages = whole(&(start + offset..start + offset + len));
            if !pages.is_empty() {
                parts.push(Part { id, bytes: pages.start - start..pages.end - start, at: n_bytes });
                n_bytes += pages.len();
            }
        }
        if n_bytes < LEAST_SHARED {
            return Ok(None);
        }
        let Some(file) = self.inner.file.get_or_init(|| File::new().map(Arc::new)).clone() else { return Ok(None) };
        let _access = self.inner.lock();
        let Some(range) = file.grow(n_bytes) else { return Ok(None) };
        parts.iter_mut().for_each(|part| part.at += range.start);
        for part in &parts {
            // SAFETY: descriptions live as long as the buffer.
            let data = unsafe { (*self.inner.tensors[part.id.0 as usize].ptr.as_ptr()).data };
            // SAFETY: the range lies within the tensor, whose bytes are on the host.
            let start = unsafe { data.cast::<u8>().add(part.bytes.start) };
            // SAFETY: as above, and they are initialised; the lock keeps graphs off them, `&mut self` everybody else.
            let bytes = unsafe { std::slice::from_raw_parts(start, part.bytes.len()) };
            if !file.write(bytes, part.at) {
                file.punch(range);
                return Ok(None);
            }
        }
        let shared = SharedPages { file, range, parts };
        // Pages that cannot be shown stay what they are: both hold the same.
        if shared.parts.iter().all(|part| self.show_at(&shared, part, part.bytes.clone())) {
            return Ok(Some(shared));
        }
        // Some may be shown: they keep their memory until the state is gone.
        std::mem::forget(shared);
        Ok(None)
    }

    /// Has a tensor show the first `len` bytes of part number `part` of some shared pages from `offset` on, as whole pages:
    /// what it held there is gone. False, and nothing has changed, where the pages do not lie so or the system refuses.
    ///
    /// # Errors
    /// [`Error::Slot`]: pages of another state, no such part, or the range lies outside its tensor.
    pub fn show(&mut self, shared: &SharedPages, part: usize, offset: usize, len: usize) -> Result<bool, Error> {
        self.is_of(shared)?;
        let missing = || Error::Slot { kind: "part", name: part.to_string(), what: "does not exist".into() };
        let part = shared.parts.get(part).filter(|part| len <= part.bytes.len()).ok_or_else(missing)?;
        self.range(part.id, offset, len)?;
        let _access = self.inner.lock();
        Ok(self.show_at(shared, part, offset..offset + len))
    }

    /// Gives back the memory of all but the first bytes of each part, in whole pages: no range shows the others any more. (One
    /// that does reads zeros.) `kept` has a number of bytes for each part.
    ///
    /// # Errors
    /// [`Error::Slot`]: pages of another state.
    pub fn keep_shared(&mut self, shared: &SharedPages, kept: impl Iterator<Item = usize>) -> Result<(), Error> {
        self.is_of(shared)?;
        let _access = self.inner.lock();
        for (part, kept) in shared.parts.iter().zip(kept) {
            let kept = kept.next_multiple_of(PAGE).min(part.bytes.len());
            shared.file.punch(part.at + kept..part.at + part.bytes.len());
        }
        Ok(())
    }

    fn is_of(&self, shared: &SharedPages) -> Result<(), Error> {
        let own = self.inner.file.get().and_then(Option::as_ref);
        if own.is_some_and(|own| Arc::ptr_eq(own, &shared.file)) {
            return Ok(());
        }
        Err(Error::Slot { kind: "shared pages", name: "these".into(), what: "are those of another state".into() })
    }

    /// `bytes`: within the tensor, no more than the part has. The lock is held.
    fn show_at(&self, shared: &SharedPages, part: &Part, bytes: std::ops::Range<usize>) -> bool {
        let Some((pages, start)) = self.inner.tensors[part.id.0 as usize].in_pages else { return false };
        let place = start + bytes.start..start + bytes.end;
        // SAFETY: the lock keeps graphs off the state, and nobody has a reference to it. The file is as long as its parts, and
        // nobody writes to it once it is made: `keep` gives up only what nobody shows.
        unsafe { self.inner.pages[pages].show(place, &shared.file, part.at) }
    }

    pub(crate) fn range(&self, id: StateId, offset: usize, len: usize) -> Result<NonNull<sys::ggml_tensor>, Error> {
        let slot = |what: String| Error::Slot { kind: "state", name: id.0.to_string(), what };
        let t = self.inner.tensors.get(id.0 as usize).ok_or_else(|| slot("does not exist".into()))?;
        let end = offset.checked_add(len).filter(|&end| end <= t.n_bytes);
        end.ok_or_else(|| slot(format!("bytes {offset}+{len} lie outside its {}", t.n_bytes)))?;
        Ok(t.ptr)
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }
}

/// Puts tensors of a device that reads memory of the host into pages, which are number `number`.
fn in_pages(device: Device, tensors: &mut [&mut StateTensor], number: usize) -> Option<(Buffer, Pages)> {
    let ends = tensors.iter_mut().try_fold(0usize, |at, t| {
        t.in_pages = Some((number, at));
        at.checked_add(t.n_bytes)?.checked_next_multiple_of(ALIGNMENT)
    });
    let (n_bytes, largest) = (ends?.max(ALIGNMENT), tensors.iter().map(|t| t.n_bytes).max().unwrap_or(0));
    let mut pages = Pages::new(n_bytes)?;
    let start = pages.start();
    // SAFETY: the pages live as long as the buffer: `Inner` drops them after it. They begin at a page, so they are aligned.
    let buffer = unsafe { sys::ggml_backend_dev_buffer_from_host_ptr(device.raw(), start.cast(), n_bytes, largest) };
    // SAFETY: just made, no other owner.
    let buffer = unsafe { Buffer::own(buffer) }?;
    for t in tensors {
        let (_, at) = t.in_pages?;
        // SAFETY: the tensor's place ends within the pages, as counted above.
        let address = unsafe { start.add(at) };
        // SAFETY: an unallocated tensor, and a place for it within the buffer, aligned.
        let status = unsafe { sys::ggml_backend_tensor_alloc(buffer.as_ptr(), t.ptr.as_ptr(), address.cast()) };
        if status != sys::GGML_STATUS_SUCCESS {
            return None;
        }
    }
    Some((buffer, pages))
}

/// Fewer bytes than these are copied as fast as they are mapped.
const LEAST_SHARED: usize = 16 * PAGE;

/// Where tensors begin: what ggml asks for on a CPU, and a line of its cache.
const ALIGNMENT: usize = 64;

impl std::fmt::Debug for StateBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StateBuffer({} tensors, {} bytes)", self.inner.tensors.len(), self.n_bytes)
    }
}
