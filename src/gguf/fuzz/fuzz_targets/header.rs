//! Header parse, a walk over every value and tensor, the typed getters, and a round trip through the writer.
#![no_main]

#[path = "../../tests/support/walk.rs"]
mod walk;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    // An error is an answer; the message is made too.
    if let Err(error) = walk::walk(bytes) {
        std::hint::black_box(error.to_string());
    }
});
