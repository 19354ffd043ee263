//! What a kernel takes at a time and gives back.

use crate::activations::MAX_COLUMNS;

/// Weight rows that a kernel takes at a time.
pub(crate) const GROUP: usize = 4;

/// Four weight rows and where the bytes lie that come next.
pub(crate) struct RowGroup {
    pub(crate) rows: [*const u8; GROUP],
    pub(crate) ahead: *const u8,
}

/// Dot products of four weight rows with up to eight columns.
pub(crate) type Dots = [[f32; MAX_COLUMNS]; GROUP];
