//! How activations lie in the node between an input and its products. Owns the layout; computes nothing.
//!
//! A head, then column after column, each on a cache line of its own. A column for products with `Q8_0` is its quants
//! (with a bias where VNNI multiplies unsigned with signed: [`Isa::bias`]), then its scales as F32, then its offsets
//! ([`offset`]). A column for the K types is a sequence of records of 320 bytes: 256 quants, the scale, and sums of quants that
//! the minima and the offset of 32 are multiplied with.
//!
//! On aarch64 pairs of columns follow, for instructions that multiply two at a time ([`Isa::wants_pairs`]): eight quants of the
//! one, eight of the other, and so on; for `Q8_0` then scales, in turns. The last of an odd number stands beside itself; one
//! column alone has no pair.

use crate::isa::Isa;
use crate::weight_type::ActivationFormat;

/// Columns that a kernel takes at a time.
pub(crate) const MAX_COLUMNS: usize = 8;

/// A record of a column for the K types.
pub(crate) mod record {
    /// Bytes of one.
    pub(crate) const BYTES: usize = 320;
    /// F32 scale.
    pub(crate) const SCALE: usize = 256;
    /// Eight i16: sums of 32 quants each.
    pub(crate) const SUMS_32: usize = 272;
    /// Sixteen i16: sums of 16 quants each.
    pub(crate) const SUMS_16: usize = 288;
}

/// What 8 more in every weight adds to the 16-bit sums of 32 quants, negative: of values `4i` and `4i + 1`, then of the others.
/// Only AVX2 and AVX-512 read it.
pub(crate) fn offset(quants: &[i8; 32]) -> [i16; 2] {
    let of = |at: usize| -8 * quants[at..].chunks(4).map(|q| i16::from(q[0]) + i16::from(q[1])).sum::<i16>();
    [of(0), of(2)]
}

/// How many columns there are, their length in values, and what they are rounded to.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Columns.
    pub n: usize,
    /// Values of one.
    pub k: usize,
    /// What they are rounded to.
    pub format: ActivationFormat,
}

/// Threads at most; each has a byte of the head.
const MAX_THREADS: usize = ggml_sys::GGML_MAX_N_THREADS as usize;

/// A byte for each thread, then their number.
const HEAD: usize = MAX_THREADS + LINE;

/// Bytes of a cache line; ggml aligns nodes to less.
const LINE: usize = 64;

impl Shape {
    /// Blocks of one column.
    pub(crate) fn n_blocks(self) -> usize {
        self.k / self.format.block()
    }

    fn column_bytes(self) -> usize {
        match self.format {
            ActivationFormat::Q8_0 => (self.k + 2 * self.n_blocks() * size_of::<f32>()).next_multiple_of(LINE),
            ActivationFormat::Q8K => self.n_blocks() * record::BYTES,
            ActivationFormat::F32 => self.k * size_of::<f32>(),
        }
    }

    /// Pairs of columns.
    fn n_pairs(self) -> usize {
        if cfg!(target_arch = "aarch64") && self.n > 1 { self.n.div_ceil(2) } else { 0 }
    }

    fn pair_bytes(self) -> usize {
        let scales = if self.format == ActivationFormat::Q8_0 { 2 * self.n_blocks() * size_of::<f32>() } else { 0 };
        (2 * self.k + scales).next_multiple_of(LINE)
    }

    /// Bytes of the whole node.
    pub fn n_bytes(self) -> usize {
        HEAD + LINE + self.n * self.column_bytes() + self.n_pairs() * self.pair_bytes()
    }
}

/// The node's memory.
pub(crate) struct Activations {
    pub(crate) shape: Shape,
    /// The head; null for columns that are read as they are.
    base: *mut u8,
    first: *mut u8,
    /// From one column to the next.
    pub(crate) column_bytes: usize,
    /// That of the instruction set that quantises and reads them.
    bias: u8,
}

impl Activations {
    /// As `isa` wants them.
    ///
    /// # Safety
    /// `base` has [`Shape::n_bytes`] bytes. Threads write apart from each other.
    pub(crate) unsafe fn new(shape: Shape, isa: Isa, base: *mut u8) -> Self {
        let base = base.wrapping_add(base.align_offset(LINE));
        Self { shape, base, first: base.wrapping_add(HEAD), column_bytes: shape.column_bytes(), bias: isa.bias() }
    }

    /// Columns of F32 as they lie, `column_bytes` apart; nothing writes them.
    ///
    /// # Safety
    /// `first` begins `shape.n` of them.
    pub(crate) unsafe fn plain(shape: Shape, first: *mut u8, column_bytes: usize) -> Self {
        debug_assert_eq!(shape.format, ActivationFormat::F32);
        Self { shape, base: std::ptr::null_mut(), first, column_bytes, bias: 0 }
    }

    /// Where column `j < n` begins.
    pub(crate) fn column(&self, j: usize) -> *mut u8 {
        self.first.wrapping_add(j * self.column_bytes)
    }

    /// Quants, biased, and scale of block `l` of column `j` (`Q8_0`).
    pub(crate) fn block(&self, j: usize, l: usize) -> (*mut u8, *mut f32) {
        let column = self.column(j);
        let scale = column.wrapping_add(self.shape.k + l * size_of::<f32>());
        (column.wrapping_add(l * self.shape.format.block()), scale.cast())
    }

    /// Where the [`offset`] of block `l` of column `j` is (`Q8_0`).
    pub(crate) fn offset(&self, j: usize, l: usize) -> *mut [i16; 2] {
        let at = self.shape.k + (self.shape.n_blocks() + l) * size_of::<f32>();
        self.column(j).wrapping_add(at).cast()
    }

    /// Where the pairs of columns begin; null if there are none.
    fn pairs(&self) -> *mut u8 {
        match self.shape.n_pairs() {
            0 => std::ptr::null_mut(),
            _ => self.first.wrapping_add(self.shape.n * self.column_bytes),
        }
    }

    /// Block `l` of column `j` once more, in the pair to which the column belongs.
    ///
    /// # Safety
    /// The block is quantised; no one else reads or writes its place there.
    pub(crate) unsafe fn copy_to_pair(&self, j: usize, l: usize) {
        let Shape { n, k, format } = self.shape;
        if self.shape.n_pairs() == 0 {
            return;
        }
        let (block, pair) = (format.block(), self.pairs().wrapping_add(j / 2 * self.shape.pair_bytes()));
        let quants = match format {
            ActivationFormat::Q8_0 => self.block(j, l).0,
            _ => self.record(j, l),
        };
        let alone = j.is_multiple_of(2) && j + 1 == n;
        for place in j % 2..if alone { 2 } else { j % 2 + 1 } {
            // SAFETY: the block has as many quants, and the pair twice as many and room for as many scales (`pair_bytes`).
            unsafe {
                for i in 0..block / 8 {
                    let to = pair.add(2 * l * block + 16 * i + 8 * place);
                    *to.cast::<[u8; 8]>() = *quants.add(8 * i).cast();
                }
                if format == ActivationFormat::Q8_0 {
                    *pair.add(2 * k).cast::<f32>().add(2 * l + place) = *self.block(j, l).1;
                }
            }
        }
    }

    /// Record `l` of column `j` (`Q8K`).
    pub(crate) fn record(&self, j: usize, l: usize) -> *mut u8 {
        self.column(j).wrapping_add(l * record::BYTES)
    }

    /// Notes whether thread `ith` of `nth` found a quant of -128.
    ///
    /// # Safety
    /// Each thread below `nth` calls this once.
    pub(crate) unsafe fn note_minus_128(&self, ith: usize, nth: usize, found: bool) {
        debug_assert!(ith < nth && nth <= MAX_THREADS);
        // SAFETY: the head has a byte for each thread.
        unsafe { *self.base.wrapping_add(ith) = u8::from(found) };
        if ith == 0 {
            // SAFETY: the head has room for the number behind the bytes, aligned to a line.
            unsafe { *self.base.wrapping_add(MAX_THREADS).cast::<u32>() = nth as u32 };
        }
    }

    /// True when some column has a quant of -128 and that matters. Only columns with a NaN, an infinity or nothing but the
    /// smallest numbers have it, and there ggml's sign trick on x86-64 gives a `Q8_0` product that kernels do not.
    ///
    /// # Safety
    /// All threads have called [`Activations::note_minus_128`].
    pub(crate) unsafe fn any_has_minus_128(&self) -> bool {
        if !cfg!(target_arch = "x86_64") || self.shape.format != ActivationFormat::Q8_0 {
            return false;
        }
        // SAFETY: written by `note_minus_128`.
        let nth = unsafe { *self.base.wrapping_add(MAX_THREADS).cast::<u32>() } as usize;
        // SAFETY: each thread wrote its byte.
        (0..nth).any(|ith| unsafe { *self.base.wrapping_add(ith) } != 0)
    }

    /// True when this column has a quant of -128 (`Q8_0`).
    ///
    /// # Safety
    /// The column was quantised; `j < n`.
    pub(crate) unsafe fn has_minus_128(&self, j: usize) -> bool {
        // SAFETY: a quantised column begins with its `k` quants.
        let quants = unsafe { std::slice::from_raw_parts(self.column(j), self.shape.k) };
        quants.contains(&(i8::MIN as u8 ^ self.bias))
    }

    /// Column `j` as ggml has it (`Q8_0`).
    ///
    /// # Safety
    /// The column was quantised; `j < n`.
    pub(crate) unsafe fn as_ggml(&self, j: usize) -> Vec<u8> {
        let mut column = Vec::with_capacity(self.shape.n_blocks() * 34);
        for l in 0..self.shape.n_blocks() {
            let (quants, scale) = self.block(j, l);
            // SAFETY: the block was quantised.
            let scale = unsafe { *scale };
            // SAFETY: no preconditions.
            column.extend(unsafe { ggml_sys::ggml_fp32_to_fp16(scale) }.to_ne_bytes());
            // SAFETY: the block has 32 quants.
            column.extend(unsafe { *quants.cast::<[u8; 32]>() }.map(|q| q ^ self.bias));
        }
        column
    }

    /// Columns `first` to `first + n` as kernels read them.
    pub(crate) fn tile(&self, first: usize, n: usize) -> ColumnTile {
        debug_assert!((1..=MAX_COLUMNS).contains(&n) && first.is_multiple_of(2));
        let pairs = self.pairs();
        let pairs = if pairs.is_null() { pairs } else { pairs.wrapping_add(first / 2 * self.shape.pair_bytes()) };
        ColumnTile { pairs, ..self.gathered(n, |i| first + i) }
    }

    /// `n` columns, number `i` of them being column `which(i)`.
    pub(crate) fn gathered(&self, n: usize, which: impl Fn(usize) -> usize) -> ColumnTile {
        let columns = std::array::from_fn(|i| self.column(which(i.min(n - 1))).cast_const());
        let n_blocks = self.shape.n_blocks();
        let scales = self.shape.k;
        let offsets = scales + n_blocks * size_of::<f32>();
        let (pairs, pair_bytes) = (std::ptr::null(), self.shape.pair_bytes());
        ColumnTile { n, n_blocks, scales, offsets, columns, pairs, pair_bytes }
    }
}

/// Up to eight columns, which a kernel takes at a time.
pub(crate) struct ColumnTile {
    pub(crate) n: usize,
    pub(crate) n_blocks: usize,
    /// Where scales begin in a column (`Q8_0`).
    pub(crate) scales: usize,
    /// Where offsets begin in a column (`Q8_0`).
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(crate) offsets: usize,
    /// Where each begins; past `n` the last one again.
    pub(crate) columns: [*const u8; MAX_COLUMNS],
    /// Where the first pair of them begins; null for gathered columns, and where nothing reads pairs.
    #[cfg_attr(not(target_arch = "aarch64"), allow(dead_code))]
    pub(crate) pairs: *const u8,
    /// Bytes of a pair.
    #[cfg_attr(not(target_arch = "aarch64"), allow(dead_code))]
    pub(crate) pair_bytes: usize,
}

/// A scale in a column.
///
/// # Safety
/// Four bytes can be read at `p`.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(crate) unsafe fn float(p: *const u8) -> f32 {
    // SAFETY: four bytes can be read at `p` (the caller).
    unsafe { p.cast::<f32>().read_unaligned() }
}
