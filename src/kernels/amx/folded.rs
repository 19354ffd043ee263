//! The K types and types of few bits: a step is a block of 256 values.
//!
//! A block's scales are whole numbers, so they are multiplied into its weights. What is left are whole numbers of 16 bits, in two
//! bytes, and one float for the block: products of 64 values need no scale between them, where sums of 16 or 32 would need one each.
//! Integers are exact, so bits are those of kernels that multiply sums with scales.

use std::arch::x86_64::*;

use super::columns::Columns;
use super::lanes::{Lanes, before, store};
use super::step::{Products, Rows, Step};
use super::tiles::Tiles;
use crate::activations::record;
use crate::avx512::q4k_q5k::{Head, values};
use crate::avx512::q6k::{pairs_of_scales, six_bits};
use crate::avx512::rows::{
    blocks, byte_of_lane, everywhere, float, halves, signed_byte_of_lane, sixteen_bytes, thirty_two_bytes,
};
use crate::low_bits::{Layout, Register};
use crate::weight_type::{WeightType, q4k_q5k, q6k};

/// A block of sixteen rows.
#[repr(C, align(64))]
pub(super) struct Folded {
    /// Low bytes of weights times scales, without signs: values `4i` to `4i + 3` of every row in register `i`.
    low: [__m512i; 64],
    /// High bytes, with signs.
    high: [__m512i; 64],
    d: __m512,
    /// The scale of minima.
    dmin: __m512,
    /// Minima, two in the words of a lane: four registers for 32 values each, eight for 16 each.
    mins: [__m512i; 8],
}

/// Registers of minima that blocks of a type have.
fn registers_of_mins(ty: WeightType) -> usize {
    match ty {
        WeightType::Q4K | WeightType::Q5K => 4,
        WeightType::Q2K => 8,
        _ => 0,
    }
}

impl Step for Folded {
    const BLOCKS: usize = 1;
    const TILE_BYTES: usize = 64;

    fn has_mins(ty: WeightType) -> bool {
        registers_of_mins(ty) > 0
    }

    #[inline(always)]
    unsafe fn multiply(&self, tiles: &mut Tiles, x: &Columns, j: usize, l: usize, products: &mut Products) {
        let quants = x.column(j).wrapping_add(l * record::BYTES);
        // SAFETY: a record begins with 256 quants; `high` lies behind `low` (the caller's for the rest).
        unsafe { tiles.two_products_of_256(quants, x.stride, self.low.as_ptr().cast(), &mut products.0[0]) };
    }

    #[inline(always)]
    unsafe fn add(
        &self,
        ty: WeightType,
        products: &Products,
        x: &Columns,
        j: usize,
        l: usize,
        sums: [&mut [Lanes]; 2],
    ) {
        // SAFETY: the caller's; so many registers hold minima.
        unsafe {
            match registers_of_mins(ty) {
                0 => self.add_with::<0>(products, x, j, l, sums),
                4 => self.add_with::<4>(products, x, j, l, sums),
                _ => self.add_with::<8>(products, x, j, l, sums),
            }
        }
    }
}

impl Folded {
    /// With so many registers of minima.
    ///
    /// # Safety
    /// That of [`Step::add`].
    #[inline(always)]
    unsafe fn add_with<const MINS: usize>(
        &self,
        products: &Products,
        x: &Columns,
        j: usize,
        l: usize,
        [sums, mins]: [&mut [Lanes]; 2],
    ) {
        let [low, high] = &products.0[0];
        let sums_of_quants = if MINS == 4 { record::SUMS_32 } else { record::SUMS_16 };
        let mut record = x.column(j).wrapping_add(l * record::BYTES);
        for (((sum, min), low), high) in sums.iter_mut().zip(mins).zip(low).zip(high) {
            // SAFETY: the column has a record `l` (the caller).
            unsafe {
                let dy = float(record.add(record::SCALE));
                let high = _mm512_slli_epi32::<8>(_mm512_loadu_si512(high.as_ptr().cast()));
                let whole = _mm512_add_epi32(high, _mm512_loadu_si512(low.as_ptr().cast()));
                let d = _mm512_mul_ps(dy, self.d);
                store(_mm512_fmadd_ps(d, _mm512_cvtepi32_ps(whole), before(l, sum)), sum);
                if MINS > 0 {
                    let mut whole = _mm512_setzero_si512();
                    for (p, &pair) in self.mins[..MINS].iter().enumerate() {
                        whole = _mm512_dpwssd_epi32(whole, pair, everywhere(record.add(sums_of_quants + 4 * p)));
                    }
                    let d = _mm512_mul_ps(dy, self.dmin);
                    store(_mm512_fnmadd_ps(d, _mm512_cvtepi32_ps(whole), before(l, min)), min);
                }
            }
            record = record.wrapping_add(x.stride);
        }
    }

    /// Keeps 32 signed values of each row, the first 16 times the one scale, the others times the other.
    ///
    /// # Safety
    /// The CPU has AVX-512 F and BW; `s < 8`.
    #[inline(always)]
    unsafe fn keep(&mut self, s: usize, w: &[__m512i; 8], scales: [__m512i; 2]) {
        // SAFETY: the caller's.
        unsafe {
            let first = _mm512_set1_epi16(0x00ff);
            for (c, &w) in w.iter().enumerate() {
                let scale = scales[c / 4];
                let scale = _mm512_mask_blend_epi16(0xaaaa_aaaa, scale, _mm512_slli_epi32::<16>(scale));
                let even = _mm512_mullo_epi16(_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(w)), scale);
                let odd = _mm512_mullo_epi16(_mm512_srai_epi16::<8>(w), scale);
                // first ? a : b
                self.low[8 * s + c] = _mm512_ternarylogic_epi32::<0xca>(first, even, _mm512_slli_epi16::<8>(odd));
                self.high[8 * s + c] = _mm512_ternarylogic_epi32::<0xca>(first, _mm512_srli_epi16::<8>(even), odd);
            }
        }
    }

    /// Of `Q4K`, or `Q5K` if `FIVE`.
    ///
    /// # Safety
    /// The rows have a block `l`, and are joined if `JOINED`; the CPU has AVX-512 F, BW, DQ and VL.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) unsafe fn of_q4_or_q5<const FIVE: bool, const JOINED: bool>(&mut self, rows: &Rows, l: usize, _: usize) {
        let bytes = const { if FIVE { WeightType::Q5K.block_bytes() } else { WeightType::Q4K.block_bytes() } };
        // SAFETY: the caller's.
        unsafe {
            let blocks = blocks::<JOINED>(rows, l, bytes);
            let head = Head::read::<JOINED>(&blocks);
            [self.d, self.dmin] = head.d;
            self.mins[..4].copy_from_slice(&head.pairs_of_mins());
            let high = match FIVE {
                true => thirty_two_bytes::<JOINED>(&blocks, q4k_q5k::HIGH),
                false => [_mm512_setzero_si512(); 8],
            };
            for pair in 0..4 {
                let both = thirty_two_bytes::<JOINED>(&blocks, bytes - 128 + 32 * pair);
                for s in [2 * pair, 2 * pair + 1] {
                    let scale = byte_of_lane(head.scales[s / 4], s as i32 % 4);
                    self.keep(s, &values::<FIVE>(&both, &high, s), [scale; 2]);
                }
            }
        }
    }

    /// Of `Q6K`.
    ///
    /// # Safety
    /// As [`Folded::of_q4_or_q5`].
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) unsafe fn of_q6<const JOINED: bool>(&mut self, rows: &Rows, l: usize, _: usize) {
        // SAFETY: the caller's.
        unsafe {
            let blocks = blocks::<JOINED>(rows, l, WeightType::Q6K.block_bytes());
            let (nibble, pair) = (_mm512_set1_epi8(15), _mm512_set1_epi8(0x30));
            self.d = halves::<JOINED>(&blocks, q6k::SCALE);
            let scales = sixteen_bytes::<JOINED>(&blocks, q6k::SCALES);
            for h in 0..2 {
                let high = thirty_two_bytes::<JOINED>(&blocks, q6k::HIGH + 32 * h);
                for odd in 0..2 {
                    let low = thirty_two_bytes::<JOINED>(&blocks, 64 * h + 32 * odd);
                    for quarter in [odd, odd + 2] {
                        let mut w = low;
                        for (w, high) in w.iter_mut().zip(high) {
                            let six = six_bits(*w, high, quarter, nibble, pair);
                            *w = _mm512_sub_epi8(six, _mm512_set1_epi8(32));
                        }
                        let s = 4 * h + quarter;
                        let at = s as i32 % 2 * 2;
                        let scale = [at, at + 1].map(|at| signed_byte_of_lane(scales[s / 2], at));
                        self.keep(s, &w, scale);
                    }
                }
            }
        }
    }

    /// Of a type of few bits.
    ///
    /// # Safety
    /// As [`Folded::of_q4_or_q5`]; rows are not joined.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) unsafe fn of_low_bits<L: Layout<__m512i>>(&mut self, rows: &Rows, l: usize, _: usize) {
        // SAFETY: the caller's.
        unsafe {
            let blocks = blocks::<false>(rows, l, L::TYPE.block_bytes());
            let head = L::head(&blocks);
            self.d = head.d;
            if let Some((dmin, mins)) = &head.mins {
                self.dmin = *dmin;
                self.mins = pairs_of_scales(mins);
            }
            for pass in 0..L::PASSES {
                let packed = L::packed(&blocks, pass);
                for part in 0..8 / L::PASSES {
                    let s = pass * (8 / L::PASSES) + part;
                    let mut w = L::weights(&head.more, &packed, s);
                    for w in &mut w {
                        *w = _mm512_sub_epi8(*w, _mm512_set1_epi8(L::BIAS as i8));
                    }
                    let two = head.scales[s / 2].right(s % 2 * 16);
                    self.keep(s, &w, [signed_byte_of_lane(two, 0), signed_byte_of_lane(two, 1)]);
                }
            }
        }
    }
}
