//! Every path that this CPU has, against ggml's `vec_dot`, bit for bit.

use ggml_sys as sys;

use super::nodes::{Input, Matrix, Output, product_share, quantise_share};
use super::rows::{BLOCK, Rows, Shape};
use super::{Path, WeightBlock};

/// Numbers in [-1, 1), the same every time.
fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..n).map(next).collect()
}

fn quantised(x: &[f32]) -> Vec<u16> {
    let mut blocks = vec![0u16; x.len() / BLOCK * 17];
    // SAFETY: the table is static and has every type.
    let traits = unsafe { sys::ggml_get_type_traits_cpu(sys::GGML_TYPE_Q8_0) };
    // SAFETY: an entry of ggml's static table.
    let from_float = unsafe { (*traits).from_float }.unwrap();
    // SAFETY: 34 bytes for each block.
    unsafe { from_float(x.as_ptr(), blocks.as_mut_ptr().cast(), x.len() as i64) };
    blocks
}

fn vec_dot(k: usize, w: &[u16], y: &[u16]) -> f32 {
    let mut dot = 0.0;
    // SAFETY: the table is static and has every type.
    let traits = unsafe { sys::ggml_get_type_traits_cpu(sys::GGML_TYPE_Q8_0) };
    // SAFETY: an entry of ggml's static table.
    let vec_dot = unsafe { (*traits).vec_dot }.unwrap();
    // SAFETY: both rows have `k` values.
    unsafe { vec_dot(k as i32, &mut dot, 0, w.as_ptr().cast(), 0, y.as_ptr().cast(), 0, 1) };
    dot
}

fn product(path: Path, w: &[u16], x: &[f32], k: usize, nth: usize) -> Vec<f32> {
    let shape = Shape { n: x.len() / k, n_blocks: k / BLOCK };
    let m = w.len() / (shape.n_blocks * 17);
    let mut memory = vec![0u64; shape.n_bytes().div_ceil(8)];
    // SAFETY: enough bytes.
    let rows = unsafe { Rows::new(shape, memory.as_mut_ptr().cast()) };
    let input = Input { data: x.as_ptr().cast(), row_bytes: k * 4 };
    // SAFETY: the input has this shape.
    (0..nth).for_each(|ith| unsafe { quantise_share(&rows, &input, ith, nth) });
    let mut out = vec![f32::NAN; m * shape.n];
    let matrix = Matrix { data: w.as_ptr().cast::<WeightBlock>(), m };
    let to = Output { data: out.as_mut_ptr(), row_floats: m };
    // SAFETY: the path is available, shapes fit.
    (0..nth).for_each(|ith| unsafe { product_share(path, &matrix, &rows, &to, ith, nth) });
    out
}

/// Equal bits; which NaN it is, is left open.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

fn check(w: &[u16], x: &[f32], k: usize) {
    // SAFETY: no preconditions; `vec_dot` reads a table that it fills.
    unsafe { sys::ggml_cpu_init() };
    let n_words = k / BLOCK * 17;
    let expected: Vec<f32> = x
        .chunks(k)
        .flat_map(|x| {
            let y = quantised(x);
            w.chunks(n_words).map(move |w| vec_dot(k, w, &y)).collect::<Vec<_>>()
        })
        .collect();
    for path in Path::available() {
        for nth in [1, 2, 3] {
            let out = product(path, w, x, k, nth);
            for (i, (&is, &wants)) in out.iter().zip(&expected).enumerate() {
                assert!(same(is, wants), "{path:?} k {k} n {} nth {nth}: {i} is {is:e}, not {wants:e}", x.len() / k);
            }
        }
    }
}

#[test]
fn every_path_has_the_bits_of_vec_dot() {
    for (k, m) in [(32, 1), (32, 7), (1024, 33), (3584, 10)] {
        let w = quantised(&noise(k * m, 1));
        for n in 1..=8 {
            check(&w, &noise(k * n, 2 + n as u32), k);
        }
    }
}

#[test]
fn weights_of_minus_128_and_rows_of_zero_nan_and_infinity_too() {
    let (k, m) = (64, 5);
    let mut w = quantised(&noise(k * m, 9));
    w[1..17].fill(0x8080);
    let mut x = noise(k * 8, 10);
    x[..k].fill(0.0);
    x[k + 3] = f32::NAN;
    x[2 * k + 40] = f32::INFINITY;
    x[3 * k + 1] = f32::NEG_INFINITY;
    x[4 * k + 5] = f32::MAX;
    x[5 * k + 6] = f32::MIN_POSITIVE;
    check(&w, &x, k);
}
