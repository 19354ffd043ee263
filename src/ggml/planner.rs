//! Where graphs get their memory, and what computes them: one device, with all graphs over one buffer, or several by ggml's
//! schedulers (`split.rs`). Owns the streams of work. Knows graphs only as ggml's descriptions.

use std::ffi::CStr;
use std::ptr::NonNull;

use ggml_sys as sys;

use crate::device::{Device, DeviceKind, GoOn, Interruptible, Stream};
use crate::error::Error;
use crate::graph::Slot;
use crate::raw::{Context, GraphAllocator};
use crate::rpc;
use crate::split::{self, MAX_OWN, OwnSplit, SharedSplit};
use crate::staging::StagingBuffer;
use crate::uploads::Uploads;

type Cgraph = NonNull<sys::ggml_cgraph>;

/// Field order is drop order: plans refer to streams.
pub(crate) struct Planner {
    /// On one device.
    staging: Option<StagingBuffer>,
    uploads: Option<Uploads>,
    plan: Plan,
    streams: Vec<Stream>,
    n_threads: usize,
    buffer_bytes: usize,
}

enum Plan {
    /// One device computes everything; graphs that were planned stay valid while the buffer does.
    One(GraphAllocator),
    /// Several devices: of the graphs without a scheduler of their own only the one planned last is valid.
    Split(SharedSplit),
}

/// Where a planned graph has its memory. Dropped before the planner.
pub(crate) enum Place {
    /// In the buffers that graphs share.
    Shared,
    /// In some of its own.
    Own(OwnSplit),
}

impl Place {
    /// Bytes that no other graph uses.
    pub(crate) fn own_bytes(&self) -> usize {
        if let Place::Own(split) = self { split.n_bytes() } else { 0 }
    }
}

/// Which graphs that were planned before are no longer valid.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gone {
    None,
    /// Those in shared buffers.
    Shared,
}

impl Planner {
    /// For graphs over weights on `devices`, the one that outputs come from first.
    pub(crate) fn new(devices: &[Device], n_threads: usize) -> Result<Self, Error> {
        let first = devices[0];
        let plan = if devices.len() == 1 {
            // SAFETY: the buffer type is static.
            let allocator = unsafe { sys::ggml_gallocr_new(first.buffer_type()) };
            // SAFETY: just made, no other owner.
            let allocator = unsafe { GraphAllocator::own(allocator) };
            Plan::One(allocator.ok_or_else(|| no_room(first, 0))?)
        } else {
            Plan::Split(SharedSplit::default())
        };
        let streams = devices.iter().map(|d| d.open(n_threads)).collect::<Result<_, _>>()?;
        let alone = (devices.len() == 1).then_some(first);
        let (staging, uploads) = (alone.and_then(StagingBuffer::of), alone.and_then(Uploads::of));
        let mut planner = Self { staging, uploads, plan, streams, n_threads, buffer_bytes: 0 };
        if matches!(planner.plan, Plan::Split(_)) {
            planner.end_with_cpu()?;
        }
        Ok(planner)
    }

    /// Threads that compute at most, where their number may change from graph to graph: on a CPU alone, whose results do not
    /// depend on it (`src/model/tests/threads.rs`, on x86-64).
    pub(crate) fn variable_threads(&self) -> Option<usize> {
        let alone = matches!(self.plan, Plan::One(_)) && self.device().kind() == DeviceKind::Cpu;
        (alone && cfg!(target_arch = "x86_64") && self.n_threads > 1).then_some(self.n_threads)
    }

    /// How many threads compute the next graphs on a CPU, of those that it has.
    pub(crate) fn use_threads(&mut self, n_threads: usize) {
        self.streams[0].use_threads(n_threads);
    }

    /// The threads of all streams sleep until the next graph.
    pub(crate) fn rest(&mut self) {
        self.streams.iter().for_each(Stream::rest);
    }

    /// The device that outputs come from.
    pub(crate) fn device(&self) -> Device {
        self.streams[0].device
    }

    /// The device that computes a node of the graph that was planned last.
    pub(crate) fn device_of(&self, place: &Place, node: NonNull<sys::ggml_tensor>) -> Option<Device> {
        let backend = match (place, &self.plan) {
            (Place::Own(split), _) => split.backend_of(node),
            (Place::Shared, Plan::One(_)) => return Some(self.device()),
            (Place::Shared, Plan::Split(shared)) => shared.backend_of(node)?,
        };
        self.streams.iter().find(|stream| stream.backend.as_ptr() == backend).map(|stream| stream.device)
    }

    /// Bytes of the buffers that graphs share, on all devices.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Bytes that a place or, with [`Place::Shared`], the buffers that graphs share have on one device.
    pub(crate) fn bytes_on(&self, place: &Place, device: Device) -> usize {
        let streams = self.streams.iter().filter(|stream| stream.device == device);
        match (place, &self.plan) {
            (Place::Own(split), _) => streams.map(|stream| split.bytes_on(stream)).sum(),
            (Place::Shared, Plan::One(_)) => streams.map(|_| self.buffer_bytes).sum(),
            (Place::Shared, Plan::Split(shared)) => streams.map(|stream| shared.bytes_on(stream)).sum(),
        }
    }

    /// Sees to it that some device has each op of `graph`. Comes before planning it; true when all graphs that were planned
    /// before are no longer valid.
    pub(crate) fn prepare(&mut self, graph: Cgraph) -> Result<bool, Error> {
        let Some(op) = self.missing_op(graph) else { return Ok(false) };
        let device = self.device();
        let alone = matches!(self.plan, Plan::One(_)) && device.kind() != DeviceKind::Cpu;
        if alone {
            tracing::warn!(device = device.name(), op, "the device lacks an op: the CPU computes it");
            self.end_with_cpu()?;
            self.plan = Plan::Split(SharedSplit::default());
            self.buffer_bytes = 0;
        }
        match self.missing_op(graph) {
            None => Ok(alone),
            Some(op) => {
                let what = format!("has no `{op}` for these types and shapes");
                Err(Error::Device { device: self.device().name(), what })
            }
        }
    }

    /// Bytes of the memory that `graph` is to have to itself; `None` for one that shares it with others. `size`: how many
    /// nodes and leaves there may be.
    pub(crate) fn own_bytes(&self, graph: Cgraph, size: usize) -> Option<usize> {
        match self.plan {
            Plan::One(_) => None,
            Plan::Split(_) => split::needed_bytes(&self.streams, graph, size).filter(|&n| n <= MAX_OWN),
        }
    }

    /// Gives `graph` memory of its own; `None`, and the graph as it was, if there is no room.
    pub(crate) fn plan_own(&self, graph: Cgraph, size: usize) -> Option<Place> {
        OwnSplit::plan(&self.streams, graph, size).map(Place::Own)
    }

    /// Gives every tensor of `graph` its memory in the buffers that graphs share. Says which others are no longer valid.
    pub(crate) fn plan_shared(&mut self, graph: Cgraph, size: usize) -> Result<Gone, Error> {
        match &mut self.plan {
            Plan::One(_) => self.plan_for_one(graph).map(|gone| if gone { Gone::Shared } else { Gone::None }),
            Plan::Split(shared) => {
                let planned = shared.plan(&self.streams, graph, size);
                self.buffer_bytes = shared.n_bytes(&self.streams);
                if planned { Ok(Gone::Shared) } else { Err(no_room(self.device(), self.buffer_bytes)) }
            }
        }
    }

    fn plan_for_one(&mut self, graph: Cgraph) -> Result<bool, Error> {
        let (Plan::One(allocator), stream) = (&self.plan, &self.streams[0]) else { return Ok(false) };
        let mut planned = graph.as_ptr();
        // The CPU's backend asks for nothing, and its graphs are as they were made.
        let _views = if stream.device.kind() == DeviceKind::Cpu {
            None
        } else {
            // SAFETY: stream and graph are alive. The arena that comes back is freed at the end of this function, before
            // the graph and after memory was planned.
            let arena = unsafe { sys::nextn_plan_graph(stream.backend.as_ptr(), graph.as_ptr(), &mut planned) };
            // SAFETY: just made, no other owner.
            unsafe { Context::own(arena) }
        };
        // Planned anew for every graph: a plan of another graph with as many nodes would be taken over without a look
        // at its lifetimes.
        // SAFETY: allocator and graph are alive.
        let reserved = unsafe { sys::ggml_gallocr_reserve(allocator.as_ptr(), planned) };
        // SAFETY: there is one buffer, number 0.
        let buffer_bytes = unsafe { sys::ggml_gallocr_get_buffer_size(allocator.as_ptr(), 0) };
        // SAFETY: the buffer type is static.
        let max_chunk = unsafe { sys::ggml_backend_buft_get_max_size(stream.device.buffer_type()) };
        // The buffer was made anew (or, in chunks, may have been): kept graphs point into the old one.
        let others_gone = buffer_bytes != self.buffer_bytes || buffer_bytes > max_chunk;
        self.buffer_bytes = buffer_bytes;
        // SAFETY: as above; the plan is of this graph.
        if !reserved || !unsafe { sys::ggml_gallocr_alloc_graph(allocator.as_ptr(), planned) } {
            return Err(no_room(stream.device, buffer_bytes));
        }
        Ok(others_gone)
    }

    /// Copies an input's contents to where it lies. Returns before they are there on a device of its own.
    ///
    /// # Safety
    /// `t` has memory and `n_bytes` bytes, and is alive until the next [`Planner::compute`] or [`Planner::drop_inputs`]; `from` has
    /// as many for as long.
    pub(crate) unsafe fn set(&mut self, t: NonNull<sys::ggml_tensor>, from: *const u8, n_bytes: usize) {
        let stream = &self.streams[0];
        match self.plan {
            Plan::One(_) => {
                if let Some(uploads) = &mut self.uploads {
                    // SAFETY: `from` has `n_bytes` bytes (the caller).
                    let bytes = unsafe { std::slice::from_raw_parts(from, n_bytes) };
                    // SAFETY: `t` is alive and has memory (the caller).
                    if unsafe { uploads.keep(t, bytes, stream.alignment()) } {
                        return;
                    }
                }
                let backend = stream.backend.as_ptr();
                // SAFETY: `t` and `from` have `n_bytes` bytes, `from` for long enough (the caller).
                unsafe { sys::ggml_backend_tensor_set_async(backend, t.as_ptr(), from.cast(), 0, n_bytes) }
            }
            // SAFETY: `t` and `from` have `n_bytes` bytes, `from` for long enough (the caller).
            Plan::Split(_) => unsafe { sys::ggml_backend_tensor_set(t.as_ptr(), from.cast(), 0, n_bytes) },
        }
    }

    /// Forgets inputs that no graph is to be computed with; nothing reads what they came from any more.
    pub(crate) fn drop_inputs(&mut self) {
        if let Some(uploads) = &mut self.uploads {
            uploads.clear();
        }
        self.synchronize();
    }

    /// Waits until all devices are done.
    pub(crate) fn synchronize(&self) {
        for stream in &self.streams {
            // SAFETY: the stream is alive.
            unsafe { sys::ggml_backend_synchronize(stream.backend.as_ptr()) };
        }
    }

    /// The bytes of an output of the last graph, if they were copied to the host.
    pub(crate) fn staged(&self, output: NonNull<sys::ggml_tensor>) -> Option<&[u8]> {
        self.staging.as_ref()?.find(output)
    }

    /// The error of a worker that is gone: what was computed since is worth nothing.
    pub(crate) fn lost(&self) -> Option<Error> {
        self.streams.iter().find_map(|stream| rpc::lost(stream.device))
    }

    /// Computes a graph and waits for it and, where they can be copied to the host behind it, for these outputs of it.
    ///
    /// # Safety
    /// `graph` was planned in this place, is still valid, and all that it reads is alive.
    pub(crate) unsafe fn compute(
        &mut self,
        graph: Cgraph,
        place: &Place,
        outputs: &[Slot],
        go_on: Option<&GoOn<'_>>,
    ) -> sys::ggml_status {
        let streams = self.streams.iter();
        let _interruptible: Vec<Interruptible<'_, '_>> = match go_on {
            Some(go_on) => streams.filter_map(|stream| stream.interruptible(go_on)).collect(),
            None => Vec::new(),
        };
        if let Some(staging) = &mut self.staging {
            staging.clear();
        }
        if let Place::Own(split) = place {
            // SAFETY: the graph was planned by this scheduler and is valid (the caller).
            return unsafe { split.compute(graph) };
        }
        if let (Plan::One(_), Some(uploads)) = (&self.plan, &mut self.uploads) {
            let stream = &self.streams[0];
            // SAFETY: the inputs are those of the graph, which has its memory (the caller); each run ends with all copies done.
            unsafe { uploads.send(stream, stream.alignment()) };
        }
        match (&self.plan, &mut self.staging) {
            (Plan::One(_), None) => {
                let backend = self.streams[0].backend.as_ptr();
                // SAFETY: the graph was planned here, is valid, and all that it reads is alive (the caller).
                unsafe { sys::ggml_backend_graph_compute(backend, graph.as_ptr()) }
            }
            (Plan::One(_), Some(staging)) => {
                let stream = &self.streams[0];
                // SAFETY: the graph was planned here, is valid, and all that it reads is alive (the caller).
                let status = unsafe { sys::ggml_backend_graph_compute_async(stream.backend.as_ptr(), graph.as_ptr()) };
                if status == sys::GGML_STATUS_SUCCESS {
                    // SAFETY: outputs are tensors of the graph; whoever read earlier ones has ended (`&mut self`).
                    unsafe { staging.copy(stream, outputs.iter().filter(|slot| !slot.stays).map(|slot| slot.ptr)) };
                }
                self.synchronize();
                status
            }
            // SAFETY: the graph was planned here, is valid, and all that it reads is alive (the caller).
            (Plan::Split(shared), _) => unsafe { shared.compute(graph) },
        }
    }

    /// ggml's scheduler wants a CPU as the last of its devices.
    fn end_with_cpu(&mut self) -> Result<(), Error> {
        if self.streams.last().is_none_or(|s| s.device.kind() != DeviceKind::Cpu) {
            self.streams.push(Device::cpu()?.open(self.n_threads)?);
        }
        Ok(())
    }

    /// An op of the graph that no device has: ggml ends the process over it.
    fn missing_op(&self, graph: Cgraph) -> Option<String> {
        // SAFETY: the graph is alive.
        let n = unsafe { sys::ggml_graph_n_nodes(graph.as_ptr()) };
        for i in 0..n {
            // SAFETY: `i` is below the count.
            let node = unsafe { sys::ggml_graph_node(graph.as_ptr(), i) };
            // SAFETY: stream and node are alive.
            let has = |s: &Stream| unsafe { sys::ggml_backend_supports_op(s.backend.as_ptr(), node) };
            if !self.streams.iter().any(has) {
                // SAFETY: the node is alive.
                let op = unsafe { sys::ggml_op_desc(node) };
                // SAFETY: static and NUL-terminated.
                return Some(unsafe { CStr::from_ptr(op) }.to_string_lossy().into_owned());
            }
        }
        None
    }
}

fn no_room(device: Device, bytes: usize) -> Error {
    rpc::no_room(device, bytes, "compute buffers")
}
