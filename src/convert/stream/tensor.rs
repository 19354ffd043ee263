//! What one tensor of the new file is made of.

use std::sync::Arc;

use gguf::TensorType;

/// One tensor of the new file: its rows in order, each a row of some file, changed on the way.
#[derive(Clone, Debug)]
pub struct TensorPlan {
    /// Its name in the new file.
    pub name: String,
    /// Its shape there, fastest dimension first; the product is `row_len` times the number of rows.
    pub ne: Vec<u64>,
    /// Its type there.
    pub dtype: TensorType,
    /// Elements of a row.
    pub row_len: u64,
    /// The matrices that rows are taken from.
    pub pieces: Vec<Piece>,
    /// Which rows, in the order of the new tensor.
    pub runs: Vec<Run>,
    /// Where the elements of a row come from: new element `i` is old element `columns[i]`.
    pub columns: Option<Arc<Vec<u32>>>,
    /// Each run is a matrix, whose columns are the new rows.
    pub turned: Option<Turned>,
    /// Its numbers, where no file has them; then there are no pieces.
    pub made: Option<Arc<Vec<f32>>>,
    /// What is done to each number.
    pub map: Map,
    /// What errors of quantisation count.
    pub importance: Option<Importance>,
}

/// Matrices that are turned. A run of `row_len` rows of `n_cols` elements makes a row of every `every`-th column from `first` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turned {
    /// Elements of a row before.
    pub n_cols: u64,
    /// The first column that becomes a row.
    pub first: u64,
    /// Columns from one to the next.
    pub every: u64,
}

impl Turned {
    /// Rows that a run makes.
    pub fn n_rows(self) -> u64 {
        self.n_cols.saturating_sub(self.first).div_ceil(self.every.max(1))
    }
}

/// A matrix in a file.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Index of the file.
    pub file: usize,
    /// Offset of its first byte.
    pub at: u64,
    /// How its elements are stored.
    pub stored: Stored,
    /// Rows, of `row_len` elements each.
    pub n_rows: u64,
    /// Rows from one of them to the next in the file: 1 where they lie together.
    pub every: u64,
    /// Numbers to multiply with.
    pub scale: Option<Scale>,
}

/// Consecutive rows of one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Which piece.
    pub piece: usize,
    /// Its first row.
    pub start: u64,
    /// Rows.
    pub n: u64,
}

/// A grid of numbers over a piece (of one matrix or of several, one after the other): element `(row, column)` is
/// multiplied by that of its cell.
#[derive(Clone, Debug)]
pub struct Scale {
    /// Index of the file.
    pub file: usize,
    /// Offset of its first byte.
    pub at: u64,
    /// How its numbers are stored; their order is row by row, matrix by matrix.
    pub stored: Stored,
    /// Rows of the piece that make one matrix.
    pub matrix_rows: u64,
    /// Rows of cells in a matrix.
    pub n_rows: u64,
    /// Cells in a row of cells.
    pub n_cols: u64,
    /// Rows under one cell.
    pub cell_rows: u64,
    /// Columns under one cell.
    pub cell_cols: u64,
}

/// How numbers are stored in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// A type of ggml.
    Ggml(ggml::Dtype),
    /// 64-bit floats.
    F64,
    /// 8-bit floats with four bits of exponent and no infinity.
    F8E4M3,
    /// 8-bit floats with five bits of exponent.
    F8E5M2,
    /// Powers of two.
    F8E8M0,
    /// 4-bit floats with two bits of exponent and one of fraction, two in a byte, the first in its lower half.
    F4E2M1,
}

/// What is done to each number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// Nothing.
    Keep,
    /// `x + 1`.
    AddOne,
    /// `-exp(x)`.
    NegExp,
}

/// What errors count: a weight for each column, for each matrix of the tensor.
#[derive(Clone, Debug)]
pub struct Importance {
    /// `row_len` for each matrix.
    pub weights: Arc<Vec<f32>>,
    /// Rows of the tensor that make one matrix.
    pub matrix_rows: u64,
}

impl Scale {
    /// The row of cells over a row of the piece.
    pub(crate) fn grid_row(&self, row: u64) -> u64 {
        row / self.matrix_rows * self.n_rows + row % self.matrix_rows / self.cell_rows
    }
}

impl Stored {
    /// Bytes of `n` elements in a row; None when they are no whole blocks or too many.
    pub fn row_bytes(self, n: u64) -> Option<u64> {
        match self {
            Stored::Ggml(dtype) => dtype.row_bytes(i64::try_from(n).ok()?).ok().map(|n| n as u64),
            Stored::F64 => n.checked_mul(8),
            Stored::F8E4M3 | Stored::F8E5M2 | Stored::F8E8M0 => Some(n),
            Stored::F4E2M1 => n.is_multiple_of(2).then_some(n / 2),
        }
    }
}

impl TensorPlan {
    /// A tensor that is one matrix of a file, as it is.
    pub fn of(name: String, ne: Vec<u64>, dtype: TensorType, piece: Piece, row_len: u64) -> TensorPlan {
        let runs = vec![Run { piece: 0, start: 0, n: piece.n_rows }];
        TensorPlan::of_rows(name, ne, dtype, (row_len, vec![piece], runs))
    }

    /// A tensor of rows that stay as they are: their length, the matrices, and which of their rows.
    pub fn of_rows(
        name: String,
        ne: Vec<u64>,
        dtype: TensorType,
        (row_len, pieces, runs): (u64, Vec<Piece>, Vec<Run>),
    ) -> TensorPlan {
        let (columns, turned, made, importance) = (None, None, None, None);
        TensorPlan { name, ne, dtype, row_len, pieces, runs, columns, turned, made, map: Map::Keep, importance }
    }

    /// A vector that no file has.
    pub fn made(name: String, numbers: Vec<f32>) -> TensorPlan {
        let n = numbers.len() as u64;
        let plan = TensorPlan::of_rows(name, vec![n], TensorType::F32, (n, Vec::new(), Vec::new()));
        TensorPlan { made: Some(Arc::new(numbers)), ..plan }
    }

    /// For inputs that stand `by` places further back among those of a new file.
    pub fn shift_files(&mut self, by: usize) {
        for piece in &mut self.pieces {
            piece.file += by;
            piece.scale.iter_mut().for_each(|scale| scale.file += by);
        }
    }

    /// Rows in all.
    pub fn n_rows(&self) -> u64 {
        match (&self.made, self.turned) {
            (Some(numbers), _) => numbers.len() as u64 / self.row_len.max(1),
            (None, Some(turned)) => self.runs.len() as u64 * turned.n_rows(),
            (None, None) => self.runs.iter().map(|run| run.n).sum(),
        }
    }

    /// Bytes that are read for it, scales aside.
    pub fn source_bytes(&self) -> u64 {
        let row_len = self.turned.map_or(self.row_len, |turned| turned.n_cols);
        let of = |run: &Run| run.n * self.pieces[run.piece].stored.row_bytes(row_len).unwrap_or(0);
        self.runs.iter().map(of).sum()
    }

    /// Where row `first` and those behind it lie as they will be, if they all lie in one piece.
    pub(crate) fn copied_from(&self, first: u64) -> Option<(&Piece, u64)> {
        let ([piece], [run], true) = (self.pieces.as_slice(), self.runs.as_slice(), self.is_copy()) else {
            return None;
        };
        let rows = piece.stored.row_bytes(self.row_len)?.checked_mul(run.start.checked_add(first)?)?;
        Some((piece, piece.at.checked_add(rows)?))
    }

    /// Whether its bytes are those of its sources, one after the other.
    pub fn is_copy(&self) -> bool {
        let same = |piece: &Piece| {
            piece.scale.is_none()
                && piece.every == 1
                && matches!(piece.stored, Stored::Ggml(dtype) if dtype.id() == self.dtype.id())
        };
        self.columns.is_none()
            && self.turned.is_none()
            && self.made.is_none()
            && self.map == Map::Keep
            && self.pieces.iter().all(same)
    }

    /// Whether its numbers are blocks of MXFP4 in the file and in the new one: bits in another order.
    pub fn is_repacked(&self) -> bool {
        self.is_mxfp4()
            && self.dtype == TensorType::MXFP4
            && self.columns.is_none()
            && self.turned.is_none()
            && self.map == Map::Keep
    }

    /// Whether its numbers are blocks of MXFP4 in the file: 4-bit floats, and a power of two for each 32 of them.
    pub fn is_mxfp4(&self) -> bool {
        let block = |scale: &Scale| scale.stored == Stored::F8E8M0 && (scale.cell_rows, scale.cell_cols) == (1, 32);
        let is = |piece: &Piece| piece.stored == Stored::F4E2M1 && piece.scale.as_ref().is_some_and(block);
        !self.pieces.is_empty() && self.pieces.iter().all(is)
    }
}
