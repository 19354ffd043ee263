//! F32, F16 and BF16: products of plain values, sixteen lanes at a time, in every instruction set.
//!
//! Lane `t` has values `t` of every sixteen. The order of the sums is our own, the same on every processor, with activations
//! in full precision: ggml's depends on how it was compiled.

use crate::activations::ColumnTile;
use crate::dispatch::{by_columns, by_four_columns};
use crate::f32x16::{F32x16, by_isa};
use crate::isa::Isa;
use crate::prefetch::prefetch;
use crate::tile::{Dots, GROUP, RowGroup};
use crate::weight_type::WeightType;
use crate::weight_type::float::{self, F16, F32};

/// # Safety
/// The tile contract, for a type of floats.
pub(crate) unsafe fn dots(isa: Isa, ty: WeightType, group: &RowGroup, y: &ColumnTile) -> Dots {
    // SAFETY: the tile contract, handed on.
    unsafe {
        match ty {
            WeightType::F32 => of_type::<{ float::F32 }>(isa, group, y),
            WeightType::F16 => of_type::<{ float::F16 }>(isa, group, y),
            _ => of_type::<{ float::BF16 }>(isa, group, y),
        }
    }
}

by_isa!(of_type, in_registers<const TYPE>, (group: &RowGroup, y: &ColumnTile), Dots);

/// In one register a kernel has room for two weight rows and all columns; in several, for one row and four columns.
///
/// # Safety
/// The tile contract; the CPU has what `V` needs.
#[inline(always)]
unsafe fn in_registers<V: F32x16, const TYPE: usize>(group: &RowGroup, y: &ColumnTile) -> Dots {
    if V::N_REGISTERS > 1 {
        // SAFETY: the tile contract, handed on; `j + N` is at most `y.n`, and `r` below `GROUP`.
        return unsafe { by_four_columns!(1, kernel, group, y, 1, V, TYPE) };
    }
    let mut dots = Dots::default();
    for r in (0..GROUP).step_by(2) {
        // SAFETY: likewise, with `j` being 0, and `r + 1` below `GROUP`.
        unsafe { by_columns!(kernel, (group, y, r, 0, &mut dots), y, 2, V, TYPE) };
    }
    dots
}

/// The values of a block.
///
/// # Safety
/// The block can be read; the CPU has what `V` needs.
#[inline(always)]
unsafe fn widened<V: F32x16, const TYPE: usize>(block: *const u8) -> V {
    // SAFETY: a block has sixteen values of its type (the caller).
    unsafe {
        match TYPE {
            F32 => V::load(block.cast()),
            F16 => V::load_f16(block),
            _ => V::load_bf16(block),
        }
    }
}

/// Weight rows `r` to `r + ROWS` times columns `j` to `j + N`.
///
/// # Safety
/// The tile contract, with `r + ROWS` at most [`GROUP`] and `j + N` at most `y.n`; the CPU has what `V` needs.
#[inline(always)]
unsafe fn kernel<const N: usize, const ROWS: usize, V: F32x16, const TYPE: usize>(
    group: &RowGroup,
    y: &ColumnTile,
    r: usize,
    j: usize,
    dots: &mut Dots,
) {
    let bytes = const { if TYPE == F32 { 64 } else { 32 } };
    let ahead = group.ahead.wrapping_add(r * y.n_blocks * bytes);
    let mut sums = [[V::zero(); ROWS]; N];
    let rows: [*const u8; ROWS] = std::array::from_fn(|h| group.rows[r + h]);
    let columns: [*const u8; N] = std::array::from_fn(|i| y.columns[j + i]);
    for l in 0..y.n_blocks {
        if j == 0 {
            prefetch(ahead.wrapping_add(l * ROWS * bytes), ROWS * bytes);
        }
        let mut w = [V::zero(); ROWS];
        for (w, &row) in w.iter_mut().zip(&rows) {
            // SAFETY: `l` is below the number of blocks of the row.
            *w = unsafe { widened::<V, TYPE>(row.add(l * bytes)) };
        }
        for (sum, &column) in sums.iter_mut().zip(&columns) {
            // SAFETY: `l` is below the number of blocks of the column, which have 16 floats each.
            let x = unsafe { V::load(column.add(l * 64).cast()) };
            for h in 0..ROWS {
                sum[h] = w[h].mul_add(x, sum[h]);
            }
        }
    }
    for (i, sum) in sums.iter().enumerate() {
        for h in 0..ROWS {
            dots[j + i][r + h] = sum[h].sum();
        }
    }
}
