//! Activations rounded as ggml rounds them, in the order in which kernels read them.
//!
//! On x86-64 with AVX2 by the same operations as ggml's functions; blocks with NaN, infinities or numbers so small that a
//! factor overflows go through ggml's own.

// Loads, stores and the pointers into them belong together.
#![allow(clippy::multiple_unsafe_ops_per_block)]

use std::ffi::c_void;

use ggml_sys as sys;

use super::kind::Format;
use super::rows::{BIAS, Rows, record};

/// Rows of F32.
pub(super) struct Input {
    pub(super) data: *const u8,
    pub(super) row_bytes: usize,
}

type FromFloat = unsafe extern "C" fn(*const f32, *mut c_void, i64);

fn from_float(format: Format) -> FromFloat {
    // SAFETY: the table is static and has every type.
    let traits = unsafe { sys::ggml_get_type_traits_cpu(format.raw()) };
    // SAFETY: an entry of ggml's static table.
    unsafe { &*traits }.from_float.expect("a type of activations")
}

/// The share of thread `ith` of `nth`.
///
/// # Safety
/// `input` has the shape of `rows`; each thread comes once. `wide`: the CPU has AVX2.
pub(super) unsafe fn share(rows: &Rows, input: &Input, wide: bool, ith: usize, nth: usize) {
    let (n, n_blocks, block) = (rows.shape.n, rows.shape.n_blocks(), rows.shape.format.block());
    let from_float = from_float(rows.shape.format);
    let mut odd = false;
    for at in n * n_blocks * ith / nth..n * n_blocks * (ith + 1) / nth {
        let (j, l) = (at / n_blocks, at % n_blocks);
        let x = input.data.wrapping_add(j * input.row_bytes + l * block * size_of::<f32>()).cast::<f32>();
        // SAFETY: block `l` lies within row `j` on both sides; this thread alone has it.
        unsafe {
            match rows.shape.format {
                Format::Q8_0 => {
                    let (quants, scale) = rows.block(j, l);
                    odd |= block_32(from_float, wide, x, quants, scale);
                }
                Format::Q8K => block_256(from_float, wide, x, rows.record(j, l)),
                Format::F32 => debug_assert!(false, "floats are read as they are"),
            }
        }
    }
    // SAFETY: once for each thread.
    unsafe { rows.note_odd(ith, nth, odd) }
}

/// 32 values; true if a quant is -128.
///
/// # Safety
/// `x` has 32 values, `quants` room for 32; `scale` is aligned. `wide`: the CPU has AVX2.
unsafe fn block_32(from_float: FromFloat, wide: bool, x: *const f32, quants: *mut u8, scale: *mut f32) -> bool {
    #[cfg(target_arch = "x86_64")]
    if wide {
        // SAFETY: the caller's promise.
        if let Some(odd) = unsafe { x86::block_32(x, quants, scale) } {
            return odd;
        }
    }
    let _ = wide;
    let mut raw = [0u16; 17];
    // SAFETY: a block has 34 bytes.
    unsafe { from_float(x, raw.as_mut_ptr().cast(), 32) };
    // SAFETY: no preconditions.
    let as_float = unsafe { sys::ggml_fp16_to_fp32(raw[0]) };
    // SAFETY: aligned (the caller's promise).
    unsafe { *scale = as_float };
    let mut odd = false;
    for (i, pair) in raw[1..].iter().enumerate() {
        let pair = pair.to_ne_bytes();
        odd |= pair.contains(&(i8::MIN as u8));
        // SAFETY: 32 bytes of room.
        unsafe { *quants.wrapping_add(2 * i).cast::<[u8; 2]>() = pair.map(|q| q ^ BIAS) };
    }
    odd
}

/// 256 values.
///
/// # Safety
/// `x` has 256 values; `to` is a record. `wide`: the CPU has AVX2.
unsafe fn block_256(from_float: FromFloat, wide: bool, x: *const f32, to: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    if wide && unsafe { x86::block_256(x, to) } {
        return;
    }
    let _ = wide;
    // Scale, 256 quants, 16 sums. ggml leaves the sums of a block of zeros as they are.
    let mut raw = [0u32; 73];
    // SAFETY: a block has 292 bytes.
    unsafe { from_float(x, raw.as_mut_ptr().cast(), 256) };
    let quants = raw[1..65].iter().flat_map(|q| q.to_ne_bytes());
    for (i, q) in quants.enumerate() {
        // SAFETY: 256 bytes of room.
        unsafe { *to.wrapping_add(i) = q };
    }
    let sums = raw[65..].iter().flat_map(|s| [*s as u16, (*s >> 16) as u16]).map(|s| s as i16);
    let sums: [i16; 16] = std::array::from_fn(|i| sums.clone().nth(i).unwrap_or(0));
    let sums = if cfg!(target_endian = "big") { std::array::from_fn(|i| sums[i ^ 1]) } else { sums };
    // SAFETY: parts of the record, which is aligned to its line.
    unsafe {
        *to.add(record::SCALE).cast::<f32>() = f32::from_bits(raw[0]);
        *to.add(record::SUMS_16).cast::<[i16; 16]>() = sums;
        *to.add(record::SUMS_32).cast::<[i16; 8]>() =
            std::array::from_fn(|i| sums[2 * i].wrapping_add(sums[2 * i + 1]));
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! By 256-bit registers.

    use std::arch::x86_64::*;

    use super::{BIAS, record};

    /// The largest lane.
    #[target_feature(enable = "avx2")]
    fn largest(x: __m256i) -> u32 {
        let x = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
        let x = _mm_max_epi32(x, _mm_shuffle_epi32::<0b01_00_11_10>(x));
        _mm_cvtsi128_si32(_mm_max_epi32(x, _mm_shuffle_epi32::<0b10_11_00_01>(x))) as u32
    }

    /// 32 floats times `factor`, rounded to bytes, in order.
    #[target_feature(enable = "avx2")]
    fn pack(x: [__m256; 4], factor: f32) -> __m256i {
        let factor = _mm256_set1_ps(factor);
        let i = x.map(|x| _mm256_cvtps_epi32(_mm256_mul_ps(x, factor)));
        let i = _mm256_packs_epi16(_mm256_packs_epi32(i[0], i[1]), _mm256_packs_epi32(i[2], i[3]));
        _mm256_permutevar8x32_epi32(i, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
    }

    /// `None`: not for this code.
    ///
    /// # Safety
    /// As `super::block_32`.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn block_32(x: *const f32, quants: *mut u8, scale: *mut f32) -> Option<bool> {
        // SAFETY: 32 values.
        let x: [__m256; 4] = std::array::from_fn(|i| unsafe { _mm256_loadu_ps(x.add(8 * i)) });
        let no_sign = _mm256_set1_epi32(0x7fff_ffff);
        let sizes = x.map(|x| _mm256_and_si256(_mm256_castps_si256(x), no_sign));
        let most = _mm256_max_epi32(_mm256_max_epi32(sizes[0], sizes[1]), _mm256_max_epi32(sizes[2], sizes[3]));
        let most = f32::from_bits(largest(most));
        if !most.is_finite() {
            return None;
        }
        let half = _mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm_set_ss(most / 127.0));
        let factor = if most == 0.0 { 0.0 } else { 127.0 / most };
        if !factor.is_finite() {
            return None;
        }
        let q = pack(x, factor);
        // SAFETY: room for 32 bytes, and for the scale.
        unsafe {
            _mm256_storeu_si256(quants.cast(), _mm256_xor_si256(q, _mm256_set1_epi8(BIAS as i8)));
            *scale = _mm_cvtss_f32(_mm_cvtph_ps(half));
        }
        Some(_mm256_movemask_epi8(_mm256_cmpeq_epi8(q, _mm256_set1_epi8(i8::MIN))) != 0)
    }

    /// False: not for this code.
    ///
    /// # Safety
    /// As `super::block_256`.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn block_256(x: *const f32, to: *mut u8) -> bool {
        let no_sign = _mm256_set1_epi32(0x7fff_ffff);
        let mut most = _mm256_setzero_si256();
        // SAFETY: 256 values.
        let load = |i: usize| unsafe { _mm256_loadu_ps(x.add(8 * i)) };
        for i in 0..32 {
            most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(load(i)), no_sign));
        }
        let bits = largest(most);
        if !f32::from_bits(bits).is_finite() {
            return false;
        }
        // The factor takes the sign of the first value of that size.
        let wanted = _mm256_set1_epi32(bits as i32);
        let found = |i: &usize| {
            let size = _mm256_and_si256(_mm256_castps_si256(load(*i)), no_sign);
            _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(size, wanted))) != 0
        };
        let first = (0..32).find(found).unwrap_or(0);
        let size = _mm256_and_si256(_mm256_castps_si256(load(first)), no_sign);
        let lane = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(size, wanted))).trailing_zeros() & 7;
        // SAFETY: below 256.
        let first = unsafe { *x.add(8 * first + lane as usize) };
        let factor = if bits == 0 { 0.0 } else { -127.0 / first };
        if !factor.is_finite() {
            return false;
        }
        let scale = if bits == 0 { 0.0 } else { 1.0 / factor };
        let ones = _mm256_set1_epi16(1);
        let mut sums = [0i16; 16];
        for s in 0..8 {
            let q = pack(std::array::from_fn(|i| load(4 * s + i)), factor);
            // SAFETY: room for 256 bytes.
            unsafe { _mm256_storeu_si256(to.add(32 * s).cast(), q) };
            let words = [_mm256_castsi256_si128(q), _mm256_extracti128_si256::<1>(q)].map(|h| _mm256_cvtepi8_epi16(h));
            for (h, words) in words.into_iter().enumerate() {
                let sum = _mm256_madd_epi16(words, ones);
                let sum = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
                let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b01_00_11_10>(sum));
                let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b10_11_00_01>(sum));
                sums[2 * s + h] = _mm_cvtsi128_si32(sum) as i16;
            }
        }
        // SAFETY: parts of the record, which is aligned to its line.
        unsafe {
            *to.add(record::SCALE).cast::<f32>() = scale;
            *to.add(record::SUMS_16).cast::<[i16; 16]>() = sums;
            *to.add(record::SUMS_32).cast::<[i16; 8]>() = std::array::from_fn(|i| sums[2 * i] + sums[2 * i + 1]);
        }
        true
    }
}
