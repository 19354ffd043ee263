//! Tokenizer tables: refused in words, or texts come back from their tokens.
#![no_main]

#[path = "../../tests/fuzz/alphabet.rs"]
mod alphabet;
#[path = "../../tests/fuzz/vocab.rs"]
mod check;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check::check(bytes));
