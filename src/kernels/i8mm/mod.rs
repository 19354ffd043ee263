//! Products with NEON and its products of bytes by two and two: rows `r` and `r + 1` of weights, eight bytes of each in a
//! register, times eight of two columns give a number for each row and column. A file for each layout of blocks.
//!
//! Four weight rows at a time, which are two pairs, times up to four pairs of columns ([`ColumnTile::pairs`]). The bits are those
//! of `neon`, which serves one column, and columns that lie apart.

mod pairs;
mod q4k_q5k;
mod q6k;
mod q8_0_q4_0;

use crate::activations::ColumnTile;
use crate::by_weight_type::by_weight_type;
use crate::isa::Isa;
use crate::tile::{Dots, RowGroup};
use crate::weight_type::WeightType;

/// # Safety
/// The tile contract, for this instruction set; `y` has pairs.
pub(crate) unsafe fn dots(ty: WeightType, group: &RowGroup, y: &ColumnTile) -> Dots {
    // SAFETY: the tile contract, handed on; the CPU has the features that the kernels are compiled for.
    unsafe { by_weight_type!(Isa::I8mm, ty, group, y) }
}

/// `kernel::<P, ..>(group, y)` for the `P` pairs of the columns of `y`.
macro_rules! by_pairs {
    ($kernel:ident, $group:expr, $y:expr $(, $more:tt)*) => {
        match $y.n.div_ceil(2) {
            1 => $kernel::<1 $(, $more)*>($group, $y),
            2 => $kernel::<2 $(, $more)*>($group, $y),
            3 => $kernel::<3 $(, $more)*>($group, $y),
            _ => $kernel::<4 $(, $more)*>($group, $y),
        }
    };
}
use by_pairs;
