//! What can go wrong below the graphs, in words that name the place.

/// An error of the ggml floor.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// An op was given operands that it does not take. The first such error of a graph is kept, with its layer.
    #[error("{place}{op}: {what}")]
    Shape {
        /// `layer 17: ` or empty.
        place: String,
        /// The op's name in ggml.
        op: &'static str,
        /// Which operands disagree, with their shapes.
        what: String,
    },
    /// A graph has more nodes than were planned for.
    #[error("{place}the graph needs more than {max} nodes: raise the number of nodes planned for it")]
    TooManyNodes {
        /// `layer 17: ` or empty.
        place: String,
        /// Nodes planned for.
        max: usize,
    },
    /// A type id that this ggml does not know.
    #[error("tensor type {0} is not known to ggml {version}", version = version())]
    UnknownDtype(u32),
    /// A row that is not a whole number of blocks.
    #[error("a row of {n} elements is not a multiple of {dtype}'s block of {block}")]
    Row {
        /// Elements in a row.
        n: i64,
        /// The row's type.
        dtype: &'static str,
        /// Elements in a block.
        block: usize,
    },
    /// Rows that cannot be packed into a type, or unpacked.
    #[error("rows of {dtype}: {what}")]
    Pack {
        /// The type.
        dtype: &'static str,
        /// What disagrees.
        what: String,
    },
    /// A tensor whose bytes are not where they were said to be.
    #[error("{name}: {what}")]
    Tensor {
        /// The tensor's name.
        name: String,
        /// What disagrees.
        what: String,
    },
    /// The device has no room.
    #[error("{device}: no room for {:.1} MiB of {what}, {:.1} MiB are free: choose a shorter context, fewer sequences, a smaller model or, on a GPU, fewer layers on it", *bytes as f64 / MIB, *free as f64 / MIB)]
    Alloc {
        /// Where.
        device: String,
        /// How much.
        bytes: usize,
        /// What the device says is free.
        free: usize,
        /// For what.
        what: &'static str,
    },
    /// Nobody wants the result any more.
    #[error("the computation was stopped, because nobody wants its result any more")]
    Stopped,
    /// The device cannot do something that the graph needs.
    #[error("{device}: {what}")]
    Device {
        /// Which device.
        device: String,
        /// What is missing.
        what: String,
    },
    /// The device stopped in the middle of a graph.
    #[error("{device}: the graph was not computed (ggml status {status})")]
    Compute {
        /// Which device.
        device: String,
        /// ggml's status.
        status: i32,
    },
    /// A worker on another machine that cannot be used, or is gone.
    #[error("{address}: {what}")]
    Worker {
        /// Where it was looked for.
        address: String,
        /// What is wrong, and what to do.
        what: String,
    },
    /// An input or output that the graph does not have, or of another size.
    #[error("graph {kind} `{name}`: {what}")]
    Slot {
        /// `input` or `output`.
        kind: &'static str,
        /// Its name, with an index when there are several.
        name: String,
        /// What disagrees.
        what: String,
    },
    /// A backend's library that cannot be used.
    #[error("{path}: {what}")]
    Plugin {
        /// The library, or the folder of libraries.
        path: String,
        /// What is wrong with it.
        what: String,
    },
    /// A file that cannot be mapped.
    #[error("{path}: {what}")]
    Map {
        /// The file.
        path: String,
        /// The system's words.
        what: String,
    },
}

const MIB: f64 = 1048576.0;

impl Error {
    /// Not even descriptions find room on the host.
    pub(crate) fn no_arena(bytes: usize, what: &'static str) -> Error {
        Error::Alloc { device: "host".into(), bytes, free: 0, what }
    }
}

/// ggml's version, such as `0.28.0`.
pub fn version() -> &'static str {
    // SAFETY: no preconditions.
    let text = unsafe { ggml_sys::ggml_version() };
    // SAFETY: static and NUL-terminated.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    text.to_str().unwrap_or("?")
}
