//! The sizes that every tower has.

use vision::Processor;

/// Sizes of a tower.
pub(crate) struct TowerShape {
    pub(crate) processor: Processor,
    /// Width of the rows that it gives.
    pub(crate) n_embd_text: usize,
    pub(crate) n_embd: usize,
    pub(crate) n_ff: usize,
    pub(crate) n_layer: usize,
    pub(crate) n_head: usize,
    /// Most patches along a side, where positions are a table.
    pub(crate) max_side: Option<usize>,
}
