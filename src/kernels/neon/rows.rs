//! Four weight rows side by side: lane `r` of a register belongs to row `r`. One conversion to
//! float and one fused multiply-add a block then serve four rows.

use std::arch::aarch64::*;

use super::registers::{lower, upper};
use crate::tile::GROUP;
use crate::weight_type::{mxfp4, q4k_q5k, quants};

/// Where block `l` of every row begins.
#[inline(always)]
pub(crate) fn blocks(rows: &[*const u8; GROUP], l: usize, bytes: usize) -> [*const u8; GROUP] {
    let mut blocks = *rows;
    for block in &mut blocks {
        *block = block.wrapping_add(l * bytes);
    }
    blocks
}

/// Bytes `4c` to `4c + 3` of every row in register `c`, of the 16 bytes from `at` on.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn sixteen_bytes(rows: &[*const u8; GROUP], at: usize) -> [uint8x16_t; 4] {
    let mut x = [vdupq_n_u32(0); GROUP];
    for (x, row) in x.iter_mut().zip(rows) {
        // SAFETY: 16 bytes of each row (the caller).
        *x = vreinterpretq_u32_u8(unsafe { vld1q_u8(row.add(at)) });
    }
    let even = [vtrn1q_u32(x[0], x[1]), vtrn1q_u32(x[2], x[3])];
    let odd = [vtrn2q_u32(x[0], x[1]), vtrn2q_u32(x[2], x[3])];
    let [a, b, c, d] = [even[0], even[1], odd[0], odd[1]];
    [low_halves(a, b), low_halves(c, d), high_halves(a, b), high_halves(c, d)]
}

/// As [`sixteen_bytes`], of 32 bytes.
///
/// # Safety
/// As [`sixteen_bytes`].
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn thirty_two_bytes(rows: &[*const u8; GROUP], at: usize) -> [uint8x16_t; 8] {
    // SAFETY: the caller's.
    let ([a, b, c, d], [e, f, g, h]) = unsafe { (sixteen_bytes(rows, at), sixteen_bytes(rows, at + 16)) };
    [a, b, c, d, e, f, g, h]
}

/// The low eight bytes of both.
#[inline]
#[target_feature(enable = "neon")]
fn low_halves(a: uint32x4_t, b: uint32x4_t) -> uint8x16_t {
    vreinterpretq_u8_u64(vtrn1q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)))
}

/// The high eight bytes of both.
#[inline]
#[target_feature(enable = "neon")]
fn high_halves(a: uint32x4_t, b: uint32x4_t) -> uint8x16_t {
    vreinterpretq_u8_u64(vtrn2q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)))
}

/// The half at `at` of every row as a float.
///
/// # Safety
/// As [`sixteen_bytes`], of two bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn halves(rows: &[*const u8; GROUP], at: usize) -> float32x4_t {
    // SAFETY: two bytes of each row (the caller).
    let bits = unsafe {
        let bits = vld1_dup_u16(rows[0].add(at).cast());
        let bits = vld1_lane_u16::<1>(rows[1].add(at).cast(), bits);
        let bits = vld1_lane_u16::<2>(rows[2].add(at).cast(), bits);
        vld1_lane_u16::<3>(rows[3].add(at).cast(), bits)
    };
    vcvt_f32_f16(vreinterpret_f16_u16(bits))
}

/// The four bytes at `at` of every row.
///
/// # Safety
/// As [`sixteen_bytes`], of four bytes.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn words(rows: &[*const u8; GROUP], at: usize) -> uint32x4_t {
    // SAFETY: four bytes of each row (the caller).
    unsafe {
        let words = vld1q_dup_u32(rows[0].add(at).cast());
        let words = vld1q_lane_u32::<1>(rows[1].add(at).cast(), words);
        let words = vld1q_lane_u32::<2>(rows[2].add(at).cast(), words);
        vld1q_lane_u32::<3>(rows[3].add(at).cast(), words)
    }
}

/// The scales of blocks of these weights.
///
/// # Safety
/// The blocks can be read.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn scales<const QUANTS: usize>(blocks: &[*const u8; GROUP]) -> float32x4_t {
    // SAFETY: a block begins with its scale, which is one byte for `POWERS`, with 16 behind it (the caller).
    unsafe {
        if QUANTS != quants::POWERS {
            return halves(blocks, 0);
        }
        let exponent = vandq_u32(words(blocks, 0), vdupq_n_u32(0xff));
        let [two, one] = [mxfp4::scale(2), mxfp4::scale(0)].map(f32::to_bits);
        let normal = vaddq_u32(vshlq_n_u32::<23>(exponent), vdupq_n_u32(two.wrapping_sub(2 << 23)));
        let small = vshlq_u32(vdupq_n_u32(one), vreinterpretq_s32_u32(exponent));
        vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(exponent, vdupq_n_u32(2)), small, normal))
    }
}

/// The minima of blocks whose weights have one, for weights that are less ([`quants::less`]).
///
/// # Safety
/// The blocks can be read; `d` are their scales.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn minima<const QUANTS: usize>(blocks: &[*const u8; GROUP], d: float32x4_t) -> Option<float32x4_t> {
    let at = const { quants::minimum(QUANTS) }?;
    // SAFETY: a half is there (the caller).
    Some(vfmaq_f32(unsafe { halves(blocks, at) }, d, vdupq_n_f32(quants::less(QUANTS))))
}

/// The fifth bits of every row's block of `FIVES` and `FIVES_FROM`; nothing for others.
///
/// # Safety
/// The blocks can be read.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) unsafe fn fifth_bits<const QUANTS: usize>(blocks: &[*const u8; GROUP]) -> uint8x16_t {
    match QUANTS {
        // SAFETY: four bytes before the nibbles (the caller).
        quants::FIVES | quants::FIVES_FROM => unsafe { vreinterpretq_u8_u32(words(blocks, quants::start(QUANTS) - 4)) },
        _ => vdupq_n_u8(0),
    }
}

/// Which of 32 fifth bits belong to the values of a register: `bytes` of the four bytes of each of four rows, and a bit of each.
pub(crate) struct Fifths {
    pub(crate) bytes: [u8; 16],
    pub(crate) bits: [u8; 16],
}

/// What nibbles stand for: less 8, or what they choose, or with their fifth bits less 16.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn weights<const QUANTS: usize>(nibbles: uint8x16_t, fifth: uint8x16_t, which: &Fifths) -> int8x16_t {
    match QUANTS {
        quants::CHOICES | quants::POWERS => {
            // SAFETY: an array of 16 bytes.
            let values = unsafe { vld1q_s8(quants::values(QUANTS).as_ptr()) };
            vqtbl1q_s8(values, nibbles)
        }
        quants::FIVES | quants::FIVES_FROM => {
            // SAFETY: arrays of 16 bytes.
            let (bytes, bits) = unsafe { (vld1q_u8(which.bytes.as_ptr()), vld1q_u8(which.bits.as_ptr())) };
            let set = vtstq_u8(vqtbl1q_u8(fifth, bytes), bits);
            vreinterpretq_s8_u8(vsubq_u8(nibbles, vbicq_u8(vdupq_n_u8(16), set)))
        }
        _ => vsubq_s8(vreinterpretq_s8_u8(nibbles), vdupq_n_s8(8)),
    }
}

/// The nibbles of registers: the lower ones of all, then the upper ones.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn spread(packed: [uint8x16_t; 4]) -> [uint8x16_t; 8] {
    let [a, b, c, d] = packed;
    [lower(a), lower(b), lower(c), lower(d), upper(a), upper(b), upper(c), upper(d)]
}

/// What blocks of `Q4K` and `Q5K` begin with.
pub(crate) struct Head {
    /// The scale of each row.
    pub(crate) d: float32x4_t,
    /// The scale of its minima.
    pub(crate) dmin: float32x4_t,
    /// Four scales of each row in its lane, and four more.
    pub(crate) scales: [uint8x16_t; 2],
    /// Minima, likewise.
    pub(crate) mins: [int8x16_t; 2],
}

impl Head {
    /// # Safety
    /// The blocks can be read.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(crate) unsafe fn read(blocks: &[*const u8; GROUP]) -> Self {
        const { assert!(q4k_q5k::SCALE == 0 && q4k_q5k::SCALES == 4) };
        // SAFETY: a block begins with two halves, then 12 bytes of scales (the caller).
        let [halves, a, b, c] = unsafe { sixteen_bytes(blocks, 0) };
        let halves = vreinterpretq_u32_u8(halves);
        let (six, two) = (vdupq_n_u8(0x3f), vdupq_n_u8(0x30));
        let high = |x: uint8x16_t| vandq_u8(vshrq_n_u8::<2>(x), two);
        let mins = [vandq_u8(b, six), vorrq_u8(upper(c), high(b))];
        Self {
            d: vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(halves))),
            dmin: vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32::<16>(halves))),
            scales: [vandq_u8(a, six), vorrq_u8(lower(c), high(a))],
            mins: [vreinterpretq_s8_u8(mins[0]), vreinterpretq_s8_u8(mins[1])],
        }
    }

    /// Scale number `s` of each row.
    #[inline]
    #[target_feature(enable = "neon")]
    pub(crate) fn scale(&self, s: usize) -> int32x4_t {
        let words = vreinterpretq_u32_u8(self.scales[s / 4]);
        let byte = vshlq_u32(words, vdupq_n_s32(-8 * (s % 4) as i32));
        vreinterpretq_s32_u32(vandq_u32(byte, vdupq_n_u32(0xff)))
    }
}

/// Byte `at` of each row as a number with its sign, of 16 bytes of each row as [`sixteen_bytes`] gives them.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn signed_byte(x: &[uint8x16_t; 4], at: usize) -> int32x4_t {
    let up = vshlq_u32(vreinterpretq_u32_u8(x[at / 4]), vdupq_n_s32(24 - 8 * (at % 4) as i32));
    vshrq_n_s32::<24>(vreinterpretq_s32_u32(up))
}
