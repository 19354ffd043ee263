//! One owner per C handle: made once, freed once, never null. Nothing here has logic.
//! Send: a handle is used by one thread at a time (`&mut` or a lock above); ggml keeps no thread-local state for them.

use std::ptr::NonNull;

use ggml_sys as sys;

/// Declares an owner of a C pointer with the function that frees it.
macro_rules! owner {
    ($(#[$doc:meta])* $name:ident, $c:ty, $free:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name(NonNull<$c>);

        impl $name {
            /// Takes ownership; `None` for null.
            ///
            /// # Safety
            /// `ptr` is null or was just made by ggml and has no other owner.
            pub(crate) unsafe fn own(ptr: *mut $c) -> Option<Self> {
                NonNull::new(ptr).map(Self)
            }

            pub(crate) fn as_ptr(&self) -> *mut $c {
                self.0.as_ptr()
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: owned since `own`, freed only here.
                unsafe { $free(self.0.as_ptr()) }
            }
        }

        // SAFETY: the handle is not bound to the thread that made it; whoever holds the owner serialises its use.
        unsafe impl Send for $name {}
    };
}

owner!(
    /// An arena of tensor and graph descriptions.
    Context, sys::ggml_context, sys::ggml_free);
owner!(
    /// Memory of a device.
    Buffer, sys::ggml_backend_buffer, sys::ggml_backend_buffer_free);
owner!(
    /// A stream of work on a device.
    Backend, sys::ggml_backend, sys::ggml_backend_free);
owner!(
    /// The planner of a graph's memory.
    GraphAllocator, sys::ggml_gallocr, sys::ggml_gallocr_free);
owner!(
    /// The one who splits graphs over several devices.
    Scheduler, sys::ggml_backend_sched, sys::ggml_backend_sched_free);
owner!(
    /// Threads that stay alive between graphs.
    Threadpool, sys::ggml_threadpool, sys::ggml_threadpool_free);

impl Context {
    /// An arena for `n_tensors` descriptions and, if `graph_size` is not 0, one graph of that many nodes. Holds no data.
    pub(crate) fn new(n_tensors: usize, graph_size: usize) -> Option<Self> {
        // SAFETY: null asks ggml to allocate the arena itself.
        unsafe { Self::over(std::ptr::null_mut(), Self::n_bytes(n_tensors, graph_size)) }
    }

    /// What [`Context::new`] asks for.
    fn n_bytes(n_tensors: usize, graph_size: usize) -> usize {
        // SAFETY: no preconditions.
        let per_tensor = unsafe { sys::ggml_tensor_overhead() };
        let graph = if graph_size > 0 {
            // SAFETY: no preconditions.
            unsafe { sys::ggml_graph_overhead_custom(graph_size, false) }
        } else {
            0
        };
        n_tensors * per_tensor + graph + 256
    }

    /// # Safety
    /// `memory` is null, or has `n_bytes` bytes at an address that is a multiple of 16, for as long as the context lives.
    unsafe fn over(memory: *mut u8, n_bytes: usize) -> Option<Self> {
        let params = sys::ggml_init_params { mem_size: n_bytes, mem_buffer: memory.cast(), no_alloc: true };
        // SAFETY: `memory` is null or has `n_bytes` bytes that outlive the context (the caller).
        let ctx = unsafe { sys::ggml_init(params) };
        // SAFETY: just made, no other owner.
        unsafe { Self::own(ctx) }
    }
}

/// A [`Context`] over pages of its own. They go back to the system with it: arenas of graphs are large, of many sizes, and
/// come and go for as long as a program runs, which would leave a heap full of holes.
#[derive(Debug)]
pub(crate) struct Arena {
    // Dropped before what it lies in.
    context: Context,
    _pages: memmap2::MmapMut,
}

impl Arena {
    /// As [`Context::new`].
    pub(crate) fn new(n_tensors: usize, graph_size: usize) -> Option<Self> {
        let n_bytes = Context::n_bytes(n_tensors, graph_size);
        let mut pages = memmap2::MmapMut::map_anon(n_bytes).ok()?;
        // SAFETY: the pages live as long as the context, in one struct, and begin at a page.
        let context = unsafe { Context::over(pages.as_mut_ptr(), n_bytes) }?;
        Some(Self { context, _pages: pages })
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::ggml_context {
        self.context.as_ptr()
    }
}

// SAFETY: weights' and states' descriptions are read by several executors at once and written by none: names are set
// when they are made, which is the only field that ggml would fill in while building a graph over them.
unsafe impl Sync for Context {}
// SAFETY: a buffer's handle is read-only after it is made; access to its contents is serialised above.
unsafe impl Sync for Buffer {}
