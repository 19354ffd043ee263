//! Loads, dot products and sums in registers of 128 bits.

// No closures in kernels: those of a function with target features are not inlined into `map`.

use std::arch::aarch64::*;
use std::arch::asm;

/// Lane `t` of the result: the sum of the products of bytes `4t` to `4t + 3`. There is no stable intrinsic for it.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(crate) fn dot(a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut sum = vdupq_n_s32(0);
    // SAFETY: the CPU has the dot product; registers alone are read and written.
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sum, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// The upper halves of bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn upper(x: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
    [vshrq_n_u8::<4>(x[0]), vshrq_n_u8::<4>(x[1])]
}

/// 32 bytes.
///
/// # Safety
/// 32 bytes can be read at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn load(p: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: 32 bytes can be read at `p` (the caller).
    unsafe { [vld1q_u8(p), vld1q_u8(p.add(16))] }
}

/// 32 quants of a column.
///
/// # Safety
/// 32 bytes can be read at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn quants(p: *const u8) -> [int8x16_t; 2] {
    // SAFETY: 32 bytes can be read at `p` (the caller).
    unsafe { [vld1q_s8(p.cast()), vld1q_s8(p.add(16).cast())] }
}

/// The half at `p` as a float.
///
/// # Safety
/// Two bytes can be read at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn half(p: *const u8) -> f32 {
    // SAFETY: two bytes can be read at `p` (the caller).
    let half = unsafe { p.cast::<u16>().read_unaligned() };
    vgetq_lane_f32::<0>(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))))
}
