//! Q6_K.
//!
//! A block is eight times 32 values of six bits, less 32. Unsigned values times bytes give pairs of 16 bits; these times
//! the scales of their 16 go into eight lanes of 32 bits, all exact, as in ggml's `vec_dot`. What the 32 amount to is the
//! sums of the columns' quants times the scales: every sum starts with it.

use std::arch::x86_64::*;

use super::registers::{float, half, pair, scales, sum_lanes_of_four, twice};
use crate::activations::{ColumnTile, record};
use crate::dispatch::by_columns;
use crate::prefetch::prefetch;
use crate::tile::{Dots, GROUP, RowGroup};
use crate::weight_type::q6k;

const BYTES: usize = 210;

/// # Safety
/// The tile contract; the CPU has the features of `kernel`.
pub(crate) unsafe fn dots(group: &RowGroup, y: &ColumnTile) -> Dots {
    // SAFETY: the tile contract, handed on; `N` is `y.n`.
    unsafe { by_columns!(kernel, (group, y), y) }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn kernel<const N: usize>(group: &RowGroup, y: &ColumnTile) -> Dots {
    let zero = _mm512_setzero_si512();
    let nibble = _mm512_set1_epi8(15);
    // Words of a register of 16 scales of one row and 16 of another: those of 16 values each, in both rows.
    let first = _mm512_set_epi64(
        0x0011_0011_0011_0011,
        0x0011_0011_0011_0011,
        0x0010_0010_0010_0010,
        0x0010_0010_0010_0010,
        0x0001_0001_0001_0001,
        0x0001_0001_0001_0001,
        0,
        0,
    );
    let mut sums = [[_mm512_setzero_ps(); 2]; N];
    let columns: [*const u8; N] = std::array::from_fn(|j| y.columns[j]);
    for l in 0..y.n_blocks {
        prefetch(group.ahead.wrapping_add(l * GROUP * BYTES), GROUP * BYTES);
        // SAFETY: `l` is below the number of blocks of all four rows.
        let [a, b, c, d] = group.rows.map(|row| unsafe { row.add(l * BYTES) });
        // SAFETY: parts of the block.
        let (dx, sixteen) = unsafe {
            let dx = scales([a, b, c, d].map(|block| half(block.add(q6k::SCALE))));
            let load = |p: *const u8| _mm_loadu_si128(p.add(q6k::SCALES).cast());
            let two =
                |p, q| _mm512_cvtepi8_epi16(_mm256_inserti128_si256::<1>(_mm256_castsi128_si256(load(p)), load(q)));
            (dx, [two(a, b), two(c, d)])
        };
        let offset = sixteen.map(|s| _mm512_sub_epi16(zero, _mm512_slli_epi16::<5>(s)));
        let mut whole = [[zero; 2]; N];
        for (whole, &column) in whole.iter_mut().zip(&columns) {
            // SAFETY: part of the record.
            let q = unsafe { twice(column.add(l * record::BYTES + record::SUMS_16)) };
            *whole = offset.map(|o| _mm512_madd_epi16(o, q));
        }
        for h in 0..2 {
            // SAFETY: parts of the block.
            let load = |at: usize| unsafe { [pair(a.add(at), b.add(at)), pair(c.add(at), d.add(at))] };
            let (low, lows, high) = (load(64 * h), load(64 * h + 32), load(q6k::HIGH + 32 * h));
            for i in 0..4 {
                let s = 4 * h + i;
                let w: [__m512i; 2] = std::array::from_fn(|p| {
                    let bytes = if i % 2 == 0 { low[p] } else { lows[p] };
                    let bytes = if i < 2 { bytes } else { _mm512_srli_epi16::<4>(bytes) };
                    let pairs = match i {
                        0 => _mm512_slli_epi16::<4>(high[p]),
                        1 => _mm512_slli_epi16::<2>(high[p]),
                        2 => high[p],
                        _ => _mm512_srli_epi16::<2>(high[p]),
                    };
                    let pairs = _mm512_and_si512(pairs, _mm512_set1_epi8(0x30));
                    // bytes & 15 | pairs
                    _mm512_ternarylogic_epi64::<0xf8>(pairs, bytes, nibble)
                });
                let index = _mm512_add_epi16(first, _mm512_set1_epi16(2 * s as i16));
                let scale = sixteen.map(|s| _mm512_permutexvar_epi16(index, s));
                for (whole, &column) in whole.iter_mut().zip(&columns) {
                    // SAFETY: the record has 256 quants.
                    let q = unsafe { twice(column.add(l * record::BYTES + 32 * s)) };
                    for p in 0..2 {
                        whole[p] = _mm512_dpwssd_epi32(whole[p], scale[p], _mm512_maddubs_epi16(w[p], q));
                    }
                }
            }
        }
        for j in 0..N {
            // SAFETY: part of the record.
            let dy = unsafe { float(columns[j].add(l * record::BYTES + record::SCALE)) };
            for p in 0..2 {
                sums[j][p] = _mm512_fmadd_ps(_mm512_mul_ps(dx[p], dy), _mm512_cvtepi32_ps(whole[j][p]), sums[j][p]);
            }
        }
    }
    let mut dots = Dots::default();
    for (dots, sum) in dots.iter_mut().zip(&sums) {
        *dots = sum_lanes_of_four(sum);
    }
    dots
}
