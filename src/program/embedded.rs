//! The model that is part of the program, so that it runs without any file.

/// Keeps the bytes on a page of their own: they are used where they lie, without a copy.
#[repr(C, align(4096))]
struct Aligned<T: ?Sized>(T);

static POCKET: &Aligned<[u8]> = &Aligned(*include_bytes!("pocket-q4_k_m.gguf"));

/// A GGUF file: `pocket`, a small Qwen3.5 with a NextN layer (see `models/README.md`).
pub fn model_bytes() -> &'static [u8] {
    &POCKET.0
}
