//! Sums of rows by weight, as attention makes them of values that lie in rows: ggml's product wants them turned, and turning
//! all cells of a cache for every token costs more than the sums.
//! An element of a sum has the same bits in every instruction set, with any number of threads, whatever sums stand beside it.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use ggml_sys as sys;

use crate::f32x16::{F32x16, by_isa};
use crate::isa::Isa;
use crate::matrix::{At, LANES, add_product};

/// Rows that are added up before their sum goes to the others.
const ROWS: usize = 128;

/// Elements of a row that are taken at a time.
const ELEMENTS: usize = 32;

/// Sums for which rows are unpacked once, and those whose parts are in registers together.
const SUMS: usize = 32;
const TOGETHER: usize = 4;

/// The operands of one node. Strides are in bytes.
struct Operands {
    /// Elements of a row, rows, sums of a sequence.
    n_elements: usize,
    n_rows: usize,
    n_sums: usize,
    n_sequences: usize,
    is_f16: bool,
    /// `[n_elements]` for each row of each sequence.
    rows: *const u8,
    row_strides: [usize; 2],
    /// `[n_rows]` for each sum of each sequence.
    weights: *const u8,
    weight_strides: [usize; 2],
    /// `[n_elements]` for each sum of each sequence.
    out: *mut u8,
    out_strides: [usize; 2],
}

impl Operands {
    /// Tiles of elements and of sums, and how many parts of work they make.
    fn n_tiles(&self) -> [usize; 2] {
        [self.n_elements.div_ceil(ELEMENTS), self.n_sums.div_ceil(SUMS)]
    }

    fn n_parts(&self) -> usize {
        self.n_tiles().iter().product::<usize>() * self.n_sequences
    }
}

/// What a thread works on; aligned, so that no load takes two lines of the cache.
#[repr(C, align(64))]
struct Tile {
    rows: [f32; ROWS * ELEMENTS],
    sums: [f32; SUMS * ELEMENTS],
}

/// Parts `parts` of the work, by tiles of elements, of sums, and by sequences.
///
/// # Safety
/// All pointers are good for their sizes and strides, `parts` lies within them, the CPU has what `V` needs.
#[inline(always)]
unsafe fn sums<V: F32x16>(o: &Operands, parts: Range<usize>) {
    let mut tile = Tile { rows: [0.0; ROWS * ELEMENTS], sums: [0.0; SUMS * ELEMENTS] };
    let [n_tiles, n_groups] = o.n_tiles();
    for part in parts {
        let (first, group, sequence) =
            (part % n_tiles * ELEMENTS, part / n_tiles % n_groups, part / n_tiles / n_groups);
        let n = ELEMENTS.min(o.n_elements - first);
        let n_sums = SUMS.min(o.n_sums - group * SUMS);
        let weights = o.weights.wrapping_add(group * SUMS * o.weight_strides[0] + sequence * o.weight_strides[1]);
        let weights = At { data: weights.cast::<f32>(), stride: o.weight_strides[0] / size_of::<f32>() };
        tile.sums.fill(0.0);
        // SAFETY: weights of these sums.
        let n_used = unsafe { n_used(weights, n_sums, o.n_rows) };
        for row in (0..n_used).step_by(ROWS) {
            let n_rows = ROWS.min(n_used - row);
            let size = if o.is_f16 { 2 } else { 4 };
            let at = row * o.row_strides[0] + sequence * o.row_strides[1] + first * size;
            // SAFETY: elements `first..first + n` of these rows; the tile has room for as many.
            unsafe { unpack::<V>(o, o.rows.wrapping_add(at), [n_rows, n], &mut tile.rows) };
            let a = At { data: weights.data.wrapping_add(row), ..weights };
            let b = At { data: tile.rows.as_ptr(), stride: ELEMENTS };
            let c = At { data: tile.sums.as_mut_ptr(), stride: ELEMENTS };
            // SAFETY: weights of these sums and rows; the tiles have these sizes.
            unsafe { add_product::<V, TOGETHER>(a, b, c, [n_sums, n_rows, n.next_multiple_of(LANES)]) };
        }
        let out = o.out.wrapping_add(group * SUMS * o.out_strides[0] + sequence * o.out_strides[1]).cast::<f32>();
        for (i, sum) in tile.sums.chunks_exact(ELEMENTS).enumerate().take(n_sums) {
            let to = out.wrapping_byte_add(i * o.out_strides[0]).wrapping_add(first);
            // SAFETY: elements `first..first + n` of a sum.
            unsafe { std::ptr::copy_nonoverlapping(sum.as_ptr(), to, n) };
        }
    }
}

/// Rows before those at the end that no sum takes, as cells behind a mask: to a multiple of [`ROWS`].
///
/// # Safety
/// There are `n_sums` rows of `n_rows` weights.
#[inline(always)]
unsafe fn n_used(weights: At<*const f32>, n_sums: usize, n_rows: usize) -> usize {
    let mut n = n_rows;
    while n > 0 {
        let first = (n - 1) / ROWS * ROWS;
        // A later token sees more cells.
        let is_used = (0..n_sums).rev().any(|sum| {
            // SAFETY: a part of a row of weights.
            let part = unsafe { std::slice::from_raw_parts(weights.data.add(sum * weights.stride + first), n - first) };
            part.iter().any(|&weight| weight != 0.0)
        });
        if is_used {
            break;
        }
        n = first;
    }
    n
}

/// The first `n` elements of `n_rows` rows as floats, in rows of [`ELEMENTS`]; what is missing to a whole group of lanes is
/// anything finite.
///
/// # Safety
/// The rows are there, `n` is at most [`ELEMENTS`], `n_rows` at most [`ROWS`], the CPU has what `V` needs.
#[inline(always)]
unsafe fn unpack<V: F32x16>(o: &Operands, rows: *const u8, [n_rows, n]: [usize; 2], to: &mut [f32; ROWS * ELEMENTS]) {
    for (i, to) in to.chunks_exact_mut(ELEMENTS).enumerate().take(n_rows) {
        let from = rows.wrapping_add(i * o.row_strides[0]);
        let n_whole = n / LANES * LANES;
        for e in (0..n_whole).step_by(LANES) {
            // SAFETY: a group of lanes of the row.
            let x = unsafe { if o.is_f16 { V::load_f16(from.add(2 * e)) } else { V::load(from.add(4 * e).cast()) } };
            // SAFETY: the tile's row has room for it.
            unsafe { x.store(to.as_mut_ptr().add(e)) };
        }
        for (e, to) in to.iter_mut().enumerate().take(n).skip(n_whole) {
            // SAFETY: an element of the row; converting has no preconditions.
            *to = unsafe {
                match o.is_f16 {
                    true => sys::ggml_fp16_to_fp32(from.add(2 * e).cast::<u16>().read_unaligned()),
                    false => from.add(4 * e).cast::<f32>().read_unaligned(),
                }
            };
        }
    }
}

by_isa!(on_isa, sums, (operands: &Operands, parts: Range<usize>));

/// `src[0]: [n_elements, n_rows, 1, n_seqs]` rows, F16 or F32, and `src[1]: [n_rows, n_sums, 1, n_seqs]` weights, F32, both
/// with elements that lie together, give `dst: [n_elements, n_sums, 1, n_seqs]` F32: the sums of the rows, each times its weight.
///
/// # Safety
/// The node contract.
pub unsafe extern "C" fn weighted_rows(dst: *mut sys::ggml_tensor, ith: c_int, nth: c_int, _: *mut c_void) {
    let Some(isa) = Isa::chosen() else { return };
    // SAFETY: the node is alive.
    let dst = unsafe { &*dst };
    // SAFETY: the node has two operands.
    let [rows, weights] = std::array::from_fn(|i| unsafe { &*dst.src[i] });
    let strides = |t: &sys::ggml_tensor| [t.nb[1], t.nb[3]];
    let operands = Operands {
        n_elements: rows.ne[0] as usize,
        n_rows: rows.ne[1] as usize,
        n_sums: weights.ne[1] as usize,
        n_sequences: weights.ne[3] as usize,
        is_f16: rows.type_ == sys::GGML_TYPE_F16,
        rows: rows.data.cast(),
        row_strides: strides(rows),
        weights: weights.data.cast(),
        weight_strides: strides(weights),
        out: dst.data.cast(),
        out_strides: strides(dst),
    };
    let (all, ith, nth) = (operands.n_parts(), ith as usize, nth as usize);
    // SAFETY: shapes were checked when the node was made; parts are this thread's.
    unsafe { on_isa(isa, &operands, all * ith / nth..all * (ith + 1) / nth) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 104_729) % 2039) as f32 / 700.0 - 1.4).collect()
    }

    /// Rows of `n_elements + 3` elements, of which the first are taken.
    struct Case {
        shape: [usize; 4],
        rows: Vec<f32>,
        weights: Vec<f32>,
    }

    impl Case {
        fn new(shape: [usize; 4]) -> Self {
            let [n_elements, n_rows, n_sums, n_sequences] = shape;
            let rows = numbers((n_elements + 3) * n_rows * n_sequences, 1);
            Self { shape, rows, weights: numbers(n_rows * n_sums * n_sequences, 2) }
        }

        fn sums(&self, isa: Isa, is_f16: bool, n_threads: usize) -> Vec<f32> {
            let [n_elements, n_rows, n_sums, n_sequences] = self.shape;
            // SAFETY: no preconditions.
            let halves: Vec<u16> = self.rows.iter().map(|&x| unsafe { sys::ggml_fp32_to_fp16(x) }).collect();
            let (rows, size) = if is_f16 { (halves.as_ptr().cast(), 2) } else { (self.rows.as_ptr().cast(), 4) };
            let mut out = vec![f32::NAN; n_elements * n_sums * n_sequences];
            let row = (n_elements + 3) * size;
            let operands = Operands {
                n_elements,
                n_rows,
                n_sums,
                n_sequences,
                is_f16,
                rows,
                row_strides: [row, row * n_rows],
                weights: self.weights.as_ptr().cast(),
                weight_strides: [4 * n_rows, 4 * n_rows * n_sums],
                out: out.as_mut_ptr().cast(),
                out_strides: [4 * n_elements, 4 * n_elements * n_sums],
            };
            let all = operands.n_parts();
            for ith in 0..n_threads {
                // SAFETY: everything has the sizes said above; the instruction set is available.
                unsafe { on_isa(isa, &operands, all * ith / n_threads..all * (ith + 1) / n_threads) };
            }
            out
        }

        /// In double precision, by the definition.
        fn plain(&self) -> Vec<f64> {
            let [n_elements, n_rows, n_sums, n_sequences] = self.shape;
            let element =
                |sequence: usize, row: usize, e: usize| self.rows[(sequence * n_rows + row) * (n_elements + 3) + e];
            let mut out = Vec::new();
            for i in 0..n_sums * n_sequences {
                let weights = &self.weights[i * n_rows..][..n_rows];
                let of_row =
                    |e: usize| move |(row, &w): (usize, &f32)| f64::from(w) * f64::from(element(i / n_sums, row, e));
                out.extend((0..n_elements).map(|e| weights.iter().enumerate().map(of_row(e)).sum::<f64>()));
            }
            out
        }
    }

    #[test]
    fn every_instruction_set_and_number_of_threads_gives_the_same_bits_and_they_are_sums() {
        for shape in [[512, 256, 16, 1], [32, 300, 5, 3], [24, 7, 1, 2], [70, 129, 37, 1], [1, 1, 1, 1]] {
            let case = Case::new(shape);
            for (is_f16, tolerance) in [(false, 2e-4), (true, 0.1)] {
                let first = case.sums(Isa::Scalar, is_f16, 1);
                for (i, (&found, expected)) in first.iter().zip(case.plain()).enumerate() {
                    let error = (f64::from(found) - expected).abs();
                    assert!(error < tolerance, "{shape:?}, f16 {is_f16}, element {i}: {found}, {expected} expected");
                }
                for isa in Isa::available() {
                    for n_threads in 1..=3 {
                        let found = case.sums(isa, is_f16, n_threads);
                        let same = first.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
                        assert!(same, "{isa:?}, {shape:?}, f16 {is_f16}, {n_threads} threads");
                    }
                }
            }
        }
    }

    #[test]
    fn rows_that_no_sum_takes_are_not_looked_at() {
        let [n_elements, n_rows, n_sums, _] = [32, 3 * ROWS, 5, 1];
        let mut case = Case::new([n_elements, n_rows, n_sums, 1]);
        for (sum, weights) in case.weights.chunks_exact_mut(n_rows).enumerate() {
            weights[ROWS - 3 + sum..].fill(0.0);
        }
        let expected = case.plain();
        case.rows[2 * ROWS * (n_elements + 3)..].fill(f32::NAN);
        for isa in Isa::available() {
            for (i, (found, expected)) in case.sums(isa, false, 2).into_iter().zip(&expected).enumerate() {
                assert!(
                    (f64::from(found) - expected).abs() < 2e-4,
                    "{isa:?}, element {i}: {found}, {expected} expected"
                );
            }
        }
    }

    #[test]
    fn a_sum_has_the_same_bits_alone_and_among_others() {
        let [n_elements, n_rows, n_sums, _] = [48, 200, 9, 1];
        let case = Case::new([n_elements, n_rows, n_sums, 1]);
        for isa in Isa::available() {
            let together = case.sums(isa, true, 2);
            for i in 0..n_sums {
                let weights = case.weights[i * n_rows..][..n_rows].to_vec();
                let alone = Case { shape: [n_elements, n_rows, 1, 1], rows: case.rows.clone(), weights };
                assert_eq!(alone.sums(isa, true, 1), together[i * n_elements..][..n_elements], "{isa:?}, sum {i}");
            }
        }
    }
}
