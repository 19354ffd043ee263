//! Every path that this CPU has, against ggml's `vec_dot`, bit for bit.

use ggml_sys as sys;

use super::Path;
use super::experts::{self, Experts, Pick};
use super::kind::Kind;
use super::quantise::{self, Input};
use super::rows::{Rows, Shape};
use super::share::{self, Matrix, Output};

const KINDS: [Kind; 5] = [Kind::Q8_0, Kind::Q4_0, Kind::Q4K, Kind::Q5K, Kind::Q6K];

/// Whose sums have an order of our own.
const FLOATS: [Kind; 3] = [Kind::F32, Kind::F16, Kind::BF16];

/// Numbers in [-1, 1), the same every time.
fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..n).map(next).collect()
}

/// Weight rows of this kind, by ggml's own function.
fn weights(kind: Kind, x: &[f32], k: usize) -> Vec<u8> {
    let m = x.len() / k;
    let mut w = vec![0u8; m * kind.row_bytes(k)];
    // SAFETY: room for `m` rows of `k` values.
    unsafe {
        sys::ggml_quantize_chunk(kind.raw(), x.as_ptr(), w.as_mut_ptr().cast(), 0, m as i64, k as i64, std::ptr::null())
    };
    w
}

/// One row of activations as ggml quantises it. Sums of a block of zeros are left as they are: zero.
fn quantised(kind: Kind, x: &[f32]) -> Vec<u32> {
    let mut blocks = vec![0u32; x.len() / 32 * 10 + 8];
    // SAFETY: the table is static and has every type.
    let traits = unsafe { sys::ggml_get_type_traits_cpu(kind.format().raw()) };
    // SAFETY: an entry of ggml's static table.
    let from_float = unsafe { (*traits).from_float }.unwrap();
    // SAFETY: less than 40 bytes for each 32 values.
    unsafe { from_float(x.as_ptr(), blocks.as_mut_ptr().cast(), x.len() as i64) };
    blocks
}

fn vec_dot(kind: Kind, k: usize, w: &[u8], y: &[u32]) -> f32 {
    let mut dot = 0.0;
    // SAFETY: both rows have `k` values.
    unsafe { share::vec_dot(kind)(k as i32, &mut dot, 0, w.as_ptr().cast(), 0, y.as_ptr().cast(), 0, 1) };
    dot
}

fn product(path: Path, kind: Kind, w: &[u8], x: &[f32], k: usize, nth: usize) -> Vec<f32> {
    let shape = Shape { n: x.len() / k, k, format: kind.format() };
    let m = w.len() / kind.row_bytes(k);
    let mut memory = vec![0u64; shape.n_bytes().div_ceil(8)];
    let rows = if FLOATS.contains(&kind) {
        // SAFETY: rows of `k` values.
        unsafe { Rows::plain(shape, x.as_ptr().cast_mut().cast(), k * 4) }
    } else {
        // SAFETY: enough bytes.
        let rows = unsafe { Rows::new(shape, memory.as_mut_ptr().cast()) };
        let input = Input { data: x.as_ptr().cast(), row_bytes: k * 4 };
        // SAFETY: the input has this shape.
        (0..nth).for_each(|ith| unsafe { quantise::share(&rows, &input, path.is_x86(), ith, nth) });
        rows
    };
    let mut out = vec![f32::NAN; m * shape.n];
    let matrix = Matrix { kind, data: w.as_ptr(), m };
    let to = Output { data: out.as_mut_ptr(), row_floats: m };
    // SAFETY: the path is available, shapes fit.
    (0..nth).for_each(|ith| unsafe { share::product(path, &matrix, &rows, &to, ith, nth) });
    out
}

/// Equal bits; which NaN it is, is left open.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

fn check(kind: Kind, w: &[u8], x: &[f32], k: usize) {
    // SAFETY: no preconditions; `vec_dot` reads a table that it fills.
    unsafe { sys::ggml_cpu_init() };
    let expected: Vec<f32> = x
        .chunks(k)
        .flat_map(|x| {
            let y = quantised(kind, x);
            w.chunks(kind.row_bytes(k)).map(move |w| vec_dot(kind, k, w, &y)).collect::<Vec<_>>()
        })
        .collect();
    for path in Path::available() {
        for nth in [1, 2, 3] {
            let out = product(path, kind, w, x, k, nth);
            for (i, (&is, &wants)) in out.iter().zip(&expected).enumerate() {
                let n = x.len() / k;
                assert!(same(is, wants), "{path:?} {kind:?} k {k} n {n} nth {nth}: {i} is {is:e}, not {wants:e}");
            }
        }
    }
}

#[test]
fn every_path_has_the_bits_of_vec_dot() {
    for kind in KINDS {
        let block = kind.format().block();
        for (k, m) in [(block, 1), (block, 7), (1024, 33), (3584, 10)] {
            let w = weights(kind, &noise(k * m, 1), k);
            for n in 1..=8 {
                check(kind, &w, &noise(k * n, 2 + n as u32), k);
            }
        }
    }
}

#[test]
fn floats_have_the_bits_of_the_scalar_path_which_is_close_to_exact() {
    for kind in FLOATS {
        for (k, m) in [(16, 1), (16, 7), (1024, 33), (3584, 10)] {
            let w = weights(kind, &noise(k * m, 1), k);
            let value = |i: usize| match kind {
                Kind::F32 => f64::from(f32::from_le_bytes(std::array::from_fn(|b| w[4 * i + b]))),
                Kind::BF16 => f64::from(f32::from_le_bytes([0, 0, w[2 * i], w[2 * i + 1]])),
                // SAFETY: no preconditions.
                _ => f64::from(unsafe { sys::ggml_fp16_to_fp32(u16::from_le_bytes([w[2 * i], w[2 * i + 1]])) }),
            };
            for n in 1..=8 {
                let x = noise(k * n, 2 + n as u32);
                let wanted = product(Path::Scalar, kind, &w, &x, k, 1);
                for (i, &is) in wanted.iter().enumerate() {
                    let exact: f64 = (0..k).map(|l| value(i % m * k + l) * f64::from(x[i / m * k + l])).sum();
                    // Sums of up to 224 products of at most 1 in each lane, in floats; 1.1e-5 was seen.
                    assert!((f64::from(is) - exact).abs() < 3e-5, "{kind:?} k {k}: {is}, exactly {exact}");
                }
                for path in Path::available() {
                    for nth in [1, 2, 3] {
                        let out = product(path, kind, &w, &x, k, nth);
                        assert!(out.iter().zip(&wanted).all(|(a, b)| same(*a, *b)), "{path:?} {kind:?} k {k} n {n}");
                    }
                }
            }
        }
    }
}

#[test]
fn many_rows_in_panels_too() {
    for kind in KINDS {
        let (k, m) = (3584, 45);
        check(kind, &weights(kind, &noise(k * m, 3), k), &noise(k * 19, 4), k);
    }
}

#[test]
fn any_bytes_are_a_weight() {
    for kind in KINDS {
        let (k, m) = (512, 9);
        // Scales of any bits, infinities and NaN among them.
        let w: Vec<u8> = noise(m * kind.row_bytes(k), 5).iter().map(|x| (x * 128.0) as i8 as u8).collect();
        check(kind, &w, &noise(k * 3, 6), k);
    }
}

#[test]
fn weights_of_minus_128_and_rows_of_zero_nan_infinity_and_next_to_nothing_too() {
    for kind in KINDS {
        let (k, m) = (512, 5);
        let mut w = weights(kind, &noise(k * m, 9), k);
        if kind == Kind::Q8_0 {
            w[2..34].fill(0x80);
        } else if kind == Kind::Q4_0 {
            w[2..18].fill(0x00);
        }
        let mut x = noise(k * 8, 10);
        x[..k].fill(0.0);
        x[k + 3] = f32::NAN;
        x[2 * k + 40] = f32::INFINITY;
        x[3 * k + 1] = f32::NEG_INFINITY;
        x[4 * k + 5] = f32::MAX;
        x[5 * k + 6] = f32::MIN_POSITIVE;
        x[6 * k..7 * k].iter_mut().for_each(|x| *x *= 1e-40);
        x[7 * k + 30..7 * k + 300].fill(-0.5);
        check(kind, &w, &x, k);
    }
}

#[test]
fn experts_of_gathered_rows_have_the_bits_of_vec_dot() {
    // SAFETY: no preconditions; `vec_dot` reads a table that it fills.
    unsafe { sys::ggml_cpu_init() };
    for kind in KINDS {
        let (k, m, n_expert, n) = (512, 10, 5, 19);
        let w = weights(kind, &noise(k * m * n_expert, 11), k);
        let mut x = noise(k * n, 12);
        x[3 * k + 7] = f32::NAN;
        // Expert 2 gets more rows than a kernel takes at a time, expert 3 none.
        let expert = |i: usize| [2, 0, 2, 4, 2, 1, 2][i % 7];
        let mut order: Vec<Pick> =
            (0..2 * n).map(|to| Pick { expert: expert(to), row: (to / 2) as u32, to: to as u32 }).collect();
        order.sort_unstable();
        let shape = Shape { n, k, format: kind.format() };
        let mut memory = vec![0u64; shape.n_bytes().div_ceil(8)];
        // SAFETY: enough bytes.
        let rows = unsafe { Rows::new(shape, memory.as_mut_ptr().cast()) };
        let input = Input { data: x.as_ptr().cast(), row_bytes: k * 4 };
        let bytes = m * kind.row_bytes(k);
        let all = Experts { kind, data: w.as_ptr(), m, bytes };
        for path in Path::available() {
            for nth in [1, 2, 3] {
                let mut out = vec![0.0f32; 2 * n * m];
                for ith in 0..nth {
                    // SAFETY: the input has this shape.
                    unsafe { quantise::share(&rows, &input, path.is_x86(), ith, nth) };
                }
                for ith in 0..nth {
                    // SAFETY: the path is available, shapes fit.
                    unsafe { experts::share(path, &all, &rows, &order, out.as_mut_ptr(), ith, nth) };
                }
                for pick in &order {
                    let y = quantised(kind, &x[pick.row as usize * k..][..k]);
                    let w = &w[pick.expert as usize * bytes..][..bytes];
                    for (i, w) in w.chunks(kind.row_bytes(k)).enumerate() {
                        let (is, wants) = (out[pick.to as usize * m + i], vec_dot(kind, k, w, &y));
                        assert!(same(is, wants), "{path:?} {kind:?} nth {nth}: {is:e}, not {wants:e}");
                    }
                }
            }
        }
    }
}
