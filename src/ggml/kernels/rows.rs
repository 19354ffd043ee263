//! How quantised rows lie in the node between an input and its products. Owns the layout; computes nothing.
//!
//! Head, rows as ggml quantised them, then the same again in the order in which kernels read: for each block of 32, the
//! quants of all rows, and apart from them the scales of all rows.

/// Values that share a scale.
pub(super) const BLOCK: usize = 32;

/// Rows of a product at most.
pub(super) const MAX_ROWS: usize = 8;

/// One block of a Q8_0 row: half-precision scale and quants. ggml's layout.
#[repr(C)]
pub(super) struct WeightBlock {
    pub(super) scale: u16,
    pub(super) quants: [i8; BLOCK],
}

/// Added to quants: VNNI multiplies unsigned with signed.
pub(super) const BIAS: u8 = 0x80;

/// How many rows there are, and their length in blocks.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) n: usize,
    pub(super) n_blocks: usize,
}

/// Threads at most; each has a byte of the head.
const MAX_THREADS: usize = ggml_sys::GGML_MAX_N_THREADS as usize;

/// A byte for each thread, then their number.
const HEAD: usize = MAX_THREADS + 64;

impl Shape {
    fn n_quants(self) -> usize {
        self.n * self.n_blocks * BLOCK
    }

    fn as_blocks(self) -> usize {
        (self.n * self.n_blocks * size_of::<WeightBlock>()).next_multiple_of(64)
    }

    /// Bytes of the whole node.
    pub(super) fn n_bytes(self) -> usize {
        HEAD + self.as_blocks() + self.n_quants() + self.n * self.n_blocks * size_of::<f32>()
    }
}

/// The node's memory.
pub(super) struct Rows {
    pub(super) shape: Shape,
    base: *mut u8,
}

impl Rows {
    /// # Safety
    /// `base` has [`Shape::n_bytes`] bytes, aligned to 4 (ggml aligns to 32 or more). Threads write apart from each other.
    pub(super) unsafe fn new(shape: Shape, base: *mut u8) -> Self {
        Self { shape, base }
    }

    /// Block `l` of row `j` as ggml quantised it. Rows lie one after the other. In bounds for `j < n`, `l < n_blocks`.
    pub(super) fn block(&self, j: usize, l: usize) -> *mut WeightBlock {
        self.base.wrapping_add(HEAD + (j * self.shape.n_blocks + l) * size_of::<WeightBlock>()).cast()
    }

    fn quants(&self) -> *mut u8 {
        self.base.wrapping_add(HEAD + self.shape.as_blocks())
    }

    fn scales(&self) -> *mut f32 {
        self.quants().wrapping_add(self.shape.n_quants()).cast()
    }

    /// Writes block `l` of row `j` in the kernels' order; true if it has a quant of -128.
    ///
    /// # Safety
    /// The block was quantised; `j < n`, `l < n_blocks`; no other thread writes it.
    pub(super) unsafe fn spread(&self, j: usize, l: usize) -> bool {
        let at = l * self.shape.n + j;
        // SAFETY: in bounds (the caller's promise); a block has alignment 2, as HEAD and its size have.
        let block = unsafe { &*self.block(j, l) };
        let quants = self.quants().wrapping_add(at * BLOCK).cast::<[u8; BLOCK]>();
        // SAFETY: in bounds; bytes need no alignment.
        unsafe { *quants = block.quants.map(|q| q as u8 ^ BIAS) };
        // SAFETY: no preconditions.
        let scale = unsafe { ggml_sys::ggml_fp16_to_fp32(block.scale) };
        // SAFETY: in bounds; all parts before the scales are multiples of 4 bytes.
        unsafe { *self.scales().wrapping_add(at) = scale };
        block.quants.contains(&i8::MIN)
    }

    /// Notes which rows (bits) thread `ith` of `nth` found with a quant of -128.
    ///
    /// # Safety
    /// Each thread below `nth` calls this once.
    pub(super) unsafe fn note_odd(&self, ith: usize, nth: usize, odd: u8) {
        debug_assert!(ith < nth && nth <= MAX_THREADS);
        // SAFETY: the head has a byte for each thread.
        unsafe { *self.base.wrapping_add(ith) = odd };
        if ith == 0 {
            // SAFETY: the head has room for the number behind the bytes, aligned to 4.
            unsafe { *self.base.wrapping_add(MAX_THREADS).cast::<u32>() = nth as u32 };
        }
    }

    /// The rows (bits) with a quant of -128. Only rows with a NaN or an infinity have it, and there ggml's sign trick
    /// gives a product that kernels do not.
    ///
    /// # Safety
    /// All threads have called [`Rows::note_odd`].
    pub(super) unsafe fn odd(&self) -> u8 {
        // SAFETY: written by `note_odd`.
        let nth = unsafe { *self.base.wrapping_add(MAX_THREADS).cast::<u32>() } as usize;
        // SAFETY: each thread wrote its byte.
        (0..nth).fold(0, |odd, ith| odd | unsafe { *self.base.wrapping_add(ith) })
    }

    /// What kernels read.
    pub(super) fn columns(&self) -> Columns {
        Columns { n: self.shape.n, n_blocks: self.shape.n_blocks, quants: self.quants(), scales: self.scales() }
    }
}

/// Rows in the kernels' order.
pub(super) struct Columns {
    pub(super) n: usize,
    pub(super) n_blocks: usize,
    /// `[32, n, n_blocks]`, biased.
    pub(super) quants: *const u8,
    /// `[n, n_blocks]`.
    pub(super) scales: *const f32,
}
