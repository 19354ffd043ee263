//! The header of a whole safetensors file: parsed, and held to what it promises.
//! Takes the two files that parse it and not their crate, which brings ggml.
#![no_main]

#[allow(dead_code, reason = "the crate uses the rest")]
#[path = "../../safetensors/dtype.rs"]
mod dtype;
#[allow(dead_code, reason = "the crate uses the rest")]
#[path = "../../safetensors/header.rs"]
mod header;
#[path = "../../tests/support/headers.rs"]
mod headers;

use header::Header;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // An error is a result, too; the message is looked at too.
    let _ = headers::walk(bytes);
});
