//! The kernels over slices, in an instruction set of the caller's choice and with every size checked: for tests and benches,
//! which have no graph.

use crate::activations::{Activations, Shape};
use crate::isa::Isa;
use crate::joined::reads;
use crate::product::{self, Output};
use crate::quantise::{self, Input};
use crate::weight_rows::Matrix;
use crate::weight_type::{ActivationFormat, WeightType};

pub use crate::delta_slices::{OneHead, one_head};
pub use crate::turbo::slices::{pack as pack_turbo, unpack as unpack_turbo};

/// Columns of activations as products read them.
pub struct Columns {
    pub(crate) activations: Activations,
    /// What `activations` points into.
    _memory: Vec<u64>,
}

impl Columns {
    /// `x` in columns of `k` values, rounded as `n_threads` threads would round them, one after the other.
    ///
    /// # Panics
    /// `x` is not whole columns, `k` not whole blocks of the format, or the CPU lacks `isa`.
    pub fn new(isa: Isa, format: ActivationFormat, x: &[f32], k: usize, n_threads: usize) -> Self {
        assert!(k > 0 && x.len().is_multiple_of(k) && k.is_multiple_of(format.block()), "{} values, {k} each", x.len());
        let shape = Shape { n: x.len() / k, k, format };
        if format == ActivationFormat::F32 {
            let mut memory = vec![0u64; x.len().div_ceil(2)];
            for (pair, values) in memory.iter_mut().zip(x.chunks(2)) {
                let bits = |i: usize| u64::from(values.get(i).map_or(0, |x| x.to_bits()));
                *pair = if cfg!(target_endian = "big") { bits(0) << 32 | bits(1) } else { bits(1) << 32 | bits(0) };
            }
            // SAFETY: the memory has the columns, and moves with them; nothing writes it any more.
            let activations = unsafe { Activations::plain(shape, memory.as_mut_ptr().cast(), k * size_of::<f32>()) };
            return Self { activations, _memory: memory };
        }
        let mut memory = vec![0u64; shape.n_bytes().div_ceil(8)];
        // SAFETY: enough bytes, which move with what points to them.
        let activations = unsafe { Activations::new(shape, isa, memory.as_mut_ptr().cast()) };
        let mut columns = Self { activations, _memory: memory };
        columns.fill(isa, x, n_threads);
        columns
    }

    /// Other values in the same place.
    ///
    /// # Panics
    /// As [`Columns::new`]; or these columns are not rounded.
    pub fn fill(&mut self, isa: Isa, x: &[f32], n_threads: usize) {
        let shape = self.activations.shape;
        assert!(Isa::available().contains(&isa), "no {isa:?} here");
        assert!(x.len() == shape.n * shape.k && shape.format != ActivationFormat::F32, "{} values", x.len());
        let input = Input { data: x.as_ptr().cast(), column_bytes: shape.k * size_of::<f32>() };
        for ith in 0..n_threads {
            // SAFETY: the input has this shape, the CPU has the instructions (both asserted); each `ith` comes once.
            unsafe { quantise::on_thread(&self.activations, &input, isa, ith, n_threads) };
        }
    }
}

/// The rows `w` of this type times all columns, as `n_threads` threads would compute it, one after the other: `out` gets a
/// value of each row for each column.
///
/// # Panics
/// `w` is not whole rows, the columns are in another format than the type's, `out` has another length, or the CPU lacks
/// `isa`.
pub fn product(isa: Isa, ty: WeightType, w: &[u8], columns: &Columns, n_threads: usize, out: &mut [f32]) {
    product_joined(isa, ty, w, None, columns, n_threads, out);
}

/// As [`product`], of rows of which there is a joined copy ([`crate::join_rows`]); `None` where there is none.
///
/// # Panics
/// As [`product`]; `joined` has another length than `w`, or `isa` has no kernels for joined rows of this type.
pub fn product_joined(
    isa: Isa,
    ty: WeightType,
    w: &[u8],
    joined: Option<&[u8]>,
    columns: &Columns,
    n_threads: usize,
    out: &mut [f32],
) {
    let Shape { n, k, format } = columns.activations.shape;
    let row_bytes = ty.row_bytes(k);
    assert!(Isa::available().contains(&isa), "no {isa:?} here");
    assert!(format == ty.format() && w.len().is_multiple_of(row_bytes), "{ty:?}: {format:?}, {} bytes", w.len());
    let n_rows = w.len() / row_bytes;
    assert_eq!(out.len(), n_rows * n, "results");
    if let Some(joined) = joined {
        assert!(reads(isa, ty) && joined.len() == w.len(), "{isa:?} {ty:?}: {} joined bytes", joined.len());
    }
    let joined = joined.map_or(std::ptr::null(), <[u8]>::as_ptr);
    let matrix = Matrix { ty, data: w.as_ptr(), joined, n_rows };
    let out = Output { data: out.as_mut_ptr(), column_floats: n_rows };
    for ith in 0..n_threads {
        // SAFETY: the CPU has the instructions, format and sizes fit (all asserted); each `ith` comes once.
        unsafe { product::on_thread(isa, &matrix, &columns.activations, &out, ith, n_threads) };
    }
}
