//! What can go wrong with sequence state.

/// An error of the memory floor.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A layout that no memory can be made for.
    #[error("{0}")]
    Layout(String),
    /// A slot that this memory did not hand out, or has taken back.
    #[error("slot {0} is not in use")]
    Slot(u32),
    /// More positions than a sequence has cells for.
    #[error("the sequence has {len} positions and {n_rows} more do not fit into its context of {n_ctx}")]
    Full {
        /// Positions held.
        len: usize,
        /// Rows that were to be added.
        n_rows: usize,
        /// Positions there is room for.
        n_ctx: usize,
    },
    /// A step that cannot be made.
    #[error("{0}")]
    Step(String),
    /// Rows were to be kept whose state is not there.
    #[error("slot {slot}: {kept} of {n_rows} rows cannot be kept, there are {n_snapshots} snapshots")]
    Keep {
        /// Which slot.
        slot: u32,
        /// Rows to keep.
        kept: usize,
        /// Rows of the step.
        n_rows: usize,
        /// Snapshots that were written.
        n_snapshots: usize,
    },
    /// Saved state that was made for another model or another context.
    #[error("the saved sequence does not fit: {0}")]
    Saved(String),
    /// From the device.
    #[error(transparent)]
    Device(#[from] ggml::Error),
}
