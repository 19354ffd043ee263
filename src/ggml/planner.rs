//! Where graphs get their memory, and what computes them: one device, with all graphs over one buffer, or ggml's scheduler
//! over several. Owns the streams of work. Knows graphs only as ggml's descriptions.

use std::ffi::{CStr, c_int};
use std::ptr::NonNull;

use ggml_sys as sys;

use crate::device::{Device, DeviceKind, Stream};
use crate::error::Error;
use crate::graph::Slot;
use crate::landing::Landing;
use crate::raw::{Context, GraphAllocator, Scheduler};

type Cgraph = NonNull<sys::ggml_cgraph>;

/// Field order is drop order: plans refer to streams.
pub(crate) struct Planner {
    /// On one device.
    landing: Option<Landing>,
    plan: Plan,
    streams: Vec<Stream>,
    n_threads: usize,
    buffer_bytes: usize,
}

enum Plan {
    /// One device computes everything; graphs that were planned stay valid while the buffer does.
    One(GraphAllocator),
    /// Several devices: only the graph planned last is valid. The number is how many nodes and leaves there is room for.
    Split(Option<(Scheduler, usize)>),
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
            Plan::Split(None)
        };
        let streams = devices.iter().map(|d| d.open(n_threads)).collect::<Result<_, _>>()?;
        let landing = if devices.len() == 1 { Landing::of(first) } else { None };
        let mut planner = Self { landing, plan, streams, n_threads, buffer_bytes: 0 };
        if matches!(planner.plan, Plan::Split(_)) {
            planner.end_with_cpu()?;
        }
        Ok(planner)
    }

    /// The device that outputs come from.
    pub(crate) fn device(&self) -> Device {
        self.streams[0].device
    }

    /// Bytes of the buffers that graphs compute in, on all devices.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Gives every tensor of `graph` its memory. True when graphs planned before are no longer valid. `size`: how many
    /// nodes and leaves there may be.
    pub(crate) fn plan(&mut self, graph: Cgraph, size: usize) -> Result<bool, Error> {
        let mut split_now = false;
        if let Some(op) = self.missing_op(graph) {
            let device = self.device();
            let alone = matches!(self.plan, Plan::One(_)) && device.kind() != DeviceKind::Cpu;
            if alone {
                tracing::warn!(device = device.name(), op, "the device lacks an op: the CPU computes it");
                self.end_with_cpu()?;
                (self.plan, split_now) = (Plan::Split(None), true);
            }
            if let Some(op) = self.missing_op(graph) {
                let what = format!("has no `{op}` for these types and shapes");
                return Err(Error::Device { device: self.device().name(), what });
            }
        }
        match self.plan {
            Plan::One(_) => self.plan_for_one(graph),
            Plan::Split(_) => self.split(graph, size).map(|()| true),
        }
        .map(|others_gone| others_gone || split_now)
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

    fn split(&mut self, graph: Cgraph, size: usize) -> Result<(), Error> {
        let device = self.device();
        let Plan::Split(scheduler) = &mut self.plan else { return Ok(()) };
        if scheduler.as_ref().is_none_or(|(_, room)| *room < size) {
            *scheduler = None;
            let mut backends: Vec<_> = self.streams.iter().map(|s| s.backend.as_ptr()).collect();
            let n = backends.len() as c_int;
            // SAFETY: the backends are alive and stay so (field order), the last is a CPU; null asks for their own buffers.
            let made = unsafe {
                sys::ggml_backend_sched_new(backends.as_mut_ptr(), std::ptr::null_mut(), n, size, false, true)
            };
            // SAFETY: just made, no other owner.
            *scheduler = unsafe { Scheduler::own(made) }.map(|s| (s, size));
        }
        let Some((scheduler, _)) = scheduler else { return Err(no_room(device, 0)) };
        // SAFETY: the scheduler is alive.
        unsafe { sys::ggml_backend_sched_reset(scheduler.as_ptr()) };
        // SAFETY: scheduler and graph are alive; the graph has at most `size` nodes and leaves and is not split twice.
        let planned = unsafe { sys::ggml_backend_sched_alloc_graph(scheduler.as_ptr(), graph.as_ptr()) };
        let bytes = |s: &Stream| {
            // SAFETY: the backend is one of the scheduler's.
            unsafe { sys::ggml_backend_sched_get_buffer_size(scheduler.as_ptr(), s.backend.as_ptr()) }
        };
        self.buffer_bytes = self.streams.iter().map(bytes).sum();
        if planned { Ok(()) } else { Err(no_room(device, self.buffer_bytes)) }
    }

    /// Copies an input's contents to where it lies. Returns before they are there on a device of its own.
    ///
    /// # Safety
    /// `t` has memory and `n_bytes` bytes; `from` has as many, until the next [`Planner::compute`] or
    /// [`Planner::synchronize`].
    pub(crate) unsafe fn set(&self, t: NonNull<sys::ggml_tensor>, from: *const u8, n_bytes: usize) {
        match self.plan {
            Plan::One(_) => {
                let backend = self.streams[0].backend.as_ptr();
                // SAFETY: the caller's promise.
                unsafe { sys::ggml_backend_tensor_set_async(backend, t.as_ptr(), from.cast(), 0, n_bytes) }
            }
            // SAFETY: the caller's promise.
            Plan::Split(_) => unsafe { sys::ggml_backend_tensor_set(t.as_ptr(), from.cast(), 0, n_bytes) },
        }
    }

    /// Waits until all devices are done.
    pub(crate) fn synchronize(&self) {
        for stream in &self.streams {
            // SAFETY: the stream is alive.
            unsafe { sys::ggml_backend_synchronize(stream.backend.as_ptr()) };
        }
    }

    /// The bytes of an output of the last graph, if they were brought along.
    pub(crate) fn landed(&self, output: NonNull<sys::ggml_tensor>) -> Option<&[u8]> {
        self.landing.as_ref()?.find(output)
    }

    /// The error of a worker that is gone: what was computed since is worth nothing.
    pub(crate) fn lost(&self) -> Option<Error> {
        self.streams.iter().find_map(|stream| crate::rpc::lost(stream.device))
    }

    /// Computes a graph and waits for it and, where they can be brought along, for these outputs of it.
    ///
    /// # Safety
    /// `graph` was planned, is still valid, and all that it reads is alive.
    pub(crate) unsafe fn compute(&mut self, graph: Cgraph, outputs: &[Slot]) -> sys::ggml_status {
        if let Some(landing) = &mut self.landing {
            landing.clear();
        }
        match (&self.plan, &mut self.landing) {
            (Plan::One(_), None) => {
                let backend = self.streams[0].backend.as_ptr();
                // SAFETY: the caller's promise.
                unsafe { sys::ggml_backend_graph_compute(backend, graph.as_ptr()) }
            }
            (Plan::One(_), Some(landing)) => {
                let stream = &self.streams[0];
                // SAFETY: the caller's promise.
                let status = unsafe { sys::ggml_backend_graph_compute_async(stream.backend.as_ptr(), graph.as_ptr()) };
                if status == sys::GGML_STATUS_SUCCESS {
                    // SAFETY: outputs are tensors of the graph; whoever read earlier ones has ended (`&mut self`).
                    unsafe { landing.bring(stream, outputs.iter().map(|slot| slot.ptr)) };
                }
                self.synchronize();
                status
            }
            (Plan::Split(Some((scheduler, _))), _) => {
                // SAFETY: the caller's promise.
                unsafe { sys::ggml_backend_sched_graph_compute(scheduler.as_ptr(), graph.as_ptr()) }
            }
            (Plan::Split(None), _) => sys::GGML_STATUS_FAILED,
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
    Error::no_room(device, bytes, "compute buffers")
}
