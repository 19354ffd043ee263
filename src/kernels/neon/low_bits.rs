//! Types of few bits ([`crate::low_bits`]): four rows times up to eight columns, 32 values after the other. Values get their sign back:
//! the dot product of bytes takes it.

use std::arch::aarch64::*;

use super::registers::add_16;
use super::rows::{blocks, halves, signed_byte, sixteen_bytes, words};
use crate::activations::{ColumnTile, MAX_COLUMNS, float, record};
use crate::low_bits::{Layout, Register, by_layout};
use crate::prefetch::prefetch;
use crate::tile::{Dots, GROUP, RowGroup};
use crate::weight_type::WeightType;

/// Of a type of few bits.
///
/// # Safety
/// The tile contract; the CPU has the dot product.
pub(crate) unsafe fn by_type(ty: WeightType, group: &RowGroup, y: &ColumnTile) -> Dots {
    // SAFETY: the contract of this function.
    unsafe { by_layout!(ty, kernel, group, y) }
}

/// # Safety
/// That of [`by_type`].
#[target_feature(enable = "neon,dotprod")]
unsafe fn kernel<L: Layout<uint8x16_t>>(group: &RowGroup, y: &ColumnTile) -> Dots {
    let bytes = const { L::TYPE.block_bytes() };
    let columns = &y.columns[..y.n];
    let mut sums = [vdupq_n_f32(0.0); MAX_COLUMNS];
    let mut minima = sums;
    for l in 0..y.n_blocks {
        prefetch(group.ahead.wrapping_add(l * GROUP * bytes), GROUP * bytes);
        let blocks = blocks(&group.rows, l, bytes);
        // SAFETY: `l` is below the number of blocks and of records.
        unsafe {
            let head = L::head(&blocks);
            let mut whole = [vdupq_n_s32(0); MAX_COLUMNS];
            for pass in 0..L::PASSES {
                let packed = L::packed(&blocks, pass);
                for part in 0..8 / L::PASSES {
                    let s = pass * (8 / L::PASSES) + part;
                    let mut w = [vdupq_n_s8(0); 8];
                    for (w, more) in w.iter_mut().zip(L::weights(&head.more, &packed, s)) {
                        *w = vreinterpretq_s8_u8(vsubq_u8(more, vdupq_n_u8(L::BIAS)));
                    }
                    let scale = [signed_byte(&head.scales, 2 * s), signed_byte(&head.scales, 2 * s + 1)];
                    for (whole, column) in whole.iter_mut().zip(columns) {
                        let q = column.add(l * record::BYTES + 32 * s);
                        *whole = add_16::<0>(*whole, scale[0], &w[..4], q);
                        *whole = add_16::<16>(*whole, scale[1], &w[4..], q);
                    }
                }
            }
            for (j, column) in columns.iter().enumerate() {
                let record = column.add(l * record::BYTES);
                let dy = float(record.add(record::SCALE));
                sums[j] = vfmaq_f32(sums[j], vcvtq_f32_s32(whole[j]), vmulq_n_f32(head.d, dy));
                if let Some((dmin, mins)) = &head.mins {
                    let mut min = vdupq_n_s32(0);
                    for i in 0..16 {
                        let sum = record.add(record::SUMS_16).cast::<i16>().add(i).read();
                        min = vmlaq_n_s32(min, signed_byte(mins, i), sum.into());
                    }
                    minima[j] = vfmsq_f32(minima[j], vcvtq_f32_s32(min), vmulq_n_f32(*dmin, dy));
                }
            }
        }
    }
    let mut dots = Dots::default();
    for (dots, (sum, minima)) in dots.iter_mut().zip(sums.into_iter().zip(minima)) {
        let sum = if L::MINS { vaddq_f32(sum, minima) } else { sum };
        // SAFETY: room for four floats.
        unsafe { vst1q_f32(dots.as_mut_ptr(), sum) };
    }
    dots
}

impl Register for uint8x16_t {
    type Blocks = [*const u8; GROUP];
    type Floats = float32x4_t;

    #[inline(always)]
    unsafe fn sixteen_bytes(blocks: &Self::Blocks, at: usize) -> [Self; 4] {
        // SAFETY: the caller's.
        unsafe { sixteen_bytes(blocks, at) }
    }

    #[inline(always)]
    unsafe fn word(blocks: &Self::Blocks, at: usize) -> Self {
        // SAFETY: the caller's.
        unsafe { vreinterpretq_u8_u32(words(blocks, at)) }
    }

    #[inline(always)]
    unsafe fn half(blocks: &Self::Blocks, at: usize) -> float32x4_t {
        // SAFETY: the caller's.
        unsafe { halves(blocks, at) }
    }

    #[inline(always)]
    unsafe fn low_half(self) -> float32x4_t {
        // SAFETY: the caller's.
        unsafe { vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vreinterpretq_u32_u8(self)))) }
    }

    #[inline(always)]
    unsafe fn times(x: float32x4_t, factor: f32) -> float32x4_t {
        // SAFETY: the caller's.
        unsafe { vmulq_n_f32(x, factor) }
    }

    #[inline(always)]
    unsafe fn every(word: u32) -> Self {
        // SAFETY: the caller's.
        unsafe { vreinterpretq_u8_u32(vdupq_n_u32(word)) }
    }

    #[inline(always)]
    unsafe fn and(self, other: Self) -> Self {
        // SAFETY: the caller's.
        unsafe { vandq_u8(self, other) }
    }

    #[inline(always)]
    unsafe fn or(self, other: Self) -> Self {
        // SAFETY: the caller's.
        unsafe { vorrq_u8(self, other) }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller's.
        unsafe { veorq_u8(self, other) }
    }

    #[inline(always)]
    unsafe fn add_bytes(self, other: Self) -> Self {
        // SAFETY: the caller's.
        unsafe { vaddq_u8(self, other) }
    }

    #[inline(always)]
    unsafe fn sub_bytes(self, other: Self) -> Self {
        // SAFETY: the caller's.
        unsafe { vsubq_u8(self, other) }
    }

    #[inline(always)]
    unsafe fn left(self, n: usize) -> Self {
        // SAFETY: the caller's.
        unsafe { vreinterpretq_u8_u32(vshlq_u32(vreinterpretq_u32_u8(self), vdupq_n_s32(n as i32))) }
    }

    #[inline(always)]
    unsafe fn right(self, n: usize) -> Self {
        // SAFETY: the caller's.
        unsafe { vreinterpretq_u8_u32(vshlq_u32(vreinterpretq_u32_u8(self), vdupq_n_s32(-(n as i32)))) }
    }

    #[inline(always)]
    unsafe fn look_up(self, table: &[u8; 16]) -> Self {
        // SAFETY: 16 bytes; the rest is the caller's.
        unsafe { vqtbl1q_u8(vld1q_u8(table.as_ptr()), self) }
    }

    #[inline(always)]
    unsafe fn byte(self, n: usize) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let first = vdupq_n_u8(n as u8);
            let lanes = vreinterpretq_u8_u64(vcombine_u64(
                vcreate_u64(0x0404_0404_0000_0000),
                vcreate_u64(0x0c0c_0c0c_0808_0808),
            ));
            vqtbl1q_u8(self, vaddq_u8(first, lanes))
        }
    }

    #[inline(always)]
    unsafe fn negated(self, signs: Self, bit: Self) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let minus = vtstq_u8(signs, bit);
            vsubq_u8(veorq_u8(self, minus), minus)
        }
    }

    #[inline(always)]
    unsafe fn spread(self, high: bool) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let first = vdupq_n_u8(if high { 2 } else { 0 });
            // Numbers beyond 15 give a zero.
            let lanes = vcombine_u64(vcreate_u64(0xf005_f004_f001_f000), vcreate_u64(0xf00d_f00c_f009_f008));
            vqtbl1q_u8(self, vaddq_u8(first, vreinterpretq_u8_u64(lanes)))
        }
    }

    #[inline(always)]
    unsafe fn four_by_byte(grid: &[u32], choices: &Self, n: usize) -> Self {
        // SAFETY: the caller's.
        unsafe { entries(grid.as_ptr(), choices.right(8 * n).and(Self::every(0xff))) }
    }

    #[inline(always)]
    unsafe fn four_by_half(grid: &[u32], choices: &Self, n: usize) -> Self {
        // SAFETY: the caller's.
        unsafe { entries(grid.as_ptr(), choices.right(16 * n).and(Self::every(0xffff))) }
    }

    #[inline(always)]
    unsafe fn eight_by_byte(grid: &[u64], choices: &Self, n: usize) -> [Self; 2] {
        // SAFETY: the caller's.
        unsafe { pairs(grid.as_ptr(), choices.right(8 * n).and(Self::every(0xff))) }
    }

    #[inline(always)]
    unsafe fn eight_by_half(grid: &[u64], choices: &Self, n: usize) -> [Self; 2] {
        // SAFETY: the caller's.
        unsafe { pairs(grid.as_ptr(), choices.right(16 * n).and(Self::every(0xffff))) }
    }
}

/// Words of a table, chosen by lanes.
///
/// # Safety
/// The table has them.
#[inline(always)]
unsafe fn entries(table: *const u32, choices: uint8x16_t) -> uint8x16_t {
    // SAFETY: the caller's.
    unsafe {
        let [a, b, c, d] = lanes(choices);
        let x = vld1q_dup_u32(table.add(a));
        let x = vld1q_lane_u32::<1>(table.add(b), x);
        let x = vld1q_lane_u32::<2>(table.add(c), x);
        vreinterpretq_u8_u32(vld1q_lane_u32::<3>(table.add(d), x))
    }
}

/// Pairs of words of a table: the first of each, and the second.
///
/// # Safety
/// As [`entries`].
#[inline(always)]
unsafe fn pairs(table: *const u64, choices: uint8x16_t) -> [uint8x16_t; 2] {
    // SAFETY: the caller's.
    unsafe {
        let [a, b, c, d] = lanes(choices);
        let (x, y) = (vld1q_dup_u64(table.add(a)), vld1q_dup_u64(table.add(c)));
        let (x, y) = (vld1q_lane_u64::<1>(table.add(b), x), vld1q_lane_u64::<1>(table.add(d), y));
        let (x, y) = (vreinterpretq_u32_u64(x), vreinterpretq_u32_u64(y));
        [vreinterpretq_u8_u32(vuzp1q_u32(x, y)), vreinterpretq_u8_u32(vuzp2q_u32(x, y))]
    }
}

/// The lanes of a register.
///
/// # Safety
/// The CPU has NEON.
#[inline(always)]
unsafe fn lanes(x: uint8x16_t) -> [usize; GROUP] {
    // SAFETY: the caller's.
    unsafe {
        let x = vreinterpretq_u32_u8(x);
        let lanes = [vgetq_lane_u32::<0>(x), vgetq_lane_u32::<1>(x), vgetq_lane_u32::<2>(x), vgetq_lane_u32::<3>(x)];
        lanes.map(|lane| lane as usize)
    }
}
