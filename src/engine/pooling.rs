//! Embeddings: what becomes of the hidden rows of a prompt that nobody wants continued.
//! Owns the pooling. Knows nothing of requests.

/// How the hidden rows of a prompt become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all rows.
    #[default]
    Mean,
    /// The last row.
    Last,
}

/// Rows on their way to one.
#[derive(Debug)]
pub(crate) struct Pooled {
    pooling: Pooling,
    /// Of so many rows.
    n: usize,
    sum: Vec<f64>,
}

impl Pooled {
    pub(crate) fn new(pooling: Pooling) -> Self {
        Self { pooling, n: 0, sum: Vec::new() }
    }

    /// Takes the next rows, `[n_embd]` each.
    pub(crate) fn take(&mut self, rows: &[f32], n_embd: usize) {
        for row in rows.chunks_exact(n_embd) {
            if self.pooling == Pooling::Last || self.sum.is_empty() {
                self.sum.clear();
                self.sum.resize(n_embd, 0.0);
                self.n = 0;
            }
            self.sum.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
            self.n += 1;
        }
    }

    /// The one row, `[n_embd]`.
    pub(crate) fn row(&self) -> Vec<f32> {
        self.sum.iter().map(|sum| (sum / self.n.max(1) as f64) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_pooled_whatever_pieces_they_come_in() {
        let rows = [1.0, 10.0, 2.0, 20.0, 6.0, 60.0];
        for (pooling, expected) in [(Pooling::Mean, [3.0, 30.0]), (Pooling::Last, [6.0, 60.0])] {
            for cut in [0, 2, 4, 6] {
                let mut pooled = Pooled::new(pooling);
                pooled.take(&rows[..cut], 2);
                pooled.take(&rows[cut..], 2);
                assert_eq!(pooled.row(), expected, "{pooling:?} cut at {cut}");
            }
        }
    }
}
