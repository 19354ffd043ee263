//! Every path that this CPU has, bit for bit: on x86-64 against ggml's `vec_dot` on rows that ggml quantised; elsewhere, where
//! that sums in another order, against the scalar path. That one against exact sums, and against sums of every processor.

use ggml_sys as sys;

use super::Path;
use super::activations::{BIAS, Rows, Shape, record};
use super::experts::{self, Experts, Pick};
use super::product::{self as share, Matrix, Output};
use super::quantise::{self, Input};
use super::weight_type::{Format, Kind};

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

/// What the product of quantised weights with one row must be: on x86-64 by ggml alone.
#[cfg(target_arch = "x86_64")]
fn expected(kind: Kind, w: &[u8], x: &[f32], k: usize) -> Vec<f32> {
    if !Path::has_bits_of_ggml() {
        return product(Path::Scalar, kind, w, x, k, 1);
    }
    // SAFETY: no preconditions; `vec_dot` reads a table that it fills.
    unsafe { sys::ggml_cpu_init() };
    // Sums of a block of zeros are left as they are: zero.
    let mut y = vec![0u32; k / 32 * 10 + 8];
    // SAFETY: the table is static and has every type.
    let traits = unsafe { sys::ggml_get_type_traits_cpu(kind.format().raw()) };
    // SAFETY: an entry of ggml's static table.
    let from_float = unsafe { (*traits).from_float }.unwrap();
    // SAFETY: less than 40 bytes for each 32 values.
    unsafe { from_float(x.as_ptr(), y.as_mut_ptr().cast(), k as i64) };
    let vec_dot = |w: &[u8]| {
        let mut dot = 0.0;
        // SAFETY: both rows have `k` values.
        unsafe { share::vec_dot(kind)(k as i32, &mut dot, 0, w.as_ptr().cast(), 0, y.as_ptr().cast(), 0, 1) };
        dot
    };
    w.chunks(kind.row_bytes(k)).map(vec_dot).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn expected(kind: Kind, w: &[u8], x: &[f32], k: usize) -> Vec<f32> {
    product(Path::Scalar, kind, w, x, k, 1)
}

/// Rows of `k` values as this path rounds them, in `memory`.
fn rounded(path: Path, kind: Kind, x: &[f32], k: usize, nth: usize, memory: &mut Vec<u64>) -> Rows {
    let shape = Shape { n: x.len() / k, k, format: kind.format() };
    if FLOATS.contains(&kind) {
        // SAFETY: rows of `k` values.
        return unsafe { Rows::plain(shape, x.as_ptr().cast_mut().cast(), k * 4) };
    }
    *memory = vec![0u64; shape.n_bytes().div_ceil(8)];
    // SAFETY: enough bytes.
    let rows = unsafe { Rows::new(shape, memory.as_mut_ptr().cast()) };
    let input = Input { data: x.as_ptr().cast(), row_bytes: k * 4 };
    // SAFETY: the input has this shape.
    (0..nth).for_each(|ith| unsafe { quantise::share(&rows, &input, path, ith, nth) });
    rows
}

fn product(path: Path, kind: Kind, w: &[u8], x: &[f32], k: usize, nth: usize) -> Vec<f32> {
    let m = w.len() / kind.row_bytes(k);
    let mut memory = vec![];
    let rows = rounded(path, kind, x, k, nth, &mut memory);
    let mut out = vec![f32::NAN; m * rows.shape.n];
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
    let expected: Vec<f32> = x.chunks(k).flat_map(|x| expected(kind, w, x, k)).collect();
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
fn the_best_path_of_the_processor_is_taken() {
    let available = Path::available();
    #[cfg(target_arch = "x86_64")]
    let wants: &[(Path, bool)] = &[
        (Path::Avx512, is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vl")),
        (Path::Avx2, is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")),
    ];
    #[cfg(target_arch = "aarch64")]
    let wants: &[(Path, bool)] = &[(Path::Neon, std::arch::is_aarch64_feature_detected!("dotprod"))];
    let best = wants.iter().find(|p| p.1).map(|p| p.0);
    // Nothing at all where ggml was compiled for less than the processor has.
    assert!(available.is_empty() || available.last() == Some(&Path::Scalar));
    if let (Some(best), false) = (best, available.is_empty()) {
        assert_eq!(available[0], best);
    }
    if cfg!(target_arch = "aarch64") {
        assert!(!available.is_empty());
    }
    if std::env::var_os("NEXTN_KERNELS").is_none() {
        assert_eq!(Path::chosen(), available.first().copied().filter(|p| *p != Path::Scalar));
    }
}

#[test]
fn every_path_has_the_bits_of_one_row_alone() {
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
fn every_path_rounds_alike() {
    for kind in [Kind::Q8_0, Kind::Q4K] {
        let k = 1024;
        let mut x = noise(k * 8, 13);
        // Of all sizes that are not left to ggml, one block of zeros, ties, and equal sizes of both signs.
        x[k..2 * k].iter_mut().for_each(|x| *x *= 1e-35);
        x[2 * k..3 * k].iter_mut().for_each(|x| *x *= 1e38);
        x[3 * k..3 * k + 256].fill(0.0);
        x[4 * k..5 * k].iter_mut().enumerate().for_each(|(i, x)| *x = (i as i32 % 255 - 127) as f32 / 2.0);
        x[5 * k..6 * k].iter_mut().enumerate().for_each(|(i, x)| *x = if i % 3 == 1 { 0.75 } else { -0.75 });
        for nth in [1, 3] {
            let mut memory = vec![];
            let bytes = |path, memory: &mut Vec<u64>| -> Vec<u8> {
                let rows = rounded(path, kind, &x, k, nth, memory);
                let n_bytes = k / kind.format().block() * if kind == Kind::Q8_0 { 36 } else { 320 };
                // SAFETY: so many bytes of each row were written or are zero.
                (0..8).flat_map(|j| unsafe { std::slice::from_raw_parts(rows.row(j), n_bytes) }.to_vec()).collect()
            };
            let wanted = bytes(Path::Scalar, &mut memory);
            for path in Path::available() {
                assert!(bytes(path, &mut memory) == wanted, "{path:?} {kind:?} nth {nth}");
            }
        }
    }
}

/// Weights of any bytes whose scales are all about 1e-3.
fn tame(kind: Kind, n_bytes: usize, seed: u32) -> Vec<u8> {
    let mut w: Vec<u8> = noise(n_bytes, seed).iter().map(|x| (x * 128.0) as i8 as u8).collect();
    let at: &[usize] = match kind {
        Kind::Q8_0 | Kind::Q4_0 => &[0],
        Kind::Q4K | Kind::Q5K => &[0, 2],
        Kind::Q6K => &[208],
        Kind::F32 => &[2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62],
        Kind::F16 | Kind::BF16 => &[0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30],
    };
    for block in w.chunks_mut(kind.block_bytes()) {
        at.iter().for_each(|&at| block[at + 1] = block[at + 1] & 0x81 | 0x14);
    }
    w
}

#[test]
fn sums_are_close_to_exact_ones() {
    for kind in KINDS {
        let (k, m, n) = (3584, 8, 3);
        let (w, x) = (tame(kind, m * kind.row_bytes(k), 14), noise(k * n, 15));
        let mut values = vec![0f32; k * m];
        // SAFETY: the table is static and has every type.
        let traits = unsafe { sys::ggml_get_type_traits(kind.raw()) };
        // SAFETY: an entry of ggml's static table.
        let to_float = unsafe { (*traits).to_float }.unwrap();
        // SAFETY: room for all values.
        unsafe { to_float(w.as_ptr().cast(), values.as_mut_ptr(), (k * m) as i64) };
        let mut memory = vec![];
        let rows = rounded(Path::Scalar, kind, &x, k, 1, &mut memory);
        let quant = |j: usize, i: usize| {
            let (quant, scale, bias) = match kind.format() {
                Format::Q8_0 => {
                    let (quants, scale) = rows.block(j, i / 32);
                    (quants.wrapping_add(i % 32), scale, BIAS)
                }
                _ => {
                    let record = rows.record(j, i / 256);
                    (record.wrapping_add(i % 256), record.wrapping_add(record::SCALE).cast(), 0)
                }
            };
            // SAFETY: within the block or record.
            let quant = unsafe { *quant } ^ bias;
            // SAFETY: the scale of that block.
            f64::from(quant as i8) * f64::from(unsafe { *scale })
        };
        for (at, is) in product(Path::Scalar, kind, &w, &x, k, 1).into_iter().enumerate() {
            let (j, i) = (at / m, at % m);
            // The quants are within half a step of the values; their own test says how they are made.
            let parts: Vec<f64> = (0..k).map(|l| f64::from(values[i * k + l]) * quant(j, l)).collect();
            let (exact, size) = (parts.iter().sum::<f64>(), parts.iter().map(|p| p.abs()).sum::<f64>());
            assert!((f64::from(is) - exact).abs() < 1e-6 * size, "{kind:?}: {is}, exactly {exact}, of {size}");
            assert!((0..k).all(|l| (quant(j, l) - f64::from(x[j * k + l])).abs() < 0.0045), "{kind:?}");
        }
    }
}

#[test]
fn bits_are_those_of_every_other_processor() {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = |x: &[f32]| x.iter().flat_map(|x| x.to_bits().to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, fnv);
    // Seen on x86-64.
    let wanted: [u64; 8] = [
        0x589f_825a_6a8d_3995,
        0xe60a_d30f_8b2c_971a,
        0xd000_e894_b898_abcb,
        0xdaa8_cb35_d851_8e37,
        0xe5d2_0602_447d_5fcf,
        0x3bcc_e302_a0b0_7e4d,
        0x6ba2_781b_0c72_7829,
        0x067d_d5df_37e3_efa3,
    ];
    let mut seen = [0; 8];
    let mut paths = Path::available();
    paths.push(Path::Scalar);
    for path in paths {
        for (kind, seen) in KINDS.into_iter().chain(FLOATS).zip(&mut seen) {
            let (k, m) = (1024, 9);
            let out = product(path, kind, &tame(kind, m * kind.row_bytes(k), 16), &noise(k * 3, 17), k, 1);
            assert!(out.iter().all(|x| x.is_finite()), "{kind:?}");
            *seen = hash(&out);
        }
        assert_eq!(seen, wanted, "{path:?}: {seen:#018x?}");
    }
}

#[test]
fn experts_of_gathered_rows_have_the_bits_of_one_row_alone() {
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
                    unsafe { quantise::share(&rows, &input, path, ith, nth) };
                }
                for ith in 0..nth {
                    // SAFETY: the path is available, shapes fit.
                    unsafe { experts::share(path, &all, &rows, &order, out.as_mut_ptr(), ith, nth) };
                }
                for pick in &order {
                    let w = &w[pick.expert as usize * bytes..][..bytes];
                    let wanted = expected(kind, w, &x[pick.row as usize * k..][..k], k);
                    for (is, wants) in out[pick.to as usize * m..][..m].iter().copied().zip(wanted) {
                        assert!(same(is, wants), "{path:?} {kind:?} nth {nth}: {is:e}, not {wants:e}");
                    }
                }
            }
        }
    }
}
