//! What kinds of weights have in common: a step is some blocks of sixteen rows, unpacked for tiles.

use super::columns::Columns;
use super::lanes::Lanes;
use super::tiles::{Sums, Tiles};
use crate::tile::WIDEST;
use crate::weight_type::WeightType;

/// Where sixteen rows begin.
pub(super) type Rows = [*const u8; WIDEST];

/// Sums of up to eight tile products, two by two.
#[repr(C, align(64))]
pub(super) struct Products(pub(super) [[Sums; 2]; 4]);

/// Unpacks blocks of sixteen rows from a first one on, so many, into a step.
pub(super) type Unpack<S> = unsafe fn(&mut S, &Rows, usize, usize);

/// Some blocks of sixteen rows.
pub(super) trait Step {
    /// How many.
    const BLOCKS: usize;
    /// Bytes of a column that a tile takes.
    const TILE_BYTES: usize;

    /// True if sums of minima are added apart.
    fn has_mins(ty: WeightType) -> bool;

    /// Integer products of this step, number `step` of its rows, with the columns from `j` on that tiles are shaped for.
    ///
    /// # Safety
    /// The tiles are shaped for no more columns than there are and for [`Step::TILE_BYTES`]; columns have this step.
    unsafe fn multiply(&self, tiles: &mut Tiles, x: &Columns, j: usize, step: usize, products: &mut Products);

    /// Adds what these products with the columns from `j` on stand for to sums and, apart, sums of minima, of which the slices have one
    /// for each column. Step 0 begins them.
    ///
    /// # Safety
    /// As [`Step::multiply`], which was called; the CPU has AVX-512 F and VNNI.
    unsafe fn add(
        &self,
        ty: WeightType,
        products: &Products,
        x: &Columns,
        j: usize,
        step: usize,
        sums: [&mut [Lanes]; 2],
    );
}
