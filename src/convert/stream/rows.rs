//! Rows of a plan: read, widened to floats, changed, packed.
//! Owns the arithmetic of scales and 8-bit floats. One [`Worker`] for each thread, with buffers that are used again.

use ggml::Dtype;
use gguf::TensorType;

use super::tensor::{Map, Piece, Scale, Stored, TensorPlan, Turned};
use crate::error::Error;
use crate::io::Input;

/// Makes rows, one slab at a time.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    raw: Vec<u8>,
    floats: Vec<f32>,
    row: Vec<f32>,
    scales: Vec<f32>,
    packed: Vec<u8>,
}

impl Worker {
    /// The bytes of rows `first..first + n` of the new tensor.
    ///
    /// # Errors
    /// A file cannot be read, or a number does not fit the new type; the message names the tensor.
    pub(crate) fn rows(&mut self, plan: &TensorPlan, inputs: &[Input], first: u64, n: u64) -> Result<&[u8], Error> {
        let refused = |source: ggml::Error| Error::tensor(&plan.name, source.to_string());
        let dtype = Dtype::from_id(plan.dtype.id()).map_err(refused)?;
        let row_bytes = dtype.row_bytes(plan.row_len as i64).map_err(refused)?;
        self.packed.resize(row_bytes * n as usize, 0);
        if plan.is_copy() {
            let mut at = 0;
            for (piece, start, n) in parts(plan, first, n) {
                let bytes = row_bytes * n as usize;
                inputs[piece.file].read_at(&mut self.packed[at..at + bytes], piece.at + start * row_bytes as u64)?;
                at += bytes;
            }
        } else if plan.is_repacked() {
            self.repack(plan, inputs, row_bytes, (first, n))?;
        } else {
            self.floats(plan, inputs, first, n)?;
            match plan.dtype {
                TensorType::I64 => self.integers(),
                _ => self.pack(plan, dtype, row_bytes, first, n)?,
            }
        }
        Ok(&self.packed)
    }

    /// The numbers of rows `first..first + n` of the new tensor, before they are packed.
    ///
    /// # Errors
    /// A file cannot be read, or numbers of its type cannot be.
    pub(crate) fn floats(&mut self, plan: &TensorPlan, inputs: &[Input], first: u64, n: u64) -> Result<&[f32], Error> {
        self.floats.clear();
        match (&plan.made, plan.turned) {
            (Some(numbers), _) => {
                let row_len = plan.row_len as usize;
                self.floats.extend_from_slice(&numbers[first as usize * row_len..][..n as usize * row_len]);
            }
            (None, Some(turned)) => self.turned(plan, turned, inputs, (first, n))?,
            (None, None) => {
                for (piece, start, n) in parts(plan, first, n) {
                    self.read(plan, piece, inputs, (start, n, plan.row_len))?;
                }
            }
        }
        self.change(plan);
        Ok(&self.floats)
    }

    /// Rows that are columns of matrices: each matrix is read whole, which is some 100 KiB.
    fn turned(
        &mut self,
        plan: &TensorPlan,
        turned: Turned,
        inputs: &[Input],
        (first, n): (u64, u64),
    ) -> Result<(), Error> {
        let (n_cols, each, mut rows) = (turned.n_cols, turned.n_rows(), Vec::new());
        let mut at = first;
        while at < first + n {
            let run = plan.runs[(at / each) as usize];
            let end = ((at / each + 1) * each).min(first + n);
            self.floats.clear();
            self.read(plan, &plan.pieces[run.piece], inputs, (run.start, run.n, n_cols))?;
            for row in at % each..at % each + (end - at) {
                let column = turned.first + row * turned.every;
                rows.extend(self.floats.iter().skip(column as usize).step_by(n_cols as usize));
            }
            at = end;
        }
        self.floats = rows;
        Ok(())
    }

    /// Appends rows of a piece, so many from one on and of this length, to the floats.
    fn read(
        &mut self,
        plan: &TensorPlan,
        piece: &Piece,
        inputs: &[Input],
        (start, n, row_len): (u64, u64, u64),
    ) -> Result<(), Error> {
        self.read_raw(piece, inputs, (start, n, row_len))?;
        let from = self.floats.len();
        self.floats.resize(from + (row_len * n) as usize, 0.0);
        let floats = &mut self.floats[from..];
        widen(piece.stored, &self.raw, floats).map_err(|e| Error::tensor(&plan.name, e.to_string()))?;
        if let Some(scale) = &piece.scale {
            for (i, row) in floats.chunks_exact_mut(row_len as usize).enumerate() {
                let cells = load_cells(scale, inputs, start + i as u64, &mut self.scales, &mut self.raw, i == 0)?;
                for (cell, x) in cells.iter().zip(row.chunks_mut(scale.cell_cols as usize)) {
                    x.iter_mut().for_each(|x| *x *= cell);
                }
            }
        }
        Ok(())
    }

    /// The bytes of rows of a piece, one after the other.
    fn read_raw(&mut self, piece: &Piece, inputs: &[Input], (start, n, row_len): (u64, u64, u64)) -> Result<(), Error> {
        let row_bytes = piece.stored.row_bytes(row_len).expect("plans are made of rows that have a size");
        let spanned = n.saturating_sub(1) * piece.every + n.min(1);
        self.raw.resize((row_bytes * spanned) as usize, 0);
        inputs[piece.file].read_at(&mut self.raw, piece.at + start * piece.every * row_bytes)?;
        if piece.every > 1 {
            let size = row_bytes as usize;
            for row in 1..n as usize {
                let from = row * piece.every as usize * size;
                self.raw.copy_within(from..from + size, row * size);
            }
            self.raw.truncate(n as usize * size);
        }
        Ok(())
    }

    /// Rows of MXFP4 in ggml's order: for each 32 numbers the power of two, then the numbers, number `i` in the lower half of byte
    /// `i` and number `i + 16` in the upper one.
    fn repack(
        &mut self,
        plan: &TensorPlan,
        inputs: &[Input],
        row_bytes: usize,
        (first, n): (u64, u64),
    ) -> Result<(), Error> {
        let mut packed = std::mem::take(&mut self.packed);
        let mut rows = packed.chunks_exact_mut(row_bytes);
        let mut powers = Vec::new();
        for (piece, start, n) in parts(plan, first, n) {
            self.read_raw(piece, inputs, (start, n, plan.row_len))?;
            let scale = piece.scale.as_ref().expect("blocks of MXFP4 have a scale each");
            for (i, numbers) in self.raw.chunks_exact(plan.row_len as usize / 2).enumerate() {
                powers.resize(scale.n_cols as usize, 0);
                inputs[scale.file].read_at(&mut powers, scale.at + scale.grid_row(start + i as u64) * scale.n_cols)?;
                let row = rows.next().expect("there are as many rows as are asked for");
                for ((block, numbers), power) in row.chunks_exact_mut(17).zip(numbers.chunks_exact(16)).zip(&powers) {
                    block[0] = *power;
                    let number = |i: usize| numbers[i / 2] >> (i % 2 * 4) & 15;
                    for (i, byte) in block[1..].iter_mut().enumerate() {
                        *byte = number(i) | number(i + 16) << 4;
                    }
                }
            }
        }
        self.packed = packed;
        Ok(())
    }

    /// Columns, then numbers.
    fn change(&mut self, plan: &TensorPlan) {
        if let Some(columns) = &plan.columns {
            for row in self.floats.chunks_exact_mut(plan.row_len as usize) {
                self.row.clear();
                self.row.extend_from_slice(row);
                for (to, from) in row.iter_mut().zip(columns.iter()) {
                    *to = self.row[*from as usize];
                }
            }
        }
        match plan.map {
            Map::Keep => {}
            Map::AddOne => self.floats.iter_mut().for_each(|x| *x += 1.0),
            // In twice the precision, so that the result is the nearest float whatever the system's library does.
            Map::NegExp => self.floats.iter_mut().for_each(|x| *x = -f64::from(*x).exp() as f32),
        }
    }

    /// Whole numbers, which were made.
    fn integers(&mut self) {
        for (bytes, x) in self.packed.chunks_exact_mut(8).zip(&self.floats) {
            bytes.copy_from_slice(&(*x as i64).to_le_bytes());
        }
    }

    fn pack(&mut self, plan: &TensorPlan, dtype: Dtype, row_bytes: usize, first: u64, n: u64) -> Result<(), Error> {
        let row_len = plan.row_len as usize;
        let mut done = 0;
        while done < n {
            // Each matrix has weights of its own.
            let (weights, n_same) = match &plan.importance {
                None => (None, n - done),
                Some(importance) => {
                    let row = first + done;
                    let matrix = (row / importance.matrix_rows) as usize;
                    let left = importance.matrix_rows - row % importance.matrix_rows;
                    (Some(&importance.weights[matrix * row_len..][..row_len]), left.min(n - done))
                }
            };
            let (from, to) = (done as usize, (done + n_same) as usize);
            let floats = &self.floats[from * row_len..to * row_len];
            let packed = &mut self.packed[from * row_bytes..to * row_bytes];
            ggml::pack_rows(dtype, floats, row_len, weights, packed).map_err(|e| {
                Error::tensor(&plan.name, format!("rows {} to {}: {e}", first + done, first + done + n_same))
            })?;
            done += n_same;
        }
        Ok(())
    }
}

/// The pieces that rows `first..first + n` come from, each with its first row there and the number of rows.
fn parts(plan: &TensorPlan, first: u64, n: u64) -> impl Iterator<Item = (&Piece, u64, u64)> {
    let end = first + n;
    let mut at = 0;
    plan.runs.iter().filter_map(move |run| {
        let (from, to) = (at.max(first), (at + run.n).min(end));
        let start = run.start + from.saturating_sub(at);
        at += run.n;
        (from < to).then(|| (&plan.pieces[run.piece], start, to - from))
    })
}

/// The cells over one row, read again when the row lies under other cells than the one before.
fn load_cells<'s>(
    scale: &Scale,
    inputs: &[Input],
    row: u64,
    cells: &'s mut Vec<f32>,
    raw: &mut Vec<u8>,
    anew: bool,
) -> Result<&'s [f32], Error> {
    let grid_row = scale.grid_row(row);
    if anew || scale.grid_row(row - 1) != grid_row {
        let row_bytes = scale.stored.row_bytes(scale.n_cols).expect("plans are made of scales that have a size");
        raw.resize(row_bytes as usize, 0);
        cells.resize(scale.n_cols as usize, 0.0);
        inputs[scale.file].read_at(raw, scale.at + grid_row * row_bytes)?;
        widen(scale.stored, raw, cells).map_err(|e| Error::input(inputs[scale.file].path(), e.to_string()))?;
    }
    Ok(cells)
}

/// Stored numbers as floats.
fn widen(stored: Stored, raw: &[u8], floats: &mut [f32]) -> Result<(), ggml::Error> {
    match stored {
        Stored::Ggml(dtype) => ggml::unpack(dtype, raw, floats)?,
        Stored::F64 => {
            for (x, bytes) in floats.iter_mut().zip(raw.as_chunks().0) {
                *x = f64::from_le_bytes(*bytes) as f32;
            }
        }
        Stored::F8E4M3 => floats.iter_mut().zip(raw).for_each(|(x, byte)| *x = E4M3[usize::from(*byte)]),
        Stored::F8E5M2 => floats.iter_mut().zip(raw).for_each(|(x, byte)| *x = E5M2[usize::from(*byte)]),
        Stored::F4E2M1 => {
            for (pair, byte) in floats.chunks_exact_mut(2).zip(raw) {
                (pair[0], pair[1]) = (E2M1[usize::from(byte & 15)], E2M1[usize::from(byte >> 4)]);
            }
        }
        Stored::F8E8M0 => floats.iter_mut().zip(raw).for_each(|(x, byte)| *x = e8m0(*byte)),
    }
    Ok(())
}

/// 1 sign, 4 bits of exponent with bias 7, 3 of fraction; all ones is not a number.
const E4M3: [f32; 256] = small_floats(4, 3, false);
/// 1 sign, 5 bits of exponent with bias 15, 2 of fraction; as in halves, the largest exponent is infinity or not a number.
const E5M2: [f32; 256] = small_floats(5, 2, true);

/// 1 sign, 2 bits of exponent with bias 1, 1 of fraction.
const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// All floats of 8 bits by their bits, made by arithmetic that is exact.
const fn small_floats(n_exponent: u32, n_fraction: u32, has_infinity: bool) -> [f32; 256] {
    let mut table = [0.0; 256];
    let bias = (1 << (n_exponent - 1)) - 1;
    let most = (1 << n_exponent) - 1;
    let mut bits = 0usize;
    while bits < 256 {
        let exponent = (bits as i32 >> n_fraction) & most;
        let fraction = bits as i32 & ((1 << n_fraction) - 1);
        let all_ones = fraction == (1 << n_fraction) - 1;
        let mut x = if exponent == most && has_infinity {
            if fraction == 0 { f32::INFINITY } else { f32::NAN }
        } else if exponent == most && all_ones {
            f32::NAN
        } else if exponent == 0 {
            fraction as f32 * power_of_two(1 - bias - n_fraction as i32)
        } else {
            (fraction + (1 << n_fraction)) as f32 * power_of_two(exponent - bias - n_fraction as i32)
        };
        if bits >= 128 {
            x = -x;
        }
        table[bits] = x;
        bits += 1;
    }
    table
}

/// 2 to the power of `n`, for `n` within the normal floats.
const fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

/// 2 to the power of `byte - 127`; 255 is not a number.
fn e8m0(byte: u8) -> f32 {
    match byte {
        // 2^-127 is below the normal floats.
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        n => f32::from_bits(u32::from(n) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_of_8_bits_have_the_values_of_their_formats() {
        for (bits, x) in
            [(0x00, 0.0), (0x01, 2f32.powi(-9)), (0x38, 1.0), (0x7e, 448.0), (0xb8, -1.0), (0x08, 2f32.powi(-6))]
        {
            assert_eq!(E4M3[bits], x, "e4m3 {bits:#x}");
        }
        assert!(E4M3[0x7f].is_nan() && E4M3[0xff].is_nan());
        // E5M2 is the upper half of an IEEE half.
        for bits in 0..=255u8 {
            let mut half = [0.0];
            ggml::unpack(Dtype::F16, &[0, bits], &mut half).unwrap();
            let same = half[0] == E5M2[usize::from(bits)] || half[0].is_nan() && E5M2[usize::from(bits)].is_nan();
            assert!(same, "e5m2 {bits:#x}: {} and {}", half[0], E5M2[usize::from(bits)]);
        }
        for byte in 0..255u8 {
            assert_eq!(f64::from(e8m0(byte)), 2f64.powi(i32::from(byte) - 127), "e8m0 {byte}");
        }
    }
}
