//! One kernel, compiled for AVX2 and for AVX-VNNI. Computes nothing.

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
