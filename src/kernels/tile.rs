//! What a kernel takes at a time and gives back.

use crate::activations::MAX_COLUMNS;

/// Weight rows that most kernels take at a time.
pub(crate) const GROUP: usize = 4;

/// Weight rows that kernels take which have one in each lane of 256 bits.
pub(crate) const WIDE: usize = 8;

/// Weight rows that kernels take which have one in each lane of 512 bits.
#[cfg(target_arch = "x86_64")]
pub(crate) const WIDEST: usize = 2 * WIDE;

/// Weight rows and where the bytes lie that come next.
pub(crate) struct RowGroup<const ROWS: usize = GROUP> {
    pub(crate) rows: [*const u8; ROWS],
    pub(crate) ahead: *const u8,
}

/// Dot products of up to eight columns with weight rows, column after column, as they lie in the result.
pub(crate) type Dots<const ROWS: usize = GROUP> = [[f32; ROWS]; MAX_COLUMNS];
