//! Loads, scales and sums in registers of 512 bits.

use std::arch::x86_64::*;

use crate::lanes::sum_lanes;

/// 32 bytes of each of two weight rows.
///
/// # Safety
/// 32 bytes can be read at each.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn pair(low: *const u8, high: *const u8) -> __m512i {
    // SAFETY: 32 bytes can be read at each (the caller).
    let (low, high) = unsafe { (_mm256_loadu_si256(low.cast()), _mm256_loadu_si256(high.cast())) };
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// 32 bytes, twice.
///
/// # Safety
/// 32 bytes can be read at `p`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn twice(p: *const u8) -> __m512i {
    // SAFETY: 32 bytes can be read at `p` (the caller).
    _mm512_broadcast_i64x4(unsafe { _mm256_loadu_si256(p.cast()) })
}

/// A float of a column in all lanes.
///
/// # Safety
/// Four bytes can be read at `p`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn float(p: *const u8) -> __m512 {
    // SAFETY: four bytes can be read at `p` (the caller).
    _mm512_set1_ps(unsafe { p.cast::<f32>().read_unaligned() })
}

/// Four F16 scales, first two in the halves of one register, then the other two.
#[inline]
#[target_feature(enable = "avx512f,f16c")]
pub(crate) fn scales(halves: [u16; 4]) -> [__m512; 2] {
    let [a, b, c, d] = halves.map(u64::from);
    let halves = a | b << 16 | c << 32 | d << 48;
    by_rows(_mm_cvtph_ps(_mm_cvtsi64_si128(halves as i64)))
}

/// Four scales, as [`scales`].
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn by_rows(scales: __m128) -> [__m512; 2] {
    let floats = _mm512_castps128_ps512(scales);
    let first = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    let second = _mm512_set_epi32(3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2);
    [_mm512_permutexvar_ps(first, floats), _mm512_permutexvar_ps(second, floats)]
}

/// A half of a block.
///
/// # Safety
/// Two bytes can be read at `p`.
#[inline]
pub(crate) unsafe fn half(p: *const u8) -> u16 {
    // SAFETY: two bytes can be read at `p` (the caller).
    unsafe { p.cast::<u16>().read_unaligned() }
}

/// Sums the lanes of each of four weight rows in ggml's order.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(crate) fn sum_lanes_of_four(sums: &[__m512; 2]) -> [f32; 4] {
    let low = sums.map(|s| sum_lanes(_mm512_castps512_ps256(s)));
    let high = sums.map(|s| sum_lanes(_mm512_extractf32x8_ps::<1>(s)));
    [low[0], high[0], low[1], high[1]]
}
