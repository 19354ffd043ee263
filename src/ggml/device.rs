//! Devices: what there is, how much memory it has, and how a stream of work on it is opened.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::ptr::NonNull;

use ggml_sys as sys;
use kernels::Turbo;

use crate::dtype::Dtype;
use crate::error::Error;
use crate::raw::{Backend, Threadpool};

/// A compute device of this process. Copies name the same device; devices live as long as the process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Device(sys::ggml_backend_dev_t);

// SAFETY: devices are entries of ggml's registry, never freed, and their queries are thread-safe reads.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// What kind of hardware a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The host's processor.
    Cpu,
    /// A graphics processor with or without memory of its own.
    Gpu,
    /// Something else, such as a matrix unit beside the CPU.
    Accelerator,
}

type ColumnsAlike = unsafe extern "C" fn(i32, *const i64) -> i32;
type QueriesAlike = unsafe extern "C" fn(i64) -> i32;
type QueriesAlikeOver = unsafe extern "C" fn(i64, i32, i32) -> i32;
type StatesByNumber = unsafe extern "C" fn(i64, i64, i64) -> i32;

/// How keys or values are kept: the type of their tensor, and that of our own which its bytes are of.
pub type KeptAs = (Dtype, Option<Turbo>);

impl Device {
    /// Every device, in ggml's order.
    pub fn all() -> Vec<Device> {
        crate::log::install();
        // SAFETY: fills the registry on first use, thread-safe.
        let n = unsafe { sys::ggml_backend_dev_count() };
        // SAFETY: `i` is below the count.
        (0..n).map(|i| Device(unsafe { sys::ggml_backend_dev_get(i) })).collect()
    }

    /// The host's processor.
    ///
    /// # Errors
    /// [`Error::Device`]: ggml was built without its CPU backend.
    pub fn cpu() -> Result<Device, Error> {
        let missing = || Error::Device { device: "cpu".into(), what: "ggml was built without its CPU backend".into() };
        Self::all().into_iter().find(|d| d.kind() == DeviceKind::Cpu).ok_or_else(missing)
    }

    /// What kind of hardware this is.
    pub fn kind(self) -> DeviceKind {
        // SAFETY: a registry entry.
        match unsafe { sys::ggml_backend_dev_type(self.0) } {
            sys::GGML_BACKEND_DEVICE_TYPE_CPU => DeviceKind::Cpu,
            sys::GGML_BACKEND_DEVICE_TYPE_GPU | sys::GGML_BACKEND_DEVICE_TYPE_IGPU => DeviceKind::Gpu,
            _ => DeviceKind::Accelerator,
        }
    }

    /// True when it computes in another process, perhaps on another machine (`add_worker`).
    pub fn is_remote(self) -> bool {
        // SAFETY: a registry entry.
        let registry = unsafe { sys::ggml_backend_dev_backend_reg(self.0) };
        // SAFETY: devices have a registry; its name is static.
        string(unsafe { sys::ggml_backend_reg_name(registry) }) == "RPC"
    }

    /// ggml's name, such as `CPU`.
    pub fn name(self) -> String {
        // SAFETY: a registry entry; the name is static.
        string(unsafe { sys::ggml_backend_dev_name(self.0) })
    }

    /// The hardware's name.
    pub fn description(self) -> String {
        // SAFETY: a registry entry; the text is static.
        string(unsafe { sys::ggml_backend_dev_description(self.0) })
    }

    /// Free and total memory in bytes.
    pub fn memory(self) -> (usize, usize) {
        let (mut free, mut total) = (0, 0);
        // SAFETY: a registry entry and two places to write to.
        unsafe { sys::ggml_backend_dev_memory(self.0, &mut free, &mut total) };
        (free, total)
    }

    /// True when tensors may lie in memory of the host, such as a mapped file, without a copy.
    pub(crate) fn takes_host_memory(self) -> bool {
        // SAFETY: plain data, valid when zeroed.
        let mut props: sys::ggml_backend_dev_props = unsafe { std::mem::zeroed() };
        // SAFETY: a registry entry and a place to write to.
        unsafe { sys::ggml_backend_dev_get_props(self.0, &mut props) };
        props.caps.buffer_from_host_ptr
    }

    pub(crate) fn raw(self) -> sys::ggml_backend_dev_t {
        self.0
    }

    /// # Safety
    /// `raw` is an entry of ggml's registry.
    pub(crate) unsafe fn from_raw(raw: sys::ggml_backend_dev_t) -> Device {
        Device(raw)
    }

    pub(crate) fn buffer_type(self) -> sys::ggml_backend_buffer_type_t {
        // SAFETY: a registry entry; buffer types are static.
        unsafe { sys::ggml_backend_dev_buffer_type(self.0) }
    }

    /// Where memory of the host lies that the device reads and writes by itself; `None` if there is no such thing.
    pub(crate) fn host_buffer_type(self) -> Option<NonNull<sys::ggml_backend_buffer_type>> {
        // SAFETY: a registry entry; buffer types are static.
        NonNull::new(unsafe { sys::ggml_backend_dev_host_buffer_type(self.0) })
    }

    /// A function of the device's backend beyond ggml's common ones; null if it has none of this name.
    pub(crate) fn function(self, name: &CStr) -> *mut c_void {
        // SAFETY: a registry entry.
        let registry = unsafe { sys::ggml_backend_dev_backend_reg(self.0) };
        // SAFETY: devices have a registry, which is alive for ever; the name is NUL-terminated.
        unsafe { sys::ggml_backend_reg_get_proc_address(registry, name.as_ptr()) }
    }

    /// What the device's backend was compiled for, such as `AVX2` or `DOTPROD`; of a portable build's CPU the copy that
    /// serves here.
    pub fn features(self) -> Vec<String> {
        let found = self.function(c"ggml_backend_get_features");
        // SAFETY: null or, by this name, of this type.
        let function: sys::ggml_backend_get_features_t = unsafe { std::mem::transmute(found) };
        let Some(function) = function else { return Vec::new() };
        // SAFETY: a registry entry.
        let registry = unsafe { sys::ggml_backend_dev_backend_reg(self.0) };
        // SAFETY: the registry that the function is of.
        let mut next = unsafe { function(registry) };
        let mut names = Vec::new();
        // SAFETY: null, or a list of static strings that ends with one without a name.
        while let Some(feature) = unsafe { next.as_ref() }.filter(|f| !f.name.is_null()) {
            names.push(string(feature.name));
            // SAFETY: not the list's end, so there is a next.
            next = unsafe { next.add(1) };
        }
        names
    }

    /// Tokens of a batch up to which each has the bits that it has alone, in products with weights of this type and shape, on a
    /// device that is no CPU: what the backend says of its kernels (`vendor/ggml-sys/cuda`). `None` if it says nothing.
    pub(crate) fn columns_alike(self, dtype: Dtype, ne: [i64; 4]) -> Option<usize> {
        let found = self.function(c"nextn_columns_alike");
        // SAFETY: null or, by this name, of this type.
        let function: Option<ColumnsAlike> = unsafe { std::mem::transmute(found) };
        // SAFETY: four numbers, as it reads.
        let n = unsafe { function?(dtype.raw() as i32, ne.as_ptr()) };
        usize::try_from(n).ok().filter(|&n| n > 0)
    }

    /// The same of attention with heads of `head_size` elements over F16 cells.
    pub fn queries_alike(self, head_size: usize) -> Option<usize> {
        let found = self.function(c"nextn_queries_alike");
        // SAFETY: null or, by this name, of this type.
        let function: Option<QueriesAlike> = unsafe { std::mem::transmute(found) };
        // SAFETY: it takes any number.
        let n = unsafe { function?(i64::try_from(head_size).ok()?) };
        usize::try_from(n).ok().filter(|&n| n > 0)
    }

    /// The same over cells of these types for keys and for values: ggml's, or those of our own.
    pub fn queries_alike_over(self, head_size: usize, k: KeptAs, v: KeptAs) -> Option<usize> {
        if (k.0, v.0) == (Dtype::F16, Dtype::F16) {
            return self.queries_alike(head_size);
        }
        let found = self.function(c"nextn_queries_alike_over");
        // SAFETY: null or, by this name, of this type.
        let function: Option<QueriesAlikeOver> = unsafe { std::mem::transmute(found) };
        let number = |(dtype, turbo): KeptAs| turbo.map_or(dtype.raw() as i32, |turbo| -i32::from(turbo.bits()));
        // SAFETY: it takes any numbers.
        let n = unsafe { function?(i64::try_from(head_size).ok()?, number(k), number(v)) };
        usize::try_from(n).ok().filter(|&n| n > 0)
    }

    /// True for a device that is no CPU and has kernels of ours that round rows to this type.
    pub(crate) fn keeps(self, turbo: Turbo) -> bool {
        let kept = (Dtype::I8, Some(turbo));
        self.queries_alike_over(turbo.group(), kept, kept).is_some()
    }

    /// Rows of a sequence up to which a device that is no CPU computes recurrent layers that go on from [`crate::PastState::Among`]
    /// and keep snapshots by the number of a slot ([`crate::Snapshots`]), by kernels of ours: of a convolution that keeps
    /// `n_past` inputs of `n_channels` channels ([`crate::Graph::short_conv`]), and of heads with states of `head_size` times
    /// `head_size` ([`crate::Graph::delta_rule`]; 0 for none). `None` if it does not.
    pub fn states_by_number(self, n_past: usize, n_channels: usize, head_size: usize) -> Option<usize> {
        let found = self.function(c"nextn_states_by_number");
        // SAFETY: null or, by this name, of this type.
        let function: Option<StatesByNumber> = unsafe { std::mem::transmute(found) };
        let [n_past, n_channels, head_size] =
            [n_past, n_channels, head_size].map(|n| i64::try_from(n).unwrap_or(i64::MAX));
        // SAFETY: it takes any numbers.
        let n = unsafe { function?(n_past, n_channels, head_size) };
        usize::try_from(n).ok().filter(|&n| n > 0)
    }

    /// True when the device makes Gumbel noise by itself ([`crate::Graph::add_gumbel`]), by a kernel of ours.
    pub fn makes_noise(self) -> bool {
        !self.function(c"nextn_adds_gumbel").is_null()
    }

    /// True when the device can add up with others of its kind, so that each computes a part of a model's layers
    /// ([`crate::Ranks`]).
    pub fn adds_up(self) -> bool {
        self.kind() == DeviceKind::Cpu || !self.function(c"nextn_all_reduce_new").is_null()
    }

    /// True when the device makes masks by itself ([`crate::Graph::mask_of_spans`]), by a kernel of ours.
    pub fn makes_masks(self) -> bool {
        !self.function(c"nextn_makes_masks").is_null()
    }

    /// Has ggml make what all threads share and the end of the process destroys, which it would do in the first graph.
    fn make_shared_parts(self) {
        let found = self.function(c"ggml_backend_dev_get_extra_bufts");
        // SAFETY: null or, by this name, of this type.
        let function: sys::ggml_backend_dev_get_extra_bufts_t = unsafe { std::mem::transmute(found) };
        if let Some(function) = function {
            // SAFETY: a registry entry.
            unsafe { function(self.0) };
        }
    }

    /// Opens a stream of work. On the CPU it gets `n_threads` threads of its own, which stay alive with it.
    pub(crate) fn open(self, n_threads: usize) -> Result<Stream, Error> {
        let refused = |what: &str| Error::Device { device: self.name(), what: what.into() };
        // SAFETY: a registry entry; null asks for the defaults.
        let backend = unsafe { sys::ggml_backend_dev_init(self.0, std::ptr::null()) };
        // SAFETY: just made, no other owner.
        let backend = unsafe { Backend::own(backend) }.ok_or_else(|| refused("cannot be opened"))?;
        self.make_shared_parts();
        crate::shutdown::notice(self.kind() != DeviceKind::Cpu);
        // SAFETY: the backend is alive.
        let is_cpu = unsafe { sys::ggml_backend_is_cpu(backend.as_ptr()) };
        let pool = if is_cpu {
            let n_threads = n_threads.clamp(1, sys::GGML_MAX_N_THREADS as usize);
            Some(Pool::new(n_threads).ok_or_else(|| refused("its threads cannot be started"))?)
        } else {
            None
        };
        let stream = Stream { backend, pool, fewer: None, device: self };
        if let Some(pool) = &stream.pool {
            stream.compute_with(pool);
        }
        Ok(stream)
    }
}

/// An open stream of work. Field order is drop order: the backend uses the pool.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) backend: Backend,
    /// All threads of a CPU.
    pool: Option<Pool>,
    /// The threads that compute in place of all: others of ggml's pool would spin in wait for a graph that needs them.
    fewer: Option<Pool>,
    pub(crate) device: Device,
}

/// Whether a computation is still wanted; asked on the thread that computes.
pub(crate) type GoOn<'a> = &'a (dyn Fn() -> bool + Sync);

/// A stream whose graphs end early where they are no longer wanted.
pub(crate) struct Interruptible<'a, 'g> {
    stream: &'a Stream,
    _go_on: &'a GoOn<'g>,
}

impl Drop for Interruptible<'_, '_> {
    fn drop(&mut self) {
        // SAFETY: the backend is alive and a CPU's (`Stream::interruptible`); no graph is computed on it any more.
        unsafe {
            sys::ggml_backend_cpu_set_abort_callback(self.stream.backend.as_ptr(), None, std::ptr::null_mut());
        }
    }
}

/// True where the graph is to end.
unsafe extern "C" fn ends(go_on: *mut c_void) -> bool {
    // SAFETY: `Stream::interruptible` gave a pointer to a `GoOn`, which outlives the callback.
    let go_on = unsafe { &*go_on.cast::<GoOn<'_>>().cast_const() };
    // A panic must not cross C. A question without an answer stops nothing.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| !go_on())).unwrap_or(false)
}

impl Stream {
    /// Tensors of graphs begin at multiples of this.
    pub(crate) fn alignment(&self) -> usize {
        // SAFETY: the backend is alive.
        unsafe { sys::ggml_backend_get_alignment(self.backend.as_ptr()) }
    }

    /// Until the guard is dropped, graphs on it end after the node at which `go_on` says no; `None` on a device that cannot.
    pub(crate) fn interruptible<'a, 'g>(&'a self, go_on: &'a GoOn<'g>) -> Option<Interruptible<'a, 'g>> {
        self.pool.as_ref()?;
        let data = std::ptr::from_ref(go_on).cast_mut().cast::<c_void>();
        // SAFETY: the backend is alive and a CPU's, as it has a pool; `data` outlives the guard, which takes the callback off.
        unsafe { sys::ggml_backend_cpu_set_abort_callback(self.backend.as_ptr(), Some(ends), data) };
        Some(Interruptible { stream: self, _go_on: go_on })
    }

    /// Its threads sleep until the next graph; ggml wakes them itself.
    pub(crate) fn rest(&self) {
        if let Some(pool) = self.fewer.as_ref().or(self.pool.as_ref()) {
            // SAFETY: the pool is alive (field), and computes nothing: graphs are computed by whoever holds the stream, and
            // that call has returned.
            unsafe { sys::ggml_threadpool_pause(pool.threads.as_ptr()) };
        }
    }

    /// Has `n` of a CPU's threads compute the next graphs, or all of them; the others sleep.
    pub(crate) fn use_threads(&mut self, n: usize) {
        let Some(all) = &self.pool else { return };
        let n = n.clamp(1, all.n);
        if self.fewer.as_ref().map_or(all.n, |pool| pool.n) == n {
            return;
        }
        let fewer = if n == all.n { None } else { Pool::new(n) };
        // Without room for other threads, those that are there compute on.
        if n != all.n && fewer.is_none() {
            return;
        }
        self.compute_with(fewer.as_ref().unwrap_or(all));
        self.fewer = fewer;
    }

    fn compute_with(&self, pool: &Pool) {
        // SAFETY: both are alive, and nothing is computed (whoever holds the stream computes). ggml has the threads of the
        // pool before sleep; a pool is dropped only after the backend has another, or was dropped itself (fields' order).
        unsafe { sys::ggml_backend_cpu_set_threadpool(self.backend.as_ptr(), pool.threads.as_ptr()) };
        let n = i32::try_from(pool.n).expect("at most ggml's most");
        // SAFETY: the backend is alive, and a CPU's, since only those have pools.
        unsafe { sys::ggml_backend_cpu_set_n_threads(self.backend.as_ptr(), n) };
    }
}

/// Threads of ggml, the caller's among them.
#[derive(Debug)]
struct Pool {
    threads: Threadpool,
    n: usize,
}

impl Pool {
    /// `n`: 1 to `GGML_MAX_N_THREADS`. `None` if the threads cannot be started.
    fn new(n: usize) -> Option<Self> {
        // SAFETY: no preconditions.
        let mut params = unsafe { sys::ggml_threadpool_params_default(i32::try_from(n).ok()?) };
        // SAFETY: the parameters are initialised.
        let pool = unsafe { sys::ggml_threadpool_new(&mut params) };
        // SAFETY: just made, no other owner.
        let threads = unsafe { Threadpool::own(pool) }?;
        Some(Self { threads, n })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.description())
    }
}

fn string(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: ggml's names are static and NUL-terminated.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
