//! Products with AVX2, and with AVX-VNNI: eight weight rows at a time, one in each lane. A file for each layout of blocks.
//!
//! Four bytes of each of eight rows make a register, which four bytes of a column, the same in all lanes, are multiplied
//! with: so one conversion and one fused multiply-add a block serve eight rows ([`crate::isa::Order::Blocks`]).

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
/// The tile contract, for AVX2, or for AVX-VNNI.
pub(crate) unsafe fn dots<const VNNI: bool>(ty: WeightType, group: &RowGroup<WIDE>, y: &ColumnTile) -> Dots<WIDE> {
    // SAFETY: the tile contract, handed on; the CPU has the features that the kernels are compiled for.
    unsafe {
        match ty {
            WeightType::Q8_0 => q8_0_q4_0::dots::<{ quants::BYTES }, VNNI>(group, y),
            WeightType::Q4_0 => q8_0_q4_0::dots::<{ quants::NIBBLES }, VNNI>(group, y),
            WeightType::IQ4NL => q8_0_q4_0::dots::<{ quants::CHOICES }, VNNI>(group, y),
            WeightType::Q4K => q4k_q5k::dots::<false, VNNI>(group, y),
            WeightType::Q5K => q4k_q5k::dots::<true, VNNI>(group, y),
            WeightType::Q6K => q6k::dots::<VNNI>(group, y),
            WeightType::F32 | WeightType::F16 | WeightType::BF16 => {
                debug_assert!(false, "floats have kernels of their own");
                Dots::<WIDE>::default()
            }
        }
    }
}

/// `dots::<.., VNNI>(group, y)`, which takes the tile contract: `kernel::<N, .., VNNI>` compiled for the features of AVX2, and
/// of AVX-VNNI, for every number of columns.
macro_rules! for_both {
    ($kernel:ident $(, $more:ident: $type:ty)*) => {
        /// # Safety
        /// The tile contract, for AVX2, or AVX-VNNI if `VNNI`.
        pub(crate) unsafe fn dots<$(const $more: $type,)* const VNNI: bool>(
            group: &$crate::tile::RowGroup<{ $crate::tile::WIDE }>,
            y: &$crate::activations::ColumnTile,
        ) -> $crate::tile::Dots<{ $crate::tile::WIDE }> {
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn plain<const N: usize $(, const $more: $type)*>(
                group: &$crate::tile::RowGroup<{ $crate::tile::WIDE }>,
                y: &$crate::activations::ColumnTile,
            ) -> $crate::tile::Dots<{ $crate::tile::WIDE }> {
                // SAFETY: the contract of the outer function; `N` is `y.n`.
                unsafe { $kernel::<N $(, $more)*, false>(group, y) }
            }
            #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
            unsafe fn vnni<const N: usize $(, const $more: $type)*>(
                group: &$crate::tile::RowGroup<{ $crate::tile::WIDE }>,
                y: &$crate::activations::ColumnTile,
            ) -> $crate::tile::Dots<{ $crate::tile::WIDE }> {
                // SAFETY: the contract of the outer function; `N` is `y.n`.
                unsafe { $kernel::<N $(, $more)*, true>(group, y) }
            }
            // SAFETY: the contract of this function; `N` is `y.n`.
            unsafe {
                if VNNI {
                    $crate::dispatch::by_columns!(vnni, (group, y), y $(, $more)*)
                } else {
                    $crate::dispatch::by_columns!(plain, (group, y), y $(, $more)*)
                }
            }
        }
    };
}
pub(crate) use for_both;
