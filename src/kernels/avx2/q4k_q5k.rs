//! Q4_K and Q5_K: one weight row times all columns. What is computed: `avx512/q4k_q5k.rs`.

use std::arch::x86_64::*;

use super::registers::{half, load};
use crate::activations::{ColumnTile, MAX_COLUMNS, float, record};
use crate::dispatch::by_columns;
use crate::lanes::sum_lanes;
use crate::prefetch::prefetch;
use crate::tile::{Dots, GROUP, RowGroup};
use crate::weight_type::{WeightType, q4k_q5k};

/// # Safety
/// The tile contract; the CPU has the features of `kernel`.
pub(crate) unsafe fn dots<const FIVE: bool>(group: &RowGroup, y: &ColumnTile) -> Dots {
    let bytes = const { if FIVE { WeightType::Q5K.block_bytes() } else { WeightType::Q4K.block_bytes() } };
    let mut dots = Dots::default();
    for (r, dots) in dots.iter_mut().enumerate() {
        let one = (group.rows[r], group.ahead.wrapping_add(r * y.n_blocks * bytes));
        // SAFETY: the tile contract, handed on for row `r`; `N` is `y.n`.
        *dots = unsafe { by_columns!(kernel, (one, y), y, FIVE) };
    }
    dots
}

const _: () = assert!(GROUP == 4);

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn kernel<const N: usize, const FIVE: bool>(
    (w, ahead): (*const u8, *const u8),
    y: &ColumnTile,
) -> [f32; MAX_COLUMNS] {
    let bytes = const { if FIVE { WeightType::Q5K.block_bytes() } else { WeightType::Q4K.block_bytes() } };
    let nibble = _mm256_set1_epi8(15);
    let fifth = _mm256_set1_epi8(16);
    let mut sums = [_mm256_setzero_ps(); N];
    let mut mins = [_mm_setzero_ps(); N];
    let columns: [*const u8; N] = std::array::from_fn(|j| y.columns[j]);
    for l in 0..y.n_blocks {
        prefetch(ahead.wrapping_add(l * bytes), bytes);
        // SAFETY: `l` is below the number of blocks; these are parts of one.
        let (block, d, dmin, packed) = unsafe {
            let block = w.add(l * bytes);
            let (d, dmin) = (half(block.add(q4k_q5k::SCALE)), half(block.add(q4k_q5k::SCALE + 2)));
            (block, d, dmin, block.add(q4k_q5k::SCALES).cast::<[u32; 3]>().read_unaligned())
        };
        let [s0, s1, m0, m1] = q4k_q5k::unpack(packed).map(|w| w as i32);
        let scales = _mm256_broadcastsi128_si256(_mm_cvtepu8_epi16(_mm_set_epi32(0, 0, s1, s0)));
        let min = _mm_cvtepu8_epi16(_mm_set_epi32(0, 0, m1, m0));
        // SAFETY: 32 bytes.
        let high = if FIVE { unsafe { load(block.add(q4k_q5k::HIGH)) } } else { nibble };
        let mut whole = [_mm256_setzero_si256(); N];
        for s in 0..8 {
            // SAFETY: 32 bytes.
            let packed = unsafe { load(block.add(bytes - 128 + s / 2 * 32)) };
            let packed = if s % 2 == 1 { _mm256_srli_epi16::<4>(packed) } else { packed };
            let mut w = _mm256_and_si256(packed, nibble);
            if FIVE {
                let up = _mm256_sll_epi16(high, _mm_cvtsi32_si128(4 - s.min(4) as i32));
                let bit = _mm256_srl_epi16(up, _mm_cvtsi32_si128(s.max(4) as i32 - 4));
                w = _mm256_or_si256(w, _mm256_and_si256(bit, fifth));
            }
            let scale = _mm256_shuffle_epi8(scales, _mm256_set1_epi16(0x100 + 0x202 * s as i16));
            for (whole, &column) in whole.iter_mut().zip(&columns) {
                // SAFETY: the record has 256 quants.
                let q = unsafe { load(column.add(l * record::BYTES + 32 * s)) };
                let pairs = _mm256_madd_epi16(scale, _mm256_maddubs_epi16(w, q));
                *whole = _mm256_add_epi32(*whole, pairs);
            }
        }
        for j in 0..N {
            let record = columns[j].wrapping_add(l * record::BYTES);
            // SAFETY: parts of the record.
            let (dy, q) =
                unsafe { (float(record.add(record::SCALE)), _mm_load_si128(record.add(record::SUMS_32).cast())) };
            sums[j] = _mm256_fmadd_ps(_mm256_set1_ps(dy * d), _mm256_cvtepi32_ps(whole[j]), sums[j]);
            let mut part = _mm_madd_epi16(min, q);
            if FIVE {
                part = _mm_add_epi32(part, _mm_shuffle_epi32::<0b01_00_11_10>(part));
                part = _mm_add_epi32(part, _mm_shuffle_epi32::<0b10_11_00_01>(part));
            }
            mins[j] = _mm_fmadd_ps(_mm_set1_ps(-dy * dmin), _mm_cvtepi32_ps(part), mins[j]);
        }
    }
    let mut dots = [0.0; MAX_COLUMNS];
    for j in 0..N {
        let m = mins[j];
        let two = _mm_add_ps(m, _mm_movehl_ps(m, m));
        let four = _mm_add_ss(two, _mm_movehdup_ps(two));
        dots[j] = sum_lanes(sums[j]) + _mm_cvtss_f32(if FIVE { m } else { four });
    }
    dots
}
