//! F32, F16 and BF16: one weight row times up to four rows at a time. Sixteen lanes, as in `scalar.rs`.

use std::arch::x86_64::*;

use super::super::activations::Columns;
use super::super::dispatch::in_fours;
use super::super::weight_type::float::{F16, F32};
use super::super::x86::{prefetch, tree};
use super::super::{Dots, Group};

/// # Safety
/// As `Path::dots`; the CPU has the features below.
pub(super) unsafe fn dots<const TYPE: u8>(group: &Group, y: &Columns) -> Dots {
    // SAFETY: the caller's promise; `j + N` is at most `y.n`.
    unsafe { in_fours!(1, rows, group, y, TYPE) }
}

/// Weight row `r` times rows `j` to `j + N`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn rows<const N: usize, const TYPE: u8>(group: &Group, y: &Columns, r: usize, j: usize, dots: &mut Dots) {
    let bytes = const { if TYPE == F32 { 64 } else { 32 } };
    let (w, ahead) = (group.rows[r], group.ahead.wrapping_add(r * y.n_blocks * bytes));
    let mut sums = [[_mm256_setzero_ps(); 2]; N];
    let columns: [*const u8; N] = std::array::from_fn(|i| y.rows[j + i]);
    for l in 0..y.n_blocks {
        if j == 0 {
            prefetch(ahead.wrapping_add(l * bytes), bytes);
        }
        for h in 0..2 {
            // SAFETY: half of block `l` of the row.
            let w = unsafe {
                let half = w.add(l * bytes + h * bytes / 2);
                match TYPE {
                    F32 => _mm256_loadu_ps(half.cast()),
                    F16 => _mm256_cvtph_ps(_mm_loadu_si128(half.cast())),
                    _ => {
                        let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(half.cast()));
                        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
                    }
                }
            };
            for (sum, &column) in sums.iter_mut().zip(&columns) {
                // SAFETY: as above.
                let x = unsafe { _mm256_loadu_ps(column.add(l * 64 + h * 32).cast()) };
                sum[h] = _mm256_fmadd_ps(w, x, sum[h]);
            }
        }
    }
    for (i, sum) in sums.iter().enumerate() {
        dots[r][j + i] = tree(_mm256_add_ps(sum[0], sum[1]));
    }
}
