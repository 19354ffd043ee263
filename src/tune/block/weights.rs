//! The numbers of a head while they are trained: one variable for each tensor; of experts, and of heads with matrices of their own, one
//! for each matrix.
//! Owns names and shapes; GGUF's `[n_in, n_out]` are matrices of `n_out` rows here.

use std::collections::{BTreeMap, HashMap};

use candle_core::{D, DType, Device, Result, Tensor, Var};

/// The variables of one layer, by their names in files without the block: `attn_q.weight`, `ffn_up_exps.weight#3`.
#[derive(Debug)]
pub struct Layer {
    vars: BTreeMap<String, Var>,
    /// Those that are not trained.
    fixed: HashMap<String, Tensor>,
}

/// What stands between the name of a tensor of several matrices and the number of one.
const MATRIX: char = '#';

/// A tensor of a file: its name there, its shape, its numbers.
pub type Numbers = (String, Vec<usize>, Vec<f32>);

impl Layer {
    /// Out of tensors with their shapes as GGUF has them, computed in `dtype`. Of three dimensions the last one counts matrices.
    pub fn new(tensors: Vec<Numbers>, dtype: DType, device: &Device) -> Result<Self> {
        let mut vars = BTreeMap::new();
        let var = |numbers: &[f32], shape: &[usize]| {
            Var::from_tensor(&Tensor::from_slice(numbers, shape, device)?.to_dtype(dtype)?)
        };
        for (name, ne, numbers) in tensors {
            match ne[..] {
                [n_in, n_out, n_matrices] => {
                    for (id, numbers) in numbers.chunks_exact(n_in * n_out).enumerate().take(n_matrices) {
                        vars.insert(format!("{name}{MATRIX}{id:04}"), var(numbers, &[n_out, n_in])?);
                    }
                }
                [n_in, n_out] => drop(vars.insert(name, var(&numbers, &[n_out, n_in])?)),
                _ => drop(vars.insert(name, var(&numbers, &[numbers.len()])?)),
            }
        }
        Ok(Self { vars, fixed: HashMap::new() })
    }

    /// The variables by name, in the order of names.
    pub fn vars(&self) -> impl Iterator<Item = (&str, &Var)> {
        self.vars.iter().map(|(name, var)| (name.as_str(), var))
    }

    /// The numbers of each tensor as GGUF has them.
    pub fn numbers(&self) -> Result<HashMap<String, Vec<f32>>> {
        let mut all: HashMap<String, Vec<f32>> = HashMap::new();
        for (name, var) in &self.vars {
            let tensor = name.split(MATRIX).next().unwrap_or(name);
            all.entry(tensor.to_owned())
                .or_default()
                .extend(var.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?);
        }
        Ok(all)
    }

    pub(super) fn get(&self, name: &str) -> Result<&Tensor> {
        let var = self.vars.get(name).map(Var::as_tensor);
        var.or_else(|| self.fixed.get(name)).ok_or_else(|| candle_core::Error::msg(format!("{name}: no such tensor")))
    }

    /// `x: [.., n_in]` through a matrix, with its bias where there is one.
    pub(super) fn linear(&self, name: &str, x: &Tensor) -> Result<Tensor> {
        let y = product(x, self.get(&format!("{name}.weight"))?)?;
        match self.vars.get(&format!("{name}.bias")) {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }

    /// `x: [n, n_in]` through the matrix of one expert.
    pub(super) fn expert(&self, name: &str, id: usize, x: &Tensor) -> Result<Tensor> {
        product(x, self.get(&format!("{name}.weight{MATRIX}{id:04}"))?)
    }

    /// All `n` matrices of a tensor of three dimensions, `[n, n_out, n_in]`.
    pub(super) fn matrices(&self, name: &str, n: usize) -> Result<Tensor> {
        let each = (0..n).map(|id| self.get(&format!("{name}.weight{MATRIX}{id:04}")).cloned());
        Tensor::stack(&each.collect::<Result<Vec<_>>>()?, 0)
    }

    /// The last dimension has a mean of zero and a variance of one, then each element has its factor.
    pub(super) fn layer_norm(&self, name: &str, x: &Tensor, eps: f32) -> Result<Tensor> {
        self.norm(name, &x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?, eps)
    }

    /// The root mean square of the last dimension becomes one, then each element has its factor.
    pub(super) fn norm(&self, name: &str, x: &Tensor, eps: f32) -> Result<Tensor> {
        let mean = x.sqr()?.mean_keepdim(D::Minus1)?;
        x.broadcast_div(&(mean + f64::from(eps))?.sqrt()?)?.broadcast_mul(self.get(name)?)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.vars.contains_key(name) || self.fixed.contains_key(name)
    }

    /// Gives it a tensor that is not trained.
    pub(super) fn fix(&mut self, name: &str, tensor: Tensor) {
        self.fixed.insert(name.to_owned(), tensor);
    }
}

fn product(x: &Tensor, matrix: &Tensor) -> Result<Tensor> {
    let (n_out, n_in) = matrix.dims2()?;
    let mut shape = x.dims().to_vec();
    let n_rows = x.elem_count() / n_in;
    let y = x.reshape((n_rows, n_in))?.matmul(&matrix.t()?)?;
    if let Some(last) = shape.last_mut() {
        *last = n_out;
    }
    y.reshape(shape)
}
