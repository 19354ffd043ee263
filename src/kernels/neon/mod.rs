//! Products with NEON and its dot product of bytes: a file for each kind of weight. Eight lanes are two registers of four.

// No closures in kernels: those of a function with target features are not inlined into `map`.

// Loads and the pointers into them belong together.
#![allow(clippy::multiple_unsafe_ops_per_block)]

mod floats;
mod q4k_q5k;
mod q6k;
mod q8_0_q4_0;
pub(super) mod quantise;

use std::arch::aarch64::*;
use std::arch::asm;

use super::activations::Columns;
use super::dispatch::by_kind;
use super::weight_type::Kind;
use super::{Dots, Group};

/// # Safety
/// As `Path::dots`; the CPU has the features of the kernels.
pub(super) unsafe fn dots(kind: Kind, group: &Group, y: &Columns) -> Dots {
    // SAFETY: the caller's promise.
    unsafe { by_kind!(kind, group, y) }
}

/// Asks for the `n` bytes from `p` on. Addresses past the weight are harmless: a prefetch never faults.
#[inline(always)]
fn prefetch(p: *const u8, n: usize) {
    for line in (0..n).step_by(64) {
        // SAFETY: every 64-bit ARM CPU has the instruction; it never faults and changes nothing.
        unsafe {
            asm!("prfm pldl1keep, [{}]", in(reg) p.wrapping_add(line), options(readonly, nostack, preserves_flags))
        };
    }
}

/// Lane `t` of the result: the sum of the products of bytes `4t` to `4t + 3`. There is no stable intrinsic for it.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot(a: int8x16_t, b: int8x16_t) -> int32x4_t {
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
fn upper(x: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
    [vshrq_n_u8::<4>(x[0]), vshrq_n_u8::<4>(x[1])]
}

/// 32 bytes.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load(p: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: the caller's promise.
    unsafe { [vld1q_u8(p), vld1q_u8(p.add(16))] }
}

/// 32 quants of a row.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn quants(p: *const u8) -> [int8x16_t; 2] {
    // SAFETY: the caller's promise.
    unsafe { [vld1q_s8(p.cast()), vld1q_s8(p.add(16).cast())] }
}

/// The half at `p` as a float.
///
/// # Safety
/// It can be read.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn half(p: *const u8) -> f32 {
    // SAFETY: the caller's promise.
    let half = unsafe { p.cast::<u16>().read_unaligned() };
    vgetq_lane_f32::<0>(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))))
}

/// Sums eight lanes in ggml's order.
#[inline]
#[target_feature(enable = "neon")]
pub(super) fn tree(x: [float32x4_t; 2]) -> f32 {
    pairs(vaddq_f32(x[1], x[0]))
}

/// Lanes 0 and 2 and lanes 1 and 3, then both together.
#[inline]
#[target_feature(enable = "neon")]
fn pairs(x: float32x4_t) -> f32 {
    vpadds_f32(vadd_f32(vget_low_f32(x), vget_high_f32(x)))
}
