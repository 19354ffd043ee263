//! Pairs of weight rows and pairs of columns: a register has a number for the first row with the first column, for the first row
//! with the second column, then for the second row.

use std::arch::aarch64::*;
use std::arch::asm;

use crate::tile::{Dots, GROUP};

/// Pairs of the rows of a group.
pub(crate) const PAIRS: usize = GROUP / 2;

/// `sum`, in each lane with the products of the eight bytes of a row in `w` and of a column in `q` more. There is no stable
/// intrinsic for it.
#[inline]
#[target_feature(enable = "neon,i8mm")]
pub(crate) fn multiply(mut sum: int32x4_t, w: int8x16_t, q: int8x16_t) -> int32x4_t {
    // SAFETY: the CPU has the instruction; registers alone are read and written.
    unsafe {
        asm!("smmla {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sum, in(vreg) w, in(vreg) q,
            options(pure, nomem, nostack, preserves_flags));
    }
    sum
}

/// `sum` and the products of 32 bytes of each row and column.
#[inline]
#[target_feature(enable = "neon,i8mm")]
pub(crate) fn multiply_32(mut sum: int32x4_t, w: &[int8x16_t; 4], q: &[int8x16_t; 4]) -> int32x4_t {
    for (&w, &q) in w.iter().zip(q) {
        sum = multiply(sum, w, q);
    }
    sum
}

/// 32 quants of each column of a pair.
///
/// # Safety
/// 64 bytes can be read at `p`.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn quants(p: *const u8) -> [int8x16_t; 4] {
    let p = p.cast::<i8>();
    // SAFETY: 64 bytes can be read at `p` (the caller).
    unsafe { [vld1q_s8(p), vld1q_s8(p.add(16)), vld1q_s8(p.add(32)), vld1q_s8(p.add(48))] }
}

/// `sum` and `scale` times the products of 16 bytes of each row with those of each column of a pair, from `AT` bytes behind `p`
/// on. The instructions stay together: by itself the compiler computes the products of a whole block first, and keeps them on
/// the stack.
///
/// # Safety
/// 32 bytes can be read there; the CPU has the instruction.
#[inline]
#[target_feature(enable = "neon,i8mm")]
pub(crate) unsafe fn add_16<const AT: usize>(
    mut sum: int32x4_t,
    scale: int32x4_t,
    w: &[int8x16_t],
    p: *const u8,
) -> int32x4_t {
    // SAFETY: 32 bytes are read (the caller), and registers written.
    unsafe {
        asm!(
            "movi {dot:v}.4s, #0",
            "ldp {a:q}, {b:q}, [{p}, #{at}]",
            "smmla {dot:v}.4s, {w:v}.16b, {a:v}.16b",
            "smmla {dot:v}.4s, {x:v}.16b, {b:v}.16b",
            "mla {sum:v}.4s, {dot:v}.4s, {scale:v}.4s",
            p = in(reg) p,
            at = const AT,
            sum = inout(vreg) sum,
            scale = in(vreg) scale,
            w = in(vreg) w[0],
            x = in(vreg) w[1],
            a = out(vreg) _,
            b = out(vreg) _,
            dot = out(vreg) _,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    sum
}

/// As [`add_16`], of 32 bytes of each row and column.
///
/// # Safety
/// 64 bytes can be read there; the CPU has the instruction.
#[inline]
#[target_feature(enable = "neon,i8mm")]
pub(crate) unsafe fn add_32<const AT: usize>(
    mut sum: int32x4_t,
    scale: int32x4_t,
    w: &[int8x16_t; 4],
    p: *const u8,
) -> int32x4_t {
    // SAFETY: 64 bytes are read (the caller), and registers written.
    unsafe {
        asm!(
            "movi {dot:v}.4s, #0",
            "ldp {a:q}, {b:q}, [{p}, #{at}]",
            "smmla {dot:v}.4s, {w:v}.16b, {a:v}.16b",
            "smmla {dot:v}.4s, {x:v}.16b, {b:v}.16b",
            "ldp {a:q}, {b:q}, [{p}, #{at} + 32]",
            "smmla {dot:v}.4s, {y:v}.16b, {a:v}.16b",
            "smmla {dot:v}.4s, {z:v}.16b, {b:v}.16b",
            "mla {sum:v}.4s, {dot:v}.4s, {scale:v}.4s",
            p = in(reg) p,
            at = const AT,
            sum = inout(vreg) sum,
            scale = in(vreg) scale,
            w = in(vreg) w[0],
            x = in(vreg) w[1],
            y = in(vreg) w[2],
            z = in(vreg) w[3],
            a = out(vreg) _,
            b = out(vreg) _,
            dot = out(vreg) _,
            options(pure, readonly, nostack, preserves_flags)
        );
    }
    sum
}

/// Bytes `8 i` to `8 i + 7` of both rows of pair number `pair` in register `i`, of the 16 bytes from `at` on.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn sixteen_bytes(rows: &[*const u8; GROUP], pair: usize, at: usize) -> [uint8x16_t; 2] {
    // SAFETY: 16 bytes of each row (the caller).
    let (a, b) = unsafe { (vld1q_u8(rows[2 * pair].add(at)), vld1q_u8(rows[2 * pair + 1].add(at))) };
    let (a, b) = (vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b));
    [vreinterpretq_u8_u64(vzip1q_u64(a, b)), vreinterpretq_u8_u64(vzip2q_u64(a, b))]
}

/// As [`sixteen_bytes`], of 32 bytes.
///
/// # Safety
/// As [`sixteen_bytes`].
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn thirty_two_bytes(rows: &[*const u8; GROUP], pair: usize, at: usize) -> [uint8x16_t; 4] {
    // SAFETY: the caller's.
    let ([a, b], [c, d]) = unsafe { (sixteen_bytes(rows, pair, at), sixteen_bytes(rows, pair, at + 16)) };
    [a, b, c, d]
}

/// Numbers of four rows, each twice, by pairs.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn twice(x: int32x4_t) -> [int32x4_t; PAIRS] {
    [vzip1q_s32(x, x), vzip2q_s32(x, x)]
}

/// As [`twice`], of floats.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn twice_f32(x: float32x4_t) -> [float32x4_t; PAIRS] {
    [vzip1q_f32(x, x), vzip2q_f32(x, x)]
}

/// Floats of two columns, both twice.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn floats(a: *const u8, b: *const u8) -> float32x4_t {
    // SAFETY: four bytes each (the caller).
    let both = unsafe { vld1_lane_f32::<1>(b.cast(), vld1_dup_f32(a.cast())) };
    vcombine_f32(both, both)
}

/// `whole` times `d`, added to `sum`.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn add_scaled(sum: float32x4_t, whole: int32x4_t, d: float32x4_t) -> float32x4_t {
    vfmaq_f32(sum, vcvtq_f32_s32(whole), d)
}

/// Sums of the quants of two columns, eight of each, as bytes: `sum >> 6` and `sum & 63`.
///
/// # Safety
/// 16 bytes can be read at `a` and at `b`.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn bytes_of_sums(a: *const u8, b: *const u8) -> [int8x16_t; 2] {
    // SAFETY: 16 bytes each (the caller).
    let (a, b) = unsafe { (vld1q_s16(a.cast()), vld1q_s16(b.cast())) };
    let bytes = |x: int16x8_t| vreinterpretq_s8_s16(x);
    // They have 13 bits.
    let high = vuzp2q_s8(bytes(vshlq_n_s16::<2>(a)), bytes(vshlq_n_s16::<2>(b)));
    [high, vandq_s8(vuzp1q_s8(bytes(a), bytes(b)), vdupq_n_s8(63))]
}

/// What is handed back of `P` pairs of columns.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn by_column<const P: usize>(sums: &[[float32x4_t; PAIRS]; P]) -> Dots {
    let mut dots = Dots::default();
    for (dots, [a, b]) in dots.chunks_exact_mut(2).zip(sums) {
        // SAFETY: room for four floats each.
        unsafe {
            vst1q_f32(dots[0].as_mut_ptr(), vuzp1q_f32(*a, *b));
            vst1q_f32(dots[1].as_mut_ptr(), vuzp2q_f32(*a, *b));
        }
    }
    dots
}
