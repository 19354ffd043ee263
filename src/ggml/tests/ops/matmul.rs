//! Matrix products against F64 over the values that the weights stand for.
//!
//! ggml rounds the activations first: to F16 or BF16 for such weights, to 8-bit blocks for quantised ones. The
//! tolerances, relative to the spread of the results, are that rounding's.

use crate::support::{In, Rng, assert_close, difference, matrix, no_weights, run, run_over, weights};
use ggml::Dtype;

/// `[m, n]` of `w: [k, m]` and `x: [k, n]`.
fn product(w: &[f32], x: &[f32], k: usize) -> Vec<f64> {
    let dot = |w: &[f32], x: &[f32]| w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
    x.chunks(k).flat_map(|x| w.chunks(k).map(move |w| dot(w, x)).collect::<Vec<f64>>()).collect()
}

/// Fails when a result is off by more than `tolerance` times the spread of such results, `sqrt(k) / 3`: a single one may
/// cancel to nearly nothing.
#[track_caller]
fn assert_product(got: &[f32], want: &[f64], k: usize, tolerance: f64) {
    let error = difference(got, want).0 / ((k as f64).sqrt() / 3.0);
    assert!(error <= tolerance, "off by {error:e} of the spread, {tolerance:e} allowed");
}

const TOLERANCES: [(Dtype, f64); 7] = [
    (Dtype::F32, 1e-6),
    (Dtype::F16, 2e-3),
    (Dtype::BF16, 1.6e-2),
    (Dtype::Q8_0, 2.5e-2),
    (Dtype::Q4_0, 2.5e-2),
    (Dtype::Q4_K, 2.5e-2),
    (Dtype::Q6_K, 2.5e-2),
];

#[test]
fn every_weight_type_multiplies() {
    let mut rng = Rng::new(20);
    for (dtype, tolerance) in TOLERANCES {
        for (k, m) in [(256, 16), (1024, 30), (512, 1)] {
            let (bytes, values) = matrix(&mut rng, dtype, k, m);
            let (weights, w) = weights(&[(dtype, [k as i64, m as i64, 1, 1], bytes)]);
            for n in [1, 2, 5, 8, 33] {
                let x = rng.tensor([k, n, 1, 1]);
                let want = product(&values, &x.f32(), k);
                for threads in [1, 2] {
                    let y =
                        run_over(&weights, threads, std::slice::from_ref(&x), |g, t| g.mul_mat(g.weight(w[0]), t[0]));
                    assert_product(&y, &want, k, tolerance);
                }
            }
        }
    }
}

#[test]
fn the_first_operand_is_repeated_over_dims_2_and_3() {
    let mut rng = Rng::new(21);
    let (k, m, n) = (64, 5, 3);
    let (a, b) = (rng.tensor([k, m, 2, 1]), rng.tensor([k, n, 6, 2]));
    let (x, y) = (a.f32(), b.f32());
    let want: Vec<f64> =
        (0..12).flat_map(|i| product(&x[i % 6 / 3 * k * m..][..k * m], &y[i * k * n..][..k * n], k)).collect();
    assert_close(&run(&[a.clone(), b.clone()], |g, t| g.mul_mat(t[0], t[1])), &want, 2e-6);
    // Rows that lie apart, in both operands.
    let apart = run(&[a, b], |g, t| {
        let spread = |x: ggml::Tensor<'_>| x.ne();
        let (na, nb) = (spread(t[0]), spread(t[1]));
        let a = g.cont(g.permute(t[0], [0, 2, 1, 3]));
        let b = g.cont(g.permute(t[1], [0, 2, 1, 3]));
        let (a, b) = (g.permute(a, [0, 2, 1, 3]), g.permute(b, [0, 2, 1, 3]));
        assert_eq!((a.ne(), b.ne()), (na, nb));
        g.mul_mat(a, b)
    });
    assert_close(&apart, &want, 2e-6);
}

#[test]
fn a_view_of_a_weights_rows_gives_the_rows_of_the_product() {
    let mut rng = Rng::new(22);
    let (k, m, part) = (256, 64, 24);
    for (dtype, _) in TOLERANCES {
        let (bytes, _) = matrix(&mut rng, dtype, k, m);
        let (weights, w) = weights(&[(dtype, [k as i64, m as i64, 1, 1], bytes)]);
        let x = rng.tensor([k, 1, 1, 1]);
        let whole = run_over(&weights, 1, std::slice::from_ref(&x), |g, t| g.mul_mat(g.weight(w[0]), t[0]));
        let first = run_over(&weights, 1, &[x], |g, t| {
            let w = g.weight(w[0]);
            let nb = w.nb();
            g.mul_mat(g.view(w, [k as i64, part, 1, 1], [nb[1], nb[2], nb[3]], 8 * nb[1]), t[0])
        });
        assert_close(&first, &whole[8..8 + part as usize].iter().map(|&v| f64::from(v)).collect::<Vec<_>>(), 1e-6);
    }
}

#[test]
fn each_row_meets_its_experts() {
    let mut rng = Rng::new(23);
    let (k, m, n_expert, n_used) = (256, 12, 6, 3);
    for (dtype, tolerance) in TOLERANCES {
        let (bytes, values) = matrix(&mut rng, dtype, k, m * n_expert);
        let (weights, w) = weights(&[(dtype, [k as i64, m as i64, n_expert as i64, 1], bytes)]);
        for n in [1, 4, 20] {
            let ids: Vec<i32> = (0..n * n_used).map(|_| rng.below(n_expert) as i32).collect();
            // One row for all experts of a token, then one for each.
            for n_b in [1, n_used] {
                let x = rng.tensor([k, n_b, n, 1]);
                let row = |i: usize| i / n_used * n_b + if n_b == 1 { 0 } else { i % n_used };
                let want: Vec<f64> = ids
                    .iter()
                    .enumerate()
                    .flat_map(|(i, &e)| product(&values[e as usize * k * m..][..k * m], &x.f32()[row(i) * k..][..k], k))
                    .collect();
                let inputs = [x, In::I32([n_used, n, 1, 1], ids.clone())];
                let y = run_over(&weights, 1, &inputs, |g, t| g.mul_mat_id(g.weight(w[0]), t[0], t[1]));
                assert_product(&y, &want, k, tolerance);
            }
        }
    }
}

#[test]
fn a_hadamard_transform_is_the_product_with_its_matrix_and_its_own_inverse() {
    let mut rng = Rng::new(25);
    for n in [2, 64, 256] {
        let scale = 1.0 / (n as f32).sqrt();
        let is_even = |i: usize| ((i / n) & (i % n)).count_ones().is_multiple_of(2);
        let h: Vec<f32> = (0..n * n).map(|i| if is_even(i) { scale } else { -scale }).collect();
        let h = In::F32([n, n, 1, 1], h);
        for rows in [1, 7] {
            let x = rng.tensor([n, rows, 1, 1]);
            let want = product(&h.f32(), &x.f32(), n);
            for threads in [1, 2] {
                let inputs = [h.clone(), x.clone()];
                let once = run_over(&no_weights(), threads, &inputs, |g, t| g.hadamard(t[0], t[1]));
                assert_product(&once, &want, n, 1e-6);
                let twice = run_over(&no_weights(), threads, &inputs, |g, t| g.hadamard(t[0], g.hadamard(t[0], t[1])));
                assert_close(&twice, &x.f32().into_iter().map(f64::from).collect::<Vec<_>>(), 1e-5);
            }
        }
    }
}
