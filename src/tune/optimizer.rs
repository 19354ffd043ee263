//! Steps of training: Muon for matrices, AdamW for the rest.
//! Sources: Jordan et al. 2024 (Muon: momentum made orthogonal by five steps of Newton and Schulz); Loshchilov and Hutter 2019.

use std::collections::BTreeMap;

use candle_core::{D, Result, Tensor, Var};

/// How a variable learns.
#[derive(Clone, Debug)]
enum Moments {
    Muon { momentum: Tensor },
    Adam { first: Tensor, second: Tensor },
}

/// What the steps before left behind, for every variable by its name.
#[derive(Debug, Default)]
pub struct Optimizer {
    moments: BTreeMap<String, Moments>,
    n_steps: usize,
}

const MUON_MOMENTUM: f64 = 0.95;
const ADAM_DECAYS: (f64, f64) = (0.9, 0.95);
const ADAM_EPS: f64 = 1e-8;

/// AdamW's rate beside Muon's.
const ADAM_SHARE: f64 = 0.15;

/// Coefficients and number of the steps of Newton and Schulz, of Jordan et al.
const NEWTON: (f64, f64, f64) = (3.4445, -4.7750, 2.0315);
const N_NEWTON: usize = 5;

/// Whether Muon is for it: routers and vectors are AdamW's.
fn is_matrix(name: &str, x: &Tensor) -> bool {
    x.rank() == 2 && !name.contains("ffn_gate_inp")
}

impl Optimizer {
    /// Moves `var` against `gradient`, at this rate of Muon's.
    pub fn step(&mut self, name: &str, var: &Var, gradient: &Tensor, rate: f64) -> Result<()> {
        let gradient = gradient.detach();
        let zeros = || var.as_tensor().zeros_like();
        if is_matrix(name, var) {
            let before = match self.moments.get(name) {
                Some(Moments::Muon { momentum }) => momentum.clone(),
                _ => zeros()?,
            };
            let momentum = ((before * MUON_MOMENTUM)? + &gradient)?;
            let ahead = ((&momentum * MUON_MOMENTUM)? + &gradient)?;
            let (n_rows, n_columns) = var.dims2()?;
            let scale = (n_rows as f64 / n_columns as f64).max(1.0).sqrt();
            var.set(&(var.as_tensor().detach() - (orthogonal(&ahead)? * (rate * scale))?)?)?;
            self.moments.insert(name.to_owned(), Moments::Muon { momentum: momentum.detach() });
            return Ok(());
        }
        let (first, second) = match self.moments.get(name) {
            Some(Moments::Adam { first, second }) => (first.clone(), second.clone()),
            _ => (zeros()?, zeros()?),
        };
        let (a, b) = ADAM_DECAYS;
        let first = ((first * a)? + (&gradient * (1.0 - a))?)?;
        let second = ((second * b)? + (gradient.sqr()? * (1.0 - b))?)?;
        let n = self.n_steps as i32 + 1;
        let size = ((&second / (1.0 - b.powi(n)))?.sqrt()? + ADAM_EPS)?;
        let step = ((&first / (1.0 - a.powi(n)))? / size)?;
        var.set(&(var.as_tensor().detach() - (step * (rate * ADAM_SHARE))?)?)?;
        self.moments.insert(name.to_owned(), Moments::Adam { first, second });
        Ok(())
    }

    /// All variables have moved once.
    pub fn end_step(&mut self) {
        self.n_steps += 1;
    }

    /// What is kept from step to step, by name.
    pub fn tensors(&self) -> Vec<(String, Tensor)> {
        let mut all = Vec::new();
        for (name, moments) in &self.moments {
            match moments {
                Moments::Muon { momentum } => all.push((format!("{name}@momentum"), momentum.clone())),
                Moments::Adam { first, second } => {
                    all.push((format!("{name}@first"), first.clone()));
                    all.push((format!("{name}@second"), second.clone()));
                }
            }
        }
        all
    }

    /// That of an earlier run; `find` gives the tensors of [`Optimizer::tensors`] for the variables of these names.
    pub fn restored<'a>(
        names: impl Iterator<Item = &'a str>,
        find: impl Fn(&str) -> Result<Option<Tensor>>,
        n_steps: usize,
    ) -> Result<Self> {
        let mut moments = BTreeMap::new();
        for name in names {
            if let Some(momentum) = find(&format!("{name}@momentum"))? {
                moments.insert(name.to_owned(), Moments::Muon { momentum });
            } else if let (Some(first), Some(second)) =
                (find(&format!("{name}@first"))?, find(&format!("{name}@second"))?)
            {
                moments.insert(name.to_owned(), Moments::Adam { first, second });
            }
        }
        Ok(Self { moments, n_steps })
    }
}

/// The nearest matrix whose rows, or columns where these are fewer, are orthonormal, roughly.
fn orthogonal(x: &Tensor) -> Result<Tensor> {
    let (n_rows, n_columns) = x.dims2()?;
    let is_tall = n_rows > n_columns;
    let x = if is_tall { x.t()?.contiguous()? } else { x.clone() };
    let size = square_sum(&x)?.sqrt()?;
    let mut x = x.broadcast_div(&(size + 1e-7)?)?;
    let (a, b, c) = NEWTON;
    for _ in 0..N_NEWTON {
        let square = x.matmul(&x.t()?)?;
        let powers = ((&square * b)? + (square.matmul(&square)? * c)?)?;
        x = ((&x * a)? + powers.matmul(&x)?)?;
    }
    if is_tall { x.t()?.contiguous() } else { Ok(x) }
}

/// The sum of all squares, where `x` is.
pub fn square_sum(x: &Tensor) -> Result<Tensor> {
    let squares = x.sqr()?;
    // A GPU gives each sum to one group of threads, so a large matrix is summed by rows first.
    if x.device().is_cpu() || x.rank() < 2 { squares.sum_all() } else { squares.sum(D::Minus1)?.sum_all() }
}

/// The share of the full rate after `progress` of the work, 0 to 1: it grows over the first fiftieth, then falls as a cosine to a
/// hundredth. Source: Loshchilov and Hutter 2017.
pub fn share_of_rate(progress: f64) -> f64 {
    const WARM_UP: f64 = 0.02;
    const LEAST: f64 = 0.01;
    if progress < WARM_UP {
        return (progress / WARM_UP).max(LEAST);
    }
    let rest = ((progress - WARM_UP) / (1.0 - WARM_UP)).clamp(0.0, 1.0);
    LEAST + (1.0 - LEAST) * 0.5 * (1.0 + (std::f64::consts::PI * rest).cos())
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn muons_steps_have_singular_values_near_one() {
        for (n_rows, n_columns) in [(3, 8), (8, 3)] {
            let one = |i: usize| f32::from(u8::from(i / n_columns == i % n_columns));
            let numbers: Vec<f32> = (0..24).map(|i| 0.3 * (i as f32 * 1.7).sin() + one(i)).collect();
            let x = orthogonal(&Tensor::from_vec(numbers, (n_rows, n_columns), &Device::Cpu).unwrap()).unwrap();
            let x = if n_rows > n_columns { x.t().unwrap().contiguous().unwrap() } else { x };
            let square = x.matmul(&x.t().unwrap()).unwrap().to_vec2::<f32>().unwrap();
            for (i, row) in square.iter().enumerate() {
                assert!((0.4..1.6).contains(&row[i]), "{square:?}");
                assert!(row.iter().enumerate().all(|(j, x)| i == j || x.abs() < 0.5), "{square:?}");
            }
        }
    }

    #[test]
    fn steps_go_downhill() {
        let device = Device::Cpu;
        for (name, shape) in [("matrix", vec![4, 4]), ("vector", vec![16])] {
            let var = Var::from_tensor(&Tensor::arange(0_f32, 16.0, &device).unwrap().reshape(shape).unwrap()).unwrap();
            let height = |var: &Var| var.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
            let (start, mut optimizer) = (height(&var), Optimizer::default());
            for _ in 0..50 {
                let gradient = (var.as_tensor() * 2.0).unwrap();
                optimizer.step(name, &var, &gradient, 0.5).unwrap();
                optimizer.end_step();
            }
            assert!(height(&var) < 0.6 * start, "{name}: {} of {start}", height(&var));
        }
    }

    #[test]
    fn the_rate_rises_and_falls() {
        assert!(share_of_rate(0.0) <= 0.01 && share_of_rate(0.02) > 0.99);
        assert!((share_of_rate(0.51) - 0.505).abs() < 0.01 && share_of_rate(1.0) < 0.011);
    }
}
