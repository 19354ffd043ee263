//! Low-rank updates of weights: in one graph a weight `W` counts as `W + scale * B A`.
//! Owns what an update is. The products are made by whoever builds the graph.

use std::collections::HashMap;

use crate::weight_tensor::WeightId;

/// One update of one weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LowRank {
    /// `[n_in, rank]`; with `of_rows` `[rank, n_rows]`.
    pub a: WeightId,
    /// `[rank, n_out]`.
    pub b: WeightId,
    /// Factor on the product.
    pub scale: f32,
    /// The weight's rows are looked up by ids, and those of `a` are with them.
    pub of_rows: bool,
}

/// The updates that hold in a graph, by their weights. Those of one weight are added in their order.
pub type LowRanks = HashMap<WeightId, Vec<LowRank>>;
