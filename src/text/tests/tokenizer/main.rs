//! The tokenizer against goldens, against the `tokenizers` crate, and against damaged files.
//! Owns its data in `data/`; `tok-a.*` come from a small tokenizer in the shape of Qwen3.5's, trained for this project.

mod damage;
mod decoder;
mod generate;
mod goldens;
mod metadata;
mod reference;
mod spm;
mod support;
mod vocabulary;
