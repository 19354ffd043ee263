//! Replies: their cuts do not change what comes out.
#![no_main]

#[path = "../../tests/fuzz/reply.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::check(bytes));
