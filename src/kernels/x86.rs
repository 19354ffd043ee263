//! What both x86-64 paths need.

use std::arch::x86_64::*;

/// Asks for the `n` bytes from `p` on. Addresses past the weight are harmless: a prefetch never faults.
#[inline]
pub(super) fn prefetch(p: *const u8, n: usize) {
    for line in (0..n).step_by(64) {
        // SAFETY: every x86-64 CPU has the instruction; it never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(line).cast()) };
    }
}

/// Sums eight lanes in ggml's order.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn tree(x: __m256) -> f32 {
    let sum = _mm_add_ps(_mm256_extractf128_ps::<1>(x), _mm256_castps256_ps128(x));
    let sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)))
}
