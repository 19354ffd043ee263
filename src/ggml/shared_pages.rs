//! Pages of state that several ranges of one tensor show at once, until one of them is written to: copy on write, by the
//! system. Owns the memory behind them. On Linux alone; elsewhere nothing is shared, and whoever asks copies.

use std::ops::Range;
use std::sync::Arc;

use crate::memory_file::File;
use crate::state_id::StateId;

/// Pages that were shared by [`crate::StateBuffer::share`]. What they hold does not change; their memory goes back when this
/// is dropped, and a range that shows them even so reads zeros.
#[derive(Debug)]
pub struct SharedPages {
    /// That of the state that they are of.
    pub(crate) file: Arc<File>,
    /// Its part of the file.
    pub(crate) range: Range<usize>,
    pub(crate) parts: Vec<Part>,
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        self.file.punch(self.range.clone());
    }
}

/// Whole pages of one range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) id: StateId,
    /// Where they were in the tensor.
    pub(crate) bytes: Range<usize>,
    /// Where they are in the file.
    pub(crate) at: usize,
}

impl SharedPages {
    /// The tensors and the ranges in them whose pages were shared, whole pages only.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = (StateId, Range<usize>)> + '_ {
        self.parts.iter().map(|part| (part.id, part.bytes.clone()))
    }
}
