//! A part of a weight: of each row some columns, or of each matrix some rows, which a rank has ([`crate::Ranks`]). Owns where its
//! bytes lie among those of the whole.

use std::ops::Range;

use crate::dtype::Dtype;
use crate::error::Error;

/// What is taken of a tensor: runs along one dimension, of all that there is in the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightPart {
    /// The dimension, in ggml's order.
    pub axis: usize,
    /// Elements along it, in the order in which the part has them.
    pub runs: Vec<Range<usize>>,
}

/// Bytes of a part among those of the whole, which is `len / step` times the same.
#[derive(Clone, Debug)]
pub(crate) struct PartBytes {
    runs: Vec<Range<usize>>,
    step: usize,
    pub(crate) n_bytes: usize,
}

impl WeightPart {
    /// The part's shape, and where it lies in a tensor of shape `ne` and `n_bytes` bytes.
    pub(crate) fn of(
        &self,
        name: &str,
        dtype: Dtype,
        ne: [i64; 4],
        n_bytes: usize,
    ) -> Result<([i64; 4], PartBytes), Error> {
        let refused = |what: String| Error::Tensor { name: name.to_owned(), what };
        let length = ne.get(self.axis).and_then(|&n| usize::try_from(n).ok()).unwrap_or(0);
        if self.runs.is_empty() || self.runs.iter().any(|run| run.is_empty() || run.end > length) {
            return Err(refused(format!("parts {:?} of {length} elements", self.runs)));
        }
        // Bytes of a step along the axis, and elements that it has.
        let (unit, n_of_unit) = match self.axis {
            0 => (dtype.block_bytes(), dtype.block_size()),
            axis => (ne[1..axis].iter().fold(dtype.row_bytes(ne[0])?, |n, &ne| n * ne as usize), 1),
        };
        if let Some(at) = self.runs.iter().flat_map(|run| [run.start, run.end]).find(|at| !at.is_multiple_of(n_of_unit))
        {
            return Err(refused(format!(
                "a cut at column {at} is within a block of {n_of_unit} that type {dtype} keeps together"
            )));
        }
        let runs: Vec<_> = self.runs.iter().map(|r| r.start / n_of_unit * unit..r.end / n_of_unit * unit).collect();
        let step = length / n_of_unit * unit;
        let taken: usize = runs.iter().map(ExactSizeIterator::len).sum();
        let mut part = ne;
        part[self.axis] = self.runs.iter().map(ExactSizeIterator::len).sum::<usize>() as i64;
        Ok((part, PartBytes { runs, step, n_bytes: n_bytes / step * taken }))
    }
}

impl PartBytes {
    /// The part's bytes, if they follow each other.
    pub(crate) fn in_one(&self, n_bytes: usize) -> Option<Range<usize>> {
        match &self.runs[..] {
            [run] if self.step == n_bytes => Some(run.clone()),
            _ => None,
        }
    }

    /// Puts the part of `whole` together.
    pub(crate) fn gather(&self, whole: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.n_bytes);
        for step in whole.chunks_exact(self.step) {
            self.runs.iter().for_each(|run| bytes.extend_from_slice(&step[run.clone()]));
        }
        bytes
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "a part is a list of runs, often of one")]
mod tests {
    use super::*;

    fn gathered(dtype: Dtype, ne: [i64; 4], axis: usize, runs: &[Range<usize>], whole: &[u8]) -> ([i64; 4], Vec<u8>) {
        let part = WeightPart { axis, runs: runs.to_vec() };
        let (ne, bytes) = part.of("w", dtype, ne, whole.len()).unwrap();
        let gathered = bytes.gather(whole);
        assert_eq!(gathered.len(), bytes.n_bytes);
        assert!(bytes.in_one(whole.len()).is_none_or(|range| whole[range] == gathered));
        (ne, gathered)
    }

    #[test]
    fn columns_rows_and_rows_of_each_matrix() {
        // [4, 3, 2] of one byte each.
        let whole: Vec<u8> = (0..24).collect();
        let (ne, columns) = gathered(Dtype::I8, [4, 3, 2, 1], 0, &[3..4, 0..1], &whole);
        assert_eq!((ne, &columns[..4]), ([2, 3, 2, 1], &[3, 0, 7, 4][..]));
        let (ne, rows) = gathered(Dtype::I8, [4, 3, 2, 1], 1, &[1..3], &whole);
        assert_eq!((ne, rows), ([4, 2, 2, 1], [(4..12).collect::<Vec<u8>>(), (16..24).collect()].concat()));
        let (ne, matrix) = gathered(Dtype::I8, [4, 3, 2, 1], 2, &[1..2], &whole);
        assert_eq!((ne, matrix), ([4, 3, 1, 1], (12..24).collect()));
    }

    #[test]
    fn blocks_are_not_cut() {
        let whole: Vec<u8> = (0..2 * 2 * 34).map(|i| i as u8).collect();
        let (ne, columns) = gathered(Dtype::Q8_0, [64, 2, 1, 1], 0, &[32..64], &whole);
        assert_eq!((ne, columns), ([32, 2, 1, 1], [&whole[34..68], &whole[102..136]].concat()));
        let part = WeightPart { axis: 0, runs: vec![16..48] };
        let error = part.of("blk.0.ffn_down.weight", Dtype::Q8_0, [64, 2, 1, 1], whole.len()).unwrap_err().to_string();
        assert!(error.contains("ffn_down") && error.contains("column 16") && error.contains("q8_0"), "{error}");
    }

    #[test]
    fn parts_lie_within_the_whole() {
        for runs in [vec![], vec![0..5], vec![1..1]] {
            assert!(WeightPart { axis: 0, runs }.of("w", Dtype::F32, [4, 1, 1, 1], 16).is_err());
        }
        assert!(WeightPart { axis: 4, runs: vec![0..1] }.of("w", Dtype::F32, [4, 1, 1, 1], 16).is_err());
    }
}
