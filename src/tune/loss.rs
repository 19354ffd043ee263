//! What is wrong with drafts, and how the head would have to change: the divergence from the target's likeliest words, and the
//! chance that a draft is accepted. The output matrix does not learn, so its product's gradient is known at once and no graph of
//! logits is kept.
//! Sources: Leviathan et al. 2023 (the chance of acceptance is the sum of the smaller probabilities); Zhou et al. 2024
//! (distilling for acceptance).

use candle_core::{Result, Tensor};

/// Likeliest words of the target model at each of some rows.
#[derive(Clone, Debug, Default)]
pub struct Targets {
    /// Words of a row.
    pub n_words: usize,
    /// `[n_words]` for each row, the likeliest first, as rows of the output matrix.
    pub ids: Vec<u32>,
    /// Their probabilities, which sum up to one.
    pub probs: Vec<f32>,
    /// A factor of each row's gradient.
    pub weights: Vec<f32>,
}

/// What the drafts of some rows are worth.
#[derive(Clone, Copy, Debug, Default)]
pub struct Worth {
    /// Rows.
    pub n: usize,
    /// Their draft is the target's likeliest word.
    pub n_right: usize,
    /// The divergence, summed up.
    pub divergence: f64,
    /// The chance of acceptance of a sampled draft, summed up.
    pub acceptance: f64,
}

impl Worth {
    /// Adds that of other rows.
    pub fn add(&mut self, other: &Worth) {
        self.n += other.n;
        self.n_right += other.n_right;
        self.divergence += other.divergence;
        self.acceptance += other.acceptance;
    }

    /// Share of rows whose draft is right.
    pub fn right(&self) -> f64 {
        self.n_right as f64 / self.n.max(1) as f64
    }
}

/// Rows of logits that are made at once: 64 MiB of them, where the vocabulary is large.
const CHUNK_ELEMENTS: usize = 1 << 24;

/// `h: [n, n_embd]` without a graph, `output: [n_words, n_embd]`. Gives the gradient of the summed loss, `[n, n_embd]`, where it is
/// `wanted`, and what the drafts are worth. `pull` is the weight of the chance of acceptance beside the divergence.
pub fn loss(
    h: &Tensor,
    output: &Tensor,
    targets: &Targets,
    (wanted, pull): (bool, f32),
) -> Result<(Option<Tensor>, Worth)> {
    let (n, n_vocab) = (h.dim(0)?, output.dim(0)?);
    let columns = output.t()?;
    let n_chunk = (CHUNK_ELEMENTS / n_vocab).clamp(1, n.max(1));
    let (mut gradients, mut worth) = (Vec::new(), Worth::default());
    for first in (0..n).step_by(n_chunk) {
        let n_rows = n_chunk.min(n - first);
        let mut logits = h.narrow(0, first, n_rows)?.matmul(&columns)?.flatten_all()?.to_vec1::<f32>()?;
        worth.add(&of_rows(&mut logits, n_vocab, targets, (first, pull)));
        if wanted {
            gradients.push(Tensor::from_vec(logits, (n_rows, n_vocab), h.device())?.matmul(output)?);
        }
    }
    let gradient = if wanted && n > 0 { Some(Tensor::cat(&gradients, 0)?) } else { None };
    Ok((gradient, worth))
}

/// Turns logits, row by row, into the gradient of the loss by them.
fn of_rows(rows: &mut [f32], n_vocab: usize, targets: &Targets, (first, pull): (usize, f32)) -> Worth {
    let mut worth = Worth::default();
    for (i, row) in rows.chunks_exact_mut(n_vocab).enumerate() {
        let at = (first + i) * targets.n_words..(first + i + 1) * targets.n_words;
        worth.add(&of_row(row, &targets.ids[at.clone()], &targets.probs[at], pull));
        let weight = targets.weights[first + i];
        if weight != 1.0 {
            row.iter_mut().for_each(|x| *x *= weight);
        }
    }
    worth
}

fn of_row(row: &mut [f32], ids: &[u32], probs: &[f32], pull: f32) -> Worth {
    let (mut best, mut most) = (0, f32::NEG_INFINITY);
    for (id, &x) in row.iter().enumerate() {
        if x > most {
            (best, most) = (id, x);
        }
    }
    let mut sum = 0.0_f32;
    for x in row.iter_mut() {
        *x = (*x - most).exp();
        sum += *x;
    }
    let scale = sum.recip();
    row.iter_mut().for_each(|x| *x *= scale);
    let known = || ids.iter().zip(probs).map(|(&id, &p)| (id as usize, p));
    let mut worth = Worth { n: 1, n_right: usize::from(ids.first() == Some(&(best as u32))), ..Worth::default() };
    // Of the smaller probabilities, those that are the head's own can grow.
    let mut can_grow = 0.0;
    for (id, p) in known() {
        let q = row[id];
        worth.acceptance += f64::from(p.min(q));
        worth.divergence += f64::from(p) * f64::from(p.max(TINY).ln() - q.max(TINY).ln());
        if q < p {
            can_grow += q;
        }
    }
    let mut own = [0.0_f32; MAX_WORDS];
    for (own, (id, _)) in own.iter_mut().zip(known()) {
        *own = row[id];
    }
    // d acceptance / d logit j = q_j * ((q_j < p_j) - can_grow), p being 0 outside of the known words.
    let factor = 1.0 + pull * can_grow;
    row.iter_mut().for_each(|q| *q *= factor);
    for (&q, (id, p)) in own.iter().zip(known()) {
        row[id] -= p;
        if q < p {
            row[id] -= pull * q;
        }
    }
    worth
}

/// Words of a target row at most.
pub const MAX_WORDS: usize = 64;

/// Keeps logarithms finite.
pub const TINY: f32 = 1e-30;

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    /// The loss of one row by the definition, in 64 bits.
    fn by_definition(logits: &[f64], ids: &[u32], probs: &[f32], pull: f64) -> f64 {
        let most = logits.iter().copied().fold(f64::MIN, f64::max);
        let sum: f64 = logits.iter().map(|x| (x - most).exp()).sum();
        let q = |id: u32| (logits[id as usize] - most).exp() / sum;
        let pairs = || ids.iter().zip(probs).map(|(&id, &p)| (q(id), f64::from(p)));
        let divergence: f64 = pairs().map(|(q, p)| p * (p.ln() - q.ln())).sum();
        let acceptance: f64 = pairs().map(|(q, p)| q.min(p)).sum();
        divergence - pull * acceptance
    }

    #[test]
    fn gradients_are_the_slopes_of_the_definition() {
        let (n_vocab, n_embd, pull) = (9, 4, 0.7);
        let wave = |n: usize, by: f32| (0..n).map(|i| (i as f32 * by).sin()).collect::<Vec<f32>>();
        let (h, w) = (wave(2 * n_embd, 1.3), wave(n_vocab * n_embd, 0.7));
        let ids = vec![3, 5, 0, 8, 1, 2];
        let probs = vec![0.6, 0.3, 0.1, 0.5, 0.4, 0.1];
        let targets = Targets { n_words: 3, ids: ids.clone(), probs: probs.clone(), weights: vec![1.0, 2.5] };
        let cpu = Device::Cpu;
        let rows = Tensor::from_slice(&h, (2, n_embd), &cpu).unwrap();
        let output = Tensor::from_slice(&w, (n_vocab, n_embd), &cpu).unwrap();
        let (gradient, worth) = loss(&rows, &output, &targets, (true, pull)).unwrap();
        let gradient = gradient.unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let weights = [1.0, 2.5];
        let of = |h: &[f64], weights: [f64; 2]| -> f64 {
            let rows = h.chunks(n_embd).enumerate().map(|(i, h)| {
                let logits: Vec<f64> =
                    w.chunks(n_embd).map(|w| w.iter().zip(h).map(|(w, h)| f64::from(*w) * h).sum()).collect();
                weights[i] * by_definition(&logits, &ids[i * 3..i * 3 + 3], &probs[i * 3..i * 3 + 3], f64::from(pull))
            });
            rows.sum()
        };
        let h: Vec<f64> = h.iter().map(|x| f64::from(*x)).collect();
        for i in 0..h.len() {
            let moved = |by: f64| {
                let mut h = h.clone();
                h[i] += by;
                of(&h, weights)
            };
            let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
            assert!((slope - f64::from(gradient[i])).abs() < 1e-4, "{i}: {slope} and {}", gradient[i]);
        }
        let sum = worth.divergence - f64::from(pull) * worth.acceptance;
        let plain = of(&h, [1.0, 1.0]);
        assert!((sum - plain).abs() < 1e-5, "{sum} and {plain}");
        assert_eq!(worth.n, 2);
    }
}
