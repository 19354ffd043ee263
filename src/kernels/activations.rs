//! How quantised rows lie in the node between an input and its products. Owns the layout; computes nothing.
//!
//! A head, then row after row, each on a cache line of its own. A row for products with `Q8_0` is its quants (biased on
//! x86-64: VNNI multiplies unsigned with signed), then its scales as F32. A row for the K types is a sequence of records of
//! 320 bytes: 256 quants, the scale, and sums of quants that the minima and the offset of 32 are multiplied with.

use super::weight_type::Format;

/// Rows that a kernel takes at a time.
pub(super) const MAX_ROWS: usize = 8;

/// Added to quants for `Q8_0`.
pub(super) const BIAS: u8 = if cfg!(target_arch = "x86_64") { 0x80 } else { 0 };

/// A record of a K row.
pub(super) mod record {
    /// Bytes of one.
    pub(in super::super) const BYTES: usize = 320;
    /// F32 scale.
    pub(in super::super) const SCALE: usize = 256;
    /// Eight i16: sums of 32 quants each.
    pub(in super::super) const SUMS_32: usize = 272;
    /// Sixteen i16: sums of 16 quants each.
    pub(in super::super) const SUMS_16: usize = 288;
}

/// How many rows there are, their length in values, and what they are rounded to.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) format: Format,
}

/// Threads at most; each has a byte of the head.
const MAX_THREADS: usize = ggml_sys::GGML_MAX_N_THREADS as usize;

/// A byte for each thread, then their number.
const HEAD: usize = MAX_THREADS + LINE;

/// Bytes of a cache line; ggml aligns nodes to less.
const LINE: usize = 64;

impl Shape {
    /// Blocks of one row.
    pub(super) fn n_blocks(self) -> usize {
        self.k / self.format.block()
    }

    fn row_bytes(self) -> usize {
        match self.format {
            Format::Q8_0 => (self.k + self.n_blocks() * size_of::<f32>()).next_multiple_of(LINE),
            Format::Q8K => self.n_blocks() * record::BYTES,
            Format::F32 => self.k * size_of::<f32>(),
        }
    }

    /// Bytes of the whole node.
    pub(super) fn n_bytes(self) -> usize {
        HEAD + LINE + self.n * self.row_bytes()
    }
}

/// The node's memory.
pub(super) struct Rows {
    pub(super) shape: Shape,
    /// The head; null for rows that are read as they are.
    base: *mut u8,
    first: *mut u8,
    row_bytes: usize,
}

impl Rows {
    /// # Safety
    /// `base` has [`Shape::n_bytes`] bytes. Threads write apart from each other.
    pub(super) unsafe fn new(shape: Shape, base: *mut u8) -> Self {
        let base = base.wrapping_add(base.align_offset(LINE));
        Self { shape, base, first: base.wrapping_add(HEAD), row_bytes: shape.row_bytes() }
    }

    /// Rows of F32 as they lie, `row_bytes` apart; nothing writes them.
    ///
    /// # Safety
    /// `first` begins `shape.n` of them.
    pub(super) unsafe fn plain(shape: Shape, first: *mut u8, row_bytes: usize) -> Self {
        debug_assert_eq!(shape.format, Format::F32);
        Self { shape, base: std::ptr::null_mut(), first, row_bytes }
    }

    /// Where row `j < n` begins.
    pub(super) fn row(&self, j: usize) -> *mut u8 {
        self.first.wrapping_add(j * self.row_bytes)
    }

    /// Quants and scale of block `l` of row `j`, biased (`Q8_0`).
    pub(super) fn block(&self, j: usize, l: usize) -> (*mut u8, *mut f32) {
        let row = self.row(j);
        let scale = row.wrapping_add(self.shape.k + l * size_of::<f32>());
        (row.wrapping_add(l * self.shape.format.block()), scale.cast())
    }

    /// Record `l` of row `j` (`Q8K`).
    pub(super) fn record(&self, j: usize, l: usize) -> *mut u8 {
        self.row(j).wrapping_add(l * record::BYTES)
    }

    /// Notes whether thread `ith` of `nth` found a quant of -128.
    ///
    /// # Safety
    /// Each thread below `nth` calls this once.
    pub(super) unsafe fn note_odd(&self, ith: usize, nth: usize, odd: bool) {
        debug_assert!(ith < nth && nth <= MAX_THREADS);
        // SAFETY: the head has a byte for each thread.
        unsafe { *self.base.wrapping_add(ith) = u8::from(odd) };
        if ith == 0 {
            // SAFETY: the head has room for the number behind the bytes, aligned to a line.
            unsafe { *self.base.wrapping_add(MAX_THREADS).cast::<u32>() = nth as u32 };
        }
    }

    /// True when some row has a quant of -128 and that matters. Only rows with a NaN, an infinity or nothing but the smallest
    /// numbers have it, and there ggml's sign trick on x86-64 gives a `Q8_0` product that kernels do not.
    ///
    /// # Safety
    /// All threads have called [`Rows::note_odd`].
    pub(super) unsafe fn odd(&self) -> bool {
        if !cfg!(target_arch = "x86_64") || self.shape.format != Format::Q8_0 {
            return false;
        }
        // SAFETY: written by `note_odd`.
        let nth = unsafe { *self.base.wrapping_add(MAX_THREADS).cast::<u32>() } as usize;
        // SAFETY: each thread wrote its byte.
        (0..nth).any(|ith| unsafe { *self.base.wrapping_add(ith) } != 0)
    }

    /// True when this row has a quant of -128 (`Q8_0`).
    ///
    /// # Safety
    /// The row was quantised; `j < n`.
    pub(super) unsafe fn is_odd(&self, j: usize) -> bool {
        // SAFETY: a row begins with its quants.
        let quants = unsafe { std::slice::from_raw_parts(self.row(j), self.shape.k) };
        quants.contains(&(i8::MIN as u8 ^ BIAS))
    }

    /// Row `j` as ggml has it (`Q8_0`).
    ///
    /// # Safety
    /// The row was quantised; `j < n`.
    pub(super) unsafe fn as_ggml(&self, j: usize) -> Vec<u8> {
        let mut row = Vec::with_capacity(self.shape.n_blocks() * 34);
        for l in 0..self.shape.n_blocks() {
            let (quants, scale) = self.block(j, l);
            // SAFETY: the block was quantised.
            let scale = unsafe { *scale };
            // SAFETY: no preconditions.
            row.extend(unsafe { ggml_sys::ggml_fp32_to_fp16(scale) }.to_ne_bytes());
            // SAFETY: the block has 32 quants.
            row.extend(unsafe { *quants.cast::<[u8; 32]>() }.map(|q| q ^ BIAS));
        }
        row
    }

    /// Rows `first` to `first + n` as kernels read them.
    pub(super) fn columns(&self, first: usize, n: usize) -> Columns {
        debug_assert!((1..=MAX_ROWS).contains(&n));
        self.gathered(n, |i| first + i)
    }

    /// `n` rows, number `i` of them being row `which(i)`.
    pub(super) fn gathered(&self, n: usize, which: impl Fn(usize) -> usize) -> Columns {
        let rows = std::array::from_fn(|i| self.row(which(i.min(n - 1))).cast_const());
        Columns { n, n_blocks: self.shape.n_blocks(), scales: self.shape.k, rows }
    }
}

/// Up to eight rows.
pub(super) struct Columns {
    pub(super) n: usize,
    pub(super) n_blocks: usize,
    /// Where scales begin in a row (`Q8_0`).
    pub(super) scales: usize,
    /// Where each begins; past `n` the last one again.
    pub(super) rows: [*const u8; MAX_ROWS],
}

/// A scale in a row.
///
/// # Safety
/// It can be read.
pub(super) unsafe fn float(p: *const u8) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { p.cast::<f32>().read_unaligned() }
}
