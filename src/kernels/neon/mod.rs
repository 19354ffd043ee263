//! Products with NEON and its dot product of bytes. Eight lanes are two registers of four. A file for each layout of blocks.

mod q4k_q5k;
mod q6k;
mod q8_0_q4_0;
pub(crate) mod quantise;
mod registers;

use crate::activations::ColumnTile;
use crate::by_weight_type::by_weight_type;
use crate::isa::Isa;
use crate::tile::{Dots, RowGroup};
use crate::weight_type::WeightType;

/// # Safety
/// The tile contract, for this instruction set.
pub(crate) unsafe fn dots(ty: WeightType, group: &RowGroup, y: &ColumnTile) -> Dots {
    // SAFETY: the tile contract, handed on; the CPU has the features that the kernels are compiled for.
    unsafe { by_weight_type!(Isa::Neon, ty, group, y) }
}
