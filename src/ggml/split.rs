//! Graphs over several devices, by ggml's schedulers: which memory each gets, and who computes it.
//! Owns the scheduler that graphs share. Knows graphs only as ggml's descriptions.
//!
//! A scheduler computes the graph that it has planned last and no other. So a graph that is to be kept has one of its own,
//! with memory of its own, as long as that is little ([`MAX_OWN`]): those of single tokens and of drafts, which come back in
//! every cycle. Graphs that need much, those of long prompts, which rarely come back, share one: a new one takes the place
//! of the last.

use std::ffi::c_int;
use std::ptr::NonNull;

use ggml_sys as sys;

use crate::device::{Device, Stream};
use crate::raw::Scheduler;

/// Bytes that a graph may have to itself.
pub(crate) const MAX_OWN: usize = 64 << 20;

/// Bytes that all graphs have to themselves, together: what an executor over several devices takes beside the memory that
/// graphs share.
pub(crate) const MAX_ALL_OWN: usize = 256 << 20;

type Cgraph = NonNull<sys::ggml_cgraph>;

/// A scheduler that holds one graph. Dropped before the streams that it was made for.
pub(crate) struct OwnSplit {
    scheduler: Scheduler,
    n_bytes: usize,
}

impl OwnSplit {
    /// Plans a graph of at most `size` nodes and leaves; `None`, and the graph as it was, where there is no room.
    pub(crate) fn plan(streams: &[Stream], graph: Cgraph, size: usize) -> Option<OwnSplit> {
        let links = Links::of(graph);
        let scheduler = scheduler(streams, size)?;
        pin(&scheduler, streams, graph);
        // SAFETY: scheduler and graph are alive; the graph has at most `size` nodes and leaves and is not split already.
        if !unsafe { sys::ggml_backend_sched_alloc_graph(scheduler.as_ptr(), graph.as_ptr()) } {
            links.restore();
            return None;
        }
        let n_bytes = buffer_bytes(&scheduler, streams);
        Some(OwnSplit { scheduler, n_bytes })
    }

    /// Who computes a node of its graph.
    pub(crate) fn backend_of(&self, node: NonNull<sys::ggml_tensor>) -> sys::ggml_backend_t {
        backend_of(&self.scheduler, node)
    }

    /// Bytes of its memory on all devices.
    pub(crate) fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Those on one device.
    pub(crate) fn bytes_on(&self, stream: &Stream) -> usize {
        bytes_on(&self.scheduler, stream)
    }

    /// # Safety
    /// `graph` is the one that was planned, and all that it reads is alive.
    pub(crate) unsafe fn compute(&self, graph: Cgraph) -> sys::ggml_status {
        // SAFETY: the graph was planned by this scheduler, and all that it reads is alive (the caller).
        unsafe { sys::ggml_backend_sched_graph_compute(self.scheduler.as_ptr(), graph.as_ptr()) }
    }
}

/// The scheduler for graphs that need much.
#[derive(Default)]
pub(crate) struct SharedSplit {
    /// With the number of nodes and leaves that there is room for.
    scheduler: Option<(Scheduler, usize)>,
}

impl SharedSplit {
    /// Plans a graph of at most `size` nodes and leaves in the place of the last; false where there is no room.
    pub(crate) fn plan(&mut self, streams: &[Stream], graph: Cgraph, size: usize) -> bool {
        if self.scheduler.as_ref().is_none_or(|(_, room)| *room < size) {
            self.scheduler = None;
            self.scheduler = scheduler(streams, size).map(|s| (s, size));
        }
        let Some((scheduler, _)) = &self.scheduler else { return false };
        // SAFETY: the scheduler is alive.
        unsafe { sys::ggml_backend_sched_reset(scheduler.as_ptr()) };
        pin(scheduler, streams, graph);
        // SAFETY: scheduler and graph are alive; the graph has at most `size` nodes and leaves and is not split already.
        unsafe { sys::ggml_backend_sched_alloc_graph(scheduler.as_ptr(), graph.as_ptr()) }
    }

    /// Who computes a node of the graph that was planned last.
    pub(crate) fn backend_of(&self, node: NonNull<sys::ggml_tensor>) -> Option<sys::ggml_backend_t> {
        self.scheduler.as_ref().map(|(scheduler, _)| backend_of(scheduler, node))
    }

    /// Bytes of its memory on all devices.
    pub(crate) fn n_bytes(&self, streams: &[Stream]) -> usize {
        self.scheduler.as_ref().map_or(0, |(scheduler, _)| buffer_bytes(scheduler, streams))
    }

    /// Those on one device.
    pub(crate) fn bytes_on(&self, stream: &Stream) -> usize {
        self.scheduler.as_ref().map_or(0, |(scheduler, _)| bytes_on(scheduler, stream))
    }

    /// # Safety
    /// `graph` is the one that was planned last, and all that it reads is alive.
    pub(crate) unsafe fn compute(&self, graph: Cgraph) -> sys::ggml_status {
        let Some((scheduler, _)) = &self.scheduler else { return sys::GGML_STATUS_FAILED };
        // SAFETY: the graph was planned last, and all that it reads is alive (the caller).
        unsafe { sys::ggml_backend_sched_graph_compute(scheduler.as_ptr(), graph.as_ptr()) }
    }
}

/// Bytes that a graph of at most `size` nodes and leaves needs on all devices; the graph stays as it is.
pub(crate) fn needed_bytes(streams: &[Stream], graph: Cgraph, size: usize) -> Option<usize> {
    let links = Links::of(graph);
    // Its own: one that has measured thinks that it has memory.
    let scheduler = scheduler(streams, size)?;
    pin(&scheduler, streams, graph);
    let mut sizes = vec![0; streams.len()];
    // SAFETY: as in `OwnSplit::plan`; there is a place for each of the scheduler's devices.
    unsafe { sys::ggml_backend_sched_reserve_size(scheduler.as_ptr(), graph.as_ptr(), sizes.as_mut_ptr()) };
    links.restore();
    Some(sizes.iter().fold(0, |all: usize, &n| all.saturating_add(n)))
}

fn scheduler(streams: &[Stream], size: usize) -> Option<Scheduler> {
    let mut backends: Vec<_> = streams.iter().map(|s| s.backend.as_ptr()).collect();
    let n = c_int::try_from(backends.len()).ok()?;
    // SAFETY: the backends are alive and outlive the scheduler (field order), the last is a CPU; null asks for their own
    // buffers.
    let made =
        unsafe { sys::ggml_backend_sched_new(backends.as_mut_ptr(), std::ptr::null_mut(), n, size, false, true) };
    // SAFETY: just made, no other owner.
    unsafe { Scheduler::own(made) }
}

/// For nodes of the graph that `scheduler` has planned: it would take up others.
fn backend_of(scheduler: &Scheduler, node: NonNull<sys::ggml_tensor>) -> sys::ggml_backend_t {
    // SAFETY: scheduler and node are alive; the node is only looked up.
    unsafe { sys::ggml_backend_sched_get_tensor_backend(scheduler.as_ptr(), node.as_ptr()) }
}

/// Says who computes those nodes that ggml, which goes by weights and neighbours, might give to the wrong device:
/// - what reads or writes state on another device than a CPU stays there: elsewhere ggml would copy cells for each run;
/// - a kernel of ours that has state in the host's memory stays on the CPU: it writes state where it lies, and a copy's changes
///   would be lost;
/// - other kernels of ours are the CPU's, unless a device says that it has them: a worker says so of everything.
fn pin(scheduler: &Scheduler, streams: &[Stream], graph: Cgraph) {
    // SAFETY: the graph is alive.
    let n = unsafe { sys::ggml_graph_n_nodes(graph.as_ptr()) };
    let Some((cpu, others)) = streams.split_last() else { return };
    // SAFETY: `i` is below the count.
    for node in (0..n).filter_map(|i| NonNull::new(unsafe { sys::ggml_graph_node(graph.as_ptr(), i) })) {
        // SAFETY: nodes are alive as long as their graph.
        let t = unsafe { node.as_ref() };
        // SAFETY: stream and node are alive.
        let has = |s: &Stream| unsafe { sys::ggml_backend_supports_op(s.backend.as_ptr(), node.as_ptr()) };
        let is_ours = t.op == sys::GGML_OP_CUSTOM;
        let stream = match t.src.iter().find_map(|src| state_under(*src)) {
            Some(device) => match others.iter().find(|s| Some(s.device) == device) {
                Some(there) if t.view_src.is_null() => Some(there).filter(|there| has(there)),
                Some(_) => None,
                None => Some(cpu).filter(|_| is_ours),
            },
            None => Some(cpu).filter(|_| is_ours && !others.iter().any(|s| !s.device.is_remote() && has(s))),
        };
        if let Some(stream) = stream {
            // SAFETY: scheduler, node and backend are alive, the backend is one of the scheduler's, and the graph is not
            // planned yet.
            unsafe {
                sys::ggml_backend_sched_set_tensor_backend(scheduler.as_ptr(), node.as_ptr(), stream.backend.as_ptr());
            }
        }
    }
}

/// The device of the state that a node's source is, or is a view of; `Some(None)` where ggml does not say which. `None` for
/// weights and what is computed.
fn state_under(src: *const sys::ggml_tensor) -> Option<Option<Device>> {
    // SAFETY: null, or a tensor that lives as long as its graph.
    let t = unsafe { src.as_ref() }?;
    // SAFETY: likewise.
    let base = unsafe { t.view_src.as_ref() }.unwrap_or(t);
    let buffer = NonNull::new(base.buffer)?;
    // SAFETY: the buffer lives as long as its tensors.
    if unsafe { sys::ggml_backend_buffer_get_usage(buffer.as_ptr()) } != sys::GGML_BACKEND_BUFFER_USAGE_ANY {
        return None;
    }
    // SAFETY: likewise.
    let kind = unsafe { sys::ggml_backend_buffer_get_type(buffer.as_ptr()) };
    // SAFETY: buffer types are static.
    let device = NonNull::new(unsafe { sys::ggml_backend_buft_get_device(kind) });
    // SAFETY: buffer types name entries of the registry.
    Some(device.map(|raw| unsafe { Device::from_raw(raw.as_ptr()) }))
}

fn buffer_bytes(scheduler: &Scheduler, streams: &[Stream]) -> usize {
    streams.iter().map(|stream| bytes_on(scheduler, stream)).sum()
}

fn bytes_on(scheduler: &Scheduler, stream: &Stream) -> usize {
    // SAFETY: the backend is one of the scheduler's.
    unsafe { sys::ggml_backend_sched_get_buffer_size(scheduler.as_ptr(), stream.backend.as_ptr()) }
}

/// What the nodes of a graph read: a scheduler makes them read copies, and a graph is to be split but once.
struct Links(Vec<(NonNull<sys::ggml_tensor>, [*mut sys::ggml_tensor; sys::GGML_MAX_SRC as usize])>);

impl Links {
    fn of(graph: Cgraph) -> Links {
        // SAFETY: the graph is alive.
        let n = unsafe { sys::ggml_graph_n_nodes(graph.as_ptr()) };
        // SAFETY: `i` is below the count.
        let node = |i| NonNull::new(unsafe { sys::ggml_graph_node(graph.as_ptr(), i) });
        // SAFETY: nodes are alive as long as their graph.
        Links((0..n).filter_map(node).map(|t| (t, unsafe { t.as_ref() }.src)).collect())
    }

    fn restore(self) {
        for (mut node, src) in self.0 {
            // SAFETY: the node is alive, and nobody else looks at a graph that is being planned.
            unsafe { node.as_mut() }.src = src;
        }
    }
}
