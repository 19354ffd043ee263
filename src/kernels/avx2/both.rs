//! One kernel, compiled for AVX2 and for AVX-VNNI. Computes nothing.

/// `dots::<.., VNNI, JOINED>(group, y)`, which takes the tile contract: `kernel::<N, .., VNNI, JOINED>` compiled for the features
/// of AVX2, and of AVX-VNNI, for every number of columns.
macro_rules! for_both {
    ($kernel:ident $(, $more:ident: $type:ty)*) => {
        /// # Safety
        /// The tile contract, for AVX2, or AVX-VNNI if `VNNI`; if `JOINED`, for rows that `joined.rs` joined.
        pub(crate) unsafe fn dots<$(const $more: $type,)* const VNNI: bool, const JOINED: bool>(
            group: &$crate::tile::RowGroup<{ $crate::tile::WIDE }>,
            y: &$crate::activations::ColumnTile,
        ) -> $crate::tile::Dots<{ $crate::tile::WIDE }> {
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn plain<const N: usize $(, const $more: $type)*, const JOINED: bool>(
                group: &$crate::tile::RowGroup<{ $crate::tile::WIDE }>,
                y: &$crate::activations::ColumnTile,
            ) -> $crate::tile::Dots<{ $crate::tile::WIDE }> {
                // SAFETY: the contract of the outer function; `N` is `y.n`.
                unsafe { $kernel::<N $(, $more)*, false, JOINED>(group, y) }
            }
            #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
            unsafe fn vnni<const N: usize $(, const $more: $type)*, const JOINED: bool>(
                group: &$crate::tile::RowGroup<{ $crate::tile::WIDE }>,
                y: &$crate::activations::ColumnTile,
            ) -> $crate::tile::Dots<{ $crate::tile::WIDE }> {
                // SAFETY: the contract of the outer function; `N` is `y.n`.
                unsafe { $kernel::<N $(, $more)*, true, JOINED>(group, y) }
            }
            // SAFETY: the contract of this function; `N` is `y.n`.
            unsafe {
                match (JOINED, VNNI) {
                    (false, false) => $crate::dispatch::by_columns!(plain, (group, y), y $(, $more)*, false),
                    (false, true) => $crate::dispatch::by_columns!(vnni, (group, y), y $(, $more)*, false),
                    (true, false) => $crate::dispatch::by_columns!(plain, (group, y), y $(, $more)*, true),
                    (true, true) => $crate::dispatch::by_columns!(vnni, (group, y), y $(, $more)*, true),
                }
            }
        }
    };
}
pub(crate) use for_both;
