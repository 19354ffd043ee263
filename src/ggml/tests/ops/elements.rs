//! Element-wise ops, norms and reductions against plain Rust in F64.
//!
//! Tolerances are relative to the largest value: 1e-6 where F32 rounds a few times, more where a line says why.

use crate::support::{In, Rng, assert_close, run};
use ggml::{Dtype, Graph, Tensor};

fn wide(x: &In) -> Vec<f64> {
    x.f32().into_iter().map(f64::from).collect()
}

/// The index into `b` that ggml repeats over index `i` of `a`.
fn repeated(i: usize, a: [usize; 4], b: [usize; 4]) -> usize {
    let at = [i % a[0], i / a[0] % a[1], i / (a[0] * a[1]) % a[2], i / (a[0] * a[1] * a[2])];
    (0..4).rev().fold(0, |sum, d| sum * b[d] + at[d] % b[d])
}

#[test]
fn binary_ops_repeat_the_second_operand() {
    let mut rng = Rng::new(1);
    type Op = (for<'g> fn(&Graph<'g>, Tensor<'g>, Tensor<'g>) -> Tensor<'g>, fn(f64, f64) -> f64);
    let ops: [Op; 3] = [
        (|g, a, b| g.add(a, b), |a, b| a + b),
        (|g, a, b| g.mul(a, b), |a, b| a * b),
        (|g, a, b| g.div(a, b), |a, b| a / b),
    ];
    let na = [6, 4, 3, 2];
    for nb in [na, [6, 1, 1, 1], [1, 4, 1, 1], [1, 1, 1, 1], [3, 2, 1, 2], [6, 4, 3, 1], [1, 1, 3, 1]] {
        let a = rng.tensor(na);
        let mut b = rng.tensor(nb);
        if let In::F32(_, values) = &mut b {
            values.iter_mut().for_each(|v| *v += 2.0f32.copysign(*v)); // away from zero, for the quotient
        }
        for (op, plain) in ops {
            let (x, y) = (wide(&a), wide(&b));
            let want: Vec<_> = (0..x.len()).map(|i| plain(x[i], y[repeated(i, na, nb)])).collect();
            assert_close(&run(&[a.clone(), b.clone()], |g, t| op(g, t[0], t[1])), &want, 1e-6);
            // `b` in another layout gives the same.
            let turned = run(&[a.clone(), b.clone()], |g, t| {
                let b = g.transpose(g.cont(g.transpose(t[1])));
                op(g, t[0], b)
            });
            assert_close(&turned, &want, 1e-6);
        }
        // Types: the first operand's, here F16, whose last place is 5e-4 of the value.
        let x: Vec<_> = wide(&a.f16());
        let want: Vec<_> = (0..x.len()).map(|i| x[i] * wide(&b)[repeated(i, na, nb)]).collect();
        assert_close(&run(&[a.f16(), b.clone()], |g, t| g.mul(t[0], t[1])), &want, 1e-3);
    }
}

#[test]
fn unary_ops_follow_their_formulas() {
    let mut rng = Rng::new(2);
    let values: Vec<f32> = (0..330).map(|_| rng.f32() * 30.0).collect();
    let a = In::F32([11, 5, 3, 2], values);
    type Op = (for<'g> fn(&Graph<'g>, Tensor<'g>) -> Tensor<'g>, fn(f64) -> f64);
    let ops: [Op; 11] = [
        (|g, a| g.scale(a, -0.375), |x| x * -0.375),
        (|g, a| g.scale_and_add(a, 2.5, -1.25), |x| x * 2.5 - 1.25),
        (|g, a| g.floor(a), f64::floor),
        (|g, a| g.log(g.scale_and_add(g.mul(a, a), 1.0, 0.5)), |x| (x * x + 0.5).ln()),
        (|g, a| g.sigmoid(a), |x| 1.0 / (1.0 + (-x).exp())),
        (|g, a| g.tanh(a), f64::tanh),
        // ggml's vector exponential differs from libm's in the last places.
        (|g, a| g.silu(a), |x| x / (1.0 + (-x).exp())),
        (|g, a| g.relu(a), |x| x.max(0.0)),
        (|g, a| g.sqr(a), |x| x * x),
        (|g, a| g.softplus(a), |x| if x > 20.0 { x } else { x.exp().ln_1p() }),
        (|g, a| g.clamp(g.scale(a, 1.0), -3.0, 7.5), |x| x.clamp(-3.0, 7.5)),
    ];
    for (op, plain) in ops {
        let want: Vec<_> = wide(&a).into_iter().map(plain).collect();
        assert_close(&run(std::slice::from_ref(&a), |g, t| op(g, t[0])), &want, 1e-6);
        // Rows that do not follow each other.
        let padded = run(std::slice::from_ref(&a), |g, t| {
            let nb = t[0].nb();
            op(g, g.view(t[0], [7, 5, 3, 2], [nb[1], nb[2], nb[3]], 8))
        });
        let want: Vec<_> = want.chunks(11).flat_map(|row| row[2..9].to_vec()).collect();
        assert_close(&padded, &want, 1e-6);
    }
}

#[test]
fn clamp_leaves_its_operand_alone() {
    let a = In::F32([4, 1, 1, 1], vec![-2.0, 0.25, 3.0, 9.0]);
    let out = run(&[a], |g, t| {
        let copy = g.scale(t[0], 1.0);
        let clamped = g.clamp(copy, 0.0, 4.0);
        g.keep(clamped);
        g.add(g.scale(copy, 10.0), clamped)
    });
    assert_eq!(out, [-20.0, 2.75, 33.0, 94.0]);
}

#[test]
fn swiglu_is_silu_of_the_gate_times_up() {
    let mut rng = Rng::new(3);
    let (gate, up) = (rng.tensor([96, 3, 2, 1]), rng.tensor([96, 3, 2, 1]));
    let want: Vec<_> = wide(&gate).iter().zip(wide(&up)).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
    assert_close(&run(&[gate, up], |g, t| g.swiglu(t[0], t[1])), &want, 1e-6);
}

#[test]
fn geglu_is_gelu_of_the_gate_times_up() {
    let mut rng = Rng::new(3);
    let (gate, up) = (rng.tensor([97, 3, 2, 1]), rng.tensor([97, 3, 2, 1]));
    let gelu = |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh());
    let want: Vec<_> = wide(&gate).iter().zip(wide(&up)).map(|(g, u)| gelu(*g) * u).collect();
    // In plain Rust no kernel serves it, and ggml's table has numbers of 11 bits.
    let tolerance = if kernels::Isa::chosen().is_some() { 1e-6 } else { 2e-3 };
    assert_close(&run(&[gate, up], |g, t| g.geglu(t[0], t[1])), &want, tolerance);
}

/// The error function by its power series, in F64.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..300 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    if x.abs() > 5.0 { x.signum() } else { 2.0 / std::f64::consts::PI.sqrt() * sum }
}

#[test]
fn gelu_erf_is_the_exact_gelu() {
    let n = 1 << 10;
    let x: Vec<f32> = (0..n).map(|i| (i - n / 2) as f32 / 64.0).collect();
    let want: Vec<f64> = x.iter().map(|&x| f64::from(x)).map(|x| 0.5 * x * (1.0 + erf(x / 2f64.sqrt()))).collect();
    let got = run(&[In::F32([n as usize / 4, 4, 1, 1], x)], |g, t| g.gelu_erf(t[0]));
    // The tail of the F32 function near -5 is cut off.
    assert_close(&got, &want, 2e-6);
}

#[test]
fn a_clamped_swiglu_follows_its_formula() {
    let mut rng = Rng::new(13);
    let mut wider = || In::F32([96, 3, 2, 1], (0..576).map(|_| 9.0 * rng.f32()).collect());
    let (gate, up) = (wider(), wider());
    let formula = |(g, u): (&f64, f64)| {
        let x = g.min(7.0);
        x / (1.0 + (-1.702 * x).exp()) * (u.clamp(-7.0, 7.0) + 1.0)
    };
    let want: Vec<_> = wide(&gate).iter().zip(wide(&up)).map(formula).collect();
    assert_close(&run(&[gate, up], |g, t| g.swiglu_clamped(t[0], t[1], 1.702, 7.0)), &want, 1e-6);
}

#[test]
fn a_filled_tensor_leaves_its_operand_alone() {
    let a = In::F32([2, 2, 1, 1], vec![1.0, 2.0, 3.0, 4.0]);
    let out = run(&[a], |g, t| {
        let copy = g.scale(t[0], 1.0);
        g.add(g.fill(copy, 10.0), copy)
    });
    assert_eq!(out, [11.0, 12.0, 13.0, 14.0]);
}

#[test]
fn rows_are_added_by_ids() {
    let mut rng = Rng::new(14);
    let (a, rows) = (rng.tensor([5, 2, 3, 1]), rng.tensor([5, 4, 1, 1]));
    let ids = [3, 0, 1, 1, 2, 3];
    let (x, y) = (wide(&a), wide(&rows));
    let want: Vec<_> = (0..x.len()).map(|i| x[i] + y[ids[i / 5] as usize * 5 + i % 5]).collect();
    let ids = In::I32([2, 3, 1, 1], ids.to_vec());
    assert_close(&run(&[a, rows, ids], |g, t| g.add_id(t[0], t[1], t[2])), &want, 1e-6);
}

#[test]
fn a_tensor_is_repeated_to_a_shape() {
    let a = In::F32([2, 1, 2, 1], vec![1.0, 2.0, 3.0, 4.0]);
    let out = run(&[a], |g, t| g.repeat_to(t[0], [2, 2, 2, 1]));
    assert_eq!(out, [1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0]);
}

#[test]
fn rows_are_summed() {
    let mut rng = Rng::new(4);
    let a = rng.tensor([1000, 3, 2, 2]);
    let want: Vec<f64> = wide(&a).chunks(1000).map(|row| row.iter().sum()).collect();
    assert_close(&run(std::slice::from_ref(&a), |g, t| g.sum_rows(t[0])), &want, 1e-5); // 1000 roundings
}

#[test]
fn norms_are_over_dim_0() {
    let mut rng = Rng::new(5);
    for n in [1usize, 4, 31, 256, 1024] {
        for scale in [1.0f32, 1e-4, 1e4] {
            let values = rng.list(n * 6).into_iter().map(|v| v * scale).collect();
            let a = In::F32([n, 3, 2, 1], values);
            let rows = |f: fn(f64, f64) -> f64| -> Vec<f64> {
                let norm = |row: &[f64]| f(row.iter().map(|x| x * x).sum::<f64>(), row.len() as f64);
                wide(&a).chunks(n).flat_map(|row| row.iter().map(|x| x / norm(row)).collect::<Vec<_>>()).collect()
            };
            let rms = run(std::slice::from_ref(&a), |g, t| g.rms_norm(t[0], 1e-6));
            assert_close(&rms, &rows(|sum, n| (sum / n + 1e-6).sqrt()), 2e-6);
            let l2 = run(std::slice::from_ref(&a), |g, t| g.l2_norm(t[0], 1e-6));
            assert_close(&l2, &rows(|sum, _| (sum + 1e-6).sqrt()), 2e-6);
            let centred = |row: &[f64]| {
                let mean = row.iter().sum::<f64>() / n as f64;
                let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
                row.iter().map(|x| (x - mean) / (variance + 1e-6).sqrt()).collect::<Vec<_>>()
            };
            let layer = run(std::slice::from_ref(&a), |g, t| g.layer_norm(t[0], 1e-6));
            assert_close(&layer, &wide(&a).chunks(n).flat_map(centred).collect::<Vec<_>>(), 5e-6);
        }
    }
}

#[test]
fn a_norm_times_a_weight_is_the_same_fused_or_not() {
    // The CPU fuses a norm with the product that follows; the fused result must be the plain one.
    let mut rng = Rng::new(6);
    let (a, w) = (rng.tensor([64, 5, 1, 1]), rng.tensor([64, 1, 1, 1]));
    let fused = run(&[a.clone(), w.clone()], |g, t| g.mul(g.rms_norm(t[0], 1e-6), t[1]));
    let apart = run(&[a, w], |g, t| {
        let norm = g.rms_norm(t[0], 1e-6);
        g.output("norm", norm);
        g.mul(norm, t[1])
    });
    crate::support::assert_same_bits(&fused, &apart, "fused and plain");
}

#[test]
fn the_largest_are_found() {
    let mut rng = Rng::new(7);
    let a = rng.tensor([300, 4, 1, 1]);
    let order = |row: &[f32]| {
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&i, &j| row[j].total_cmp(&row[i]));
        order
    };
    let orders: Vec<_> = a.f32().chunks(300).map(order).collect();
    let best: Vec<f32> = orders.iter().map(|o| o[0] as f32).collect();
    assert_eq!(run(std::slice::from_ref(&a), |g, t| g.argmax(t[0])), best);
    let largest: Vec<f32> = orders.iter().zip(a.f32().chunks(300)).map(|(o, row)| row[o[0]]).collect();
    for n_parts in [1usize, 4, 30, 300] {
        let n_each = (300 / n_parts) as f32;
        let found = run(std::slice::from_ref(&a), |g, t| g.argmax_by_parts(t[0], n_parts as i64).0);
        let whole: Vec<f32> = (0..4).map(|row| found[row] * n_each + found[4 + row]).collect();
        assert_eq!(whole, best, "{n_parts} parts");
        let values = run(std::slice::from_ref(&a), |g, t| g.argmax_by_parts(t[0], n_parts as i64).1);
        assert_eq!(values, largest, "{n_parts} parts");
    }
    assert_eq!(run(std::slice::from_ref(&a), |g, t| g.picked(t[0], g.argmax(t[0]))), largest);
    for k in [1usize, 8, 300] {
        let want: Vec<f32> = orders.iter().flat_map(|o| o[..k].iter().map(|&i| i as f32).collect::<Vec<_>>()).collect();
        assert_eq!(run(std::slice::from_ref(&a), |g, t| g.top_k(t[0], k as i64)), want);
    }
    let ids = run(&[a], |g, t| {
        let ids = g.top_k(t[0], 3);
        assert_eq!(ids.dtype(), Dtype::I32);
        // Sums of picked values: ids that are computed in the graph reach `get_rows`.
        let columns = g.reshape(t[0], [1, 300, 4]);
        g.sum_rows(g.reshape(g.get_rows(columns, ids), [3, 4]))
    });
    assert_eq!(ids.len(), 4);
}

/// Where a row has no largest element, devices disagree on what `argmax` gives; its value tells in any case.
#[test]
fn a_row_without_a_largest_element_shows_by_its_value() {
    let mut rng = Rng::new(9);
    let mut values = rng.list(64 * 3);
    values[..64].fill(f32::NAN);
    values[64..128].fill(f32::NEG_INFINITY);
    let a = In::F32([64, 3, 1, 1], values);
    let by_parts = |n| run(std::slice::from_ref(&a), move |g, t| g.argmax_by_parts(t[0], n).1);
    for found in [run(std::slice::from_ref(&a), |g, t| g.picked(t[0], g.argmax(t[0]))), by_parts(4), by_parts(64)] {
        assert!(found[0].is_nan() && found[1] == f32::NEG_INFINITY && found[2].is_finite(), "{found:?}");
    }
}

#[test]
fn rows_with_nan_give_every_id_once() {
    // A comparison with NaN is no order, and what the sort makes of it is the standard library's affair. But ids address
    // memory afterwards: none may come from outside the row.
    let mut rng = Rng::new(8);
    for round in 0..400 {
        let n = 20 + rng.below(600);
        let share = [2, 4, 16, 64][round % 4];
        let mut values = rng.list(n * 4);
        for (i, v) in values.iter_mut().enumerate() {
            match rng.below(share) {
                0 => *v = f32::NAN,
                1 if round % 2 == 0 => *v = f32::NEG_INFINITY,
                _ if round % 3 == 0 => *v = i as f32, // rising: the median of three is where the NaN may lie
                _ if round % 3 == 1 => *v = (*v).signum(),
                _ => (),
            }
        }
        let a = In::F32([n, 4, 1, 1], values);
        let ids = run(&[a], |g, t| g.top_k(t[0], n as i64));
        for row in ids.chunks(n) {
            let mut row = row.to_vec();
            row.sort_by(f32::total_cmp);
            assert!(row.iter().enumerate().all(|(i, &id)| id == i as f32), "every id once");
        }
    }
}
