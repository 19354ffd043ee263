//! Products with AVX2, and with AVX-VNNI: eight weight rows at a time, one in each lane. A file for each layout of blocks.
//!
//! Four bytes of each of eight rows make a register, which four bytes of a column, the same in all lanes, are multiplied
//! with: so one conversion and one fused multiply-add a block serve eight rows.

mod both;
pub(crate) mod joined;
mod low_bits;
mod q4k_q5k;
mod q6k;
mod q8_0_q4_0;
pub(crate) mod quantise;
mod rows;

use crate::activations::ColumnTile;
use crate::tile::{Dots, RowGroup, WIDE};
use crate::weight_type::{WeightType, quants};

/// Quantised weights, with AVX-VNNI if `VNNI`.
///
/// # Safety
/// The tile contract, for AVX2, or for AVX-VNNI; if `JOINED`, for rows that were joined.
pub(crate) unsafe fn dots<const VNNI: bool, const JOINED: bool>(
    ty: WeightType,
    group: &RowGroup<WIDE>,
    y: &ColumnTile,
) -> Dots<WIDE> {
    // SAFETY: the tile contract, handed on; the CPU has the features that the kernels are compiled for.
    unsafe {
        match ty {
            WeightType::Q8_0 => q8_0_q4_0::dots::<{ quants::BYTES }, VNNI, JOINED>(group, y),
            WeightType::Q4_0 => q8_0_q4_0::dots::<{ quants::NIBBLES }, VNNI, JOINED>(group, y),
            WeightType::IQ4NL => q8_0_q4_0::dots::<{ quants::CHOICES }, VNNI, JOINED>(group, y),
            WeightType::Q5_0 => q8_0_q4_0::dots::<{ quants::FIVES }, VNNI, JOINED>(group, y),
            WeightType::Q4_1 => q8_0_q4_0::dots::<{ quants::NIBBLES_FROM }, VNNI, JOINED>(group, y),
            WeightType::Q5_1 => q8_0_q4_0::dots::<{ quants::FIVES_FROM }, VNNI, JOINED>(group, y),
            WeightType::MXFP4 => q8_0_q4_0::dots::<{ quants::POWERS }, VNNI, JOINED>(group, y),
            WeightType::Q4K => q4k_q5k::dots::<false, VNNI, JOINED>(group, y),
            WeightType::Q5K => q4k_q5k::dots::<true, VNNI, JOINED>(group, y),
            WeightType::Q6K => q6k::dots::<VNNI, JOINED>(group, y),
            WeightType::F32 | WeightType::F16 | WeightType::BF16 => {
                debug_assert!(false, "floats have kernels of their own");
                Dots::<WIDE>::default()
            }
            _ => low_bits::by_type::<VNNI>(ty, group, y),
        }
    }
}
