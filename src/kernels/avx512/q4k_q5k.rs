//! Q4_K and Q5_K.
//!
//! A block is eight times 32 values. Nibbles (with their fifth bits) times bytes give pairs of 16 bits; these times the
//! scale of the 32 go into eight lanes of 32 bits, all exact, as in ggml's `vec_dot`. Minima are the sums of the columns'
//! quants times the minima of the 32, in four lanes.

use std::arch::x86_64::*;

use super::registers::{float, pair, sum_lanes_of_four, twice};
use crate::activations::{ColumnTile, record};
use crate::dispatch::by_columns;
use crate::prefetch::prefetch;
use crate::tile::{Dots, GROUP, RowGroup};
use crate::weight_type::{WeightType, q4k_q5k};

/// # Safety
/// The tile contract; the CPU has the features of `kernel`.
pub(crate) unsafe fn dots<const FIVE: bool>(group: &RowGroup, y: &ColumnTile) -> Dots {
    // SAFETY: the tile contract, handed on; `N` is `y.n`.
    unsafe { by_columns!(kernel, (group, y), y, FIVE) }
}

/// What a block's head says, of four weight rows.
struct Head {
    /// Eight 16-bit scales for each row.
    scales: __m512i,
    /// Eight 16-bit minima for each row.
    mins: __m512i,
    /// Scales of rows 0 and 1, in eight lanes each; of rows 2 and 3.
    d: [__m512; 2],
    /// Scale of the minima, in four lanes for each row.
    dmin: __m512,
}

/// # Safety
/// Blocks begin at `blocks`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn head(blocks: [*const u8; GROUP]) -> Head {
    // SAFETY: a block has more than 16 bytes.
    let [a, b, c, d] = blocks.map(|block| unsafe { _mm_loadu_si128(block.cast()) });
    let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b);
    let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(c), d);
    let head = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high);
    // Of the words 1, 2, 3 of a head: scales 0 to 3 are the low six bits of 1; 4 to 7 the low nibbles of 3 and the upper
    // pairs of bits of 1; minima likewise from 2 and the high nibbles of 3.
    let low = _mm512_srlv_epi32(_mm512_shuffle_epi32::<0b11_10_11_01>(head), _mm512_set4_epi32(4, 0, 0, 0));
    let low = _mm512_and_si512(low, _mm512_set4_epi32(0x0f0f_0f0f, 0x3f3f_3f3f, 0x0f0f_0f0f, 0x3f3f_3f3f));
    let high = _mm512_srli_epi32::<2>(_mm512_shuffle_epi32::<0b10_10_01_01>(head));
    let high = _mm512_and_si512(high, _mm512_set4_epi32(0x3030_3030, 0, 0x3030_3030, 0));
    let bytes = _mm512_or_si512(low, high);
    let zero = _mm512_setzero_si512();
    let words = _mm512_permutexvar_epi32(_mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0), head);
    let floats = _mm512_castps256_ps512(_mm256_cvtph_ps(_mm512_castsi512_si128(words)));
    let first = _mm512_set_epi32(2, 2, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0);
    let second = _mm512_set_epi32(6, 6, 6, 6, 6, 6, 6, 6, 4, 4, 4, 4, 4, 4, 4, 4);
    let mins = _mm512_set_epi32(7, 7, 7, 7, 5, 5, 5, 5, 3, 3, 3, 3, 1, 1, 1, 1);
    Head {
        scales: _mm512_unpacklo_epi8(bytes, zero),
        mins: _mm512_unpackhi_epi8(bytes, zero),
        d: [_mm512_permutexvar_ps(first, floats), _mm512_permutexvar_ps(second, floats)],
        dmin: _mm512_permutexvar_ps(mins, floats),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn kernel<const N: usize, const FIVE: bool>(group: &RowGroup, y: &ColumnTile) -> Dots {
    let bytes = const { if FIVE { WeightType::Q5K.block_bytes() } else { WeightType::Q4K.block_bytes() } };
    let nibbles_at = bytes - 128;
    let nibble = _mm512_set1_epi8(15);
    let fifth = _mm512_set1_epi8(16);
    let low_bits = _mm512_set1_epi8(0x7f);
    let (next, other_pair) = (_mm512_set1_epi16(1), _mm512_set1_epi16(16));
    let zero = _mm512_setzero_si512();
    let row = _mm512_set_epi64(
        0x0008_0008_0008_0008,
        0x0008_0008_0008_0008,
        0x0008_0008_0008_0008,
        0x0008_0008_0008_0008,
        0,
        0,
        0,
        0,
    );
    let mut sums = [[_mm512_setzero_ps(); 2]; N];
    let mut mins = [_mm512_setzero_ps(); N];
    let columns: [*const u8; N] = std::array::from_fn(|j| y.columns[j]);
    for l in 0..y.n_blocks {
        prefetch(group.ahead.wrapping_add(l * GROUP * bytes), GROUP * bytes);
        // SAFETY: `l` is below the number of blocks of all four rows.
        let blocks = group.rows.map(|row| unsafe { row.add(l * bytes) });
        // SAFETY: as above.
        let head = unsafe { head(blocks) };
        let [a, b, c, d] = blocks;
        let mut whole = [[zero; 2]; N];
        let mut high = if FIVE {
            // SAFETY: 32 bytes each.
            unsafe {
                [pair(a.add(q4k_q5k::HIGH), b.add(q4k_q5k::HIGH)), pair(c.add(q4k_q5k::HIGH), d.add(q4k_q5k::HIGH))]
            }
        } else {
            [zero; 2]
        };
        let mut index = row;
        // The values number `s` of 32 times all columns.
        macro_rules! part {
            ($s:expr, $nibbles:expr) => {{
                let mut w = $nibbles;
                if FIVE {
                    for h in 0..2 {
                        // w | bit & 16
                        let bit = _mm512_slli_epi16::<4>(high[h]);
                        w[h] = _mm512_ternarylogic_epi64::<0xf8>(w[h], bit, fifth);
                        // The bits of the next 32 come to the low end; what crosses bytes is cut off above.
                        high[h] = _mm512_and_si512(_mm512_srli_epi16::<1>(high[h]), low_bits);
                    }
                }
                let scale = [
                    _mm512_permutexvar_epi16(index, head.scales),
                    _mm512_permutexvar_epi16(_mm512_or_si512(index, other_pair), head.scales),
                ];
                index = _mm512_add_epi16(index, next);
                for (whole, &column) in whole.iter_mut().zip(&columns) {
                    // SAFETY: the record has 256 quants.
                    let q = unsafe { twice(column.add(l * record::BYTES + 32 * ($s))) };
                    for h in 0..2 {
                        whole[h] = _mm512_dpwssd_epi32(whole[h], scale[h], _mm512_maddubs_epi16(w[h], q));
                    }
                }
            }};
        }
        for two in 0..4 {
            let at = nibbles_at + 32 * two;
            // SAFETY: 32 bytes each.
            let packed = unsafe { [pair(a.add(at), b.add(at)), pair(c.add(at), d.add(at))] };
            part!(2 * two, packed.map(|p| _mm512_and_si512(p, nibble)));
            part!(2 * two + 1, packed.map(|p| _mm512_and_si512(_mm512_srli_epi16::<4>(p), nibble)));
        }
        for j in 0..N {
            let record = columns[j].wrapping_add(l * record::BYTES);
            // SAFETY: parts of the record.
            let (dy, q) =
                unsafe { (float(record.add(record::SCALE)), _mm_load_si128(record.add(record::SUMS_32).cast())) };
            for h in 0..2 {
                let d = _mm512_mul_ps(head.d[h], dy);
                sums[j][h] = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(whole[j][h]), sums[j][h]);
            }
            let mut min = _mm512_madd_epi16(head.mins, _mm512_broadcast_i32x4(q));
            if FIVE {
                min = _mm512_add_epi32(min, _mm512_shuffle_epi32::<0b01_00_11_10>(min));
                min = _mm512_add_epi32(min, _mm512_shuffle_epi32::<0b10_11_00_01>(min));
            }
            // -(dmin * dy), the same bits as dmin * -dy.
            mins[j] = _mm512_fnmadd_ps(_mm512_mul_ps(head.dmin, dy), _mm512_cvtepi32_ps(min), mins[j]);
        }
    }
    let mut dots = Dots::default();
    for j in 0..N {
        let mut four = [0f32; 16];
        // SAFETY: 16 floats.
        unsafe { _mm512_storeu_ps(four.as_mut_ptr(), mins[j]) };
        for (r, dot) in sum_lanes_of_four(&sums[j]).into_iter().enumerate() {
            let m = &four[4 * r..4 * r + 4];
            dots[j][r] = dot + if FIVE { m[0] } else { (m[0] + m[2]) + (m[1] + m[3]) };
        }
    }
    dots
}
