//! The loss by operations of the device, for a head on a GPU: logits and probabilities stay there, and so do the sums that tell
//! what drafts are worth, until somebody wants them. `loss` is the reference, row by row on the host.

use candle_core::{DType, Result, Tensor};

use crate::loss::{TINY, Targets, Worth};

/// What the drafts of `n` rows are worth, summed up on the device.
#[derive(Clone, Debug)]
pub struct Sums {
    /// Rows.
    pub n: usize,
    /// `[N_SUMS]`: drafts that are right, the divergence, the chance of acceptance.
    pub sums: Tensor,
}

/// Numbers of [`Sums::sums`].
pub const N_SUMS: usize = 3;

impl Sums {
    /// With the numbers of `sums` on the host.
    pub fn worth(&self, [n_right, divergence, acceptance]: [f32; N_SUMS]) -> Worth {
        // Whole numbers below 2^24 are exact.
        Worth { n: self.n, n_right: n_right as usize, divergence: divergence.into(), acceptance: acceptance.into() }
    }
}

/// Rows of logits that are made at once: 128 MiB of them, and a few of that size beside them.
const CHUNK_ELEMENTS: usize = 1 << 25;

/// As [`crate::loss::loss`]; `n` is not 0.
pub fn loss(
    h: &Tensor,
    output: &Tensor,
    targets: &Targets,
    (wanted, pull): (bool, f32),
) -> Result<(Option<Tensor>, Sums)> {
    in_chunks(CHUNK_ELEMENTS / output.dim(0)?, (h, output), targets, (wanted, pull))
}

fn in_chunks(
    n_chunk: usize,
    (h, output): (&Tensor, &Tensor),
    targets: &Targets,
    (wanted, pull): (bool, f32),
) -> Result<(Option<Tensor>, Sums)> {
    let (n, device) = (h.dim(0)?, h.device());
    let ids = Tensor::from_slice(&targets.ids, (n, targets.n_words), device)?;
    let probs = Tensor::from_slice(&targets.probs, (n, targets.n_words), device)?;
    let weights = match targets.weights.iter().all(|weight| *weight == 1.0) {
        true => None,
        false => Some(Tensor::from_slice(&targets.weights, (n, 1), device)?),
    };
    let n_chunk = n_chunk.clamp(1, n.max(1));
    let (mut gradients, mut sums) = (Vec::new(), None);
    for first in (0..n).step_by(n_chunk) {
        let cut = |x: &Tensor| x.narrow(0, first, n_chunk.min(n - first));
        let logits = cut(h)?.matmul(&output.t()?)?; // [n_rows, n_vocab]
        let (ids, probs) = (cut(&ids)?, cut(&probs)?);
        let (q, of) = of_rows(logits, &ids, &probs)?;
        sums = Some(match sums {
            Some(sums) => (of.sums + sums)?,
            None => of.sums,
        });
        if wanted {
            let gradient = pulled(q, (&of.own, &of.below), &ids, (&probs, pull))?;
            let gradient = match &weights {
                Some(weights) => gradient.broadcast_mul(&cut(weights)?)?,
                None => gradient,
            };
            gradients.push(gradient.matmul(output)?);
        }
    }
    let gradient = if wanted { Some(Tensor::cat(&gradients, 0)?) } else { None };
    let none = || Tensor::zeros(N_SUMS, DType::F32, device);
    Ok((gradient, Sums { n, sums: sums.map_or_else(none, Ok)? }))
}

/// What is found beside the probabilities of some rows.
struct Found {
    /// The head's probabilities of the target's words, `[n_rows, n_words]`.
    own: Tensor,
    /// 1 where they are below the target's.
    below: Tensor,
    sums: Tensor,
}

/// The head's probabilities, `[n_rows, n_vocab]`, and what they are worth.
fn of_rows(logits: Tensor, ids: &Tensor, probs: &Tensor) -> Result<(Tensor, Found)> {
    let best = logits.argmax_keepdim(1)?;
    let e = logits.broadcast_sub(&logits.max_keepdim(1)?)?.exp()?;
    drop(logits);
    let q = e.broadcast_div(&e.sum_keepdim(1)?)?;
    let own = q.gather(ids, 1)?;
    let below = own.lt(probs)?.to_dtype(DType::F32)?;
    let log = |x: &Tensor| x.maximum(f64::from(TINY))?.log();
    let right = best.eq(&ids.narrow(1, 0, 1)?.contiguous()?)?.to_dtype(DType::F32)?.sum_all()?;
    let divergence = (probs * (log(probs)? - log(&own)?)?)?.sum_all()?;
    let acceptance = own.minimum(probs)?.sum_all()?;
    let sums = Tensor::stack(&[right, divergence, acceptance], 0)?;
    Ok((q, Found { own, below, sums }))
}

/// Turns probabilities into the gradient of the loss by the logits, as `loss` derives it.
fn pulled(q: Tensor, (own, below): (&Tensor, &Tensor), ids: &Tensor, (probs, pull): (&Tensor, f32)) -> Result<Tensor> {
    if pull == 0.0 {
        q.scatter_add_set(ids, &probs.neg()?, 1)?;
        return Ok(q);
    }
    let can_grow = (own * below)?; // [n_rows, n_words]
    let factor = ((can_grow.sum_keepdim(1)? * f64::from(pull))? + 1.0)?;
    let q = q.broadcast_mul(&factor)?;
    q.scatter_add_set(ids, &(probs.neg()? - (can_grow * f64::from(pull))?)?, 1)?;
    Ok(q)
}

/// What the drafts of a part are worth: counted on the host, or on its way.
#[derive(Clone, Debug)]
pub enum Counted {
    /// On the host.
    Host(Worth),
    /// On a device.
    Device(Sums),
}

impl Counted {
    /// Rows.
    pub fn n(&self) -> usize {
        match self {
            Self::Host(worth) => worth.n,
            Self::Device(of) => of.n,
        }
    }
}

/// What drafts are worth by depth, summed up over parts, and the numbers of `more`: what is on a device comes in one copy.
pub fn fetched(depth: usize, parts: &[Vec<Counted>], more: &[Tensor]) -> candle_core::Result<(Vec<Worth>, Vec<f32>)> {
    let sums = parts.iter().flatten().filter_map(|counted| match counted {
        Counted::Host(_) => None,
        Counted::Device(of) => Some(&of.sums),
    });
    let all = sums.chain(more).map(Tensor::flatten_all).collect::<candle_core::Result<Vec<_>>>()?;
    let all = if all.is_empty() { Vec::new() } else { Tensor::cat(&all, 0)?.to_vec1::<f32>()? };
    let (sums, more) = all.split_at(all.len() - more.len());
    let mut sums = sums.as_chunks::<N_SUMS>().0.iter();
    let mut worth = vec![Worth::default(); depth];
    for part in parts {
        for (sum, counted) in worth.iter_mut().zip(part) {
            match counted {
                Counted::Host(of) => sum.add(of),
                Counted::Device(of) => sum.add(&of.worth(*sums.next().unwrap_or(&[0.0; N_SUMS]))),
            }
        }
    }
    Ok((worth, more.to_vec()))
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::loss;

    /// Sums of exponentials in another order.
    const CLOSE: f32 = 1e-5;

    #[test]
    fn the_device_finds_what_the_host_finds() {
        let (n, n_vocab, n_embd, n_words) = (7, 50, 12, 3);
        let wave = |n: usize, by: f32| (0..n).map(|i| 1.5 * (i as f32 * by).sin()).collect::<Vec<f32>>();
        let cpu = Device::Cpu;
        let h = Tensor::from_vec(wave(n * n_embd, 1.3), (n, n_embd), &cpu).unwrap();
        let output = Tensor::from_vec(wave(n_vocab * n_embd, 0.7), (n_vocab, n_embd), &cpu).unwrap();
        let best = h.matmul(&output.t().unwrap()).unwrap().argmax(1).unwrap().to_vec1::<u32>().unwrap();
        let (mut ids, mut probs) = (Vec::new(), Vec::new());
        for (i, best) in (0_u32..).zip(&best) {
            // Some drafts are right; of some rows words are missing, and the first stands in their place.
            let first = if i % 2 == 0 { *best } else { (best + 11) % 50 };
            let missing = i % 3 == 0;
            ids.extend([first, (first + 1) % 50, if missing { first } else { (first + 7) % 50 }]);
            probs.extend(if missing { [0.7, 0.3, 0.0] } else { [0.6, 0.3, 0.1] });
        }
        for (weights, pull) in [(vec![1.0; n], 0.0), (vec![1.0, 2.0, 1.0, 0.5, 1.0, 3.0, 1.0], 0.7)] {
            let targets = Targets { n_words, ids: ids.clone(), probs: probs.clone(), weights };
            let (wanted, worth) = loss::loss(&h, &output, &targets, (true, pull)).unwrap();
            assert_eq!(worth.n_right, 4);
            for n_chunk in [1, 3, 7, 100] {
                let (found, sums) = in_chunks(n_chunk, (&h, &output), &targets, (true, pull)).unwrap();
                let apart = (found.unwrap() - wanted.as_ref().unwrap()).unwrap().abs().unwrap().max_all().unwrap();
                let apart = apart.to_scalar::<f32>().unwrap();
                assert!(apart < CLOSE, "chunks of {n_chunk}: gradients are {apart} apart");
                let numbers = sums.sums.to_vec1::<f32>().unwrap();
                let of = sums.worth(numbers.try_into().unwrap());
                assert_eq!((of.n, of.n_right), (worth.n, worth.n_right));
                let close = |a: f64, b: f64| (a - b).abs() < f64::from(CLOSE) * b.abs().max(1.0);
                assert!(close(of.divergence, worth.divergence), "{} and {}", of.divergence, worth.divergence);
                assert!(close(of.acceptance, worth.acceptance), "{} and {}", of.acceptance, worth.acceptance);
            }
            let (none, _) = in_chunks(3, (&h, &output), &targets, (false, pull)).unwrap();
            assert!(none.is_none());
        }
    }
}
