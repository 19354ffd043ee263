//! Products in whole graphs by our own kernels: a token has the same bits whatever tokens stand beside it, on x86-64 those
//! of ggml's own product of it alone.

use std::sync::Arc;

use ggml::{Data, Dtype, Executor, Name};

use crate::support::{alone, weights};

/// Q8_0 rows of any bytes, with scales around 1e-3.
fn weight(k: usize, m: usize) -> Vec<u8> {
    let mut state = 7u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..m * k / 32)
        .flat_map(|_| [byte(), 0x14].into_iter().chain(std::array::from_fn::<u8, 32, _>(|_| byte())))
        .collect()
}

#[test]
fn a_product_of_a_few_tokens_has_the_bits_of_token_by_token() {
    let _alone = alone();
    for (k, m, window) in [(32, 3, 2), (1024, 37, 21), (3584, 18, 7)] {
        let (weights, w) = weights(&[(Dtype::Q8_0, [k as i64, m as i64, 1, 1], weight(k, m))]);
        for n_threads in [1, 2] {
            let mut executor: Executor<usize> = Executor::new(Arc::clone(&weights), n_threads).unwrap();
            for n in 1..=8 {
                let x: Vec<f32> = (0..n * k).map(|i| ((i * 37 % 101) as f32 - 50.0) / 17.0).collect();
                let (mut all, mut some, mut alone) = (vec![], vec![], vec![]);
                let (k, n) = (k as i64, n as i64);
                let build = |g: &ggml::Graph<'_>| {
                    let x = g.input("x", Dtype::F32, [k, n, 1, 1]);
                    let w = g.weight(w[0]);
                    g.output("all", g.mul_mat(w, x));
                    let nb = w.nb();
                    g.output("some", g.mul_mat(g.view(w, [k, window, 1, 1], [nb[1], nb[2], nb[3]], 0), x));
                    // Each token a product of its own: ggml's own products of several sum in another order where it was
                    // compiled for another processor.
                    let row = |i: i64| g.mul_mat(w, g.view(x, [k, 1, 1, 1], [x.nb()[1]; 3], i as usize * x.nb()[1]));
                    g.output("alone", (1..n).fold(row(0), |rows, i| g.concat(rows, row(i), 1)));
                };
                let inputs = [(Name("x", 0), Data::F32(&x))];
                let mut out = executor.run(&(n as usize), 64, build, &inputs).unwrap();
                out.f32("all", &mut all).unwrap();
                out.f32("some", &mut some).unwrap();
                out.f32("alone", &mut alone).unwrap();
                let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&all), bits(&alone), "k {k}, m {m}, n {n}, {n_threads} threads");
                let first: Vec<f32> = alone.chunks(m).flat_map(|row| row[..window as usize].to_vec()).collect();
                assert_eq!(bits(&some), bits(&first), "k {k}, m {m}, n {n}, {n_threads} threads");
            }
        }
    }
}

#[test]
fn products_by_head_are_those_of_each_head_whatever_tokens_stand_beside_a_token() {
    let _alone = alone();
    let (m, n_head) = (19, 5);
    for dtype in [Dtype::Q8_0, Dtype::F32] {
        let k = 64;
        let bytes = match dtype {
            Dtype::Q8_0 => weight(k, m * n_head),
            _ => (0..k * m * n_head).flat_map(|i| ((i * 31 % 97) as f32 / 40.0 - 1.2).to_le_bytes()).collect(),
        };
        let (weights, w) = weights(&[(dtype, [k as i64, m as i64, n_head as i64, 1], bytes)]);
        for n_threads in [1, 2] {
            let mut executor: Executor<usize> = Executor::new(Arc::clone(&weights), n_threads).unwrap();
            for n in [1, 2, 3, 8, 19] {
                // A column of each head is a part of a longer one.
                let x: Vec<f32> = (0..n * n_head * (k + 8)).map(|i| ((i * 37 % 101) as f32 - 50.0) / 17.0).collect();
                let (mut all, mut apart) = (vec![], vec![]);
                let (k, m, n) = (k as i64, m as i64, n as i64);
                let build = |g: &ggml::Graph<'_>| {
                    let x = g.input("x", Dtype::F32, [k + 8, n_head as i64, n, 1]);
                    let nb = x.nb();
                    let columns = g.view(x, [k, n_head as i64, n, 1], [nb[1], nb[2], nb[3]], 4 * nb[0]);
                    let w = g.weight(w[0]);
                    g.output("all", g.mul_mat_by_head(w, columns));
                    let head = |h: usize| {
                        let w = g.view(w, [k, m, 1, 1], [w.nb()[1], w.nb()[2], w.nb()[2]], h * w.nb()[2]);
                        let x = g.cont(g.view(x, [k, n, 1, 1], [nb[2], nb[3], nb[3]], 4 * nb[0] + h * nb[1]));
                        g.reshape(g.mul_mat(w, x), [m, 1, n])
                    };
                    g.output("apart", (1..n_head).fold(head(0), |heads, h| g.concat(heads, head(h), 1)));
                };
                let inputs = [(Name("x", 0), Data::F32(&x))];
                let mut out = executor.run(&(n as usize), 64, build, &inputs).unwrap();
                out.f32("all", &mut all).unwrap();
                out.f32("apart", &mut apart).unwrap();
                let far = all.iter().zip(&apart).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                let same = all.iter().zip(&apart).all(|(a, b)| a.to_bits() == b.to_bits());
                let what = format!("{dtype}, {n} tokens, {n_threads} threads: {far} apart");
                assert!(if has_kernels() { same } else { far < 1e-3 }, "{what}");
            }
        }
    }
}

/// True when this processor has what the kernels need, and nobody switched them off.
fn has_kernels() -> bool {
    #[cfg(target_arch = "x86_64")]
    let has = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    #[cfg(target_arch = "aarch64")]
    let has = std::arch::is_aarch64_feature_detected!("dotprod");
    has && std::env::var_os("NEXTN_KERNELS").is_none()
}

#[test]
fn weights_that_say_so_give_a_token_the_same_bits_alone_and_among_eight() {
    let _alone = alone();
    let (k, m) = (512usize, 22usize);
    for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::Q8_0, Dtype::Q4_0, Dtype::Q4_K, Dtype::Q5_K, Dtype::Q6_K]
    {
        let n_bytes = dtype.row_bytes(k as i64).unwrap() * m;
        // Small exponents wherever they lie.
        let bytes: Vec<u8> = (0..n_bytes as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 & 0x3f).collect();
        let (weights, w) = weights(&[(dtype, [k as i64, m as i64, 1, 1], bytes)]);
        for n_threads in [1, 2] {
            let mut executor: Executor<usize> = Executor::new(Arc::clone(&weights), n_threads).unwrap();
            let mut keeps = false;
            let mut product = |x: &[f32]| {
                let (n, mut y) = (x.len() / k, Vec::new());
                let build = |g: &ggml::Graph<'_>| {
                    let x = g.input("x", Dtype::F32, [k as i64, n as i64, 1, 1]);
                    keeps = g.row_may_stand_alone(g.weight(w[0]));
                    g.output("y", g.mul_mat(g.weight(w[0]), x));
                };
                let inputs = [(Name("x", 0), Data::F32(x))];
                executor.run(&n, 16, build, &inputs).unwrap().f32("y", &mut y).unwrap();
                y
            };
            let x: Vec<f32> = (0..8 * k).map(|i| ((i * 37 % 101) as f32 - 50.0) / 17.0).collect();
            let alone: Vec<f32> = x.chunks(k).flat_map(&mut product).collect();
            let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            // Seven: ggml's own products of the K types change class at eight.
            let together: Vec<Vec<f32>> = (2..=7).map(|n| product(&x[..n * k])).collect();
            assert!(keeps || !(dtype.is_quantized() || has_kernels()), "{dtype}: by ggml");
            for all in together.iter().filter(|_| keeps) {
                assert_eq!(bits(all), bits(&alone[..all.len()]), "{dtype}, {n_threads} threads");
            }
        }
    }
}
