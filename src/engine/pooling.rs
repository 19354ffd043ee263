//! Embeddings: what becomes of the hidden states of a prompt that is not continued.
//! Owns the pooling. Knows nothing of requests.

use std::ops::Range;

pub use model::Pooling;

/// The hidden states of an input on their way to a vector.
#[derive(Debug)]
pub(crate) struct Pooled {
    pub(crate) pooling: Pooling,
    /// Hidden states in `sum`.
    n: usize,
    /// Of the mean: `[n_embd]`.
    sum: Vec<f64>,
    /// Of all others, those that are kept, `[n_embd]` each.
    rows: Vec<f32>,
}

impl Pooled {
    pub(crate) fn new(pooling: Pooling) -> Self {
        Self { pooling, n: 0, sum: Vec::new(), rows: Vec::new() }
    }

    /// Whether some of the hidden states of these tokens are kept, of an input of `n_tokens`.
    pub(crate) fn wants(&self, tokens: Range<usize>, n_tokens: usize) -> bool {
        match self.pooling {
            Pooling::None | Pooling::Mean => true,
            Pooling::Cls => tokens.start == 0,
            Pooling::Last | Pooling::Rank => tokens.end == n_tokens,
        }
    }

    /// Takes the next hidden states, `[n_embd]` each. False where one that is kept holds NaN or infinity.
    pub(crate) fn take(&mut self, hidden: &[f32], n_embd: usize) -> bool {
        let kept = match self.pooling {
            Pooling::None | Pooling::Mean => hidden,
            Pooling::Cls if self.rows.is_empty() => hidden.get(..n_embd).unwrap_or_default(),
            Pooling::Cls => &[],
            Pooling::Last | Pooling::Rank => &hidden[hidden.len().saturating_sub(n_embd)..],
        };
        match self.pooling {
            Pooling::Mean => {
                self.sum.resize(n_embd, 0.0);
                for row in kept.chunks_exact(n_embd) {
                    self.sum.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
                    self.n += 1;
                }
            }
            Pooling::Last | Pooling::Rank if !kept.is_empty() => kept.clone_into(&mut self.rows),
            _ => self.rows.extend_from_slice(kept),
        }
        kept.iter().all(|x| x.is_finite())
    }

    /// The vector, `[n_embd]`; of an input that is not pooled one after the other for each token.
    pub(crate) fn into_vector(self) -> Vec<f32> {
        match self.pooling {
            Pooling::Mean => self.sum.iter().map(|sum| (sum / self.n.max(1) as f64) as f32).collect(),
            _ => self.rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_states_are_pooled_whatever_chunks_they_come_in() {
        let rows = [1.0, 10.0, 2.0, 20.0, 6.0, 60.0];
        for (pooling, expected) in [
            (Pooling::None, &rows[..]),
            (Pooling::Mean, &[3.0, 30.0]),
            (Pooling::Cls, &[1.0, 10.0]),
            (Pooling::Last, &[6.0, 60.0]),
            (Pooling::Rank, &[6.0, 60.0]),
        ] {
            for cut in [0, 1, 2, 3] {
                let mut pooled = Pooled::new(pooling);
                for chunk in [0..cut, cut..3] {
                    let wanted = !chunk.is_empty() && pooled.wants(chunk.clone(), 3);
                    // What nobody wants is not computed.
                    let hidden = if wanted { &rows[2 * chunk.start..2 * chunk.end] } else { &[] };
                    assert!(pooled.take(hidden, 2));
                }
                assert_eq!(pooled.into_vector(), expected, "{pooling:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn numbers_that_are_not_finite_are_seen_where_they_are_kept() {
        let rows = [1.0, f32::NAN, 2.0, 20.0];
        for (pooling, finite) in
            [(Pooling::None, false), (Pooling::Mean, false), (Pooling::Cls, false), (Pooling::Last, true)]
        {
            assert_eq!(Pooled::new(pooling).take(&rows, 2), finite, "{pooling:?}");
        }
    }
}
