//! Devices: what there is, how much memory it has, and how a stream of work on it is opened.

use std::ffi::{CStr, c_void};
use std::fmt;
use std::ptr::NonNull;

use ggml_sys as sys;

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
    fn function(self, name: &CStr) -> *mut c_void {
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
            let n = i32::try_from(n_threads.clamp(1, sys::GGML_MAX_N_THREADS as usize)).expect("clamped");
            // SAFETY: no preconditions.
            let mut params = unsafe { sys::ggml_threadpool_params_default(n) };
            // SAFETY: the parameters are initialised.
            let pool = unsafe { sys::ggml_threadpool_new(&mut params) };
            // SAFETY: just made, no other owner.
            let pool = unsafe { Threadpool::own(pool) }.ok_or_else(|| refused("its threads cannot be started"))?;
            // SAFETY: both are alive; `Stream` drops the backend before the pool.
            unsafe { sys::ggml_backend_cpu_set_threadpool(backend.as_ptr(), pool.as_ptr()) };
            // SAFETY: the backend is alive.
            unsafe { sys::ggml_backend_cpu_set_n_threads(backend.as_ptr(), n) };
            Some(pool)
        } else {
            None
        };
        Ok(Stream { backend, pool, device: self })
    }
}

/// An open stream of work. Field order is drop order: the backend uses the pool.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) backend: Backend,
    pool: Option<Threadpool>,
    pub(crate) device: Device,
}

impl Stream {
    /// Its threads sleep until the next graph; ggml wakes them itself.
    pub(crate) fn rest(&self) {
        if let Some(pool) = &self.pool {
            // SAFETY: the pool is alive (field), and computes nothing: graphs are computed by whoever holds the stream, and
            // that call has returned.
            unsafe { sys::ggml_threadpool_pause(pool.as_ptr()) };
        }
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
