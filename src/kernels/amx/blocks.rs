//! Types of blocks of 32 values, which have a float each as their scale: a step is eight of them, or those that are left.

use std::arch::x86_64::*;

use super::columns::Columns;
use super::lanes::{Lanes, before, store};
use super::step::{Products, Rows, Step};
use super::tiles::Tiles;
use crate::avx512::q8_0_q4_0::{eights, powers, weights};
use crate::avx512::rows::{blocks, float, halves};
use crate::weight_type::{WeightType, quants};

/// Blocks of a step.
const MOST: usize = 8;

/// A block of sixteen rows.
#[repr(C, align(64))]
struct Block {
    /// Weights: values `4i` to `4i + 3` of every row in register `i`.
    w: [__m512i; 8],
    d: __m512,
    /// The minimum.
    min: __m512,
}

/// Blocks of sixteen rows.
#[repr(C, align(64))]
pub(super) struct Blocks([Block; MOST]);

impl Step for Blocks {
    const BLOCKS: usize = MOST;
    const TILE_BYTES: usize = 32;

    fn has_mins(_: WeightType) -> bool {
        // They are added to the same sums.
        false
    }

    #[inline(always)]
    unsafe fn multiply(&self, tiles: &mut Tiles, x: &Columns, j: usize, step: usize, products: &mut Products) {
        let n = MOST.min(x.n_blocks - MOST * step);
        for (pair, products) in products.0[..n.div_ceil(2)].iter_mut().enumerate() {
            let quants = x.column(j).wrapping_add(32 * (MOST * step + 2 * pair));
            let w = self.0[2 * pair].w.as_ptr().cast();
            // SAFETY: quants of two blocks, or of the last one and its scales behind it; a step has room for eight blocks, whatever is in
            // there (the caller's for the rest).
            unsafe { tiles.two_products_of_32(quants, x.stride, w, size_of::<Block>(), products) };
        }
    }

    #[inline(always)]
    unsafe fn add(
        &self,
        ty: WeightType,
        products: &Products,
        x: &Columns,
        j: usize,
        step: usize,
        [sums, _]: [&mut [Lanes]; 2],
    ) {
        let n = MOST.min(x.n_blocks - MOST * step);
        // SAFETY: the caller's.
        unsafe {
            match (ty, n) {
                (WeightType::Q4_1 | WeightType::Q5_1, _) => self.add_with::<true>(n, products, x, j, step, sums),
                (_, MOST) => self.add_with::<false>(MOST, products, x, j, step, sums),
                _ => self.add_with::<false>(n, products, x, j, step, sums),
            }
        }
    }
}

impl Blocks {
    /// Of `n` blocks, with minima if `MINS`.
    ///
    /// # Safety
    /// That of [`Step::add`].
    #[inline(always)]
    unsafe fn add_with<const MINS: bool>(
        &self,
        n: usize,
        products: &Products,
        x: &Columns,
        j: usize,
        step: usize,
        sums: &mut [Lanes],
    ) {
        let mut column = x.column(j).wrapping_add(4 * MOST * step);
        for (i, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the column has scales and offsets of these blocks (the caller).
            unsafe {
                let mut x_sum = before(step, sum);
                for l in 0..n {
                    let block = &self.0[l];
                    let dy = float(column.add(x.scales + 4 * l));
                    let whole = _mm512_loadu_si512(products.0[l / 2][l % 2][i].as_ptr().cast());
                    x_sum = _mm512_fmadd_ps(_mm512_mul_ps(block.d, dy), _mm512_cvtepi32_ps(whole), x_sum);
                    if MINS {
                        let [a, b] = column.add(x.offsets + 4 * l).cast::<[i16; 2]>().read_unaligned().map(i32::from);
                        let quants = _mm512_cvtepi32_ps(_mm512_set1_epi32(-(a + b) / 8));
                        x_sum = _mm512_fmadd_ps(_mm512_mul_ps(block.min, dy), quants, x_sum);
                    }
                }
                store(x_sum, sum);
            }
            column = column.wrapping_add(x.stride);
        }
    }

    /// Of blocks `first` to `first + n`.
    ///
    /// # Safety
    /// The rows have them, and are joined if `JOINED`; the CPU has AVX-512 F, BW, DQ and VL.
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    pub(super) unsafe fn of<const QUANTS: usize, const JOINED: bool>(&mut self, rows: &Rows, first: usize, n: usize) {
        let bytes = const { quants::block_bytes(QUANTS) };
        for (l, block) in self.0[..n].iter_mut().enumerate() {
            // SAFETY: the caller's.
            unsafe {
                let blocks = blocks::<JOINED>(rows, first + l, bytes);
                block.w = weights::<QUANTS, JOINED>(&blocks);
                for w in &mut block.w {
                    *w = _mm512_sub_epi8(*w, _mm512_set1_epi8((8 * const { eights(QUANTS) }) as u8 as i8));
                }
                block.d = match QUANTS {
                    quants::POWERS => powers::<JOINED>(&blocks),
                    _ => halves::<JOINED>(&blocks, 0),
                };
                if let Some(at) = const { quants::minimum(QUANTS) } {
                    let less = _mm512_set1_ps(const { quants::less(QUANTS) });
                    block.min = _mm512_fmadd_ps(block.d, less, halves::<JOINED>(&blocks, at));
                }
            }
        }
    }
}
