//! Every instruction set that this CPU has, bit for bit against the scalar one; that one against exact sums, and against sums
//! of every processor.

use ggml_sys as sys;

use crate::activations::record;
use crate::experts::{self, Experts, Route};
use crate::isa::Isa;
use crate::joined::{join_rows, reads};
use crate::slices::{self, Columns};
use crate::weight_type::{ActivationFormat, WeightType};

const QUANTISED: [WeightType; 20] = [
    WeightType::Q8_0,
    WeightType::Q4_0,
    WeightType::Q4K,
    WeightType::Q5K,
    WeightType::Q6K,
    WeightType::IQ4NL,
    WeightType::Q5_0,
    WeightType::MXFP4,
    WeightType::Q4_1,
    WeightType::Q5_1,
    WeightType::Q2K,
    WeightType::Q3K,
    WeightType::IQ4XS,
    WeightType::IQ3XXS,
    WeightType::IQ3S,
    WeightType::IQ2XXS,
    WeightType::IQ2XS,
    WeightType::IQ2S,
    WeightType::IQ1S,
    WeightType::IQ1M,
];

/// Whose sums have an order of our own.
const FLOATS: [WeightType; 3] = [WeightType::F32, WeightType::F16, WeightType::BF16];

/// Numbers in [-1, 1), the same every time.
fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..n).map(next).collect()
}

/// Weight rows of this type, by ggml's own function.
fn weights(ty: WeightType, x: &[f32], k: usize) -> Vec<u8> {
    // SAFETY: no preconditions. ggml's dot products, which columns with a NaN are left to, read tables that it fills.
    unsafe { sys::ggml_cpu_init() };
    let m = x.len() / k;
    let mut w = vec![0u8; m * ty.row_bytes(k)];
    // All values count alike; some types want to be told.
    let counts = vec![1f32; k];
    // SAFETY: room for `m` rows of `k` values, each of which has its weight.
    unsafe {
        sys::ggml_quantize_chunk(ty.raw(), x.as_ptr(), w.as_mut_ptr().cast(), 0, m as i64, k as i64, counts.as_ptr())
    };
    w
}

fn product(isa: Isa, ty: WeightType, w: &[u8], x: &[f32], k: usize, n_threads: usize) -> Vec<f32> {
    let columns = Columns::new(isa, ty.format(), x, k, n_threads);
    let mut out = vec![f32::NAN; w.len() / ty.row_bytes(k) * (x.len() / k)];
    slices::product(isa, ty, w, &columns, n_threads, &mut out);
    out
}

/// Equal bits; which NaN it is, is left open.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

fn check(ty: WeightType, w: &[u8], x: &[f32], k: usize) {
    // Column by column.
    let expected: Vec<f32> = x.chunks(k).flat_map(|x| product(Isa::Scalar, ty, w, x, k, 1)).collect();
    for isa in Isa::available() {
        for nth in 1..=4 {
            let out = product(isa, ty, w, x, k, nth);
            for (i, (&is, &wants)) in out.iter().zip(&expected).enumerate() {
                let n = x.len() / k;
                assert!(same(is, wants), "{isa:?} {ty:?} k {k} n {n} nth {nth}: {i} is {is:e}, not {wants:e}");
            }
        }
    }
}

#[test]
fn the_best_instruction_set_of_the_processor_is_taken() {
    let available = Isa::available();
    #[cfg(target_arch = "x86_64")]
    let wants: &[(Isa, bool)] = &[
        (Isa::Amx, crate::amx::tiles::available()),
        (Isa::Avx512, is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vl")),
        (Isa::AvxVnni, is_x86_feature_detected!("avxvnni") && is_x86_feature_detected!("f16c")),
        (Isa::Avx2, is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")),
    ];
    #[cfg(target_arch = "aarch64")]
    let wants: &[(Isa, bool)] = &[
        (
            Isa::I8mm,
            std::arch::is_aarch64_feature_detected!("dotprod") && std::arch::is_aarch64_feature_detected!("i8mm"),
        ),
        (Isa::Neon, std::arch::is_aarch64_feature_detected!("dotprod")),
    ];
    let best = wants.iter().find(|p| p.1).map(|p| p.0);
    // Nothing at all where ggml was compiled for less than the processor has.
    assert!(available.is_empty() || available.last() == Some(&Isa::Scalar));
    if let (Some(best), false) = (best, available.is_empty()) {
        assert_eq!(available[0], best);
    }
    if cfg!(target_arch = "aarch64") {
        assert!(!available.is_empty());
    }
    if std::env::var_os("NEXTN_KERNELS").is_none() {
        assert_eq!(Isa::chosen(), available.first().copied().filter(|p| !p.is_reference()));
    }
}

#[test]
fn every_instruction_set_has_the_bits_of_one_column_alone() {
    for ty in QUANTISED {
        let block = ty.format().block();
        for (k, m) in [(block, 1), (block, 7), (1024, 33), (3584, 10)] {
            let w = weights(ty, &noise(k * m, 1), k);
            for n in 1..=16 {
                check(ty, &w, &noise(k * n, 2 + n as u32), k);
            }
        }
    }
}

#[test]
fn floats_have_the_bits_of_the_scalar_kernels_which_is_close_to_exact() {
    for ty in FLOATS {
        for (k, m) in [(16, 1), (16, 7), (1024, 33), (3584, 10)] {
            let w = weights(ty, &noise(k * m, 1), k);
            let value = |i: usize| match ty {
                WeightType::F32 => f64::from(f32::from_le_bytes(std::array::from_fn(|b| w[4 * i + b]))),
                WeightType::BF16 => f64::from(f32::from_le_bytes([0, 0, w[2 * i], w[2 * i + 1]])),
                // SAFETY: no preconditions.
                _ => f64::from(unsafe { sys::ggml_fp16_to_fp32(u16::from_le_bytes([w[2 * i], w[2 * i + 1]])) }),
            };
            for n in 1..=8 {
                let x = noise(k * n, 2 + n as u32);
                let wanted = product(Isa::Scalar, ty, &w, &x, k, 1);
                for (i, &is) in wanted.iter().enumerate() {
                    let exact: f64 = (0..k).map(|l| value(i % m * k + l) * f64::from(x[i / m * k + l])).sum();
                    // Sums of up to 224 products of at most 1 in each lane, in floats; 1.1e-5 was seen.
                    assert!((f64::from(is) - exact).abs() < 3e-5, "{ty:?} k {k}: {is}, exactly {exact}");
                }
                for isa in Isa::available() {
                    for nth in [1, 2, 3] {
                        let out = product(isa, ty, &w, &x, k, nth);
                        assert!(out.iter().zip(&wanted).all(|(a, b)| same(*a, *b)), "{isa:?} {ty:?} k {k} n {n}");
                    }
                }
            }
        }
    }
}

#[test]
fn many_columns_in_panels_too() {
    for ty in QUANTISED {
        let (k, m) = (3584, 45);
        check(ty, &weights(ty, &noise(k * m, 3), k), &noise(k * 19, 4), k);
        // Several panels of joined rows, some rows and columns beside them; a column that is no number, scales of any bits.
        let (k, m) = (1024, 300);
        let mut x = noise(k * 35, 6);
        x[17 * k + 5] = f32::NAN;
        check(ty, &weights(ty, &noise(k * m, 5), k), &x, k);
        let (k, m) = (512, 9);
        let w: Vec<u8> = noise(m * ty.row_bytes(k), 7).iter().map(|x| (x * 128.0) as i8 as u8).collect();
        check(ty, &w, &noise(k * 21, 8), k);
    }
}

#[test]
fn any_bytes_are_a_weight() {
    for ty in QUANTISED {
        let (k, m) = (512, 9);
        // Scales of any bits, infinities and NaN among them.
        let w: Vec<u8> = noise(m * ty.row_bytes(k), 5).iter().map(|x| (x * 128.0) as i8 as u8).collect();
        check(ty, &w, &noise(k * 3, 6), k);
    }
}

#[test]
fn weights_of_minus_128_and_columns_of_zero_nan_infinity_and_next_to_nothing_too() {
    for ty in QUANTISED {
        let (k, m) = (512, 5);
        let mut w = weights(ty, &noise(k * m, 9), k);
        if ty == WeightType::Q8_0 {
            w[2..34].fill(0x80);
        } else if ty == WeightType::Q4_0 {
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
        check(ty, &w, &x, k);
    }
}

#[test]
fn every_instruction_set_rounds_alike() {
    for ty in [WeightType::Q8_0, WeightType::Q4K] {
        let k = 1024;
        let mut x = noise(k * 8, 13);
        // Of all sizes that are not left to ggml, one block of zeros, ties, and equal sizes of both signs.
        x[k..2 * k].iter_mut().for_each(|x| *x *= 1e-35);
        x[2 * k..3 * k].iter_mut().for_each(|x| *x *= 1e38);
        x[3 * k..3 * k + 256].fill(0.0);
        x[4 * k..5 * k].iter_mut().enumerate().for_each(|(i, x)| *x = (i as i32 % 255 - 127) as f32 / 2.0);
        x[5 * k..6 * k].iter_mut().enumerate().for_each(|(i, x)| *x = if i % 3 == 1 { 0.75 } else { -0.75 });
        for nth in [1, 3] {
            let bytes = |isa: Isa| -> Vec<u8> {
                let columns = Columns::new(isa, ty.format(), &x, k, nth);
                let n_bytes = k / ty.format().block() * if ty == WeightType::Q8_0 { 36 } else { 320 };
                let column = |j: usize| {
                    // SAFETY: so many bytes of each column were written or are zero.
                    unsafe { std::slice::from_raw_parts(columns.activations.column(j), n_bytes) }
                };
                let mut all: Vec<Vec<u8>> = (0..8).map(|j| column(j).to_vec()).collect();
                if ty == WeightType::Q8_0 {
                    all.iter_mut().flat_map(|column| &mut column[..k]).for_each(|q| *q ^= isa.bias());
                }
                all.concat()
            };
            let wanted = bytes(Isa::Scalar);
            for isa in Isa::available() {
                assert!(bytes(isa) == wanted, "{isa:?} {ty:?} nth {nth}");
            }
        }
    }
}

/// Weights of any bytes whose scales are all about 1e-3.
fn tame(ty: WeightType, n_bytes: usize, seed: u32) -> Vec<u8> {
    let mut w: Vec<u8> = noise(n_bytes, seed).iter().map(|x| (x * 128.0) as i8 as u8).collect();
    let at: &[usize] = match ty {
        WeightType::Q8_0 | WeightType::Q4_0 | WeightType::IQ4NL | WeightType::Q5_0 => &[0],
        WeightType::MXFP4 => &[],
        WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q4K | WeightType::Q5K => &[0, 2],
        WeightType::Q6K => &[208],
        WeightType::Q2K => &[80, 82],
        WeightType::Q3K => &[108],
        WeightType::IQ1M => &[],
        WeightType::F32 => &[2, 6, 10, 14, 18, 22, 26, 30, 34, 38, 42, 46, 50, 54, 58, 62],
        WeightType::F16 | WeightType::BF16 => &[0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30],
        _ => &[0],
    };
    for block in w.chunks_mut(ty.block_bytes()) {
        at.iter().for_each(|&at| block[at + 1] = block[at + 1] & 0x81 | 0x14);
        if ty == WeightType::MXFP4 {
            block[0] = 117 + (block[0] & 3);
        }
        if ty == WeightType::IQ1M {
            // The factor's upper bits are those of the last of four words.
            block[55] = block[55] & 0x8f | 0x10;
            block[53] = block[53] & 0x0f | 0x40;
        }
    }
    w
}

#[test]
fn sums_are_close_to_exact_ones() {
    for ty in QUANTISED {
        let (k, m, n) = (3584, 8, 3);
        let (w, x) = (tame(ty, m * ty.row_bytes(k), 14), noise(k * n, 15));
        let mut values = vec![0f32; k * m];
        // SAFETY: the table is static and has every type.
        let traits = unsafe { sys::ggml_get_type_traits(ty.raw()) };
        // SAFETY: an entry of ggml's static table.
        let to_float = unsafe { (*traits).to_float }.unwrap();
        // SAFETY: room for all values.
        unsafe { to_float(w.as_ptr().cast(), values.as_mut_ptr(), (k * m) as i64) };
        let columns = Columns::new(Isa::Scalar, ty.format(), &x, k, 1);
        let quant = |j: usize, i: usize| {
            let (quant, scale, bias) = match ty.format() {
                ActivationFormat::Q8_0 => {
                    let (quants, scale) = columns.activations.block(j, i / 32);
                    (quants.wrapping_add(i % 32), scale, Isa::Scalar.bias())
                }
                _ => {
                    let record = columns.activations.record(j, i / 256);
                    (record.wrapping_add(i % 256), record.wrapping_add(record::SCALE).cast(), 0)
                }
            };
            // SAFETY: within the block or record.
            let quant = unsafe { *quant } ^ bias;
            // SAFETY: the scale of that block.
            f64::from(quant as i8) * f64::from(unsafe { *scale })
        };
        for (at, is) in product(Isa::Scalar, ty, &w, &x, k, 1).into_iter().enumerate() {
            let (j, i) = (at / m, at % m);
            // The quants are within half a step of the values; their own test says how they are made.
            let parts: Vec<f64> = (0..k).map(|l| f64::from(values[i * k + l]) * quant(j, l)).collect();
            let (exact, size) = (parts.iter().sum::<f64>(), parts.iter().map(|p| p.abs()).sum::<f64>());
            assert!((f64::from(is) - exact).abs() < 1e-6 * size, "{ty:?}: {is}, exactly {exact}, of {size}");
            assert!((0..k).all(|l| (quant(j, l) - f64::from(x[j * k + l])).abs() < 0.0045), "{ty:?}");
        }
    }
}

#[test]
fn bits_are_those_of_every_other_processor() {
    let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = |x: &[f32]| x.iter().flat_map(|x| x.to_bits().to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, fnv);
    // Seen on x86-64.
    let wanted: [u64; 23] = [
        0xe7d4_01aa_4e6d_f462,
        0x3cbb_7d1e_7350_44d1,
        0xa004_60d8_cbde_cd33,
        0xe6e8_9560_441f_e6ce,
        0xd222_a207_cf21_4000,
        0x3aca_3223_6884_ee15,
        0x82a2_0978_a50f_85b2,
        0x3a2c_0388_8b15_7d57,
        0x552e_5d62_09d2_87be,
        0x6dd5_799b_9fd6_1894,
        0xf164_c014_6ec9_a1ab,
        0xdb99_d184_f1c0_100e,
        0xc7f1_1c66_d7ff_3e97,
        0xaa32_43d1_9237_9bb0,
        0x504b_2c62_190e_876a,
        0x0884_a5e0_f1ca_ad6f,
        0x3d18_5e02_8dca_c830,
        0xf6d0_df0a_e26a_4c1a,
        0x8b96_fa9f_2df5_a120,
        0x693d_721f_b85b_f01c,
        0x3bcc_e302_a0b0_7e4d,
        0x6ba2_781b_0c72_7829,
        0x067d_d5df_37e3_efa3,
    ];
    let mut seen = [0; 23];
    let mut paths = Isa::available();
    paths.push(Isa::Scalar);
    for isa in paths {
        for (ty, seen) in QUANTISED.into_iter().chain(FLOATS).zip(&mut seen) {
            let (k, m) = (1024, 9);
            let out = product(isa, ty, &tame(ty, m * ty.row_bytes(k), 16), &noise(k * 3, 17), k, 1);
            assert!(out.iter().all(|x| x.is_finite()), "{ty:?}");
            *seen = hash(&out);
        }
        assert_eq!(seen, wanted, "{isa:?}: {seen:#018x?}");
    }
}

#[test]
fn experts_of_gathered_columns_have_the_bits_of_one_column_alone() {
    for ty in QUANTISED {
        let (k, m, n_expert, n) = (512, 10, 5, 19);
        let w = weights(ty, &noise(k * m * n_expert, 11), k);
        let mut x = noise(k * n, 12);
        x[3 * k + 7] = f32::NAN;
        // Expert 2 gets more columns than a kernel takes at a time, expert 3 none.
        let expert = |i: usize| [2, 0, 2, 4, 2, 1, 2][i % 7];
        let mut order: Vec<Route> =
            (0..2 * n).map(|to| Route { expert: expert(to), from: (to / 2) as u32, to: to as u32 }).collect();
        order.sort_unstable();
        let bytes = m * ty.row_bytes(k);
        let all = Experts { ty, data: w.as_ptr(), joined: std::ptr::null(), n_rows: m, bytes };
        for isa in Isa::available() {
            for nth in [1, 2, 3] {
                let columns = Columns::new(isa, ty.format(), &x, k, nth);
                let mut out = vec![0.0f32; 2 * n * m];
                for ith in 0..nth {
                    // SAFETY: the CPU has the instructions; weights, columns, routes and results fit each other.
                    unsafe {
                        experts::on_thread(isa, &all, &columns.activations, &order, out.as_mut_ptr(), ith, nth);
                    };
                }
                for route in &order {
                    let w = &w[route.expert as usize * bytes..][..bytes];
                    let wanted = product(Isa::Scalar, ty, w, &x[route.from as usize * k..][..k], k, 1);
                    for (is, wants) in out[route.to as usize * m..][..m].iter().copied().zip(wanted) {
                        assert!(same(is, wants), "{isa:?} {ty:?} nth {nth}: {is:e}, not {wants:e}");
                    }
                }
            }
        }
    }
}

/// A joined copy, for the instruction sets that read one.
fn joined(ty: WeightType, w: &[u8], k: usize) -> Vec<u8> {
    let mut joined = vec![0; w.len()];
    join_rows(ty, w, k, &mut joined);
    joined
}

#[test]
fn a_joined_copy_has_the_bits_of_rows_as_they_lie() {
    for isa in Isa::available() {
        for ty in QUANTISED.into_iter().filter(|&ty| reads(isa, ty)) {
            for (k, m) in [(ty.format().block(), 8), (1024, 40), (3584, 16)] {
                let w = weights(ty, &noise(k * m, 21), k);
                let joined = joined(ty, &w, k);
                for n in (1..=9).chain([19, 40]) {
                    let mut x = noise(k * n, 22);
                    // Left to ggml, which reads the rows as they lie.
                    x[n / 2 * k + 3] = f32::NAN;
                    let columns = Columns::new(isa, ty.format(), &x, k, 1);
                    let wanted = product(isa, ty, &w, &x, k, 1);
                    for nth in 1..=4 {
                        let mut out = vec![f32::NAN; m * n];
                        slices::product_joined(isa, ty, &w, Some(&joined), &columns, nth, &mut out);
                        assert!(out.iter().zip(&wanted).all(|(a, b)| same(*a, *b)), "{isa:?} {ty:?} k {k} n {n} {nth}");
                    }
                }
            }
        }
    }
}

#[test]
fn joined_experts_have_the_bits_of_those_as_they_lie() {
    for isa in Isa::available() {
        for ty in QUANTISED.into_iter().filter(|&ty| reads(isa, ty)) {
            let (k, m, n_expert, n) = (512, 24, 3, 12);
            let w = weights(ty, &noise(k * m * n_expert, 23), k);
            let joined = joined(ty, &w, k);
            let route = |to: usize| Route { expert: [2, 0, 2][to % 3], from: (to / 2) as u32, to: to as u32 };
            let mut order: Vec<Route> = (0..2 * n).map(route).collect();
            order.sort_unstable();
            let columns = Columns::new(isa, ty.format(), &noise(k * n, 24), k, 1);
            let with = |joined: *const u8, nth: usize| {
                let all = Experts { ty, data: w.as_ptr(), joined, n_rows: m, bytes: m * ty.row_bytes(k) };
                let mut out = vec![f32::NAN; 2 * n * m];
                for ith in 0..nth {
                    // SAFETY: the CPU has the instructions; weights, columns, routes and results fit each other.
                    unsafe { experts::on_thread(isa, &all, &columns.activations, &order, out.as_mut_ptr(), ith, nth) };
                }
                out
            };
            let wanted = with(std::ptr::null(), 1);
            for nth in 1..=3 {
                let out = with(joined.as_ptr(), nth);
                assert!(out.iter().zip(&wanted).all(|(a, b)| same(*a, *b)), "{isa:?} {ty:?} nth {nth}");
            }
        }
    }
}
