//! A NextN head as a function that can be differentiated: what [`model::HeadShape`] says, over whole texts and unrolled over the
//! draft depth with its own output fed back, as drafts use it. Knows no file and no loss.

mod attention;
mod ffn;
mod rotation;
mod weights;

use candle_core::{Device, Result, Tensor};
use model::HeadShape;

use attention::{Cells, Seen, attend, mask};
use rotation::Rotation;
pub use weights::{Layer, Numbers};

/// A head: one layer for all draft tokens, or one for each.
#[derive(Debug)]
pub struct Head {
    shape: HeadShape,
    layers: Vec<Layer>,
    rotation: Option<Rotation>,
    device: Device,
}

/// The norm at the end of a layer.
const OWN_NORM: &str = "nextn.shared_head_norm.weight";

impl Head {
    /// `final_norm` is the target model's, for layers without one of their own; `factors` its factors on frequencies. Texts have
    /// at most `n_positions` tokens.
    pub fn new(
        shape: HeadShape,
        mut layers: Vec<Layer>,
        (final_norm, factors): (&[f32], Option<&[f32]>),
        n_positions: usize,
        device: &Device,
    ) -> Result<Self> {
        for layer in layers.iter_mut().filter(|layer| !layer.has(OWN_NORM)) {
            layer.fix(OWN_NORM, Tensor::from_slice(final_norm, final_norm.len(), device)?);
        }
        let rotation =
            Rotation::new(&shape.attention, factors.filter(|_| shape.attention.freq_factors), n_positions, device)?;
        Ok(Self { shape, layers, rotation, device: device.clone() })
    }

    /// Where its numbers are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its layers.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Draft tokens `1..=depth` after every position of texts of `n` tokens. `embeddings: [n_texts, n, n_embd]` of their tokens,
    /// `hidden`, likewise, what the target model hands to the head. Result `k`, from 0: what the output matrix is multiplied with
    /// for the token `k + 2` places on, `[n_texts, n - 2 - k, n_embd]`: of the last positions nobody knows that token.
    pub fn unroll(&self, embeddings: &Tensor, hidden: &Tensor, depth: usize) -> Result<Vec<Tensor>> {
        let n = embeddings.dim(1)?;
        let (mut outs, mut chain): (Vec<Tensor>, Vec<Cells>) = (Vec::new(), Vec::new());
        let mut text: Option<Cells> = None;
        let mut handed = hidden.clone();
        // One for all drafts: on a GPU each would be a copy from the host.
        let mask = mask(n, embeddings)?;
        for k in 0..depth.min(n.saturating_sub(2)) {
            let n_rows = n - 2 - k;
            let tokens = embeddings.narrow(1, k + 1, n_rows)?;
            let by_layers = self.layers.len() > 1;
            let Some(layer) = (if by_layers { self.layers.get(k) } else { self.layers.first() }) else { break };
            let before = if by_layers && !self.shape.chained { hidden } else { &handed };
            let seen = Seen { text: text.as_ref().filter(|_| !by_layers), chain: &chain, mask: &mask };
            let at = if by_layers { 0 } else { k };
            let (stream, cells) = self.layer(layer, (&tokens, &before.narrow(1, 0, n_rows)?), at, &seen)?;
            if text.is_none() {
                text = Some(cells);
            } else {
                chain.push(cells);
            }
            let out = layer.norm(OWN_NORM, &stream, self.shape.eps)?;
            handed = if self.shape.pre_norm { stream } else { out.clone() };
            outs.push(out);
        }
        Ok(outs)
    }

    /// `[n_texts, n_rows, n_embd]` each; gives the stream after the layer.
    fn layer(
        &self,
        layer: &Layer,
        (tokens, hidden): (&Tensor, &Tensor),
        first: usize,
        seen: &Seen<'_>,
    ) -> Result<(Tensor, Cells)> {
        let HeadShape { n_embd, eps, ffn_norm, attention, ffn, .. } = &self.shape;
        let e = layer.norm("nextn.enorm.weight", tokens, *eps)?;
        let h = layer.norm("nextn.hnorm.weight", hidden, *eps)?;
        let x = layer.linear("nextn.eh_proj", &Tensor::cat(&[e, h], 2)?)?;
        let normed = layer.norm("attn_norm.weight", &x, *eps)?;
        let (mixed, cells) = attend(attention, (layer, self.rotation.as_ref()), *eps, (&normed, first), seen)?;
        let x = (x + layer.linear("attn_output", &mixed)?)?;
        let (n_texts, n_rows, _) = x.dims3()?;
        let normed = layer.norm(&format!("{ffn_norm}.weight"), &x, *eps)?.reshape((n_texts * n_rows, *n_embd))?;
        let added = ffn::forward(ffn, layer, &normed)?.reshape((n_texts, n_rows, *n_embd))?;
        Ok(((x + added)?, cells))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use candle_core::DType;
    use model::{HeadAttention, HeadFfn};

    /// Experts of a small head.
    pub(crate) const MOE: HeadFfn = HeadFfn::Moe { n_expert: 4, n_used: 2, n_ff: 5, norm: true, n_ff_shared: 3 };

    pub(crate) fn shape(neox: bool, ffn: HeadFfn) -> HeadShape {
        HeadShape {
            n_embd: 8,
            eps: 1e-5,
            pre_norm: !neox,
            chained: true,
            ffn_norm: "ffn_norm",
            attention: HeadAttention {
                n_head: 4,
                n_head_kv: 2,
                d_k: 6,
                d_v: 6,
                scale: 0.4,
                qk_norm: neox,
                gate: neox,
                n_rot: 4,
                neox,
                rope_base: 100.0,
                rope_scale: 1.0,
                freq_factors: false,
            },
            ffn,
        }
    }

    /// As in `scripts/head_gradients.py`.
    pub(crate) fn wave(n: usize, by: f64) -> Vec<f32> {
        (0..n).map(|i| (i as f64 * by + by).sin() as f32).collect()
    }

    pub(crate) fn layer(shape: &HeadShape, by: f64, dtype: DType) -> Layer {
        let a = &shape.attention;
        let n_q = a.n_head * a.d_k * if a.gate { 2 } else { 1 };
        let d = shape.n_embd;
        let mut tensors = vec![
            ("nextn.eh_proj.weight", vec![2 * d, d]),
            ("nextn.enorm.weight", vec![d]),
            ("nextn.hnorm.weight", vec![d]),
            ("attn_norm.weight", vec![d]),
            ("attn_q.weight", vec![d, n_q]),
            ("attn_k.weight", vec![d, a.n_head_kv * a.d_k]),
            ("attn_v.weight", vec![d, a.n_head_kv * a.d_v]),
            ("attn_output.weight", vec![a.n_head * a.d_v, d]),
            ("attn_q_norm.weight", vec![a.d_k]),
            ("attn_k_norm.weight", vec![a.d_k]),
            ("ffn_norm.weight", vec![d]),
            (OWN_NORM, vec![d]),
        ];
        match shape.ffn {
            HeadFfn::Dense { n_ff } => tensors.extend([
                ("ffn_gate.weight", vec![d, n_ff]),
                ("ffn_up.weight", vec![d, n_ff]),
                ("ffn_down.weight", vec![n_ff, d]),
            ]),
            HeadFfn::Moe { n_expert, n_ff, n_ff_shared, .. } => tensors.extend([
                ("ffn_gate_inp.weight", vec![d, n_expert]),
                ("ffn_gate_exps.weight", vec![d, n_ff, n_expert]),
                ("ffn_up_exps.weight", vec![d, n_ff, n_expert]),
                ("ffn_down_exps.weight", vec![n_ff, d, n_expert]),
                ("ffn_gate_inp_shexp.weight", vec![d]),
                ("ffn_gate_shexp.weight", vec![d, n_ff_shared]),
                ("ffn_up_shexp.weight", vec![d, n_ff_shared]),
                ("ffn_down_shexp.weight", vec![n_ff_shared, d]),
            ]),
        }
        let numbers = |(i, (name, ne)): (usize, (&str, Vec<usize>))| {
            let n = ne.iter().product();
            (name.to_owned(), ne, wave(n, by + i as f64 * 0.37))
        };
        Layer::new(tensors.into_iter().enumerate().map(numbers).collect(), dtype, &Device::Cpu).unwrap()
    }

    fn in_f64(x: Result<Tensor>) -> Tensor {
        x.and_then(|x| x.to_dtype(DType::F64)).unwrap()
    }

    /// A number that all drafts of two texts come into, with weights of their own.
    fn total(head: &Head) -> Tensor {
        let (n, d) = (7, head.shape.n_embd);
        let tensor = |by| in_f64(Tensor::from_vec(wave(2 * n * d, by), (2, n, d), &Device::Cpu));
        let outs = head.unroll(&tensor(0.9), &tensor(1.7), 3).unwrap();
        assert_eq!(outs.iter().map(|out| out.dim(1).unwrap()).collect::<Vec<_>>(), [5, 4, 3]);
        let weighted = |(k, out): (usize, &Tensor)| {
            let weights = in_f64(Tensor::from_vec(wave(out.elem_count(), 0.3 + k as f64), out.dims(), &Device::Cpu));
            (out * weights).unwrap().sum_all().unwrap()
        };
        outs.iter().enumerate().map(weighted).reduce(|a, b| (a + b).unwrap()).unwrap()
    }

    #[test]
    fn gradients_through_the_chain_are_slopes() {
        for (neox, ffn, n_layers) in
            [(true, HeadFfn::Dense { n_ff: 9 }, 1), (false, HeadFfn::Dense { n_ff: 9 }, 3), (true, MOE, 1)]
        {
            let shape = shape(neox, ffn);
            let layers = (0..n_layers).map(|k| layer(&shape, 0.11 + k as f64, DType::F64)).collect();
            let head = Head::new(shape, layers, (&[1.0; 8], None), 16, &Device::Cpu).unwrap();
            let gradients = total(&head).backward().unwrap();
            let mut n_checked = 0;
            for (il, layer) in head.layers().iter().enumerate() {
                for (name, var) in layer.vars() {
                    let Some(gradient) = gradients.get(var) else { continue };
                    let before = var.as_detached_tensor().copy().unwrap();
                    let direction =
                        in_f64(Tensor::from_vec(wave(before.elem_count(), 2.3), before.dims(), &Device::Cpu));
                    let at = |by: f64| {
                        var.set(&(&before + (&direction * by).unwrap()).unwrap()).unwrap();
                        total(&head).to_scalar::<f64>().unwrap()
                    };
                    let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                    at(0.0);
                    let along = (gradient * &direction).unwrap().sum_all().unwrap().to_scalar::<f64>().unwrap();
                    assert!(
                        (slope - along).abs() < 1e-6 * along.abs().max(1.0),
                        "layer {il}, {name}: {slope} and {along}"
                    );
                    n_checked += 1;
                }
            }
            assert!(n_checked >= 13 * n_layers, "{n_checked} variables");
        }
    }
}
