//! Loads, scales and sums in registers of 256 bits.

use std::arch::x86_64::*;

/// 32 bytes.
///
/// # Safety
/// 32 bytes can be read at `p`.
#[inline]
#[target_feature(enable = "avx")]
pub(crate) unsafe fn load(p: *const u8) -> __m256i {
    // SAFETY: 32 bytes can be read at `p` (the caller).
    unsafe { _mm256_loadu_si256(p.cast()) }
}

/// The half at `p` as a float.
///
/// # Safety
/// Two bytes can be read at `p`.
#[inline]
#[target_feature(enable = "f16c")]
pub(crate) unsafe fn half(p: *const u8) -> f32 {
    // SAFETY: two bytes can be read at `p` (the caller).
    let half = unsafe { p.cast::<u16>().read_unaligned() };
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(half))))
}
