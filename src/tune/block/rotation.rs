//! What positions do to queries and keys, as tables: rotations, and queries that get longer.
//! Sources: Su et al. 2021; the Ministral 3 reference model, after Llama 4.

use candle_core::{D, Device, Result, Tensor};
use model::{HeadAttention, HeadRotation, HeadTemperature};

/// Tables of the first positions.
#[derive(Clone, Debug)]
pub(super) struct Positions {
    rotation: Option<Rotation>,
    /// What queries are multiplied with, `[n_positions, 1]`.
    lengths: Option<Tensor>,
}

/// Cosines and sines times the factor on rotated elements, `[n_positions, n_pairs]` each.
#[derive(Clone, Debug)]
struct Rotation {
    cos: Tensor,
    sin: Tensor,
    neox: bool,
}

impl Positions {
    /// `factors` divide the frequencies.
    pub(super) fn new(a: &HeadAttention, factors: Option<&[f32]>, n: usize, device: &Device) -> Result<Self> {
        let factors = factors.filter(|_| a.rotation.freq_factors);
        let rotation = match a.rotation.frequencies.is_empty() {
            true => None,
            false => Some(Rotation::new(&a.rotation, factors, n, device)?),
        };
        let lengths = a.temperature.map(|temperature| lengths(&temperature, n, device)).transpose()?;
        Ok(Self { rotation, lengths })
    }

    /// Turns `x: [.., n_rows, d]`, whose rows stand at positions from `first` on.
    pub(super) fn turn(&self, x: &Tensor, first: usize) -> Result<Tensor> {
        self.rotation.as_ref().map_or_else(|| Ok(x.clone()), |rotation| rotation.turn(x, first))
    }

    /// Queries `[.., n_rows, d]` as long as they are at positions from `first` on.
    pub(super) fn lengthened(&self, q: Tensor, first: usize) -> Result<Tensor> {
        match &self.lengths {
            Some(lengths) => q.broadcast_mul(&lengths.narrow(0, first, q.dim(D::Minus2)?)?.to_dtype(q.dtype())?),
            None => Ok(q),
        }
    }
}

fn lengths(temperature: &HeadTemperature, n: usize, device: &Device) -> Result<Tensor> {
    let of = |at: usize| 1.0 + f64::from(temperature.rate) * (1.0 + (at / temperature.stretch.max(1)) as f64).ln();
    Tensor::from_vec((0..n).map(|at| of(at) as f32).collect::<Vec<_>>(), (n, 1), device)
}

impl Rotation {
    fn new(rotation: &HeadRotation, factors: Option<&[f32]>, n_positions: usize, device: &Device) -> Result<Self> {
        let n_pairs = rotation.frequencies.len();
        let frequency = |i: usize| {
            let factor = factors.and_then(|f| f.get(i)).copied().unwrap_or(1.0);
            rotation.frequencies[i] / f64::from(factor)
        };
        let angles = (0..n_positions).flat_map(|at| (0..n_pairs).map(move |i| at as f64 * frequency(i)));
        let angles: Vec<f64> = angles.collect();
        let table = |of: fn(f64) -> f64| {
            let values: Vec<f32> = angles.iter().map(|x| (f64::from(rotation.magnitude) * of(*x)) as f32).collect();
            Tensor::from_vec(values, (n_positions, n_pairs), device)
        };
        Ok(Self { cos: table(f64::cos)?, sin: table(f64::sin)?, neox: rotation.neox })
    }

    fn turn(&self, x: &Tensor, first: usize) -> Result<Tensor> {
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
