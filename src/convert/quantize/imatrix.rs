//! Importance matrices: for each column of each matrix the mean square of what it was multiplied with, over some text.
//! Owns both formats of llama.cpp: GGUF files, and the older `.dat`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gguf::{Header, TensorType};

use crate::error::Error;
use crate::gguf_model::Key;
use crate::io::Input;
use crate::stream::{Importance, TensorPlan};

/// Weights by tensor.
#[derive(Clone, Debug)]
pub struct Imatrix {
    entries: HashMap<String, Entry>,
    name: String,
    path: PathBuf,
    /// Tells this file from others of its name.
    stamp: String,
}

#[derive(Clone, Debug)]
struct Entry {
    weights: Arc<Vec<f32>>,
    /// Matrices, where the file tells.
    n_matrices: Option<usize>,
}

impl Imatrix {
    /// Reads a whole file.
    ///
    /// # Errors
    /// It is missing, too large, cut short, neither of the formats, or has numbers that cannot be weights.
    pub fn open(path: &Path) -> Result<Imatrix, Error> {
        let input = Input::open(path)?;
        let stamp = input.stamp();
        let bytes = input.read_all(MAX_BYTES)?;
        let entries = if bytes.starts_with(b"GGUF") {
            let header = Header::parse(&bytes).map_err(|e| Error::gguf(path, e))?;
            of_gguf(&bytes, &header)
        } else {
            of_dat(&bytes)
        };
        let entries = entries.map_err(|what| Error::input(path, what))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Imatrix { entries, name, path: path.to_owned(), stamp })
    }

    /// Tensors that it has weights for.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// As it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Path, length and time of the file.
    pub(crate) fn stamp(&self) -> &str {
        &self.stamp
    }

    /// What a file that was made with it says about it.
    pub(crate) fn keys(&self) -> [(&'static str, Key); 2] {
        [
            ("quantize.imatrix.file", self.name.as_str().into()),
            ("quantize.imatrix.entries_count", Key::U32(self.entries.len() as u32)),
        ]
    }

    /// The weights for a tensor; None when there are none for it.
    ///
    /// # Errors
    /// They are of another size.
    pub(crate) fn of(&self, t: &TensorPlan) -> Result<Option<Importance>, Error> {
        let Some(entry) = self.entries.get(&t.name) else { return Ok(None) };
        let n_matrices: u64 = t.ne.iter().skip(2).product();
        let agrees = entry.n_matrices.is_none_or(|n| n as u64 == n_matrices);
        if !agrees || t.row_len.checked_mul(n_matrices) != Some(entry.weights.len() as u64) {
            // The embedding is looked up, not multiplied: what is there for it was made for something else.
            if t.name == "token_embd.weight" {
                return Ok(None);
            }
            let what = format!(
                "{} weights for {} matrices in the importance matrix, {} for {n_matrices} expected: made for another model?",
                entry.weights.len(),
                entry.n_matrices.map_or("?".into(), |n| n.to_string()),
                t.row_len * n_matrices
            );
            return Err(Error::tensor(&t.name, what));
        }
        let matrix_rows = t.ne.get(1).copied().unwrap_or(1).max(1);
        Ok(Some(Importance { weights: entry.weights.clone(), matrix_rows }))
    }
}

/// Sums of squares `NAME.in_sum2` over `NAME.counts` rows, one count for each matrix.
fn of_gguf(bytes: &[u8], header: &Header<'_>) -> Result<HashMap<String, Entry>, String> {
    let floats = |name: &str| -> Result<Option<Vec<f32>>, String> {
        let Some(t) = header.tensor(name) else { return Ok(None) };
        if t.dtype != TensorType::F32 {
            return Err(format!("tensor {name:?} is {}, f32 expected", t.dtype));
        }
        Ok(Some(bytes[t.range()].as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()))
    };
    let mut entries = HashMap::new();
    for t in header.tensors() {
        let Some(name) = t.name.strip_suffix(".in_sum2") else { continue };
        let mut sums = floats(t.name)?.expect("its name is in the header");
        let counts = floats(&format!("{name}.counts"))?.ok_or_else(|| format!("{name}.counts is missing"))?;
        if counts.is_empty() || !sums.len().is_multiple_of(counts.len()) {
            return Err(format!("{name}: {} sums for {} counts", sums.len(), counts.len()));
        }
        let n_cols = sums.len() / counts.len();
        for (row, count) in sums.chunks_mut(n_cols.max(1)).zip(&counts) {
            // An expert that saw no row: all its columns count alike.
            row.iter_mut().for_each(|x| *x = if *count > 0.0 { *x / count } else { 1.0 });
        }
        entries.insert(name.to_owned(), entry(name, sums, Some(counts.len()))?);
    }
    if entries.is_empty() {
        return Err("no tensor NAME.in_sum2: this GGUF file is no importance matrix".into());
    }
    Ok(entries)
}

/// A count of entries, then for each: its name, a number of calls, values that were summed over the calls.
fn of_dat(bytes: &[u8]) -> Result<HashMap<String, Entry>, String> {
    let mut rest = bytes;
    let cut = || "cut short, or no importance matrix".to_owned();
    let int = |rest: &mut &[u8]| -> Result<usize, String> {
        let (n, tail) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        *rest = tail;
        usize::try_from(i32::from_le_bytes(*n)).map_err(|_| cut())
    };
    let take = |rest: &mut &[u8], n: usize| -> Result<Vec<u8>, String> {
        let (head, tail) = rest.split_at_checked(n).ok_or_else(cut)?;
        *rest = tail;
        Ok(head.to_vec())
    };
    let n_entries = int(&mut rest)?;
    let mut entries = HashMap::new();
    for _ in 0..n_entries {
        let n_name = int(&mut rest)?;
        let name = String::from_utf8(take(&mut rest, n_name)?).map_err(|_| cut())?;
        let n_calls = int(&mut rest)?.max(1) as f32;
        let n_values = int(&mut rest)?;
        let values = take(&mut rest, n_values.checked_mul(4).ok_or_else(cut)?)?;
        let weights = values.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b) / n_calls).collect();
        let made = entry(&name, weights, None)?;
        entries.insert(name, made);
    }
    if entries.is_empty() {
        return Err("no entries: this file is no importance matrix".into());
    }
    Ok(entries)
}

fn entry(name: &str, weights: Vec<f32>, n_matrices: Option<usize>) -> Result<Entry, String> {
    if let Some(w) = weights.iter().find(|w| !(w.is_finite() && **w >= 0.0)) {
        return Err(format!("{name:?} has weight {w}, finite ones of 0 and more expected"));
    }
    Ok(Entry { weights: Arc::new(weights), n_matrices })
}

/// Those of the largest models have some hundred MB.
const MAX_BYTES: u64 = 4 << 30;
