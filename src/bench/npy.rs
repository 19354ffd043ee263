//! NumPy's array file, version 1.0, for matrices of F32.

use std::io::{self, Write};
use std::path::Path;

/// Writes `rows` rows of equal length to `path`.
pub(super) fn write_f32(path: &Path, values: &[f32], n_rows: usize) -> io::Result<()> {
    let n_cols = values.len() / n_rows.max(1);
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({n_rows}, {n_cols}), }}");
    // Magic, version, length and text together fill a multiple of 64 bytes and end in a newline.
    let n_bytes = (10 + header.len() + 1).next_multiple_of(64);
    header.push_str(&" ".repeat(n_bytes - 10 - header.len() - 1));
    header.push('\n');
    let mut file = io::BufWriter::new(std::fs::File::create(path)?);
    file.write_all(b"\x93NUMPY\x01\x00")?;
    file.write_all(&(header.len() as u16).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for value in values {
        file.write_all(&value.to_le_bytes())?;
    }
    file.flush()
}
