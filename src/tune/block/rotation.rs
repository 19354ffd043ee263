//! The rotation of positions, as tables of cosines and sines.
//! Source: Su et al. 2021.

use candle_core::{D, Device, Result, Tensor};
use model::HeadAttention;

/// Cosines and sines of the first positions, `[n_positions, n_rot / 2]` each.
#[derive(Clone, Debug)]
pub(super) struct Rotation {
    cos: Tensor,
    sin: Tensor,
    neox: bool,
}

impl Rotation {
    /// `factors` divide the frequencies; `None` where nothing turns.
    pub(super) fn new(
        a: &HeadAttention,
        factors: Option<&[f32]>,
        n_positions: usize,
        device: &Device,
    ) -> Result<Option<Self>> {
        let n_pairs = a.n_rot / 2;
        if n_pairs == 0 {
            return Ok(None);
        }
        let frequency = |i: usize| {
            let exponent = -2.0 * i as f64 / a.n_rot as f64;
            let factor = factors.and_then(|f| f.get(i)).copied().unwrap_or(1.0);
            f64::from(a.rope_scale) * f64::from(a.rope_base).powf(exponent) / f64::from(factor)
        };
        let angles = (0..n_positions).flat_map(|at| (0..n_pairs).map(move |i| at as f64 * frequency(i)));
        let angles: Vec<f64> = angles.collect();
        let table = |of: fn(f64) -> f64| {
            let values: Vec<f32> = angles.iter().map(|x| of(*x) as f32).collect();
            Tensor::from_vec(values, (n_positions, n_pairs), device)
        };
        Ok(Some(Self { cos: table(f64::cos)?, sin: table(f64::sin)?, neox: a.neox }))
    }

    /// Turns `x: [.., n_rows, d]`, whose rows stand at positions from `first` on.
    pub(super) fn turn(&self, x: &Tensor, first: usize) -> Result<Tensor> {
        let (n_rows, d) = (x.dim(D::Minus2)?, x.dim(D::Minus1)?);
        let n_pairs = self.cos.dim(1)?;
        let rows = |table: &Tensor| table.narrow(0, first, n_rows)?.to_dtype(x.dtype());
        let (cos, sin) = (rows(&self.cos)?, rows(&self.sin)?);
        let turned = x.narrow(D::Minus1, 0, 2 * n_pairs)?;
        let (a, b) = if self.neox {
            (turned.narrow(D::Minus1, 0, n_pairs)?, turned.narrow(D::Minus1, n_pairs, n_pairs)?)
        } else {
            let mut split = turned.dims().to_vec();
            split.pop();
            split.extend([n_pairs, 2]);
            let pairs = turned.contiguous()?.reshape(split)?;
            (pairs.narrow(D::Minus1, 0, 1)?.squeeze(D::Minus1)?, pairs.narrow(D::Minus1, 1, 1)?.squeeze(D::Minus1)?)
        };
        let (a, b) = (a.contiguous()?, b.contiguous()?);
        let first = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
        let second = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?;
        let turned = if self.neox {
            Tensor::cat(&[first, second], D::Minus1)?
        } else {
            let pairs = Tensor::stack(&[first, second], D::Minus1)?;
            pairs.reshape(turned.dims())?
        };
        if d == 2 * n_pairs {
            return Ok(turned);
        }
        Tensor::cat(&[turned, x.narrow(D::Minus1, 2 * n_pairs, d - 2 * n_pairs)?], D::Minus1)
    }
}
