//! Activations rounded by 256-bit registers.

use std::arch::x86_64::*;

use crate::activations::record;

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
/// As `quantise::block_32`.
#[target_feature(enable = "avx2,f16c")]
pub(crate) unsafe fn block_32(x: *const f32, quants: *mut u8, scale: *mut f32, bias: u8) -> Option<bool> {
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
        _mm256_storeu_si256(quants.cast(), _mm256_xor_si256(q, _mm256_set1_epi8(bias as i8)));
        *scale = _mm_cvtss_f32(_mm_cvtph_ps(half));
    }
    Some(_mm256_movemask_epi8(_mm256_cmpeq_epi8(q, _mm256_set1_epi8(i8::MIN))) != 0)
}

/// False: not for this code.
///
/// # Safety
/// As `quantise::block_256`.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn block_256(x: *const f32, to: *mut u8) -> bool {
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
