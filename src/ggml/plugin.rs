//! Backends in libraries of their own, loaded while the program runs: CUDA, Vulkan.
//! Owns the check that a library fits this program. What it adds shows up among the devices.
//!
//! A plugin carries its own copy of ggml's core (scripts/build-plugin.sh). Both copies must be of one version: they
//! hand each other structures.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ggml_sys as sys;

use crate::error::{self, Error};

/// Plugins that were loaded, so that none is loaded twice.
static LOADED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

type Version = unsafe extern "C" fn() -> *const c_char;
type SetLog = unsafe extern "C" fn(sys::ggml_log_callback, *mut c_void);
type SetAbort = unsafe extern "C" fn(sys::ggml_abort_callback_t) -> sys::ggml_abort_callback_t;
type Init = unsafe extern "C" fn() -> sys::ggml_backend_reg_t;

/// Loads every plugin of a folder: files named `libggml-*.so` (`.dylib` on a Mac). Gives how many there were.
///
/// # Errors
/// [`Error::Plugin`]: the folder cannot be read, or a plugin does not fit.
pub fn load_plugins(folder: &Path) -> Result<usize, Error> {
    let unreadable = |e: std::io::Error| refused(folder, e.to_string());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        if name.starts_with("libggml-") && name.ends_with(std::env::consts::DLL_SUFFIX) {
            paths.push(path);
        }
    }
    paths.sort();
    for path in &paths {
        load_plugin(path)?;
    }
    Ok(paths.len())
}

/// Loads one plugin and adds its devices. It stays loaded as long as the program runs; a second time does nothing.
///
/// # Errors
/// [`Error::Plugin`]: no library, one of another version of ggml, or one whose hardware or driver is not here.
pub fn load_plugin(path: &Path) -> Result<(), Error> {
    crate::log::install();
    let absolute = path.canonicalize().map_err(|e| refused(path, e.to_string()))?;
    let mut loaded = LOADED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if loaded.contains(&absolute) {
        return Ok(());
    }
    // SAFETY: a library's start code runs; the user names the libraries that he trusts.
    let library = unsafe { libloading::Library::new(&absolute) }.map_err(|e| refused(path, e.to_string()))?;
    // Devices live as long as the process, and so must their code.
    let library: &'static libloading::Library = Box::leak(Box::new(library));
    let version: Version = symbol(library, path, "ggml_version")?;
    // SAFETY: of this type in every ggml that has it.
    let version = unsafe { version() };
    // SAFETY: a static NUL-terminated string.
    let version = unsafe { CStr::from_ptr(version) }.to_string_lossy();
    if version != error::version() {
        let ours = error::version();
        return Err(refused(path, format!("built from ggml {version}, this program from {ours}: build it again")));
    }
    let set_log: SetLog = symbol(library, path, "ggml_log_set")?;
    // SAFETY: the callback is a plain function, alive for ever.
    unsafe { set_log(Some(crate::log::on_log), std::ptr::null_mut()) };
    let set_abort: SetAbort = symbol(library, path, "ggml_set_abort_callback")?;
    // SAFETY: as above.
    unsafe { set_abort(Some(crate::log::on_abort)) };
    let init: Init = symbol(library, path, "ggml_backend_init")?;
    // SAFETY: of this type in the version that was checked.
    let registry = unsafe { init() };
    if registry.is_null() {
        return Err(refused(path, "found no device that it can use: is the driver there?".into()));
    }
    // SAFETY: a static registry of the same version.
    unsafe { sys::ggml_backend_register(registry) };
    tracing::info!(path = %path.display(), "backend loaded");
    loaded.push(absolute);
    Ok(())
}

fn symbol<T: Copy>(library: &'static libloading::Library, path: &Path, name: &'static str) -> Result<T, Error> {
    let c_name = CString::new(name).expect("names have no NUL");
    // SAFETY: callers ask for functions by their types in ggml's headers.
    let found = unsafe { library.get::<T>(c_name.as_bytes_with_nul()) };
    let what = "is no plugin made by this program's scripts/build-plugin.sh";
    found.map(|symbol| *symbol).map_err(|_| refused(path, format!("it has no `{name}`: {what}")))
}

fn refused(path: &Path, what: String) -> Error {
    Error::Plugin { path: path.display().to_string(), what }
}
