//! Tools in every dialect: refused in words, or calls whose grammar can be walked.
#![no_main]

#[path = "../../tests/dialect/fuzz/calls.rs"]
mod calls;
#[path = "../../tests/dialect/vocab.rs"]
mod vocab;

libfuzzer_sys::fuzz_target!(init: calls::forms::let_others_panic(), |bytes: &[u8]| calls::check(bytes));
