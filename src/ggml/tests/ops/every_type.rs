//! Every type that a weight in a file may have: its products are right, its rows can be read, and a token has the bits that
//! it has alone as far as [`BatchInvariance`] promises.

use std::sync::Arc;

use ggml::{BatchInvariance, Dtype, WeightId, Weights};

use crate::support::{In, Rng, difference, matrix, run_over, same_bits, weights};

/// All that ggml multiplies on a CPU.
fn types() -> Vec<Dtype> {
    let known = (0..ggml_sys::GGML_TYPE_COUNT).filter_map(|id| Dtype::from_id(id).ok());
    known.filter(|dtype| dtype.is_for_weights()).collect()
}

/// A weight `[k, m, n_expert]` and the values that it stands for.
fn weight(rng: &mut Rng, dtype: Dtype, [k, m, n_expert]: [usize; 3]) -> (Arc<Weights>, WeightId, Vec<f32>) {
    let (bytes, values) = matrix(rng, dtype, k, m * n_expert);
    let (weights, ids) = weights(&[(dtype, [k as i64, m as i64, n_expert as i64, 1], bytes)]);
    (weights, ids[0], values)
}

/// Widths to try up to the one that is promised.
fn promised(dtype: Dtype) -> Vec<usize> {
    let most = match BatchInvariance::of(dtype) {
        BatchInvariance::Any => 65,
        BatchInvariance::UpTo(n) => n,
        BatchInvariance::No => 1,
    };
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 32, 33, 64, 65].into_iter().filter(|&n| n <= most).collect()
}

#[test]
fn types_of_published_files_are_for_weights_and_those_of_activations_are_not() {
    let names: Vec<&str> = types().iter().map(|t| t.name()).collect();
    for name in [
        "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq1_s",
        "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs", "tq1_0", "tq2_0", "mxfp4",
        "nvfp4",
    ] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    for name in ["q8_1", "q8_K", "i8", "i16", "i32", "i64", "f64"] {
        assert!(!names.contains(&name), "{name} is among {names:?}");
    }
}

#[test]
fn products_are_those_of_the_values_that_weights_stand_for() {
    let mut rng = Rng::new(70);
    for dtype in types() {
        let (k, m) = (512, 18);
        let (weights, w, values) = weight(&mut rng, dtype, [k, m, 1]);
        for n in [1, 2, 8, 40] {
            let x = rng.list(k * n);
            let got = run_over(&weights, 1, &[In::F32([k, n, 1, 1], x.clone())], |g, t| g.mul_mat(g.weight(w), t[0]));
            let dot = |w: &[f32], x: &[f32]| w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
            let want: Vec<f64> =
                x.chunks(k).flat_map(|x| values.chunks(k).map(move |w| dot(w, x)).collect::<Vec<f64>>()).collect();
            // Of the spread of such sums. What activations are rounded to is the most of it: 8 bits in blocks.
            let size = (values.iter().map(|v| f64::from(v * v)).sum::<f64>() / m as f64).sqrt();
            let error = difference(&got, &want).0 / (size / 3f64.sqrt());
            assert!(error <= 2.5e-2, "{dtype}, {n} tokens: off by {error:e} of the spread");
        }
    }
}

#[test]
fn a_token_has_the_bits_that_it_has_alone_as_far_as_its_type_promises() {
    let mut rng = Rng::new(71);
    for dtype in types() {
        for (k, m) in [(512, 64), (256, 30)] {
            let (weights, w, _) = weight(&mut rng, dtype, [k, m, 1]);
            let x = rng.list(k * 65);
            let (widths, most) = (promised(dtype), *promised(dtype).last().unwrap());
            // Each token a product of its own, in one graph.
            let alone = run_over(&weights, 1, &[In::F32([k, most, 1, 1], x[..most * k].to_vec())], |g, t| {
                let nb = t[0].nb();
                let row = |i| g.mul_mat(g.weight(w), g.view(t[0], [k as i64, 1, 1, 1], [nb[1]; 3], i * nb[1]));
                (1..most).fold(row(0), |rows, i| g.concat(rows, row(i), 1))
            });
            let threads = widths.iter().map(|&n| (n, 1)).chain([(1, 2), (2.min(most), 2), (most, 2)]);
            for (n, threads) in threads {
                let x = In::F32([k, n, 1, 1], x[..n * k].to_vec());
                let all = run_over(&weights, threads, &[x], |g, t| g.mul_mat(g.weight(w), t[0]));
                assert!(same_bits(&all, &alone[..n * m]), "{dtype} [{k}, {m}], {n} tokens, {threads} threads");
            }
        }
    }
}

#[test]
fn a_token_has_the_bits_that_it_has_alone_in_products_with_experts_too() {
    let mut rng = Rng::new(72);
    let (k, m, n_expert, n_used) = (256, 30, 4, 2);
    for dtype in types() {
        let (weights, w, _) = weight(&mut rng, dtype, [k, m, n_expert]);
        let most = promised(dtype).last().copied().unwrap().min(17);
        let x = rng.list(k * most);
        // One expert gets every token, so that no promise is held by small numbers alone.
        let ids: Vec<i32> = (0..most).flat_map(|_| [1, 2 * rng.below(2) as i32]).collect();
        let product = |tokens: std::ops::Range<usize>| {
            let n = tokens.len();
            let inputs = [
                In::F32([k, 1, n, 1], x[tokens.start * k..tokens.end * k].to_vec()),
                In::I32([n_used, n, 1, 1], ids[tokens.start * n_used..tokens.end * n_used].to_vec()),
            ];
            run_over(&weights, 1, &inputs, |g, t| g.mul_mat_id(g.weight(w), t[0], t[1]))
        };
        let alone: Vec<f32> = (0..most).flat_map(|i| product(i..i + 1)).collect();
        for n in promised(dtype).into_iter().filter(|&n| n <= most) {
            assert!(same_bits(&product(0..n), &alone[..n * n_used * m]), "{dtype}, {n} tokens");
        }
    }
}

#[test]
fn rows_are_the_values_that_they_stand_for() {
    let mut rng = Rng::new(73);
    for dtype in types() {
        let (k, m) = (256, 9);
        let (weights, w, values) = weight(&mut rng, dtype, [k, m, 1]);
        let ids = vec![3, 0, 8, 3];
        let want: Vec<f32> = ids.iter().flat_map(|&i| values[i as usize * k..][..k].to_vec()).collect();
        let got = run_over(&weights, 1, &[In::I32([4, 1, 1, 1], ids)], |g, t| g.get_rows(g.weight(w), t[0]));
        assert!(same_bits(&got, &want), "{dtype}");
    }
}
