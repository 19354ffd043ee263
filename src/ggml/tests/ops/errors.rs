//! The promise of the safe API: operands that ggml would assert on, or read past, are an error that names the op.
//! Each case below ends the process when it reaches ggml.

use crate::support::{executor, weights};
use ggml::{
    Data, DeltaRule, Dtype, Error, Executor, Graph, Name, PastState, Rope, Scores, Snapshots, SsmScan, StateBuffer,
    StateSpec, Tensor,
};

const F: Dtype = Dtype::F32;
const I: Dtype = Dtype::I32;
const H: Dtype = Dtype::F16;

fn four<const N: usize>(ne: [i64; N]) -> [i64; 4] {
    let mut four = [1; 4];
    four[..N].copy_from_slice(&ne);
    four
}

/// Input number `i`.
fn t<'g, const N: usize>(g: &Graph<'g>, i: u32, dtype: Dtype, ne: [i64; N]) -> Tensor<'g> {
    g.input(Name("t", i), dtype, four(ne))
}

/// Fails unless building the graph is an error of `op`.
#[track_caller]
fn refused(op: &str, build: impl for<'g> FnOnce(&Graph<'g>) -> Tensor<'g>) {
    let mut executor = executor();
    let error = executor.reserve(64, &0, |g| g.output("y", build(g))).unwrap_err();
    assert!(matches!(error, Error::Shape { .. }), "{error}");
    assert!(error.to_string().starts_with(&format!("{op}: ")), "`{error}` does not name {op}");
}

/// `[n, 1]` seen as `[1, n]`: rows of one element that are not where ggml's kernels look for them.
fn column<'g>(g: &Graph<'g>, i: u32, dtype: Dtype, n: i64) -> Tensor<'g> {
    g.transpose(t(g, i, dtype, [n, 1]))
}

#[test]
fn element_wise_ops_refuse_types_shapes_and_strides() {
    type Binary = for<'g> fn(&Graph<'g>, Tensor<'g>, Tensor<'g>) -> Tensor<'g>;
    let binary: [(&str, Binary); 3] =
        [("add", |g, a, b| g.add(a, b)), ("mul", |g, a, b| g.mul(a, b)), ("div", |g, a, b| g.div(a, b))];
    for (op, f) in binary {
        refused(op, |g| f(g, t(g, 0, F, [4, 2]), t(g, 1, F, [3, 2])));
        refused(op, |g| f(g, t(g, 0, F, [4, 2]), t(g, 1, F, [4, 4])));
        refused(op, |g| f(g, t(g, 0, F, [4]), t(g, 1, Dtype::F16, [4])));
        refused(op, |g| f(g, t(g, 0, I, [4]), t(g, 1, I, [4])));
        refused(op, |g| f(g, t(g, 0, Dtype::Q8_0, [32]), t(g, 1, F, [32])));
        refused(op, |g| f(g, t(g, 0, F, [32]), t(g, 1, Dtype::Q8_0, [32])));
        refused(op, |g| f(g, g.transpose(t(g, 0, F, [4, 2])), t(g, 1, F, [2, 4])));
        refused(op, |g| f(g, column(g, 0, F, 4), t(g, 1, F, [1, 4])));
    }
    type Unary = for<'g> fn(&Graph<'g>, Tensor<'g>) -> Tensor<'g>;
    let unary: [(&str, Unary); 9] = [
        ("tanh", |g, a| g.tanh(a)),
        ("sigmoid", |g, a| g.sigmoid(a)),
        ("silu", |g, a| g.silu(a)),
        ("softplus", |g, a| g.softplus(a)),
        ("scale", |g, a| g.scale(a, 2.0)),
        ("clamp", |g, a| g.clamp(a, 0.0, 1.0)),
        ("sum_rows", |g, a| g.sum_rows(a)),
        ("rms_norm", |g, a| g.rms_norm(a, 1e-6)),
        ("rms_norm", |g, a| g.l2_norm(a, 1e-6)),
    ];
    for (op, f) in unary {
        refused(op, |g| f(g, t(g, 0, I, [4])));
        refused(op, |g| f(g, t(g, 0, Dtype::Q8_0, [32])));
        refused(op, |g| f(g, g.transpose(t(g, 0, F, [4, 2]))));
        refused(op, |g| f(g, column(g, 0, F, 4)));
    }
    for eps in [-1e-6, f32::NAN] {
        refused("rms_norm", |g| g.rms_norm(t(g, 0, F, [4]), eps));
    }
    type Gated = for<'g> fn(&ggml::Graph<'g>, ggml::Tensor<'g>, ggml::Tensor<'g>) -> ggml::Tensor<'g>;
    let gated: [(&str, Gated); 2] = [("swiglu", |g, a, b| g.swiglu(a, b)), ("geglu", |g, a, b| g.geglu(a, b))];
    for (op, f) in gated {
        refused(op, |g| f(g, t(g, 0, F, [4]), t(g, 1, F, [8])));
        refused(op, |g| f(g, t(g, 0, F, [4]), t(g, 1, Dtype::F16, [4])));
        refused(op, |g| f(g, t(g, 0, I, [4]), t(g, 1, I, [4])));
        refused(op, |g| {
            let a = g.view(t(g, 0, F, [4, 4, 4]), [4, 2, 4, 1], [16, 64, 256], 0);
            f(g, a, t(g, 1, F, [4, 2, 4]))
        });
    }
    refused("swiglu_clamped", |g| g.swiglu_clamped(t(g, 0, F, [4]), t(g, 1, F, [8]), 1.0, 7.0));
    refused("swiglu_clamped", |g| g.swiglu_clamped(t(g, 0, H, [4]), t(g, 1, H, [4]), 1.0, 7.0));
    refused("swiglu_clamped", |g| g.swiglu_clamped(t(g, 0, F, [4]), t(g, 1, H, [4]), 1.0, 7.0));
    for limit in [-1.0, f32::NAN] {
        refused("swiglu_clamped", |g| g.swiglu_clamped(t(g, 0, F, [4]), t(g, 1, F, [4]), 1.0, limit));
    }
    refused("swiglu_clamped", |g| {
        let a = g.view(t(g, 0, F, [4, 4, 4]), [4, 2, 4, 1], [16, 64, 256], 0);
        g.swiglu_clamped(a, t(g, 1, F, [4, 2, 4]), 1.0, 7.0)
    });
    refused("fill", |g| g.fill(t(g, 0, I, [4]), 1.0));
    refused("fill", |g| g.fill(g.transpose(t(g, 0, F, [4, 2])), 1.0));
}

#[test]
fn rows_by_ids_are_added_where_they_fit_only() {
    refused("add_id", |g| g.add_id(t(g, 0, F, [4, 2, 3]), t(g, 1, F, [3, 5]), t(g, 2, I, [2, 3])));
    refused("add_id", |g| g.add_id(t(g, 0, F, [4, 2, 3]), t(g, 1, F, [4, 5, 2]), t(g, 2, I, [2, 3])));
    refused("add_id", |g| g.add_id(t(g, 0, F, [4, 2, 3]), t(g, 1, F, [4, 5]), t(g, 2, I, [3, 2])));
    refused("add_id", |g| g.add_id(t(g, 0, F, [4, 2, 3]), t(g, 1, F, [4, 5]), t(g, 2, F, [2, 3])));
    refused("add_id", |g| g.add_id(t(g, 0, F, [4, 2, 3, 2]), t(g, 1, F, [4, 5]), t(g, 2, I, [2, 3, 2])));
    refused("add_id", |g| g.add_id(t(g, 0, H, [4, 2, 3]), t(g, 1, F, [4, 5]), t(g, 2, I, [2, 3])));
    refused("add_id", |g| g.add_id(t(g, 0, F, [4, 2, 3]), t(g, 1, H, [4, 5]), t(g, 2, I, [2, 3])));
    refused("add_id", |g| g.add_id(t(g, 0, F, [4, 2, 3]), g.transpose(t(g, 1, F, [5, 4])), t(g, 2, I, [2, 3])));
}

#[test]
fn products_refuse_types_shapes_and_strides() {
    refused("mul_mat", |g| g.mul_mat(t(g, 0, F, [4, 2]), t(g, 1, F, [3, 2])));
    refused("hadamard", |g| g.hadamard(t(g, 0, F, [4, 4]), t(g, 1, F, [8, 2])));
    refused("hadamard", |g| g.hadamard(t(g, 0, F, [3, 3]), t(g, 1, F, [3, 2])));
    refused("hadamard", |g| g.hadamard(t(g, 0, F, [4, 2]), t(g, 1, F, [4, 2])));
    refused("hadamard", |g| g.hadamard(t(g, 0, F, [4, 4]), t(g, 1, I, [4, 2])));
    refused("hadamard", |g| g.hadamard(t(g, 0, F, [4, 4]), g.transpose(t(g, 1, F, [2, 4]))));
    refused("mul_mat", |g| g.mul_mat(t(g, 0, F, [4, 2, 2]), t(g, 1, F, [4, 2, 3])));
    refused("mul_mat", |g| g.mul_mat(t(g, 0, F, [4, 2, 1, 2]), t(g, 1, F, [4, 2, 1, 3])));
    refused("mul_mat", |g| g.mul_mat(g.transpose(t(g, 0, F, [2, 4])), t(g, 1, F, [4, 2])));
    refused("mul_mat", |g| g.mul_mat(t(g, 0, F, [4, 2]), g.transpose(t(g, 1, F, [2, 4]))));
    refused("mul_mat", |g| g.mul_mat(t(g, 0, I, [4, 2]), t(g, 1, F, [4, 2])));
    refused("mul_mat", |g| g.mul_mat(t(g, 0, F, [4, 2]), t(g, 1, I, [4, 2])));
    refused("mul_mat", |g| g.mul_mat(t(g, 0, Dtype::Q8_0, [32, 2]), t(g, 1, Dtype::Q8_0, [32, 2])));
    refused("mul_mat", |g| g.mul_mat(t(g, 0, F, [1, 1 << 40]), t(g, 1, F, [1, 1 << 40])));
    // ggml's own types for activations have no product of their own.
    let q8_1 = Dtype::from_id(9).unwrap();
    refused("mul_mat", |g| g.mul_mat(t(g, 0, q8_1, [32, 2]), t(g, 1, F, [32, 2])));

    refused("mul_mat_by_head", |g| g.mul_mat_by_head(t(g, 0, F, [8, 5, 3]), t(g, 1, F, [8, 2, 4])));
    refused("mul_mat_by_head", |g| g.mul_mat_by_head(t(g, 0, F, [8, 5, 3]), t(g, 1, F, [7, 3, 4])));
    refused("mul_mat_by_head", |g| g.mul_mat_by_head(t(g, 0, F, [8, 5, 3]), t(g, 1, F, [8, 3, 4, 2])));
    refused("mul_mat_by_head", |g| g.mul_mat_by_head(t(g, 0, I, [8, 5, 3]), t(g, 1, F, [8, 3, 4])));
    refused("mul_mat_by_head", |g| g.mul_mat_by_head(t(g, 0, F, [8, 5, 3]), t(g, 1, H, [8, 3, 4])));
    refused("mul_mat_id", |g| g.mul_mat_id(t(g, 0, F, [4, 2, 3]), t(g, 1, F, [5, 1, 2]), t(g, 2, I, [2, 2])));
    refused("mul_mat_id", |g| g.mul_mat_id(t(g, 0, F, [4, 2, 3]), t(g, 1, F, [4, 1, 2]), t(g, 2, I, [2, 3])));
    refused("mul_mat_id", |g| g.mul_mat_id(t(g, 0, F, [4, 2, 3]), t(g, 1, F, [4, 2, 2]), t(g, 2, I, [3, 2])));
    refused("mul_mat_id", |g| g.mul_mat_id(t(g, 0, F, [4, 2, 3]), t(g, 1, F, [4, 1, 2]), t(g, 2, F, [2, 2])));
    refused("mul_mat_id", |g| g.mul_mat_id(t(g, 0, I, [4, 2, 3]), t(g, 1, F, [4, 1, 2]), t(g, 2, I, [2, 2])));
    refused("mul_mat_id", |g| g.mul_mat_id(t(g, 0, F, [4, 2, 3]), t(g, 1, Dtype::F16, [4, 1, 2]), t(g, 2, I, [2, 2])));
    refused("mul_mat_id", |g| {
        g.mul_mat_id(g.transpose(t(g, 0, F, [2, 4, 3])), t(g, 1, F, [4, 1, 2]), t(g, 2, I, [2, 2]))
    });
    refused("mul_mat_id", |g| g.mul_mat_id(t(g, 0, F, [4, 2, 3, 2]), t(g, 1, F, [4, 1, 2]), t(g, 2, I, [2, 2])));
}

#[test]
fn rope_and_attention_refuse_types_shapes_and_strides() {
    let rope = Rope::neox(4, 1e4);
    refused("rope", |g| g.rope(t(g, 0, F, [8, 2, 3]), t(g, 1, I, [2]), None, &rope));
    refused("rope", |g| g.rope(t(g, 0, F, [8, 2, 3]), t(g, 1, F, [3]), None, &rope));
    refused("rope", |g| g.rope(t(g, 0, F, [8, 2, 3]), t(g, 1, I, [3, 2]), None, &rope));
    refused("rope", |g| g.rope(t(g, 0, I, [8, 2, 3]), t(g, 1, I, [3]), None, &rope));
    refused("rope", |g| g.rope(g.permute(t(g, 0, F, [2, 8, 3]), [1, 0, 2, 3]), t(g, 1, I, [3]), None, &rope));
    refused("rope", |g| {
        let spread = g.view(t(g, 1, I, [2, 3]), [1, 3, 1, 1], [8, 8, 8], 0);
        g.rope(t(g, 0, F, [8, 2, 3]), g.transpose(spread), None, &rope)
    });
    for n_dims in [0, -2, 3, 10] {
        let rope = Rope { n_dims, ..rope };
        refused("rope", |g| g.rope(t(g, 0, F, [8, 2, 3]), t(g, 1, I, [3]), None, &rope));
    }
    refused("rope", |g| g.rope(t(g, 0, F, [8, 2, 3]), t(g, 1, I, [3]), Some(t(g, 2, F, [1])), &rope));
    refused("rope", |g| g.rope(t(g, 0, F, [8, 2, 3]), t(g, 1, I, [3]), Some(t(g, 2, Dtype::F16, [2])), &rope));

    refused("soft_max", |g| g.soft_max(t(g, 0, Dtype::F16, [8, 2]), None, 1.0));
    refused("soft_max", |g| g.soft_max(g.transpose(t(g, 0, F, [8, 2])), None, 1.0));
    refused("soft_max", |g| g.soft_max(t(g, 0, F, [8, 2]), Some(t(g, 1, F, [4, 2])), 1.0));
    refused("soft_max", |g| g.soft_max(t(g, 0, F, [8, 2]), Some(t(g, 1, F, [8, 1])), 1.0));
    refused("soft_max", |g| g.soft_max(t(g, 0, F, [8, 2, 3]), Some(t(g, 1, F, [8, 2, 2])), 1.0));
    refused("soft_max", |g| g.soft_max(t(g, 0, F, [8, 2]), Some(t(g, 1, I, [8, 2])), 1.0));
    refused("soft_max", |g| g.soft_max(t(g, 0, F, [8, 2]), Some(g.transpose(t(g, 1, F, [2, 8]))), 1.0));

    // d_k 32, 3 rows, 4 query heads, 2 key heads, 16 cells.
    let flash = |change: fn(&mut [(Dtype, [i64; 4]); 4])| {
        let mut shapes = [(F, [32, 3, 4, 1]), (H, [32, 16, 2, 1]), (H, [32, 16, 2, 1]), (H, [16, 3, 1, 1])];
        change(&mut shapes);
        refused("flash_attn", |g| {
            let [q, k, v, m] = std::array::from_fn(|i| g.input(Name("t", i as u32), shapes[i].0, shapes[i].1));
            g.flash_attn(q, k, v, m, 1.0)
        });
    };
    flash(|s| s[0].1[0] = 64);
    flash(|s| s[0].1[2] = 3);
    flash(|s| s[0].1[3] = 2);
    flash(|s| s[2].1[1] = 8);
    flash(|s| s[2].1[2] = 1);
    flash(|s| s[3].1[0] = 8);
    flash(|s| s[3].1[1] = 2);
    flash(|s| s[3].1[2] = 3);
    flash(|s| s[0].0 = H);
    flash(|s| s[1].0 = I);
    flash(|s| s[2].0 = I);
    flash(|s| s[3].0 = F);
    refused("flash_attn", |g| {
        let k = g.permute(t(g, 1, H, [16, 32, 2]), [1, 0, 2, 3]);
        g.flash_attn(t(g, 0, F, [32, 3, 4]), k, t(g, 2, H, [32, 16, 2]), t(g, 3, H, [16, 3]), 1.0)
    });
    for (softcap, dtype, n_sinks) in [(Some(0.0), F, 4), (Some(f32::NAN), F, 4), (None, F, 3), (None, H, 4)] {
        refused("soft_max", |g| {
            let scores = Scores { scale: 1.0, softcap, sinks: Some(t(g, 4, dtype, [n_sinks])) };
            g.soft_max_of(t(g, 0, F, [8, 2, 4]), None, &scores)
        });
        refused("flash_attn", |g| {
            let (q, k, v) = (t(g, 0, F, [32, 3, 4]), t(g, 1, H, [32, 16, 2]), t(g, 2, H, [32, 16, 2]));
            let scores = Scores { scale: 1.0, softcap, sinks: Some(t(g, 4, dtype, [n_sinks])) };
            g.flash_attn_of((q, k, v), t(g, 3, H, [16, 3]), &scores)
        });
    }
}

#[test]
fn recurrent_ops_refuse_types_shapes_and_strides() {
    refused("ssm_conv", |g| g.ssm_conv(t(g, 0, F, [3, 8]), t(g, 1, F, [4, 8])));
    refused("ssm_conv", |g| g.ssm_conv(t(g, 0, F, [6, 8]), t(g, 1, F, [4, 7])));
    refused("ssm_conv", |g| g.ssm_conv(t(g, 0, F, [6, 8, 1, 2]), t(g, 1, F, [4, 8])));
    refused("ssm_conv", |g| g.ssm_conv(t(g, 0, F, [6, 8]), t(g, 1, F, [4, 8, 2])));
    refused("ssm_conv", |g| g.ssm_conv(t(g, 0, F, [6, 8]), t(g, 1, Dtype::F16, [4, 8])));
    refused("ssm_conv", |g| g.ssm_conv(g.transpose(t(g, 0, F, [8, 6])), t(g, 1, F, [4, 8])));
    refused("ssm_conv", |g| {
        let w = g.view(t(g, 1, F, [8, 8]), [4, 8, 1, 1], [32, 256, 256], 0);
        g.ssm_conv(t(g, 0, F, [6, 8]), w)
    });

    let scan = |k: i64, change: fn(&mut [(Dtype, [i64; 4]); 6])| {
        let (groups, dt) = ([16, 2, 5, 1], [4, 5, 1, 1]);
        let mut shapes = [(F, [16, 8, 4, 1]), (F, [8, 4, 5, 1]), (F, dt), (F, [1, 4, 1, 1]), (F, groups), (F, groups)];
        change(&mut shapes);
        refused("ssm_scan", |g| {
            let [state, x, dt, a, b, c] =
                std::array::from_fn(|i| g.input(Name("t", i as u32), shapes[i].0, shapes[i].1));
            g.ssm_scan(&SsmScan { state: PastState::Own(state), x, dt, a, b, c }, k).0
        });
    };
    scan(0, |_| ());
    scan(6, |_| ());
    scan(1 << 32, |_| ());
    scan(1, |s| s[0].1[0] = 8);
    scan(1, |s| s[0].1[3] = 2);
    scan(1, |s| s[1].1[0] = 4);
    scan(1, |s| s[2].1[1] = 4);
    scan(1, |s| s[3].1[0] = 16);
    scan(1, |s| (s[4].1[1], s[5].1[1]) = (3, 3));
    scan(1, |s| s[5].1[2] = 4);
    scan(1, |s| s[5].0 = H);

    let net = |k: i64, change: fn(&mut [(Dtype, [i64; 4]); 6])| {
        let (qk, v, gate) = ([32, 2, 5, 1], [32, 4, 5, 1], [1, 4, 5, 1]);
        let mut shapes = [(F, qk), (F, qk), (F, v), (F, gate), (F, gate), (F, [32, 32, 4, 1])];
        change(&mut shapes);
        refused("gated_delta_net", |g| {
            let [q, key, v, decay, beta, state] =
                std::array::from_fn(|i| g.input(Name("t", i as u32), shapes[i].0, shapes[i].1));
            g.gated_delta_net(&DeltaRule { q, k: key, v, g: decay, beta, state: PastState::Own(state) }, k)
        });
    };
    net(0, |_| ());
    net(-1, |_| ());
    net(1 << 32, |_| ());
    net(1, |s| s[0].1[1] = 3);
    net(1, |s| (s[0].1[1], s[1].1[1]) = (3, 3));
    net(1, |s| s[0].1[0] = 64);
    net(1, |s| s[1].1[2] = 4);
    net(1, |s| s[3].1[1] = 2);
    net(1, |s| s[3].1[0] = 32);
    net(1, |s| s[4].1[2] = 4);
    net(1, |s| s[5].1[2] = 2);
    net(1, |s| s[5].1[3] = 2);
    net(1, |s| s[0].0 = Dtype::F16);
    net(1, |s| s[1].0 = Dtype::F16);
    net(1, |s| s[2].0 = Dtype::F16);
    net(1, |s| s[3].0 = Dtype::F16);
    net(1, |s| s[4].0 = Dtype::F16);
    net(1, |s| s[5].0 = Dtype::F16);
    refused("gated_delta_net", |g| {
        let state = g.permute(t(g, 5, F, [32, 32, 4]), [1, 0, 2, 3]);
        let (q, k, v) = (t(g, 0, F, [32, 2, 5]), t(g, 1, F, [32, 2, 5]), t(g, 2, F, [32, 4, 5]));
        let (decay, beta) = (t(g, 3, F, [1, 4, 5]), t(g, 4, F, [1, 4, 5]));
        g.gated_delta_net(&DeltaRule { q, k, v, g: decay, beta, state: PastState::Own(state) }, 1)
    });
}

#[test]
fn views_and_copies_refuse_what_lies_outside() {
    refused("reshape", |g| g.reshape(t(g, 0, F, [6]), [4]));
    refused("reshape", |g| g.reshape(t(g, 0, F, [6]), [-2, -3]));
    refused("reshape", |g| g.reshape(t(g, 0, F, [4]), [1 << 33, 1 << 33, 1, 0]));
    refused("reshape", |g| g.reshape(t(g, 0, Dtype::Q8_0, [64]), [16, 4]));
    refused("reshape", |g| g.reshape(g.transpose(t(g, 0, F, [2, 3])), [6]));

    refused("view", |g| g.view(t(g, 0, F, [8]), [9, 1, 1, 1], [36, 36, 36], 0));
    refused("view", |g| g.view(t(g, 0, F, [8]), [4, 1, 1, 1], [16, 16, 16], 20));
    refused("view", |g| g.view(t(g, 0, F, [8]), [4, 2, 1, 1], [20, 20, 20], 0));
    refused("view", |g| g.view(t(g, 0, F, [8]), [0, 1, 1, 1], [4, 4, 4], 0));
    refused("view", |g| g.view(t(g, 0, F, [8]), [-1, 1, 1, 1], [4, 4, 4], 0));
    refused("view", |g| g.view(t(g, 0, F, [8]), [4, 2, 1, 1], [usize::MAX, 4, 4], 0));
    refused("view", |g| g.view(t(g, 0, F, [8]), [4, 1, 1, 1], [16, 16, 16], usize::MAX - 3));
    refused("view", |g| g.view(t(g, 0, F, [8]), [4, 1, 1, 1], [16, 16, 16], 2));
    refused("view", |g| g.view(t(g, 0, F, [8]), [2, 2, 1, 1], [6, 6, 6], 0));
    refused("view", |g| g.view(t(g, 0, Dtype::Q8_0, [64]), [16, 1, 1, 1], [34, 34, 34], 0));
    refused("view", |g| g.view(t(g, 0, Dtype::Q8_0, [64]), [32, 1, 1, 1], [34, 34, 34], 4));
    // More elements than there are, by strides of zero: ggml counts them as if they lay one after the other.
    refused("view", |g| g.view(t(g, 0, F, [8]), [8, 2, 1, 1], [0, 0, 0], 0));
    refused("view", |g| g.view(t(g, 0, F, [8]), [1, i64::MAX, i64::MAX, 1], [0, 0, 0], 0));

    refused("permute", |g| g.permute(t(g, 0, F, [2, 3]), [0, 0, 1, 2]));
    refused("permute", |g| g.permute(t(g, 0, F, [2, 3]), [0, 1, 2, 4]));
    refused("permute", |g| g.permute(t(g, 0, F, [2, 3]), [-1, 1, 2, 3]));
    refused("permute", |g| g.permute(t(g, 0, Dtype::Q8_0, [32, 3]), [1, 0, 2, 3]));
    refused("transpose", |g| g.transpose(t(g, 0, Dtype::Q8_0, [32, 3])));

    refused("concat", |g| g.concat(t(g, 0, F, [2, 3]), t(g, 1, F, [2, 4]), 0));
    refused("concat", |g| g.concat(t(g, 0, F, [2, 3]), t(g, 1, Dtype::F16, [2, 3]), 0));
    refused("concat", |g| g.concat(t(g, 0, F, [2, 3]), t(g, 1, F, [2, 3]), 4));
    refused("repeat", |g| g.repeat(t(g, 0, F, [2]), t(g, 1, F, [3])));
    refused("repeat_to", |g| g.repeat_to(t(g, 0, F, [2]), [3, 1, 1, 1]));
    refused("repeat_to", |g| g.repeat_to(t(g, 0, F, [2]), [2, 0, 1, 1]));
    refused("repeat_to", |g| g.repeat_to(t(g, 0, F, [2]), [2, 1 << 40, 1 << 40, 1]));
    refused("repeat_to", |g| g.repeat_to(t(g, 0, Dtype::I64, [2]), [4, 1, 1, 1]));
    refused("repeat_to", |g| g.repeat_to(g.transpose(t(g, 0, F, [2, 3])), [6, 2, 1, 1]));
    refused("repeat", |g| g.repeat(t(g, 0, Dtype::I64, [2]), t(g, 1, F, [4])));
    refused("repeat", |g| g.repeat(g.transpose(t(g, 0, F, [2, 3])), t(g, 1, F, [6, 2])));

    let (q, i64s) = (Dtype::Q8_0, Dtype::I64);
    refused("cpy", |g| g.cpy(t(g, 0, F, [6]), t(g, 1, F, [4])));
    for (from, into) in [(I, H), (H, I), (i64s, F), (F, i64s), (q, H), (q, Dtype::Q4_0), (I, q), (q, I)] {
        refused("cpy", |g| g.cpy(t(g, 0, from, [32]), t(g, 1, into, [32])));
        refused("cast", |g| g.cast(t(g, 0, from, [32]), into));
    }
    // Types that ggml cannot write without preparation.
    let iq2_xxs = Dtype::from_id(16).unwrap();
    refused("cast", |g| g.cast(t(g, 0, F, [256]), iq2_xxs));
    refused("cast", |g| g.cast(t(g, 0, F, [33]), q));
    refused("cast", |g| g.cast(g.transpose(t(g, 0, F, [2, 32])), q));
    refused("cpy", |g| g.cpy(t(g, 0, F, [16, 4]), t(g, 1, q, [32, 2])));
    refused("cpy", |g| g.cpy(g.transpose(t(g, 0, F, [2, 32])), t(g, 1, q, [32, 2])));
    refused("cpy", |g| {
        let into = g.view(t(g, 1, q, [64, 2]), [32, 2, 1, 1], [68, 136, 136], 0);
        g.cpy(t(g, 0, q, [64, 1]), into)
    });
    refused("cpy", |g| {
        let into = g.view(t(g, 1, F, [32, 4]), [16, 4, 1, 1], [128, 512, 512], 0);
        g.cpy(t(g, 0, q, [64, 1]), into)
    });
}

#[test]
fn look_ups_refuse_types_shapes_and_strides() {
    refused("get_rows", |g| g.get_rows(t(g, 0, F, [4, 3, 2]), t(g, 1, I, [2])));
    refused("get_rows", |g| g.get_rows(t(g, 0, F, [4, 3]), t(g, 1, F, [2])));
    refused("get_rows", |g| g.get_rows(t(g, 0, F, [4, 3]), t(g, 1, Dtype::I64, [2])));
    refused("get_rows", |g| g.get_rows(t(g, 0, Dtype::I64, [4, 3]), t(g, 1, I, [2])));
    refused("get_rows", |g| g.get_rows(g.transpose(t(g, 0, F, [4, 3])), t(g, 1, I, [2])));
    // The activations' block types cannot be unpacked by ggml.
    for id in [9, 15] {
        let dtype = Dtype::from_id(id).unwrap();
        refused("get_rows", |g| g.get_rows(t(g, 0, dtype, [256, 3]), t(g, 1, I, [2])));
    }

    let l = Dtype::I64;
    refused("set_rows", |g| g.set_rows(t(g, 0, F, [4, 3]), t(g, 1, F, [5, 2]), t(g, 2, l, [2])));
    refused("set_rows", |g| g.set_rows(t(g, 0, F, [4, 3]), t(g, 1, F, [4, 2]), t(g, 2, l, [3])));
    refused("set_rows", |g| g.set_rows(t(g, 0, F, [4, 3]), t(g, 1, F, [4, 2]), t(g, 2, F, [2])));
    refused("set_rows", |g| g.set_rows(t(g, 0, F, [4, 3]), t(g, 1, I, [4, 2]), t(g, 2, l, [2])));
    refused("set_rows", |g| g.set_rows(t(g, 0, I, [4, 3]), t(g, 1, F, [4, 2]), t(g, 2, l, [2])));
    refused("set_rows", |g| g.set_rows(t(g, 0, F, [4, 3, 2]), t(g, 1, F, [4, 2, 2]), t(g, 2, l, [2, 3])));
    refused("set_rows", |g| g.set_rows(g.transpose(t(g, 0, F, [3, 4])), t(g, 1, F, [4, 2]), t(g, 2, l, [2])));
    refused("set_rows", |g| g.set_rows(t(g, 0, F, [4, 3]), g.transpose(t(g, 1, F, [2, 4])), t(g, 2, l, [2])));
    refused("set_rows", |g| g.set_rows(column(g, 0, F, 3), t(g, 1, F, [1, 2]), t(g, 2, l, [2])));

    refused("argmax", |g| g.argmax(t(g, 0, F, [4, 3, 2])));
    refused("argmax", |g| g.argmax(t(g, 0, I, [4, 3])));
    refused("argmax", |g| g.argmax(g.transpose(t(g, 0, F, [4, 3]))));
    refused("argmax_by_parts", |g| g.argmax_by_parts(t(g, 0, F, [4, 3]), 3).0);
    refused("argmax_by_parts", |g| g.argmax_by_parts(t(g, 0, F, [4, 3]), 0).0);
    refused("argmax_by_parts", |g| g.argmax_by_parts(g.transpose(t(g, 0, F, [3, 4])), 2).0);
    refused("top_k", |g| g.top_k(t(g, 0, F, [4, 3]), 0));
    refused("top_k", |g| g.top_k(t(g, 0, F, [4, 3]), 5));
    refused("top_k", |g| g.top_k(t(g, 0, Dtype::F16, [4, 3]), 2));
    refused("top_k", |g| g.top_k(g.transpose(t(g, 0, F, [4, 3])), 2));
    // ggml steps from row to row by one stride, whatever the third dimension: it would read past the end.
    refused("top_k", |g| g.top_k(g.permute(t(g, 0, F, [4, 3, 2]), [0, 2, 1, 3]), 2));
}

#[test]
fn inputs_that_cannot_be_are_refused() {
    refused("input", |g| t(g, 0, F, [0]));
    refused("input", |g| t(g, 0, F, [-1, -1]));
    refused("input", |g| t(g, 0, Dtype::Q8_0, [33]));
    refused("input", |g| t(g, 0, F, [1 << 40, 1 << 40]));
    refused("input", |g| {
        let _ = t(g, 0, F, [1]);
        t(g, 0, F, [1])
    });
    let spec =
        StateSpec { name: "s".into(), dtype: F, ne: [1 << 40, 1 << 20, 1, 1], device: ggml::Device::cpu().unwrap() };
    assert!(StateBuffer::new(&[spec]).is_err());
}

#[test]
fn weights_cannot_be_written() {
    let (weights, ids) = weights(&[(F, [4, 2, 1, 1], vec![0; 32])]);
    let mut executor: Executor<u32> = Executor::new(weights, 1).unwrap();
    let mut refused = |op: &str, build: &dyn for<'g> Fn(&Graph<'g>, Tensor<'g>) -> Tensor<'g>| {
        let error = executor.reserve(64, &0, |g| g.output("y", build(g, g.weight(ids[0])))).unwrap_err().to_string();
        assert!(error.starts_with(op) && error.contains("is a weight"), "{error}");
    };
    refused("cpy", &|g, w| g.cpy(t(g, 0, F, [4, 2]), w));
    refused("cpy", &|g, w| g.cpy(t(g, 0, F, [4]), g.view(w, [4, 1, 1, 1], [16, 16, 16], 16)));
    refused("set_rows", &|g, w| g.set_rows(w, t(g, 0, F, [4, 1]), t(g, 1, I, [1])));
    refused("set_rows", &|g, w| g.set_rows(g.reshape(w, [2, 4]), t(g, 0, F, [2, 1]), t(g, 1, I, [1])));
}

/// Kernels of our own write where they are told to: a mapped file there would end the process.
#[test]
fn kernels_do_not_write_into_weights() {
    let (n_channels, s) = (16usize, 16usize);
    let sizes = [3 * n_channels, s * s];
    let list: Vec<_> = sizes.iter().map(|&n| (F, [n as i64, 1, 1, 1], vec![0; 4 * n])).collect();
    let (weights, ids) = weights(&list);
    let mut executor: Executor<u32> = Executor::new(weights, 1).unwrap();
    let conv = |g: &Graph<'_>| {
        let into = g.reshape(g.weight(ids[0]), [48, 1, 1]);
        let (rows, past) = (t(g, 0, F, [16, 1, 1]), t(g, 1, F, [3, 16, 1]));
        g.output(
            "y",
            g.short_conv(rows, PastState::Own(past), t(g, 2, F, [4, 16]), Snapshots::Window(into)).unwrap_or(rows),
        );
    };
    let delta = |g: &Graph<'_>| {
        let into = g.reshape(g.weight(ids[1]), [256, 1, 1]);
        let [q, k, v] = [0, 1, 2].map(|i| t(g, i, F, [16, 1, 1, 1]));
        let [decay, beta] = [3, 4].map(|i| t(g, i, F, [1, 1, 1, 1]));
        let x = ggml::DeltaRule { q, k, v, g: decay, beta, state: PastState::Own(t(g, 5, F, [16, 16, 1, 1])) };
        g.output("y", g.delta_rule(&x, Snapshots::Window(into)).unwrap_or(v));
    };
    let logged = |g: &Graph<'_>| {
        let all = g.reshape(g.weight(ids[1]), [16, 16, 1, 1]);
        let [q, k, v] = [0, 1, 2].map(|i| t(g, i, F, [16, 1, 1, 1]));
        let [decay, beta] = [3, 4].map(|i| t(g, i, F, [1, 1, 1, 1]));
        let state = PastState::Among(all, t(g, 5, I, [1]));
        let x = ggml::DeltaRule { q, k, v, g: decay, beta, state };
        let logs = ggml::Logs { places: t(g, 6, I, [2]), steps: t(g, 7, I, [3]), capacity: 5 };
        g.output("y", g.delta_rule_logged(&x, logs));
    };
    for (op, result) in [
        ("short_conv", executor.reserve(64, &0, conv)),
        ("delta_rule", executor.reserve(64, &1, delta)),
        ("delta_rule_logged", executor.reserve(64, &2, logged)),
    ] {
        let error = result.expect_err(op).to_string();
        assert!(error.starts_with(op) && error.contains("is a weight"), "{error}");
    }
}

#[test]
fn ids_outside_are_refused_before_the_graph_runs() {
    let mut executor = executor();
    let rows = [0.0f32; 12];
    let values = [1.0f32; 8];
    // Rows read by ids that are reshaped on their way: the bound finds its input all the same.
    let read = |g: &Graph<'_>| {
        let (a, ids) = (t(g, 0, F, [4, 3]), t(g, 1, I, [2, 1]));
        g.output("y", g.get_rows(a, g.reshape(ids, [2])));
    };
    let write = |g: &Graph<'_>| {
        let (into, from, at) = (t(g, 0, F, [4, 3]), t(g, 1, F, [4, 2]), t(g, 2, Dtype::I64, [2]));
        g.output("y", g.set_rows(into, from, at));
    };
    let experts = |g: &Graph<'_>| {
        let (w, x, ids) = (t(g, 0, F, [4, 1, 3]), t(g, 1, F, [4, 1, 1]), t(g, 2, I, [2, 1]));
        g.output("y", g.mul_mat_id(w, x, ids));
    };
    for (ids, sound) in [([0, 2], true), ([0, 3], false), ([-1, 0], false), ([i32::MIN, i32::MAX], false)] {
        let long = ids.map(i64::from);
        let rows = (Name("t", 0), Data::F32(&rows));
        let results = [
            executor.run(&0, 16, read, &[rows, (Name("t", 1), Data::I32(&ids))]).map(drop),
            executor
                .run(&1, 16, write, &[rows, (Name("t", 1), Data::F32(&values)), (Name("t", 2), Data::I64(&long))])
                .map(drop),
            executor
                .run(&2, 16, experts, &[rows, (Name("t", 1), Data::F32(&values[..4])), (Name("t", 2), Data::I32(&ids))])
                .map(drop),
        ];
        for (result, op) in results.into_iter().zip(["get_rows", "set_rows", "mul_mat_id"]) {
            match result {
                Ok(()) => assert!(sound, "{op} took {ids:?}"),
                Err(e) => assert!(!sound && e.to_string().contains(op) && e.to_string().contains("below 3"), "{e}"),
            }
        }
    }
}

/// A state of i32 `[n]` with these values: ids that no run brings along.
fn state_of(values: &[i32]) -> (StateBuffer, ggml::StateId) {
    let ne = [values.len() as i64, 1, 1, 1];
    let spec = StateSpec { name: "ids".into(), dtype: I, ne, device: ggml::Device::cpu().unwrap() };
    let (mut state, ids) = StateBuffer::new(&[spec]).unwrap();
    let bytes: Vec<u8> = values.iter().flat_map(|id| id.to_ne_bytes()).collect();
    state.write(ids[0], 0, &bytes).unwrap();
    (state, ids[0])
}

/// ggml ends the process over such ids, or reads and writes elsewhere.
#[test]
fn ids_that_a_graph_computes_are_put_into_range() {
    let mut executor = executor();
    let (state, id) = state_of(&[-1, 0, 2, 3, i32::MIN, i32::MAX]);
    let rows: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let given = (Name("t", 0), Data::F32(&rows));
    let mut y = Vec::new();
    let read = |g: &Graph<'_>| g.output("y", g.get_rows(t(g, 0, F, [4, 3]), g.state(&state, id)));
    executor.run(&0, 32, read, &[given]).unwrap().f32("y", &mut y).unwrap();
    let firsts: Vec<f32> = y.chunks(4).map(|row| row[0]).collect();
    assert_eq!(firsts, [0.0, 0.0, 8.0, 8.0, 0.0, 8.0]);

    let experts = |g: &Graph<'_>| {
        let (w, x) = (t(g, 0, F, [4, 1, 3]), t(g, 1, F, [4, 1, 1]));
        g.output("y", g.mul_mat_id(w, x, g.reshape(g.state(&state, id), [6, 1])));
    };
    let ones = (Name("t", 1), Data::F32(&[1.0; 4]));
    executor.run(&1, 32, experts, &[given, ones]).unwrap().f32("y", &mut y).unwrap();
    assert_eq!(y, [6.0, 6.0, 38.0, 38.0, 6.0, 38.0]);

    let write = |g: &Graph<'_>| {
        let (into, from) = (t(g, 0, F, [1, 3]), t(g, 1, F, [1, 6]));
        g.output("y", g.set_rows(into, from, g.state(&state, id)));
    };
    let (three, six) = ((Name("t", 0), Data::F32(&rows[..3])), (Name("t", 1), Data::F32(&[7.0; 6])));
    executor.run(&2, 32, write, &[three, six]).unwrap().f32("y", &mut y).unwrap();
    assert_eq!(y, [7.0, 1.0, 7.0]);
}

#[test]
fn ids_that_were_checked_are_not_written_over() {
    // What is looked up by the copy of an input is not what the run checked.
    let mut executor = executor();
    let (state, id) = state_of(&[99, -99]);
    let copied = |g: &Graph<'_>| {
        let ids = g.cpy(g.state(&state, id), t(g, 1, I, [2]));
        g.output("y", g.get_rows(t(g, 0, F, [1, 3]), ids));
    };
    let mut y = Vec::new();
    let inputs = [(Name("t", 0), Data::F32(&[5.0, 6.0, 7.0])), (Name("t", 1), Data::I32(&[0, 0]))];
    executor.run(&0, 32, copied, &inputs).unwrap().f32("y", &mut y).unwrap();
    assert_eq!(y, [7.0, 5.0]);
    for from_top_k in [false, true] {
        refused("cpy", |g| {
            let ids = if from_top_k { g.reshape(g.top_k(t(g, 2, F, [3, 1]), 2), [2]) } else { t(g, 1, I, [2]) };
            g.keep(g.get_rows(t(g, 0, F, [1, 3]), ids));
            g.cpy(t(g, 3, I, [2]), ids)
        });
    }
    refused("within", |g| g.get_rows(t(g, 0, F, [1, (1 << 24) + 1]), g.argmax(t(g, 1, F, [4, 3]))));
    refused("within", |g| g.within(t(g, 0, Dtype::I64, [2]), 3));
}

#[test]
fn a_graph_that_needs_more_memory_than_there_is_is_an_error() {
    let mut executor = executor();
    let error = executor.reserve(16, &0, |g| {
        let a = t(g, 0, F, [1 << 41]);
        g.output("y", g.scale(a, 2.0));
    });
    assert!(matches!(error, Err(Error::Alloc { .. })), "{error:?}");
    executor.reserve(16, &0, |g| g.output("y", g.scale(t(g, 0, F, [4]), 2.0))).unwrap();
}

#[test]
fn more_states_than_planned_nodes_are_an_error() {
    let spec =
        |i: usize| StateSpec { name: format!("s{i}"), dtype: F, ne: [1; 4], device: ggml::Device::cpu().unwrap() };
    let specs: Vec<_> = (0..200).map(spec).collect();
    let (state, ids) = StateBuffer::new(&specs).unwrap();
    let mut executor = executor();
    let error = executor.reserve(8, &0, |g| ids.iter().for_each(|&id| g.keep(g.state(&state, id))));
    assert!(matches!(error, Err(Error::TooManyNodes { max: 8, .. })), "{error:?}");
}

/// Backends that compute several nodes at once look at those behind it.
#[test]
fn a_graph_does_not_end_with_what_was_only_put_in_order() {
    fn ordered<'g>(g: &Graph<'g>) -> Tensor<'g> {
        let x = t(g, 0, F, [4, 3]);
        g.order(g.add(x, x));
        x
    }
    refused("order", |g| {
        ordered(g);
        t(g, 1, F, [4, 3])
    });
    let mut executor = executor();
    let build = |g: &Graph<'_>| g.output("y", g.sigmoid(ordered(g)));
    executor.reserve(64, &0, build).unwrap();
}
