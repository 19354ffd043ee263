//! Embeddings: what becomes of the hidden states of a prompt that is not continued.
//! Owns the pooling. Knows nothing of requests.

/// How the hidden states of a prompt become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all.
    #[default]
    Mean,
    /// The last one.
    Last,
}

/// Rows on their way to one.
#[derive(Debug)]
pub(crate) struct Pooled {
    pooling: Pooling,
    /// Of so many hidden states.
    n: usize,
    sum: Vec<f64>,
}

impl Pooled {
    pub(crate) fn new(pooling: Pooling) -> Self {
        Self { pooling, n: 0, sum: Vec::new() }
    }

    /// Takes the next hidden states, `[n_embd]` each.
    pub(crate) fn take(&mut self, hidden: &[f32], n_embd: usize) {
        for row in hidden.chunks_exact(n_embd) {
            if self.pooling == Pooling::Last || self.sum.is_empty() {
                self.sum.clear();
                self.sum.resize(n_embd, 0.0);
                self.n = 0;
            }
            self.sum.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
            self.n += 1;
        }
    }

    /// The embedding, `[n_embd]`.
    pub(crate) fn embedding(&self) -> Vec<f32> {
        self.sum.iter().map(|sum| (sum / self.n.max(1) as f64) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_states_are_pooled_whatever_chunks_they_come_in() {
        let rows = [1.0, 10.0, 2.0, 20.0, 6.0, 60.0];
        for (pooling, expected) in [(Pooling::Mean, [3.0, 30.0]), (Pooling::Last, [6.0, 60.0])] {
            for cut in [0, 2, 4, 6] {
                let mut pooled = Pooled::new(pooling);
                pooled.take(&rows[..cut], 2);
                pooled.take(&rows[cut..], 2);
                assert_eq!(pooled.embedding(), expected, "{pooling:?} cut at {cut}");
            }
        }
    }
}
