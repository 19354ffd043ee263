//! Small heads of every kind for tests, and their gradients against slopes.

use candle_core::DType;
use model::{
    HeadAttention, HeadExperts, HeadFfn, HeadGate, HeadGlu, HeadInner, HeadLatent, HeadRotation, HeadRouter,
    HeadScores, HeadShared, HeadTemperature,
};

use super::*;

/// Heads of the tests: what differs between architectures, each at least once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Gated attention with normed heads, dense.
    Gated,
    /// A window, sinks, a gate for each head, a factor on values; experts by a softmax.
    Windowed,
    /// Low-rank images; experts by corrected sigmoids, in groups.
    Latent,
    /// Queries that get longer, limits, a layer norm; one matrix for queries, keys and values.
    Limited,
    /// Experts without a gate over a narrow image.
    Narrow,
}

const fn inner(n_ff: usize, glu: HeadGlu) -> HeadInner {
    HeadInner { n_ff, glu }
}

fn ffn(kind: Kind) -> HeadFfn {
    let router =
        HeadRouter { n_expert: 4, n_used: 2, scores: HeadScores::Softmax, groups: None, norm: Some(1e-4), scale: 1.0 };
    let silu = HeadGlu::Silu;
    let shared = |glu, gated| Some(HeadShared { inner: inner(3, glu), gated });
    let experts = HeadExperts { router, each: inner(5, silu), shared: shared(silu, true), narrow: false };
    let sigmoids = HeadRouter { scores: HeadScores::Sigmoid, scale: 1.5, ..router };
    match kind {
        Kind::Gated => HeadFfn::Dense(inner(9, silu)),
        Kind::Limited => HeadFfn::Dense(inner(9, HeadGlu::Limited(0.4))),
        Kind::Windowed => HeadFfn::Moe(experts),
        Kind::Latent => HeadFfn::Moe(HeadExperts {
            router: HeadRouter { n_expert: 6, groups: Some((3, 2)), ..sigmoids },
            shared: shared(silu, false),
            ..experts
        }),
        Kind::Narrow => HeadFfn::Moe(HeadExperts {
            router: HeadRouter { scores: HeadScores::SoftmaxOfChosen, norm: None, ..router },
            each: inner(5, HeadGlu::SquaredRelu),
            shared: None,
            narrow: true,
        }),
    }
}

pub(crate) fn shape(kind: Kind) -> HeadShape {
    let (gated, windowed) = (kind == Kind::Gated, kind == Kind::Windowed);
    let neox = matches!(kind, Kind::Gated | Kind::Limited);
    let rotation = HeadRotation { frequencies: vec![1.0, 0.1], freq_factors: false, magnitude: 1.0, neox };
    let latent = HeadLatent { n_kv_lora: 7, d_rope: 4, low_rank_q: true, by_head: true };
    HeadShape {
        n_embd: 8,
        eps: 1e-5,
        pre_norm: !gated,
        chained: true,
        ffn_norm: "ffn_norm",
        layer_norm: (kind == Kind::Limited).then_some(1e-5),
        attention: HeadAttention {
            n_head: 4,
            n_head_kv: if kind == Kind::Latent { 4 } else { 2 },
            d_k: 6,
            d_v: 6,
            scale: 0.4,
            window: windowed.then_some(3),
            sinks: windowed,
            value_scale: if windowed { 0.7 } else { 1.0 },
            qk_norm: gated,
            gate: match kind {
                Kind::Gated => Some(HeadGate::Elements),
                Kind::Windowed => Some(HeadGate::Heads),
                _ => None,
            },
            rotation,
            temperature: (kind == Kind::Limited).then_some(HeadTemperature { rate: 0.3, stretch: 2 }),
            latent: (kind == Kind::Latent).then_some(latent),
        },
        ffn: ffn(kind),
    }
}

/// As in `scripts/head_gradients.py`.
pub(crate) fn wave(n: usize, by: f64) -> Vec<f32> {
    (0..n).map(|i| (i as f64 * by + by).sin() as f32).collect()
}

fn attention(a: &HeadAttention, d: usize) -> Vec<(&'static str, Vec<usize>)> {
    let (n_q, n_kv) = (a.n_head * a.d_k, a.n_head_kv * a.d_k);
    if let Some(latent) = a.latent {
        let (n, d_nope) = (latent.n_kv_lora, a.d_k - latent.d_rope);
        return vec![
            ("attn_q_a.weight", vec![d, 5]),
            ("attn_q_a_norm.weight", vec![5]),
            ("attn_q_b.weight", vec![5, n_q]),
            ("attn_kv_a_mqa.weight", vec![d, n + latent.d_rope]),
            ("attn_kv_a_norm.weight", vec![n]),
            ("attn_k_b.weight", vec![d_nope, n, a.n_head]),
            ("attn_v_b.weight", vec![n, a.d_v, a.n_head]),
        ];
    }
    if a.temperature.is_some() {
        return vec![("attn_qkv.weight", vec![d, n_q + 2 * n_kv])];
    }
    let n_q = if a.gate == Some(HeadGate::Elements) { 2 * n_q } else { n_q };
    let mut tensors = vec![
        ("attn_q.weight", vec![d, n_q]),
        ("attn_k.weight", vec![d, n_kv]),
        ("attn_v.weight", vec![d, a.n_head_kv * a.d_v]),
    ];
    if a.sinks {
        tensors.extend([("attn_sinks.weight", vec![a.n_head]), ("attn_gate.weight", vec![d, a.n_head])]);
    }
    if a.qk_norm {
        tensors.extend([("attn_q_norm.weight", vec![a.d_k]), ("attn_k_norm.weight", vec![a.d_k])]);
    }
    tensors
}

/// A layer of such a head, with numbers that depend on `by`.
pub(crate) fn layer(shape: &HeadShape, by: f64, dtype: DType) -> Layer {
    let (a, d) = (&shape.attention, shape.n_embd);
    let mut tensors = vec![
        ("nextn.eh_proj.weight", vec![2 * d, d]),
        ("nextn.enorm.weight", vec![d]),
        ("nextn.hnorm.weight", vec![d]),
        ("attn_norm.weight", vec![d]),
    ];
    tensors.extend(attention(a, d));
    tensors.extend([
        ("attn_output.weight", vec![a.n_head * a.d_v, d]),
        ("ffn_norm.weight", vec![d]),
        (OWN_NORM, vec![d]),
    ]);
    match &shape.ffn {
        HeadFfn::Dense(inner) => tensors.extend([
            ("ffn_gate.weight", vec![d, inner.n_ff]),
            ("ffn_up.weight", vec![d, inner.n_ff]),
            ("ffn_down.weight", vec![inner.n_ff, d]),
        ]),
        HeadFfn::Moe(moe) => tensors.extend(experts(moe, d)),
    }
    let numbers = |(i, (name, ne)): (usize, (&str, Vec<usize>))| {
        let n = ne.iter().product();
        (name.to_owned(), ne, wave(n, by + i as f64 * 0.37))
    };
    Layer::new(tensors.into_iter().enumerate().map(numbers).collect(), dtype, &Device::Cpu).unwrap()
}

fn experts(moe: &HeadExperts, d: usize) -> Vec<(&'static str, Vec<usize>)> {
    let (n, n_ff) = (moe.router.n_expert, moe.each.n_ff);
    let n_in = if moe.narrow { 6 } else { d };
    let mut tensors = vec![("ffn_gate_inp.weight", vec![d, n])];
    if moe.each.glu != HeadGlu::SquaredRelu {
        tensors.push(("ffn_gate_exps.weight", vec![n_in, n_ff, n]));
    }
    tensors.extend([("ffn_up_exps.weight", vec![n_in, n_ff, n]), ("ffn_down_exps.weight", vec![n_ff, n_in, n])]);
    if moe.narrow {
        tensors.extend([("ffn_latent_down.weight", vec![d, n_in]), ("ffn_latent_up.weight", vec![n_in, d])]);
    }
    let Some(HeadShared { inner: HeadInner { n_ff, .. }, gated }) = moe.shared else { return tensors };
    tensors.push(match gated {
        true => ("ffn_gate_inp_shexp.weight", vec![d]),
        false => ("exp_probs_b.bias", vec![n]),
    });
    tensors.extend([
        ("ffn_gate_shexp.weight", vec![d, n_ff]),
        ("ffn_up_shexp.weight", vec![d, n_ff]),
        ("ffn_down_shexp.weight", vec![n_ff, d]),
    ]);
    tensors
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
    let kinds = [
        (Kind::Gated, 1),
        (Kind::Gated, 3),
        (Kind::Windowed, 1),
        (Kind::Windowed, 3),
        (Kind::Latent, 1),
        (Kind::Limited, 1),
        (Kind::Narrow, 1),
    ];
    for (kind, n_layers) in kinds {
        let shape = shape(kind);
        let layers = (0..n_layers).map(|k| layer(&shape, 0.11 + k as f64, DType::F64)).collect();
        let head = Head::new(shape, layers, (&[1.0; 8], None), 16, &Device::Cpu).unwrap();
        let gradients = total(&head).backward().unwrap();
        let mut n_checked = 0;
        for (il, layer) in head.layers().iter().enumerate() {
            for (name, var) in layer.vars() {
                let Some(gradient) = gradients.get(var) else { continue };
                let before = var.as_detached_tensor().copy().unwrap();
                let direction = in_f64(Tensor::from_vec(wave(before.elem_count(), 2.3), before.dims(), &Device::Cpu));
                let at = |by: f64| {
                    var.set(&(&before + (&direction * by).unwrap()).unwrap()).unwrap();
                    total(&head).to_scalar::<f64>().unwrap()
                };
                let slope = (at(1e-6) - at(-1e-6)) / 2e-6;
                at(0.0);
                let along = (gradient * &direction).unwrap().sum_all().unwrap().to_scalar::<f64>().unwrap();
                assert!(
                    (slope - along).abs() < 1e-6 * along.abs().max(1.0),
                    "{kind:?}, layer {il}, {name}: {slope} and {along}"
                );
                n_checked += 1;
            }
        }
        assert!(n_checked >= 11 * n_layers, "{n_checked} variables");
    }
}
