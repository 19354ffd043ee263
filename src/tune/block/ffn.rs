//! The feed-forward of a head while it is trained.

use candle_core::{D, DType, Result, Tensor};
use model::HeadFfn;

use super::attention::{sigmoid, softmax};
use super::weights::Layer;

/// `x: [n, n_embd]`, normed; gives the same shape.
pub(super) fn forward(shape: &HeadFfn, layer: &Layer, x: &Tensor) -> Result<Tensor> {
    match *shape {
        HeadFfn::Dense { .. } => gated(layer, "", x),
        HeadFfn::Moe { n_expert, n_used, norm, n_ff_shared, .. } => {
            let sum = experts(layer, (n_expert, n_used, norm), x)?;
            if n_ff_shared == 0 {
                return Ok(sum);
            }
            let gate = layer.get("ffn_gate_inp_shexp.weight")?; // [n_embd]
            let gate = sigmoid(&x.broadcast_mul(gate)?.sum_keepdim(D::Minus1)?)?; // [n, 1]
            sum + gated(layer, "_shexp", x)?.broadcast_mul(&gate)?
        }
    }
}

/// SwiGLU.
fn gated(layer: &Layer, suffix: &str, x: &Tensor) -> Result<Tensor> {
    let gate = layer.linear(&format!("ffn_gate{suffix}"), x)?;
    let up = layer.linear(&format!("ffn_up{suffix}"), x)?;
    layer.linear(&format!("ffn_down{suffix}"), &(gate.silu()? * up)?)
}

/// Experts, each over the rows that chose it. The choice itself has no gradient, the weights have.
fn experts(layer: &Layer, (n_expert, n_used, norm): (usize, usize, bool), x: &Tensor) -> Result<Tensor> {
    let n = x.dim(0)?;
    let shares = softmax(&layer.linear("ffn_gate_inp", x)?)?; // [n, n_expert]
    let mut rows_of = vec![Vec::new(); n_expert];
    let mut chosen = Vec::with_capacity(n * n_used);
    for (row, shares) in shares.to_dtype(DType::F32)?.to_vec2::<f32>()?.into_iter().enumerate() {
        let mut ids: Vec<usize> = (0..n_expert).collect();
        ids.sort_by(|&a, &b| shares[b].total_cmp(&shares[a]));
        for &id in &ids[..n_used] {
            rows_of[id].push((row as u32, chosen.len() as u32));
            chosen.push(id as u32);
        }
    }
    let chosen = Tensor::from_vec(chosen, (n, n_used), x.device())?;
    let mut weights = shares.gather(&chosen, 1)?; // [n, n_used]
    if norm {
        weights = weights.broadcast_div(&weights.sum_keepdim(1)?)?;
    }
    let (mut outs, mut places) = (Vec::new(), vec![0_u32; n * n_used]);
    let mut n_before = 0;
    for (id, rows) in rows_of.iter().enumerate().filter(|(_, rows)| !rows.is_empty()) {
        let ids: Vec<u32> = rows.iter().map(|(row, _)| *row).collect();
        let of = x.index_select(&Tensor::from_vec(ids, rows.len(), x.device())?, 0)?;
        let (gate, up) = (layer.expert("ffn_gate_exps", id, &of)?, layer.expert("ffn_up_exps", id, &of)?);
        outs.push(layer.expert("ffn_down_exps", id, &(gate.silu()? * up)?)?);
        for (i, (_, place)) in rows.iter().enumerate() {
            places[*place as usize] = n_before + i as u32;
        }
        n_before += rows.len() as u32;
    }
    let places = Tensor::from_vec(places, n * n_used, x.device())?;
    let outs = Tensor::cat(&outs, 0)?.index_select(&places, 0)?.reshape((n, n_used, x.dim(1)?))?;
    outs.broadcast_mul(&weights.unsqueeze(2)?)?.sum(1)
}
