//! F32, F16 and BF16: two weight rows at a time, widened once for all rows. Sixteen lanes, as in `scalar.rs`.

use std::arch::x86_64::*;

use super::super::activations::Columns;
use super::super::dispatch::by_rows;
use super::super::weight_type::float::{F16, F32};
use super::super::x86::{prefetch, tree};
use super::super::{Dots, GROUP, Group};

/// # Safety
/// As `Path::dots`; the CPU has the features below.
pub(super) unsafe fn dots<const TYPE: u8>(group: &Group, y: &Columns) -> Dots {
    let mut dots = Dots::default();
    let bytes = y.n_blocks * if TYPE == F32 { 64 } else { 32 };
    for r in (0..GROUP).step_by(2) {
        let two = ([group.rows[r], group.rows[r + 1]], group.ahead.wrapping_add(r * bytes));
        // SAFETY: the caller's promise.
        [dots[r], dots[r + 1]] = unsafe { by_rows!(rows, two, y, TYPE) };
    }
    dots
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn rows<const N: usize, const TYPE: u8>((w, ahead): ([*const u8; 2], *const u8), y: &Columns) -> [[f32; 8]; 2] {
    let bytes = const { if TYPE == F32 { 64 } else { 32 } };
    let mut sums = [[_mm512_setzero_ps(); 2]; N];
    let columns: [*const u8; N] = std::array::from_fn(|j| y.rows[j]);
    for l in 0..y.n_blocks {
        prefetch(ahead.wrapping_add(l * 2 * bytes), 2 * bytes);
        let w = w.map(|row| {
            // SAFETY: block `l` of the row.
            unsafe {
                let block = row.add(l * bytes);
                match TYPE {
                    F32 => _mm512_loadu_ps(block.cast()),
                    F16 => _mm512_cvtph_ps(_mm256_loadu_si256(block.cast())),
                    _ => {
                        let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(block.cast()));
                        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
                    }
                }
            }
        });
        for (sum, &column) in sums.iter_mut().zip(&columns) {
            // SAFETY: block `l` of the row.
            let x = unsafe { _mm512_loadu_ps(column.add(l * 64).cast()) };
            for h in 0..2 {
                sum[h] = _mm512_fmadd_ps(w[h], x, sum[h]);
            }
        }
    }
    let mut dots = [[0.0; 8]; 2];
    for (j, sum) in sums.iter().enumerate() {
        for h in 0..2 {
            let (low, high) = (_mm512_castps512_ps256(sum[h]), _mm512_extractf32x8_ps::<1>(sum[h]));
            dots[h][j] = tree(_mm256_add_ps(low, high));
        }
    }
    dots
}
