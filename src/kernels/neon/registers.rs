//! Loads, dot products and sums in registers of 128 bits.

// No closures in kernels: those of a function with target features are not inlined into `map`.

use std::arch::aarch64::*;
use std::arch::asm;

/// `sum`, in lane `t` with the sum of the products of bytes `4t` to `4t + 3` more. There is no stable intrinsic for it.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(crate) fn dot(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the CPU has the dot product; registers alone are read and written.
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sum, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// As [`dot`], of bytes `4 LANE` to `4 LANE + 3` of `b` alone, with which those of every lane of `a` are multiplied.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(crate) fn dot_lane<const LANE: usize>(mut sum: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: as in `dot`.
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[{lane}]", inout(vreg) sum, in(vreg) a, in(vreg) b, lane = const LANE,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// `sum` and the products of 32 bytes of each of four rows, four bytes of a row in each lane of `w`, with the 32 of a column.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(crate) fn dot_32(sum: int32x4_t, w: &[int8x16_t; 8], q: [int8x16_t; 2]) -> int32x4_t {
    let sum = dot_lane::<0>(sum, w[0], q[0]);
    let sum = dot_lane::<1>(sum, w[1], q[0]);
    let sum = dot_lane::<2>(sum, w[2], q[0]);
    let sum = dot_lane::<3>(sum, w[3], q[0]);
    let sum = dot_lane::<0>(sum, w[4], q[1]);
    let sum = dot_lane::<1>(sum, w[5], q[1]);
    let sum = dot_lane::<2>(sum, w[6], q[1]);
    dot_lane::<3>(sum, w[7], q[1])
}

/// `sum` and `scale` times the products of 16 bytes of each of four rows, four bytes of a row in each lane of `w`, with the 16
/// at `q + AT`. The instructions stay together: by itself the compiler computes the products of a whole block first, and keeps
/// them on the stack.
///
/// # Safety
/// 16 bytes can be read there; the CPU has the instruction.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(crate) unsafe fn add_16<const AT: usize>(
    mut sum: int32x4_t,
    scale: int32x4_t,
    w: &[int8x16_t],
    q: *const u8,
) -> int32x4_t {
    // SAFETY: 16 bytes are read (the caller), and registers written.
    unsafe {
        asm!(
            "movi {dot:v}.4s, #0",
            "ldr {a:q}, [{q}, #{at}]",
            "sdot {dot:v}.4s, {w0:v}.16b, {a:v}.4b[0]",
            "sdot {dot:v}.4s, {w1:v}.16b, {a:v}.4b[1]",
            "sdot {dot:v}.4s, {w2:v}.16b, {a:v}.4b[2]",
            "sdot {dot:v}.4s, {w3:v}.16b, {a:v}.4b[3]",
            "mla {sum:v}.4s, {dot:v}.4s, {scale:v}.4s",
            q = in(reg) q,
            at = const AT,
            sum = inout(vreg) sum,
            scale = in(vreg) scale,
            w0 = in(vreg) w[0],
            w1 = in(vreg) w[1],
            w2 = in(vreg) w[2],
            w3 = in(vreg) w[3],
            a = out(vreg) _,
            dot = out(vreg) _,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    sum
}

/// As [`add_16`], of 32 bytes.
///
/// # Safety
/// 32 bytes can be read there; the CPU has the instruction.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub(crate) unsafe fn add_32<const AT: usize>(
    mut sum: int32x4_t,
    scale: int32x4_t,
    w: &[int8x16_t; 8],
    q: *const u8,
) -> int32x4_t {
    // SAFETY: 32 bytes are read (the caller), and registers written.
    unsafe {
        asm!(
            "movi {dot:v}.4s, #0",
            "ldp {a:q}, {b:q}, [{q}, #{at}]",
            "sdot {dot:v}.4s, {w0:v}.16b, {a:v}.4b[0]",
            "sdot {dot:v}.4s, {w1:v}.16b, {a:v}.4b[1]",
            "sdot {dot:v}.4s, {w2:v}.16b, {a:v}.4b[2]",
            "sdot {dot:v}.4s, {w3:v}.16b, {a:v}.4b[3]",
            "sdot {dot:v}.4s, {w4:v}.16b, {b:v}.4b[0]",
            "sdot {dot:v}.4s, {w5:v}.16b, {b:v}.4b[1]",
            "sdot {dot:v}.4s, {w6:v}.16b, {b:v}.4b[2]",
            "sdot {dot:v}.4s, {w7:v}.16b, {b:v}.4b[3]",
            "mla {sum:v}.4s, {dot:v}.4s, {scale:v}.4s",
            q = in(reg) q,
            at = const AT,
            sum = inout(vreg) sum,
            scale = in(vreg) scale,
            w0 = in(vreg) w[0],
            w1 = in(vreg) w[1],
            w2 = in(vreg) w[2],
            w3 = in(vreg) w[3],
            w4 = in(vreg) w[4],
            w5 = in(vreg) w[5],
            w6 = in(vreg) w[6],
            w7 = in(vreg) w[7],
            a = out(vreg) _,
            b = out(vreg) _,
            dot = out(vreg) _,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    sum
}

/// The sums of the lanes of four registers.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn sums_of_four(x: [int32x4_t; 4]) -> int32x4_t {
    vpaddq_s32(vpaddq_s32(x[0], x[1]), vpaddq_s32(x[2], x[3]))
}

/// The upper halves of bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn upper(x: uint8x16_t) -> uint8x16_t {
    vshrq_n_u8::<4>(x)
}

/// The lower halves of bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn lower(x: uint8x16_t) -> uint8x16_t {
    vandq_u8(x, vdupq_n_u8(15))
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

/// Sums of a column's quants, which have 13 bits, as bytes: `sum >> 6` and `sum & 63` of each of eight.
///
/// # Safety
/// 16 bytes can be read at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn bytes_of_sums(p: *const u8) -> [int8x8_t; 2] {
    // SAFETY: 16 bytes can be read at `p` (the caller).
    let sums = unsafe { vld1q_s16(p.cast()) };
    [vshrn_n_s16::<6>(sums), vmovn_s16(vandq_s16(sums, vdupq_n_s16(63)))]
}
