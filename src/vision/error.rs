//! What can be wrong with a picture or with the limits set for it.

/// Why a picture was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VisionError {
    /// The bytes are of no format that is read.
    #[error("the data is not a PNG, JPEG, WebP or GIF picture ({found}): convert the picture to one of these")]
    Format {
        /// What the first bytes look like.
        found: String,
    },
    /// A side or the area is over the limit.
    #[error(
        "the picture has {width} x {height} pixels; at most {max_side} on a side and {max_pixels} in all are read: \
         make it smaller"
    )]
    Large {
        /// Pixels across.
        width: u32,
        /// Pixels down.
        height: u32,
        /// Most pixels of a side.
        max_side: u32,
        /// Most pixels of a picture.
        max_pixels: u64,
    },
    /// The decoder would take more memory than allowed.
    #[error("decoding the picture takes more than {max_bytes} bytes of memory: make it smaller")]
    Memory {
        /// Most bytes of a decoded picture.
        max_bytes: u64,
    },
    /// The file is damaged, cut off, or uses what the decoder does not know.
    #[error("the {format} picture cannot be decoded ({reason}): the file may be damaged or cut off; save it anew")]
    Damaged {
        /// The format by its content.
        format: &'static str,
        /// The decoder's words.
        reason: String,
    },
    /// One side is far longer than the other.
    #[error("the picture has {width} x {height} pixels; one side may be at most {max} times the other: crop it")]
    Ratio {
        /// Pixels across.
        width: usize,
        /// Pixels down.
        height: usize,
        /// Longest side over the shortest.
        max: usize,
    },
    /// No size of whole tokens is left for the picture.
    #[error("a picture of {width} x {height} pixels has no size within {max_tokens} tokens: raise the limit")]
    NoSize {
        /// Pixels across.
        width: usize,
        /// Pixels down.
        height: usize,
        /// The limit on tokens.
        max_tokens: usize,
    },
    /// A limit that the model has no use for, or that contradicts another one.
    #[error("{0}")]
    Limits(String),
}
