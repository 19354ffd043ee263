//! JSON schemas: refused in words, or a grammar that can be walked.
#![no_main]

#[path = "../../tests/fuzz/forms.rs"]
mod forms;

libfuzzer_sys::fuzz_target!(init: forms::let_others_panic(), |bytes: &[u8]| forms::schema(bytes));
