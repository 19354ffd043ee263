//! Pictures: refused in words, or decoded, resized and cut within limits.
#![no_main]

#[path = "../../tests/fuzz/picture.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::check(bytes));
