//! Pictures for models that see: decoding, the processor's size and resize, patches.
//! Owns what happens between a file's bytes and the numbers a tower reads. Knows nothing of ggml, model files or JSON.
//!
//! [`Picture::decode`] reads PNG, JPEG, WebP and GIF within [`DecodeLimits`]. A [`Processor`] is a family's published
//! preprocessing: it chooses the size ([`Processor::size`]), resizes ([`Picture::resized`]) and cuts [`Patches`].
#![forbid(unsafe_code)]

mod decode;
mod error;
mod hash;
mod jpeg;
mod patches;
mod picture;
mod processor;
mod resize;

pub use decode::DecodeLimits;
pub use error::VisionError;
pub use hash::ContentHash;
pub use patches::Patches;
pub use picture::Picture;
pub use processor::{Budget, ImageLimits, Processor};
pub use resize::Filter;
