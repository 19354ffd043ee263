//! A model's weights: tensors that lie in mapped files, or copies of them where a device cannot use the map.
//! Owns the maps, the descriptions and the buffers. Knows shapes and types; knows nothing of what a tensor is for.

use std::ffi::CString;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::Instant;

use ggml_sys as sys;

use crate::device::{Device, DeviceKind};
use crate::dtype::Dtype;
use crate::error::Error;
use crate::expert_cache::{Added, ExpertCache, ExpertLayer};
use crate::joined_rows::{JoinedRows, ToJoin, joined_type};
use crate::mapping::Mapping;
use crate::progress::LoadProgress;
use crate::raw::{Buffer, Context};
use crate::weight_part::WeightPart;
use crate::weight_tensor::{WeightId, WeightTensor};
use crate::weights_on_device::{OnDevice, Planned};

/// Collects tensors; [`WeightsBuilder::build`] places them on a device.
pub struct WeightsBuilder {
    mappings: Vec<Arc<Mapping>>,
    planned: Vec<Planned>,
    expert_layers: Vec<ExpertLayer>,
    progress: LoadProgress,
}

impl WeightsBuilder {
    /// Tensors will lie in these maps, one for each file of the model.
    pub fn new(mappings: Vec<Arc<Mapping>>) -> Self {
        Self { mappings, planned: Vec::new(), expert_layers: Vec::new(), progress: LoadProgress::default() }
    }

    /// The same that tells how far the copies are, tensor by tensor.
    #[must_use]
    pub fn with_progress(self, progress: LoadProgress) -> Self {
        Self { progress, ..self }
    }

    /// Adds a map; gives its number.
    pub fn add_mapping(&mut self, mapping: Arc<Mapping>) -> usize {
        self.mappings.push(mapping);
        self.mappings.len() - 1
    }

    /// Adds a tensor of shape `ne` (ggml order, unused dimensions 1) whose data is `range` of map `mapping`.
    ///
    /// # Errors
    /// A dimension below 1, a shape whose bytes are not those of `range`, a range outside the map, a name that holds a
    /// NUL or is longer than ggml's 63 bytes.
    pub fn add(
        &mut self,
        name: &str,
        dtype: Dtype,
        ne: [i64; 4],
        mapping: usize,
        range: Range<usize>,
    ) -> Result<WeightId, Error> {
        let refused = |what: String| Error::Tensor { name: name.to_owned(), what };
        let c_name = CString::new(name).map_err(|_| refused("the name holds a NUL".into()))?;
        if name.is_empty() || name.len() >= sys::GGML_MAX_NAME as usize {
            return Err(refused(format!("a name has 1 to {} bytes, not {}", sys::GGML_MAX_NAME - 1, name.len())));
        }
        if ne.iter().any(|&n| n < 1) {
            return Err(refused(format!("shape {ne:?} has a dimension below 1")));
        }
        let n_rows = ne[1].checked_mul(ne[2]).and_then(|n| n.checked_mul(ne[3])).and_then(|n| usize::try_from(n).ok());
        let row = dtype.row_bytes(ne[0])?;
        let n_bytes =
            n_rows.and_then(|n| n.checked_mul(row)).ok_or_else(|| refused(format!("shape {ne:?} is too large")))?;
        if range.len() != n_bytes {
            return Err(refused(format!("{dtype} {ne:?} takes {n_bytes} bytes, {} are given", range.len())));
        }
        let map = self.mappings.get(mapping).ok_or_else(|| refused(format!("there is no file number {mapping}")))?;
        if range.end > map.bytes().len() {
            let len = map.bytes().len();
            return Err(refused(format!("bytes {range:?} lie outside {} of {len} bytes", map.label())));
        }
        let id = WeightId::at(self.planned.len());
        self.planned.push(Planned {
            name: c_name,
            dtype,
            ne,
            mapping,
            range,
            part: None,
            place: 0,
            replaceable: false,
            joined: false,
        });
        Ok(id)
    }

    /// As [`WeightsBuilder::add`], of a part of the tensor, which is copied unless its bytes follow each other.
    ///
    /// # Errors
    /// As [`WeightsBuilder::add`]; a part that lies outside, or that cuts a block.
    pub fn add_part(
        &mut self,
        name: &str,
        dtype: Dtype,
        ne: [i64; 4],
        part: &WeightPart,
        (mapping, range): (usize, Range<usize>),
    ) -> Result<WeightId, Error> {
        let (start, n_bytes) = (range.start, range.len());
        let id = self.add(name, dtype, ne, mapping, range)?;
        let (ne, bytes) = part.of(name, dtype, ne, n_bytes).inspect_err(|_| drop(self.planned.pop()))?;
        let planned = &mut self.planned[id.index()];
        planned.ne = ne;
        match bytes.in_one(n_bytes) {
            Some(within) => planned.range = start + within.start..start + within.end,
            None => planned.part = Some(bytes),
        }
        Ok(id)
    }

    /// Has the tensors whose names `is_one` says yes to copied into memory of their own, also where the device could use the map:
    /// [`Weights::replace`] may give them other numbers. Gives how many there are.
    pub fn replaceable(&mut self, is_one: impl Fn(&str) -> bool) -> usize {
        let mut n = 0;
        for p in self.planned.iter_mut().filter(|p| p.name.to_str().is_ok_and(&is_one)) {
            p.replaceable = true;
            n += 1;
        }
        n
    }

    /// Has the rows of the tensors whose names `is_one` says yes to copied into memory once more, eight by eight, where they lie on a
    /// CPU whose kernels are faster so, and are not [`WeightsBuilder::replaceable`]. Products with them have the same bits.
    pub fn join_rows(&mut self, is_one: impl Fn(&str) -> bool) {
        for p in &mut self.planned {
            p.joined = p.name.to_str().is_ok_and(&is_one);
        }
    }

    /// Has some experts of these layers, which lie in the host's memory and are not [`WeightsBuilder::replaceable`], copied to
    /// another device as well.
    pub fn copy_experts(&mut self, layers: Vec<ExpertLayer>) {
        self.expert_layers = layers;
    }

    /// The number of each tensor added so far, in the order of [`WeightsBuilder::shapes`], and whether it is replaceable.
    pub fn ids(&self) -> impl Iterator<Item = (WeightId, bool)> + Clone {
        self.planned.iter().enumerate().map(|(i, p)| (WeightId::at(i), p.replaceable))
    }

    /// Bytes of a map.
    pub fn bytes(&self, mapping: usize, range: Range<usize>) -> Option<&[u8]> {
        self.mappings.get(mapping)?.bytes().get(range)
    }

    /// Name and bytes of every tensor added so far.
    pub fn sizes(&self) -> impl Iterator<Item = (&str, usize)> + Clone {
        self.planned.iter().map(|p| (p.name.to_str().unwrap_or(""), p.n_bytes()))
    }

    /// Name, type and shape of every tensor added so far.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, Dtype, [i64; 4])> + Clone {
        self.planned.iter().map(|p| (p.name.to_str().unwrap_or(""), p.dtype, p.ne))
    }

    /// Bytes of a row of a tensor that was added.
    pub fn row_bytes(&self, id: WeightId) -> Option<usize> {
        let p = self.planned.get(id.index())?;
        p.dtype.row_bytes(p.ne[0]).ok()
    }

    /// Places all tensors on `device`: over the maps where it can use them, copied where it cannot.
    ///
    /// # Errors
    /// As [`WeightsBuilder::build_on`].
    pub fn build(self, device: Device) -> Result<Arc<Weights>, Error> {
        self.build_on(&[device], |_| device)
    }

    /// Places each tensor on the device that `place` names for it; graphs over them may compute on `used` besides, of which the
    /// first is the one that outputs come from. On each: over the maps where it can use them, copied where it cannot.
    ///
    /// # Errors
    /// [`Error::Alloc`]: no room for the copies. [`Error::Device`]: a device refuses the map.
    pub fn build_on(mut self, used: &[Device], place: impl Fn(&str) -> Device) -> Result<Arc<Weights>, Error> {
        crate::log::install();
        let of_tensors: Vec<Device> = self.planned.iter().map(|p| place(&p.name.to_string_lossy())).collect();
        let mut devices: Vec<Device> = Vec::new();
        for device in used.iter().chain(&of_tensors) {
            if !devices.contains(device) {
                devices.push(*device);
            }
        }
        // ggml's scheduler prefers the devices in this order and wants a CPU as the last of them.
        devices.sort_by_key(|d| d.kind() == DeviceKind::Cpu);
        for (p, device) in self.planned.iter_mut().zip(&of_tensors) {
            p.place = devices.iter().position(|d| d == device).expect("every device is listed");
        }

        let mut tensors = vec![None; self.planned.len()];
        let (mut buffers, mut contexts) = (Vec::new(), Vec::new());
        let (planned, maps) = (&self.planned, &self.mappings);
        let on_devices: Vec<OnDevice> = devices
            .iter()
            .enumerate()
            .map(|(place, &device)| OnDevice::describe(planned, maps, (device, place), &mut tensors))
            .collect::<Result<_, _>>()?;
        let of_experts = ExpertCache::copied_bytes(&self.expert_layers, |id| self.planned[id.index()].n_bytes());
        let of_tensors: usize = on_devices.iter().map(|on| on.copied_bytes(planned)).sum();
        let to_join = self.to_join(&devices, &tensors);
        let of_joined: usize = to_join.iter().map(|of| of.range.len()).sum();
        let mut copied = self.progress.of(of_tensors + of_experts + of_joined);
        for on in on_devices {
            on.lay_over_maps(planned, maps, &tensors, &mut buffers)?;
            on.copy(planned, maps, &tensors, &mut buffers, &mut copied)?;
            contexts.extend(on.into_contexts());
        }
        let of_each = |t: Option<WeightTensor>| t.expect("every tensor lies on one of the devices");
        let mut tensors: Vec<WeightTensor> = tensors.into_iter().map(of_each).collect();
        let joined = JoinedRows::build(&to_join, &mut buffers, &mut contexts, &mut copied)?;
        drop(to_join);
        let mut names: Vec<String> = self.planned.iter().map(|p| p.name.to_string_lossy().into_owned()).collect();
        let mut places: Vec<usize> = self.planned.iter().map(|p| p.place).collect();
        let mut replaceable: Vec<bool> = self.planned.iter().map(|p| p.replaceable).collect();
        let expert_cache = {
            let (tensors, names, places) = (&mut tensors, &mut names, &mut places);
            let mut added = Added { tensors, names, places, buffers: &mut buffers, contexts: &mut contexts };
            let data = |id: WeightId| self.planned[id.index()].data(&self.mappings);
            ExpertCache::build(&self.expert_layers, &devices, data, &mut added, &mut copied)?
        };
        replaceable.resize(tensors.len(), false);
        Ok(Arc::new(Weights {
            tensors,
            names,
            devices,
            places,
            replaceable,
            expert_cache,
            joined,
            numbers: RwLock::new(()),
            _buffers: buffers,
            _contexts: contexts,
            mappings: self.mappings,
        }))
    }
}

impl WeightsBuilder {
    /// The tensors whose rows are joined.
    fn to_join(&self, devices: &[Device], tensors: &[Option<WeightTensor>]) -> Vec<ToJoin<'_>> {
        let wanted = self.planned.iter().zip(tensors).filter(|(p, _)| p.joined && !p.replaceable && p.part.is_none());
        let of = |(p, tensor): (&Planned, &Option<WeightTensor>)| {
            let ty = joined_type(devices[p.place], p.dtype, p.ne)?;
            Some(ToJoin { tensor: (*tensor)?, ty, mapping: &self.mappings[p.mapping], range: p.range.clone() })
        };
        wanted.filter_map(of).collect()
    }
}

/// Weights placed on devices, read-only but for [`Weights::replace`]. Shared by every executor that computes over them.
///
/// Field order is drop order: descriptions point into buffers, buffers lie over maps.
pub struct Weights {
    tensors: Vec<WeightTensor>,
    names: Vec<String>,
    /// A CPU last.
    devices: Vec<Device>,
    /// The number of each tensor's device.
    places: Vec<usize>,
    /// Which of them lie in memory that nothing else uses.
    replaceable: Vec<bool>,
    expert_cache: ExpertCache,
    joined: JoinedRows,
    /// Held to read while numbers are read, graphs that run included; to write while some are replaced.
    numbers: RwLock<()>,
    _buffers: Vec<Buffer>,
    _contexts: Vec<Context>,
    mappings: Vec<Arc<Mapping>>,
}

impl Weights {
    /// The first of [`Weights::devices`].
    pub fn device(&self) -> Device {
        self.devices[0]
    }

    /// Every device that graphs over them compute on, in the order in which it is preferred: first the one that outputs come
    /// from, unless that is a CPU among others, which is always the last.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The device that holds a tensor.
    pub fn device_of(&self, id: WeightId) -> Option<Device> {
        self.places.get(id.index()).map(|&place| self.devices[place])
    }

    /// Bytes of the tensors on a device.
    pub fn bytes_on(&self, device: Device) -> usize {
        let there = (0..self.tensors.len()).filter(|&i| self.devices[self.places[i]] == device);
        // SAFETY: descriptions live in `_contexts` and are not changed after `build`.
        there.map(|i| unsafe { sys::ggml_nbytes(self.tensors[i].0.as_ptr()) }).sum()
    }

    /// Bytes of the copies whose rows are joined ([`WeightsBuilder::join_rows`]); no tensor counts them.
    pub fn joined_bytes(&self) -> usize {
        self.joined.n_bytes()
    }

    /// The weight with its rows joined, if there is such a copy.
    pub(crate) fn joined(&self, weight: *const sys::ggml_tensor) -> Option<NonNull<sys::ggml_tensor>> {
        self.joined.of(weight)
    }

    /// How many tensors there are.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// True when there is no tensor.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The tensor's name in the file.
    pub fn name(&self, id: WeightId) -> Option<&str> {
        self.names.get(id.index()).map(String::as_str)
    }

    /// The tensor's type.
    pub fn dtype(&self, id: WeightId) -> Option<Dtype> {
        let t = self.tensors.get(id.index())?;
        // SAFETY: the description lives in `_contexts` and is not changed after `build`.
        Some(Dtype::from_raw(unsafe { t.0.as_ref() }.type_))
    }

    /// The tensor's shape.
    pub fn ne(&self, id: WeightId) -> Option<[i64; 4]> {
        let t = self.tensors.get(id.index())?;
        // SAFETY: as in [`Weights::dtype`].
        Some(unsafe { t.0.as_ref() }.ne)
    }

    /// Bytes of a row of a tensor.
    ///
    /// # Errors
    /// [`Error::Slot`]: no such tensor.
    pub fn row_bytes(&self, id: WeightId) -> Result<usize, Error> {
        let slot = || Error::Slot { kind: "weight", name: id.index().to_string(), what: "does not exist".into() };
        let (dtype, ne) = self.dtype(id).zip(self.ne(id)).ok_or_else(slot)?;
        dtype.row_bytes(ne[0])
    }

    /// All tensors.
    pub(crate) fn ids(&self) -> impl Iterator<Item = WeightId> + use<> {
        (0..self.tensors.len()).map(WeightId::at)
    }

    /// The types of all tensors.
    pub(crate) fn dtypes(&self) -> impl Iterator<Item = Dtype> + '_ {
        self.ids().filter_map(|id| self.dtype(id))
    }

    /// Copies bytes out of a tensor, from `offset` on.
    ///
    /// # Errors
    /// [`Error::Slot`]: no such tensor, or the range lies outside it.
    pub fn read(&self, id: WeightId, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        let slot = |what: String| Error::Slot { kind: "weight", name: id.index().to_string(), what };
        let t = self.raw(id).ok_or_else(|| slot("does not exist".into()))?;
        // SAFETY: the description lives in `_contexts`.
        let n_bytes = unsafe { sys::ggml_nbytes(t.as_ptr()) };
        if offset.checked_add(into.len()).is_none_or(|end| end > n_bytes) {
            return Err(slot(format!("bytes {offset}+{} lie outside its {n_bytes}", into.len())));
        }
        let _reading = self.reading();
        // SAFETY: the range lies within the tensor, which is not written to while the guard lives.
        unsafe { sys::ggml_backend_tensor_get(t.as_ptr(), into.as_mut_ptr().cast(), offset, into.len()) };
        Ok(())
    }

    /// The tensors whose numbers may be replaced.
    pub fn replaceable(&self) -> impl Iterator<Item = WeightId> + '_ {
        self.ids().zip(&self.replaceable).filter(|(_, is)| **is).map(|(id, _)| id)
    }

    /// Gives tensors other numbers: bytes of their own types, as many as they have. Waits for graphs that run; those that run
    /// later see all of the new numbers. Nothing has changed where one of them is refused.
    ///
    /// # Errors
    /// [`Error::Slot`]: no such tensor, one that was not asked to be [`WeightsBuilder::replaceable`], or another number of bytes.
    pub fn replace(&self, new: &[(WeightId, &[u8])]) -> Result<(), Error> {
        let mut tensors = Vec::with_capacity(new.len());
        for (id, bytes) in new {
            let slot = |what: String| Error::Slot { kind: "weight", name: id.index().to_string(), what };
            let t = self.raw(*id).ok_or_else(|| slot("does not exist".into()))?;
            if !self.replaceable[id.index()] {
                return Err(slot("was loaded to stay as it is".into()));
            }
            // SAFETY: the description lives in `_contexts`.
            let n_bytes = unsafe { sys::ggml_nbytes(t.as_ptr()) };
            if bytes.len() != n_bytes {
                return Err(slot(format!("has {n_bytes} bytes, {} are given", bytes.len())));
            }
            tensors.push((t, bytes));
        }
        let _working = crate::shutdown::working();
        let _writing = self.numbers.write().unwrap_or_else(PoisonError::into_inner);
        for (t, bytes) in tensors {
            // SAFETY: the tensor was copied into a buffer of ours (`describe`) and has as many bytes; nobody reads it while the
            // guard lives.
            unsafe { sys::ggml_backend_tensor_set(t.as_ptr(), bytes.as_ptr().cast(), 0, bytes.len()) };
        }
        Ok(())
    }

    /// Numbers stay what they are while the guard lives. To be taken before states are locked: whoever has states may wait for
    /// nothing else.
    pub(crate) fn reading(&self) -> RwLockReadGuard<'_, ()> {
        self.numbers.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Weights::reading`], for whoever changes numbers; `None` where somebody reads them.
    fn try_writing(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        match self.numbers.try_write() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn expert_cache(&self) -> &ExpertCache {
        &self.expert_cache
    }

    /// True when some experts have copies on another device.
    pub fn has_expert_copies(&self) -> bool {
        !self.expert_cache.layers.is_empty()
    }

    /// How often experts of the layers with copies were asked for, and how often there was a copy: lately, since both are halved
    /// from time to time.
    pub fn expert_uses(&self) -> (u64, u64) {
        self.expert_cache.uses()
    }

    /// Has experts that are asked for often take the places of copies that are not, until there are no such experts or `until` is
    /// past, whatever comes first; gives how many were exchanged. Graphs that run later find the new copies; where one runs
    /// now, nothing is done.
    pub fn renew_expert_copies(&self, until: Instant) -> usize {
        let _working = crate::shutdown::working();
        match self.try_writing() {
            Some(_writing) => self.expert_cache.renew(until),
            None => 0,
        }
    }

    /// The maps under the tensors.
    pub fn mappings(&self) -> &[Arc<Mapping>] {
        &self.mappings
    }

    pub(crate) fn raw(&self, id: WeightId) -> Option<NonNull<sys::ggml_tensor>> {
        self.tensors.get(id.index()).map(|t| t.0)
    }
}

impl std::fmt::Debug for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Weights({} tensors on {:?})", self.len(), self.devices)
    }
}
