//! What a projector makes of one picture: rows that stand in a pass where the embeddings of tokens would.

/// One picture as rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedded {
    /// `[n_embd, n_tokens]`.
    pub rows: Vec<f32>,
    /// Rows in time, height and width; their product is `n_tokens`.
    pub grid: [usize; 3],
}

impl Embedded {
    /// Positions that the picture takes in a prompt.
    pub fn n_tokens(&self) -> usize {
        self.grid.iter().product()
    }
}
