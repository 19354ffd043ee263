//! Products with AVX-512 VNNI: sixteen weight rows at a time, one in each lane. A file for each layout of blocks.
//!
//! As with AVX2 four bytes of each row make a register, which four bytes of a column are multiplied with, the same in all lanes.
//! VNNI takes weights as unsigned and columns as signed bytes.

mod low_bits;
pub(crate) mod q4k_q5k;
pub(crate) mod q6k;
pub(crate) mod q8_0_q4_0;
pub(crate) mod rows;

use crate::activations::ColumnTile;
use crate::tile::{Dots, RowGroup, WIDEST};
use crate::weight_type::{WeightType, quants};

/// Quantised weights.
///
/// # Safety
/// The tile contract, for this instruction set; if `JOINED`, for rows that were joined.
pub(crate) unsafe fn dots<const JOINED: bool>(
    ty: WeightType,
    group: &RowGroup<WIDEST>,
    y: &ColumnTile,
) -> Dots<WIDEST> {
    // SAFETY: the tile contract, handed on; the CPU has the features that the kernels are compiled for.
    unsafe {
        match ty {
            WeightType::Q8_0 => q8_0_q4_0::dots::<{ quants::BYTES }, JOINED>(group, y),
            WeightType::Q4_0 => q8_0_q4_0::dots::<{ quants::NIBBLES }, JOINED>(group, y),
            WeightType::IQ4NL => q8_0_q4_0::dots::<{ quants::CHOICES }, JOINED>(group, y),
            WeightType::Q5_0 => q8_0_q4_0::dots::<{ quants::FIVES }, JOINED>(group, y),
            WeightType::Q4_1 => q8_0_q4_0::dots::<{ quants::NIBBLES_FROM }, JOINED>(group, y),
            WeightType::Q5_1 => q8_0_q4_0::dots::<{ quants::FIVES_FROM }, JOINED>(group, y),
            WeightType::MXFP4 => q8_0_q4_0::dots::<{ quants::POWERS }, JOINED>(group, y),
            WeightType::Q4K => q4k_q5k::dots::<false, JOINED>(group, y),
            WeightType::Q5K => q4k_q5k::dots::<true, JOINED>(group, y),
            WeightType::Q6K => q6k::dots::<JOINED>(group, y),
            WeightType::F32 | WeightType::F16 | WeightType::BF16 => {
                debug_assert!(false, "floats have kernels of their own");
                Dots::<WIDEST>::default()
            }
            _ => low_bits::by_type(ty, group, y),
        }
    }
}
