//! Q4_K and Q5_K: a block is eight times 32 values.
//!
//! Nibbles (with their fifth bits) times bytes are added in 32 bits and multiplied with the scale of the 32. Minima are the sums
//! of the column's quants times the minima of the 32, two at a time.

use std::arch::x86_64::*;

use super::rows::{
    add_products, blocks, by_column, byte_of_lane, bytes_as_words, everywhere, float, halves, sixteen_bytes,
    thirty_two_bytes, words,
};
use crate::activations::{ColumnTile, record};
use crate::dispatch::by_columns;
use crate::prefetch::prefetch_far;
use crate::tile::{Dots, RowGroup, WIDEST};
use crate::weight_type::{WeightType, q4k_q5k};

/// # Safety
/// The tile contract, for this instruction set; if `JOINED`, for rows that `joined.rs` joined.
pub(super) unsafe fn dots<const FIVE: bool, const JOINED: bool>(
    group: &RowGroup<WIDEST>,
    y: &ColumnTile,
) -> Dots<WIDEST> {
    // SAFETY: the tile contract, handed on; `N` is `y.n`.
    unsafe { by_columns!(kernel, (group, y), y, FIVE, JOINED) }
}

/// What a block's head says, of every row.
pub(crate) struct Head {
    /// The scale, and that of the minima.
    pub(crate) d: [__m512; 2],
    /// Scales of the 32 values number 0 to 3, a byte each; of 4 to 7.
    pub(crate) scales: [__m512i; 2],
    /// Likewise minima.
    mins: [__m512i; 2],
}

impl Head {
    /// # Safety
    /// Blocks begin at `blocks`; the CPU has AVX-512 F and BW.
    #[inline(always)]
    pub(crate) unsafe fn read<const JOINED: bool>(blocks: &[*const u8; WIDEST]) -> Self {
        // SAFETY: a block begins with 16 bytes: two halves, then the packed scales (the caller).
        unsafe {
            let (d, [a, b, c]) = match JOINED {
                true => (
                    [halves::<true>(blocks, q4k_q5k::SCALE), halves::<true>(blocks, q4k_q5k::SCALE + 2)],
                    [words::<true>(blocks, 4), words::<true>(blocks, 8), words::<true>(blocks, 12)],
                ),
                false => {
                    let [both, a, b, c] = sixteen_bytes::<false>(blocks, 0);
                    let d = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(both));
                    ([d, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(both)))], [a, b, c])
                }
            };
            let six = _mm512_set1_epi8(0x3f);
            let (four, two) = (_mm512_set1_epi8(0x0f), _mm512_set1_epi8(0x30));
            let high = [a, b].map(|x| _mm512_and_si512(_mm512_srli_epi32::<2>(x), two));
            let low = [c, _mm512_srli_epi32::<4>(c)].map(|x| _mm512_and_si512(x, four));
            Self {
                d,
                scales: [_mm512_and_si512(a, six), _mm512_or_si512(low[0], high[0])],
                mins: [_mm512_and_si512(b, six), _mm512_or_si512(low[1], high[1])],
            }
        }
    }

    /// Minima, two in the words of a lane.
    ///
    /// # Safety
    /// The CPU has AVX-512 F and BW.
    #[inline(always)]
    pub(crate) unsafe fn pairs_of_mins(&self) -> [__m512i; 4] {
        let mut pairs = [self.mins[0]; 4];
        for (i, pair) in pairs.iter_mut().enumerate() {
            let at = i as i32 % 2 * 2;
            // SAFETY: the caller's.
            *pair = unsafe { bytes_as_words(self.mins[i / 2], at, at + 1) };
        }
        pairs
    }
}

/// The 32 values number `s` of a block, whose nibbles `both` holds beside those of a neighbour: without signs, with fifth bits from
/// `high` if it is `FIVE`.
///
/// # Safety
/// The CPU has AVX-512 F and BW.
#[inline(always)]
pub(crate) unsafe fn values<const FIVE: bool>(both: &[__m512i; 8], high: &[__m512i; 8], s: usize) -> [__m512i; 8] {
    let mut w = *both;
    // SAFETY: the caller's.
    unsafe {
        let (nibble, fifth) = (_mm512_set1_epi8(15), _mm512_set1_epi8(16));
        for (w, &high) in w.iter_mut().zip(high) {
            *w = _mm512_and_si512(if s % 2 == 1 { _mm512_srli_epi16::<4>(*w) } else { *w }, nibble);
            if FIVE {
                let up = _mm512_sll_epi16(high, _mm_cvtsi32_si128(4 - s.min(4) as i32));
                let bit = _mm512_srl_epi16(up, _mm_cvtsi32_si128(s.max(4) as i32 - 4));
                // w | bit & fifth
                *w = _mm512_ternarylogic_epi32::<0xf8>(*w, bit, fifth);
            }
        }
    }
    w
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn kernel<const N: usize, const FIVE: bool, const JOINED: bool>(
    group: &RowGroup<WIDEST>,
    y: &ColumnTile,
) -> Dots<WIDEST> {
    let bytes = const { if FIVE { WeightType::Q5K.block_bytes() } else { WeightType::Q4K.block_bytes() } };
    // SAFETY: `l` is below the number of blocks and of records.
    unsafe {
        let zero = _mm512_setzero_si512();
        let columns: [*const u8; N] = std::array::from_fn(|j| y.columns[j]);
        let mut sums = [_mm512_setzero_ps(); N];
        let mut mins = [_mm512_setzero_ps(); N];
        for l in 0..y.n_blocks {
            let ahead = group.ahead.wrapping_add(l * WIDEST * bytes);
            let blocks = blocks::<JOINED>(&group.rows, l, bytes);
            let head = Head::read::<JOINED>(&blocks);
            let high = if FIVE { thirty_two_bytes::<JOINED>(&blocks, q4k_q5k::HIGH) } else { [zero; 8] };
            let mut whole = [zero; N];
            for pair in 0..4 {
                let both = thirty_two_bytes::<JOINED>(&blocks, bytes - 128 + 32 * pair);
                for s in [2 * pair, 2 * pair + 1] {
                    prefetch_far(ahead.wrapping_add(s * WIDEST * bytes / 8), WIDEST * bytes / 8);
                    let w = values::<FIVE>(&both, &high, s);
                    let scale = byte_of_lane(head.scales[s / 4], s as i32 % 4);
                    for (whole, column) in whole.iter_mut().zip(&columns) {
                        let part = add_products(zero, &w, column.add(l * record::BYTES + 32 * s));
                        *whole = _mm512_add_epi32(*whole, _mm512_mullo_epi32(part, scale));
                    }
                }
            }
            let both = head.pairs_of_mins();
            for j in 0..N {
                let record = columns[j].add(l * record::BYTES);
                let mut min = zero;
                for (i, &both) in both.iter().enumerate() {
                    min = _mm512_dpwssd_epi32(min, both, everywhere(record.add(record::SUMS_32 + 4 * i)));
                }
                let dy = float(record.add(record::SCALE));
                sums[j] = _mm512_fmadd_ps(_mm512_mul_ps(dy, head.d[0]), _mm512_cvtepi32_ps(whole[j]), sums[j]);
                mins[j] = _mm512_fnmadd_ps(_mm512_mul_ps(dy, head.d[1]), _mm512_cvtepi32_ps(min), mins[j]);
            }
        }
        for j in 0..N {
            sums[j] = _mm512_add_ps(sums[j], mins[j]);
        }
        by_column(&sums)
    }
}
