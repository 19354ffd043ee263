//! Whether a token has the same bits in a product alone and beside others. Exact results of speculation rest on it.
//!
//! Only what we rely on is asserted; the rest is printed by `the_classes_that_were_seen` (run it with `--nocapture`).

use crate::support::{In, Rng, matrix, run_over, same_bits, weights};
use ggml::Dtype;

/// For `n` tokens: how many have other bits than in the call that has them alone (or, with `pad`, twice).
fn tokens_that_differ(
    rng: &mut Rng,
    dtype: Dtype,
    (k, m): (usize, usize),
    n: usize,
    threads: usize,
    pad: bool,
) -> usize {
    let (bytes, _) = matrix(rng, dtype, k, m);
    let (weights, w) = weights(&[(dtype, [k as i64, m as i64, 1, 1], bytes)]);
    let product = |x: In| run_over(&weights, threads, &[x], |g, t| g.mul_mat(g.weight(w[0]), t[0]));
    let x = rng.list(k * n);
    let all = product(In::F32([k, n, 1, 1], x.clone()));
    let alone = |i: usize| {
        let token = &x[i * k..][..k];
        let y = if pad {
            product(In::F32([k, 2, 1, 1], [token, token].concat()))
        } else {
            product(In::F32([k, 1, 1, 1], token.to_vec()))
        };
        y[..m].to_vec()
    };
    (0..n).filter(|&i| !same_bits(&all[i * m..][..m], &alone(i))).count()
}

const SHAPES: [(usize, usize); 3] = [(1024, 128), (256, 512), (512, 30)];

/// Fails unless every token of so many has the bits that it has alone (or, with `pad`, twice).
fn assert_alike(seed: u64, types: &[Dtype], ns: &[usize], pad: bool) {
    let mut rng = Rng::new(seed);
    for &dtype in types {
        for shape in SHAPES {
            for &n in ns {
                for threads in [1, 2] {
                    let n_other = tokens_that_differ(&mut rng, dtype, shape, n, threads, pad);
                    assert_eq!(n_other, 0, "{dtype} {shape:?}, {n} tokens, {threads} threads");
                }
            }
        }
    }
}

#[test]
fn blocks_of_8_and_4_bits_are_the_same_for_any_number_of_tokens() {
    assert_alike(50, &[Dtype::Q8_0, Dtype::Q4_0], &[1, 2, 3, 4, 5, 6, 7, 8, 16, 33], false);
}

#[test]
fn super_blocks_are_the_same_up_to_7_tokens() {
    assert_alike(51, &[Dtype::Q4_K, Dtype::Q6_K], &[1, 2, 3, 4, 5, 6, 7], false);
}

#[test]
fn floats_are_the_same_from_2_tokens_on() {
    assert_alike(52, &[Dtype::F32, Dtype::F16, Dtype::BF16], &[2, 3, 4, 5, 6, 7, 8], true);
}

#[test]
fn experts_are_the_same_whatever_tokens_stand_beside_one() {
    let mut rng = Rng::new(53);
    let (k, m, n_expert, n_used) = (512, 64, 8, 2);
    for dtype in [Dtype::F16, Dtype::BF16, Dtype::Q8_0, Dtype::Q4_0, Dtype::Q4_K, Dtype::Q6_K] {
        let (bytes, _) = matrix(&mut rng, dtype, k, m * n_expert);
        let (weights, w) = weights(&[(dtype, [k as i64, m as i64, n_expert as i64, 1], bytes)]);
        // At most 7 tokens for each expert, whatever the draw.
        let n = 7;
        let x = rng.list(k * n);
        let ids: Vec<i32> = (0..n).flat_map(|_| [rng.below(4) as i32, 4 + rng.below(4) as i32]).collect();
        let product = |x: Vec<f32>, ids: Vec<i32>| {
            let n = ids.len() / n_used;
            let inputs = [In::F32([k, 1, n, 1], x), In::I32([n_used, n, 1, 1], ids)];
            run_over(&weights, 1, &inputs, |g, t| g.mul_mat_id(g.weight(w[0]), t[0], t[1]))
        };
        let all = product(x.clone(), ids.clone());
        for i in 0..n {
            let alone = product(x[i * k..][..k].to_vec(), ids[i * n_used..][..n_used].to_vec());
            assert!(same_bits(&all[i * m * n_used..][..m * n_used], &alone), "{dtype}, token {i}");
        }
    }
}

#[test]
fn the_classes_that_were_seen() {
    let mut rng = Rng::new(54);
    let types = [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::Q8_0, Dtype::Q4_0, Dtype::Q4_K, Dtype::Q6_K];
    for dtype in types {
        for shape in SHAPES {
            let counts: Vec<usize> =
                [1, 2, 4, 7, 8, 16].map(|n| tokens_that_differ(&mut rng, dtype, shape, n, 1, false)).to_vec();
            println!("{dtype} {shape:?}: tokens that differ from the token alone, of 1, 2, 4, 7, 8, 16: {counts:?}");
            assert_eq!(counts[0], 0, "{dtype} {shape:?}: the same call twice gives the same bits");
        }
    }
}
