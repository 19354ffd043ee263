//! Q6_K: one weight row times all columns. What is computed: `avx512/q6k.rs`.

use std::arch::x86_64::*;

use super::registers::{half, load};
use crate::activations::{ColumnTile, MAX_COLUMNS, float, record};
use crate::dispatch::by_columns;
use crate::lanes::sum_lanes;
use crate::prefetch::prefetch;
use crate::tile::{Dots, RowGroup};
use crate::weight_type::q6k;

const BYTES: usize = 210;

/// # Safety
/// The tile contract; the CPU has the features of `kernel`.
pub(crate) unsafe fn dots(group: &RowGroup, y: &ColumnTile) -> Dots {
    let mut dots = Dots::default();
    for (r, dots) in dots.iter_mut().enumerate() {
        let one = (group.rows[r], group.ahead.wrapping_add(r * y.n_blocks * BYTES));
        // SAFETY: the tile contract, handed on for row `r`; `N` is `y.n`.
        *dots = unsafe { by_columns!(kernel, (one, y), y) };
    }
    dots
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn kernel<const N: usize>((w, ahead): (*const u8, *const u8), y: &ColumnTile) -> [f32; MAX_COLUMNS] {
    let nibble = _mm256_set1_epi8(15);
    let pair = _mm256_set1_epi8(0x30);
    let mut sums = [_mm256_setzero_ps(); N];
    let columns: [*const u8; N] = std::array::from_fn(|j| y.columns[j]);
    for l in 0..y.n_blocks {
        prefetch(ahead.wrapping_add(l * BYTES), BYTES);
        // SAFETY: `l` is below the number of blocks; these are parts of one.
        let (block, d, sixteen) = unsafe {
            let block = w.add(l * BYTES);
            (block, half(block.add(q6k::SCALE)), _mm_loadu_si128(block.add(q6k::SCALES).cast()))
        };
        let words = _mm256_cvtepi8_epi16(sixteen);
        let offset = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16::<5>(words));
        let mut whole = [_mm256_setzero_si256(); N];
        for (whole, &column) in whole.iter_mut().zip(&columns) {
            // SAFETY: part of the record.
            *whole = _mm256_madd_epi16(offset, unsafe { load(column.add(l * record::BYTES + record::SUMS_16)) });
        }
        for s in 0..8 {
            let (h, i) = (s / 4, s % 4);
            // SAFETY: 32 bytes each.
            let (low, high) = unsafe { (load(block.add(64 * h + i % 2 * 32)), load(block.add(q6k::HIGH + 32 * h))) };
            let low = if i < 2 { low } else { _mm256_srli_epi16::<4>(low) };
            let high = match i {
                0 => _mm256_slli_epi16::<4>(high),
                1 => _mm256_slli_epi16::<2>(high),
                2 => high,
                _ => _mm256_srli_epi16::<2>(high),
            };
            let w = _mm256_or_si256(_mm256_and_si256(low, nibble), _mm256_and_si256(high, pair));
            let (a, b) = (2 * s as i8, 2 * s as i8 + 1);
            let which = _mm_set_epi8(b, b, b, b, b, b, b, b, a, a, a, a, a, a, a, a);
            let scale = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(sixteen, which));
            for (whole, &column) in whole.iter_mut().zip(&columns) {
                // SAFETY: the record has 256 quants.
                let q = unsafe { load(column.add(l * record::BYTES + 32 * s)) };
                let pairs = _mm256_madd_epi16(scale, _mm256_maddubs_epi16(w, q));
                *whole = _mm256_add_epi32(*whole, pairs);
            }
        }
        for j in 0..N {
            // SAFETY: part of the record.
            let dy = unsafe { float(columns[j].add(l * record::BYTES + record::SCALE)) };
            sums[j] = _mm256_fmadd_ps(_mm256_set1_ps(dy * d), _mm256_cvtepi32_ps(whole[j]), sums[j]);
        }
    }
    let mut dots = [0.0; MAX_COLUMNS];
    for (dot, sum) in dots.iter_mut().zip(sums) {
        *dot = sum_lanes(sum);
    }
    dots
}
