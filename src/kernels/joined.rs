//! Weight rows that lie joined, eight by eight ([`crate::avx2::joined`]), so that kernels need not bring them side by side: a copy that
//! was made once and lies beside the weight ([`join_rows`]), or a panel that is joined for many tiles of eight columns
//! ([`with_joined`]). The bits are those of rows as they lie.

#[cfg(target_arch = "x86_64")]
use std::cell::RefCell;
#[cfg(target_arch = "x86_64")]
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use crate::activations::MAX_COLUMNS;
#[cfg(target_arch = "x86_64")]
use crate::avx2::joined::join;
use crate::isa::Isa;
use crate::tile::WIDE;
use crate::weight_type::WeightType;

#[cfg(target_arch = "x86_64")]
thread_local! {
    /// The rows of a panel; kept from node to node.
    static JOINED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Columns from which on it pays to join rows for one product.
#[cfg(target_arch = "x86_64")]
const LEAST_COLUMNS: usize = 4 * MAX_COLUMNS;

/// True if the rows of such a weight are joined for so many columns.
#[cfg(target_arch = "x86_64")]
pub(crate) fn for_columns(isa: Isa, ty: WeightType, n: usize) -> bool {
    reads(isa, ty) && n >= LEAST_COLUMNS
}

/// True if there are kernels for joined rows.
#[cfg(target_arch = "x86_64")]
pub(crate) fn reads(isa: Isa, ty: WeightType) -> bool {
    matches!(isa, Isa::Avx2 | Isa::AvxVnni | Isa::Avx512 | Isa::Amx) && ty.is_quantised() && !ty.is_low_bit()
}

/// True if there are kernels for joined rows.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn reads(_: Isa, _: WeightType) -> bool {
    false
}

/// Rows that are joined.
pub const JOINED_ROWS: usize = WIDE;

/// True if products read a copy of such weights whose rows are joined: matrices of `n_rows` rows each.
pub fn reads_joined(ty: WeightType, n_rows: usize) -> bool {
    n_rows.is_multiple_of(WIDE) && Isa::chosen().is_some_and(|isa| reads(isa, ty))
}

/// Joins rows of `k` values, eight by eight, of a type whose joined rows are read ([`reads_joined`]): as many bytes. Matrices that lie
/// one after the other are joined as one.
///
/// # Panics
/// `rows` are not whole groups of eight, `joined` has another length, or the CPU has no kernels for joined rows.
pub fn join_rows(ty: WeightType, rows: &[u8], k: usize, joined: &mut [u8]) {
    let row_bytes = ty.row_bytes(k);
    assert!(rows.len().is_multiple_of(WIDE * row_bytes) && rows.len() == joined.len(), "{} bytes", rows.len());
    assert!(Isa::available().into_iter().any(|isa| reads(isa, ty)), "{ty:?} is not joined here");
    #[cfg(target_arch = "x86_64")]
    for (rows, joined) in rows.chunks(WIDE * row_bytes).zip(joined.chunks_mut(WIDE * row_bytes)) {
        let each = std::array::from_fn(|i| rows[i * row_bytes..].as_ptr());
        // SAFETY: eight rows, room for as many bytes (asserted); `reads` says that the CPU has AVX2.
        unsafe { join(ty, &each, k / ty.format().block(), joined.as_mut_ptr()) };
    }
}

/// `then` with the rows `range`, whole groups of eight, of `n_blocks` blocks each and joined: with where row 0 would be, were all
/// rows joined that begin at `data`.
///
/// # Safety
/// The rows can be read; [`for_columns`] says yes.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn with_joined(
    ty: WeightType,
    data: *const u8,
    range: Range<usize>,
    n_blocks: usize,
    then: impl FnOnce(*const u8),
) {
    let row_bytes = n_blocks * ty.block_bytes();
    JOINED.with_borrow_mut(|joined| {
        if joined.len() < range.len() * row_bytes {
            joined.resize(range.len() * row_bytes, 0);
        }
        for r in range.clone().step_by(WIDE) {
            let rows = std::array::from_fn(|i| data.wrapping_add((r + i) * row_bytes));
            let to = joined[(r - range.start) * row_bytes..][..WIDE * row_bytes].as_mut_ptr();
            // SAFETY: rows that can be read (the caller); room for eight; the instruction set has AVX2 (`for_columns`).
            unsafe { join(ty, &rows, n_blocks, to) };
        }
        then(joined.as_ptr().wrapping_sub(range.start * row_bytes));
    });
}
