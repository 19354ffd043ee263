//! Sums of eight lanes in ggml's order: lanes `t` and `t + 4`, then `t` and `t + 2` of these, then both.

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Eight lanes in an array.
pub(crate) fn sum_array(x: [f32; 8]) -> f32 {
    let four = |i: usize| x[i + 4] + x[i];
    (four(0) + four(2)) + (four(1) + four(3))
}

/// Eight lanes in a register.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2")]
pub(crate) fn sum_lanes(x: __m256) -> f32 {
    let sum = _mm_add_ps(_mm256_extractf128_ps::<1>(x), _mm256_castps256_ps128(x));
    let sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)))
}

/// Eight lanes in two registers.
#[cfg(target_arch = "aarch64")]
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn sum_lanes(x: [float32x4_t; 2]) -> f32 {
    sum_pairs(vaddq_f32(x[1], x[0]))
}

/// Lanes 0 and 2 and lanes 1 and 3, then both together.
#[cfg(target_arch = "aarch64")]
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn sum_pairs(x: float32x4_t) -> f32 {
    vpadds_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x)))
}
