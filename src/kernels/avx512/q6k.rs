//! Q6_K: a block is sixteen times 16 values.
//!
//! Unsigned weights times bytes are added in 32 bits and multiplied with the scale of the 16. The offset of 32 comes off in the
//! end: the sums of the column's quants times the scales, two at a time.

use std::arch::x86_64::*;

use super::rows::{
    add_products, blocks, by_column, everywhere, float, halves, signed_byte_of_lane, sixteen_bytes, thirty_two_bytes,
};
use crate::activations::{ColumnTile, record};
use crate::dispatch::by_columns;
use crate::prefetch::prefetch_far;
use crate::tile::{Dots, RowGroup, WIDEST};
use crate::weight_type::{WeightType, q6k};

/// # Safety
/// The tile contract, for this instruction set; if `JOINED`, for rows that `joined.rs` joined.
pub(super) unsafe fn dots<const JOINED: bool>(group: &RowGroup<WIDEST>, y: &ColumnTile) -> Dots<WIDEST> {
    // SAFETY: the tile contract, handed on; `N` is `y.n`.
    unsafe { by_columns!(kernel, (group, y), y, JOINED) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn kernel<const N: usize, const JOINED: bool>(group: &RowGroup<WIDEST>, y: &ColumnTile) -> Dots<WIDEST> {
    let bytes = const { WeightType::Q6K.block_bytes() };
    // SAFETY: `l` is below the number of blocks and of records.
    unsafe {
        let zero = _mm512_setzero_si512();
        let (nibble, pair) = (_mm512_set1_epi8(15), _mm512_set1_epi8(0x30));
        let mut sums = [_mm512_setzero_ps(); N];
        for l in 0..y.n_blocks {
            let ahead = group.ahead.wrapping_add(l * WIDEST * bytes);
            let blocks = blocks::<JOINED>(&group.rows, l, bytes);
            let scales = sixteen_bytes::<JOINED>(&blocks, q6k::SCALES);
            let mut whole = [zero; N];
            for h in 0..2 {
                let high = thirty_two_bytes::<JOINED>(&blocks, q6k::HIGH + 32 * h);
                for odd in 0..2 {
                    let low = thirty_two_bytes::<JOINED>(&blocks, 64 * h + 32 * odd);
                    for quarter in [odd, odd + 2] {
                        prefetch_far(
                            ahead.wrapping_add((4 * h + 2 * odd + quarter / 2) * WIDEST * bytes / 8),
                            WIDEST * bytes / 8,
                        );
                        let mut w = low;
                        for (w, high) in w.iter_mut().zip(high) {
                            let low = if quarter < 2 { *w } else { _mm512_srli_epi16::<4>(*w) };
                            let high = match quarter {
                                0 => _mm512_slli_epi16::<4>(high),
                                1 => _mm512_slli_epi16::<2>(high),
                                2 => high,
                                _ => _mm512_srli_epi16::<2>(high),
                            };
                            // low & nibble | high & pair
                            *w = _mm512_ternarylogic_epi32::<0xf8>(_mm512_and_si512(low, nibble), high, pair);
                        }
                        let s = 4 * h + quarter;
                        let at = s as i32 % 2 * 2;
                        let scale =
                            [signed_byte_of_lane(scales[s / 2], at), signed_byte_of_lane(scales[s / 2], at + 1)];
                        for j in 0..N {
                            let q = y.columns[j].add(l * record::BYTES + 32 * s);
                            for half in 0..2 {
                                let part = add_products(zero, &w[4 * half..4 * half + 4], q.add(16 * half));
                                whole[j] = _mm512_add_epi32(whole[j], _mm512_mullo_epi32(part, scale[half]));
                            }
                        }
                    }
                }
            }
            let d = halves::<JOINED>(&blocks, q6k::SCALE);
            let mut pairs = [zero; 8];
            for (i, both) in pairs.iter_mut().enumerate() {
                let at = i as i32 % 2 * 2;
                let [even, odd] = [signed_byte_of_lane(scales[i / 2], at), signed_byte_of_lane(scales[i / 2], at + 1)];
                *both = _mm512_mask_blend_epi16(0xaaaa_aaaa, even, _mm512_slli_epi32::<16>(odd));
            }
            for j in 0..N {
                let record = y.columns[j].add(l * record::BYTES);
                let mut offset = zero;
                for (i, &scale) in pairs.iter().enumerate() {
                    offset = _mm512_dpwssd_epi32(offset, scale, everywhere(record.add(record::SUMS_16 + 4 * i)));
                }
                let whole = _mm512_sub_epi32(whole[j], _mm512_slli_epi32::<5>(offset));
                let dy = float(record.add(record::SCALE));
                sums[j] = _mm512_fmadd_ps(_mm512_mul_ps(dy, d), _mm512_cvtepi32_ps(whole), sums[j]);
            }
        }
        by_column(&sums)
    }
}
