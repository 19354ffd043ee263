//! Chat templates: refused in words, or a prompt with sound boundaries.
#![no_main]

#[path = "../../tests/fuzz/template.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::check(bytes));
