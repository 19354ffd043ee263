//! Products with NEON and its dot product of bytes: four weight rows at a time, one in each lane of 128 bits.
//! A file for each layout of blocks.

pub(crate) mod low_bits;
pub(crate) mod q4k_q5k;
pub(crate) mod q6k;
mod q8_0_q4_0;
pub(crate) mod quantise;
pub(crate) mod registers;
pub(crate) mod rows;

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
