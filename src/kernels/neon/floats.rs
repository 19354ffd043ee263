//! F32, F16 and BF16: one weight row times up to four rows at a time. Sixteen lanes, as in `scalar.rs`.

use std::arch::aarch64::*;

use super::super::activations::Columns;
use super::super::dispatch::in_fours;
use super::super::weight_type::float::{F16, F32};
use super::super::{Dots, Group};
use super::{load, prefetch, tree};

/// # Safety
/// As `Path::dots`; the CPU has the features below.
pub(super) unsafe fn dots<const TYPE: u8>(group: &Group, y: &Columns) -> Dots {
    // SAFETY: the caller's promise; `j + N` is at most `y.n`.
    unsafe { in_fours!(1, rows, group, y, TYPE) }
}

/// Sixteen floats.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn floats(p: *const u8) -> [float32x4_t; 4] {
    // SAFETY: the caller's promise.
    std::array::from_fn(|i| unsafe { vld1q_f32(p.cast::<f32>().add(4 * i)) })
}

/// Sixteen values of this type.
///
/// # Safety
/// They can be read.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn values<const TYPE: u8>(p: *const u8) -> [float32x4_t; 4] {
    if TYPE == F32 {
        // SAFETY: the caller's promise.
        return unsafe { floats(p) };
    }
    // SAFETY: the caller's promise.
    let [a, b] = unsafe { load(p) }.map(|half| vreinterpretq_u16_u8(half));
    if TYPE == F16 {
        let low = |x: uint16x8_t| vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(x)));
        let high = |x: uint16x8_t| vcvt_high_f32_f16(vreinterpretq_f16_u16(x));
        return [low(a), high(a), low(b), high(b)];
    }
    let zero = vdupq_n_u16(0);
    [vzip1q_u16(zero, a), vzip2q_u16(zero, a), vzip1q_u16(zero, b), vzip2q_u16(zero, b)]
        .map(|x| vreinterpretq_f32_u16(x))
}

/// Weight row `r` times rows `j` to `j + N`.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn rows<const N: usize, const TYPE: u8>(group: &Group, y: &Columns, r: usize, j: usize, dots: &mut Dots) {
    let bytes = const { if TYPE == F32 { 64 } else { 32 } };
    let (w, ahead) = (group.rows[r], group.ahead.wrapping_add(r * y.n_blocks * bytes));
    let mut sums = [[vdupq_n_f32(0.0); 4]; N];
    let columns: [*const u8; N] = std::array::from_fn(|i| y.rows[j + i]);
    for l in 0..y.n_blocks {
        if j == 0 {
            prefetch(ahead.wrapping_add(l * bytes), bytes);
        }
        // SAFETY: block `l` of the row.
        let w = unsafe { values::<TYPE>(w.add(l * bytes)) };
        for (sum, &column) in sums.iter_mut().zip(&columns) {
            // SAFETY: as above.
            let x = unsafe { floats(column.add(l * 64)) };
            for p in 0..4 {
                sum[p] = vfmaq_f32(sum[p], w[p], x[p]);
            }
        }
    }
    for (i, sum) in sums.iter().enumerate() {
        dots[r][j + i] = tree([vaddq_f32(sum[0], sum[2]), vaddq_f32(sum[1], sum[3])]);
    }
}
