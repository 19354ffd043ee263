//! Columns of activations that lie at even distances, as tiles are loaded.

use super::lanes::Lanes;
use crate::activations::Activations;

/// The columns of a product.
#[derive(Clone, Copy)]
pub(crate) struct Columns {
    first: *const u8,
    /// Bytes from one to the next.
    pub(super) stride: usize,
    pub(super) n: usize,
    /// Blocks of each, of the format of the weight's type.
    pub(super) n_blocks: usize,
    /// Where scales begin in a column (`Q8_0`).
    pub(super) scales: usize,
    /// Where offsets begin in a column (`Q8_0`).
    pub(super) offsets: usize,
}

impl Columns {
    /// All columns.
    pub(crate) fn all(x: &Activations) -> Self {
        let tile = x.tile(0, 1);
        let (n, stride) = (x.shape.n, x.column_bytes);
        Self { first: x.column(0), stride, n, n_blocks: tile.n_blocks, scales: tile.scales, offsets: tile.offsets }
    }

    /// Copies of some of them, `memory` holding them: whole cache lines, from which rows of tiles are loaded faster.
    ///
    /// # Safety
    /// The columns were quantised, and `which` are among them.
    pub(crate) unsafe fn gathered(
        x: &Activations,
        which: impl ExactSizeIterator<Item = usize>,
        memory: &mut Vec<Lanes>,
    ) -> Self {
        let all = Self::all(x);
        let (n, lines) = (which.len(), all.stride / size_of::<Lanes>());
        memory.resize(memory.len().max(n * lines), Lanes::NOTHING);
        for (to, j) in memory.chunks_exact_mut(lines).zip(which) {
            // SAFETY: a column is so many bytes, whole lines, which were written (the caller); there is room for as many.
            unsafe { std::ptr::copy_nonoverlapping(all.column(j), to.as_mut_ptr().cast(), all.stride) };
        }
        Self { first: memory.as_ptr().cast(), n, ..all }
    }

    /// Where column `j` begins.
    #[inline(always)]
    pub(super) fn column(&self, j: usize) -> *const u8 {
        self.first.wrapping_add(j * self.stride)
    }
}
