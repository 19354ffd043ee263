//! Replies in every dialect: taken apart alike however they are cut.
#![no_main]

#[path = "../../tests/dialect/fuzz/reply.rs"]
mod reply;
#[path = "../../tests/dialect/vocab.rs"]
mod vocab;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| reply::check(bytes));
