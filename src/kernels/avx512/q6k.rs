//! Q6_K: a block is sixteen times 16 values.
//!
//! Unsigned weights times bytes are added in 32 bits and multiplied with the scale of the 16. The offset of 32 comes off in the
//! end: the sums of the column's quants times the scales, two at a time.

use std::arch::x86_64::*;

use super::rows::{
    add_products, blocks, both, by_column, everywhere, float, halves, signed_byte_of_lane, sixteen_bytes,
    thirty_two_bytes, twice,
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
    unsafe {
        match (y.n, JOINED) {
            (1, false) => few::<1>(group, y),
            (2, false) => few::<2>(group, y),
            _ => by_columns!(kernel, (group, y), y, JOINED),
        }
    }
}

/// The product with so few columns that it is quicker to take weights as they lie, two rows in a register, and to turn the sums of
/// a block: half `p % 4` of registers 0 to 3 and 4 to 7 are rows `p` and `p + 4` of either eight.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn few<const N: usize>(group: &RowGroup<WIDEST>, y: &ColumnTile) -> Dots<WIDEST> {
    let bytes = const { WeightType::Q6K.block_bytes() };
    // SAFETY: `l` is below the number of blocks and of records.
    unsafe {
        let zero = _mm512_setzero_si512();
        let (nibble, pair) = (_mm512_set1_epi8(15), _mm512_set1_epi8(0x30));
        // Words of a register of 16 scales of one row and 16 of another: those of 16 values each, in both rows.
        let first = _mm512_inserti64x4::<1>(
            _mm512_inserti32x4::<1>(zero, _mm_set1_epi16(1)),
            _mm256_inserti128_si256::<1>(_mm256_set1_epi16(16), _mm_set1_epi16(17)),
        );
        let columns: [*const u8; N] = std::array::from_fn(|j| y.columns[j]);
        let mut sums = [_mm512_setzero_ps(); N];
        for l in 0..y.n_blocks {
            let ahead = group.ahead.wrapping_add(l * WIDEST * bytes);
            let blocks = blocks::<false>(&group.rows, l, bytes);
            let mut whole = [[zero; 8]; N];
            for p in 0..8 {
                prefetch_far(ahead.wrapping_add(p * WIDEST * bytes / 8), WIDEST * bytes / 8);
                let (a, b) = (blocks[p / 4 * 8 + p % 4], blocks[p / 4 * 8 + p % 4 + 4]);
                let scales = {
                    let low = _mm256_castsi128_si256(_mm_loadu_si128(a.add(q6k::SCALES).cast()));
                    let high = _mm_loadu_si128(b.add(q6k::SCALES).cast());
                    _mm512_cvtepi8_epi16(_mm256_inserti128_si256::<1>(low, high))
                };
                let offset = _mm512_sub_epi16(zero, _mm512_slli_epi16::<5>(scales));
                for (whole, column) in whole.iter_mut().zip(&columns) {
                    let record = column.add(l * record::BYTES);
                    whole[p] = _mm512_madd_epi16(offset, twice(record.add(record::SUMS_16)));
                }
                for h in 0..2 {
                    let high = both(a.add(q6k::HIGH + 32 * h), b.add(q6k::HIGH + 32 * h));
                    for odd in 0..2 {
                        let low = both(a.add(64 * h + 32 * odd), b.add(64 * h + 32 * odd));
                        for quarter in [odd, odd + 2] {
                            let w = six_bits(low, high, quarter, nibble, pair);
                            let s = 4 * h + quarter;
                            let at = _mm512_add_epi16(first, _mm512_set1_epi16(2 * s as i16));
                            let scale = _mm512_permutexvar_epi16(at, scales);
                            for (whole, column) in whole.iter_mut().zip(&columns) {
                                // At most 2 * 63 * 127 in a lane.
                                let pairs = _mm512_maddubs_epi16(w, twice(column.add(l * record::BYTES + 32 * s)));
                                whole[p] = _mm512_dpwssd_epi32(whole[p], scale, pairs);
                            }
                        }
                    }
                }
            }
            let d = halves::<false>(&blocks, q6k::SCALE);
            for j in 0..N {
                let dy = float(columns[j].add(l * record::BYTES + record::SCALE));
                let whole = by_row(&whole[j]);
                sums[j] = _mm512_fmadd_ps(_mm512_mul_ps(dy, d), _mm512_cvtepi32_ps(whole), sums[j]);
            }
        }
        by_column(&sums)
    }
}

/// Six bits: of the bytes `low` the low nibbles, or the high ones for quarters 2 and 3, and pair `quarter` of `high` above them.
///
/// # Safety
/// The CPU has AVX-512 F and BW; `nibble` and `pair` have those bits of each byte.
#[inline(always)]
pub(crate) unsafe fn six_bits(low: __m512i, high: __m512i, quarter: usize, nibble: __m512i, pair: __m512i) -> __m512i {
    // SAFETY: the caller's.
    unsafe {
        let low = if quarter < 2 { low } else { _mm512_srli_epi16::<4>(low) };
        let high = match quarter {
            0 => _mm512_slli_epi16::<4>(high),
            1 => _mm512_slli_epi16::<2>(high),
            2 => high,
            _ => _mm512_srli_epi16::<2>(high),
        };
        // low & nibble | high & pair
        _mm512_ternarylogic_epi32::<0xf8>(_mm512_and_si512(low, nibble), high, pair)
    }
}

/// The sums of eight lanes of each row ([`few`] says which rows), a row in each lane.
///
/// # Safety
/// The CPU has AVX-512 F.
#[inline(always)]
unsafe fn by_row(x: &[__m512i; 8]) -> __m512i {
    // SAFETY: the caller's.
    unsafe {
        let mut four = [_mm512_setzero_si512(); 2];
        for (half, four) in four.iter_mut().enumerate() {
            let [a, b, c, d] = [x[4 * half], x[4 * half + 1], x[4 * half + 2], x[4 * half + 3]];
            let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            *four = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
        }
        let [low, high] = four;
        _mm512_add_epi32(
            _mm512_shuffle_i32x4::<0b10_00_10_00>(low, high),
            _mm512_shuffle_i32x4::<0b11_01_11_01>(low, high),
        )
    }
}

/// The scales of 16 values each, signed bytes, four of a row in a register: two in the words of a lane.
///
/// # Safety
/// The CPU has AVX-512 F and BW.
#[inline(always)]
pub(crate) unsafe fn pairs_of_scales(scales: &[__m512i; 4]) -> [__m512i; 8] {
    let mut pairs = [scales[0]; 8];
    for (i, both) in pairs.iter_mut().enumerate() {
        let (scales, at) = (scales[i / 2], i as i32 % 2 * 2);
        // SAFETY: the caller's.
        *both = unsafe {
            let [even, odd] = [signed_byte_of_lane(scales, at), signed_byte_of_lane(scales, at + 1)];
            _mm512_mask_blend_epi16(0xaaaa_aaaa, even, _mm512_slli_epi32::<16>(odd))
        };
    }
    pairs
}

/// The sums of 16 quants of a column's record times what stands beside them in `scales`, two at a time.
///
/// # Safety
/// The record can be read; the CPU has AVX-512 F and VNNI.
#[inline(always)]
pub(crate) unsafe fn sum_of_16s(scales: &[__m512i; 8], record: *const u8) -> __m512i {
    // SAFETY: the caller's.
    unsafe {
        let mut sum = _mm512_setzero_si512();
        for (i, &scale) in scales.iter().enumerate() {
            sum = _mm512_dpwssd_epi32(sum, scale, everywhere(record.add(record::SUMS_16 + 4 * i)));
        }
        sum
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn kernel<const N: usize, const JOINED: bool>(group: &RowGroup<WIDEST>, y: &ColumnTile) -> Dots<WIDEST> {
    let bytes = const { WeightType::Q6K.block_bytes() };
    // SAFETY: `l` is below the number of blocks and of records.
    unsafe {
        let zero = _mm512_setzero_si512();
        let (nibble, pair) = (_mm512_set1_epi8(15), _mm512_set1_epi8(0x30));
        let columns: [*const u8; N] = std::array::from_fn(|j| y.columns[j]);
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
                            *w = six_bits(*w, high, quarter, nibble, pair);
                        }
                        let s = 4 * h + quarter;
                        let at = s as i32 % 2 * 2;
                        let scale =
                            [signed_byte_of_lane(scales[s / 2], at), signed_byte_of_lane(scales[s / 2], at + 1)];
                        for (whole, column) in whole.iter_mut().zip(&columns) {
                            let q = column.add(l * record::BYTES + 32 * s);
                            for (half, &scale) in scale.iter().enumerate() {
                                let part = add_products(zero, &w[4 * half..4 * half + 4], q.add(16 * half));
                                *whole = _mm512_add_epi32(*whole, _mm512_mullo_epi32(part, scale));
                            }
                        }
                    }
                }
            }
            let d = halves::<JOINED>(&blocks, q6k::SCALE);
            let pairs = pairs_of_scales(&scales);
            for j in 0..N {
                let record = columns[j].add(l * record::BYTES);
                let offset = sum_of_16s(&pairs, record);
                let whole = _mm512_sub_epi32(whole[j], _mm512_slli_epi32::<5>(offset));
                let dy = float(record.add(record::SCALE));
                sums[j] = _mm512_fmadd_ps(_mm512_mul_ps(dy, d), _mm512_cvtepi32_ps(whole), sums[j]);
            }
        }
        by_column(&sums)
    }
}
