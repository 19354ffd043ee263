//! ggml's log and its last words, into `tracing`.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Once;

use ggml_sys as sys;

use crate::shutdown::{left_over, park};

/// Routes ggml's log into `tracing` and makes a failed assertion leave a message before the process ends.
/// Called by everything that opens a device; only the first call does something.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the callback is a plain function, alive for ever, and takes no user data.
        unsafe { sys::ggml_log_set(Some(on_log), std::ptr::null_mut()) };
        // SAFETY: as above.
        unsafe { sys::ggml_set_abort_callback(Some(on_abort)) };
    });
}

pub(crate) unsafe extern "C" fn on_log(level: sys::ggml_log_level, text: *const c_char, _: *mut c_void) {
    if text.is_null() || left_over() {
        return;
    }
    // SAFETY: ggml passes a NUL-terminated string that lives during the call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    let text = text.trim_end();
    if text.is_empty() {
        return;
    }
    match level {
        sys::GGML_LOG_LEVEL_ERROR => tracing::error!(target: "ggml", "{text}"),
        sys::GGML_LOG_LEVEL_WARN => tracing::warn!(target: "ggml", "{text}"),
        _ => tracing::debug!(target: "ggml", "{text}"),
    }
}

pub(crate) unsafe extern "C" fn on_abort(message: *const c_char) {
    // The driver has gone before this thread: an error that means nothing, and must not become the program's.
    if left_over() {
        park();
    }
    let text = if message.is_null() {
        "no message".into()
    } else {
        // SAFETY: ggml passes a NUL-terminated string that lives during the call.
        unsafe { CStr::from_ptr(message) }.to_string_lossy()
    };
    tracing::error!(target: "ggml", "assertion in ggml, the process ends: {text}");
    // The subscriber may not be there, and the process is about to end: stderr is the last place to say it.
    eprintln!(
        "ggml stopped the process: {text}\nThis is a defect of the program: please report it with the model file's name."
    );
}
