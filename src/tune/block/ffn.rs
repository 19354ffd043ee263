//! The feed-forward of a head while it is trained.

use candle_core::{D, Result, Tensor};
use model::{HeadExperts, HeadFfn, HeadGlu};

use super::attention::sigmoid;
use super::router::Route;
use super::weights::Layer;

/// `x: [n, n_embd]`, normed; gives the same shape.
pub(super) fn forward(shape: &HeadFfn, layer: &Layer, x: &Tensor) -> Result<Tensor> {
    let moe = match shape {
        HeadFfn::Dense(inner) => return dense(layer, inner.glu, "", x),
        HeadFfn::Moe(moe) => moe,
    };
    let sum = if moe.narrow {
        let sum = experts(layer, moe, (x, &layer.linear("ffn_latent_down", x)?))?;
        layer.linear("ffn_latent_up", &sum)?
    } else {
        experts(layer, moe, (x, x))?
    };
    let Some(shared) = moe.shared else { return Ok(sum) };
    let of_all = dense(layer, shared.inner.glu, "_shexp", x)?;
    if !shared.gated {
        return sum + of_all;
    }
    let gate = layer.get("ffn_gate_inp_shexp.weight")?; // [n_embd]
    let gate = sigmoid(&x.broadcast_mul(gate)?.sum_keepdim(D::Minus1)?)?; // [n, 1]
    sum + of_all.broadcast_mul(&gate)?
}

/// One feed-forward whose matrices end in `suffix`.
fn dense(layer: &Layer, glu: HeadGlu, suffix: &str, x: &Tensor) -> Result<Tensor> {
    let inner = inner(glu, |part| layer.linear(&format!("ffn_{part}{suffix}"), x))?;
    layer.linear(&format!("ffn_down{suffix}"), &inner)
}

/// What the down matrix is multiplied with; `through` gives what the gate or the up matrix makes of the input.
fn inner(glu: HeadGlu, through: impl Fn(&str) -> Result<Tensor>) -> Result<Tensor> {
    match glu {
        HeadGlu::Silu => through("gate")?.silu()? * through("up")?,
        HeadGlu::Limited(limit) => {
            let limit = f64::from(limit);
            through("gate")?.silu()?.minimum(limit)? * through("up")?.clamp(-limit, limit)?
        }
        HeadGlu::SquaredRelu => through("up")?.relu()?.sqr(),
    }
}

/// Experts, each over the rows of `x: [n, n_in]` that chose it; the router sees `seen: [n, n_embd]`. Gives the shape of `x`.
fn experts(layer: &Layer, moe: &HeadExperts, (seen, x): (&Tensor, &Tensor)) -> Result<Tensor> {
    let Route { ids, weights } = Route::of(&moe.router, layer, seen)?;
    let (n, n_used) = (ids.len(), moe.router.n_used);
    let mut rows_of = vec![Vec::new(); moe.router.n_expert];
    for (place, &id) in ids.iter().flatten().enumerate() {
        rows_of[id].push((place / n_used, place));
    }
    let (mut outs, mut places) = (Vec::new(), vec![0_u32; n * n_used]);
    let mut n_before = 0;
    for (id, rows) in rows_of.iter().enumerate().filter(|(_, rows)| !rows.is_empty()) {
        let numbers: Vec<u32> = rows.iter().map(|(row, _)| *row as u32).collect();
        let of = x.index_select(&Tensor::from_vec(numbers, rows.len(), x.device())?, 0)?;
        let inner = inner(moe.each.glu, |part| layer.expert(&format!("ffn_{part}_exps"), id, &of))?;
        outs.push(layer.expert("ffn_down_exps", id, &inner)?);
        (n_before..).zip(rows).for_each(|(at, (_, place))| places[*place] = at);
        n_before += rows.len() as u32;
    }
    let places = Tensor::from_vec(places, n * n_used, x.device())?;
    let outs = Tensor::cat(&outs, 0)?.index_select(&places, 0)?.reshape((n, n_used, x.dim(1)?))?;
    outs.broadcast_mul(&weights.unsqueeze(2)?)?.sum(1)
}
