//! The share that one of several devices has of a model, and which part of a tensor that is. Plain arithmetic: what the parts are for
//! is `tensor_parallel.rs`.

use std::collections::HashMap;
use std::ops::Range;

use ggml::WeightPart;

use crate::error::LoadError;

/// The share of one device: number `index` of `of` alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) index: usize,
    pub(crate) of: usize,
}

impl Share {
    /// All of it.
    pub(crate) const WHOLE: Self = Self { index: 0, of: 1 };

    /// How many there are of `n`, which are `what`.
    pub(crate) fn count(self, n: usize, what: &str) -> Result<usize, LoadError> {
        match n.is_multiple_of(self.of) {
            true => Ok(n / self.of),
            false => {
                Err(refused(format!("{n} {what} cannot be shared by {} GPUs: choose others with --device", self.of)))
            }
        }
    }

    /// Its part along an axis that is made of such segments, of each of which it has its share.
    fn runs(self, segments: &[usize]) -> Vec<Range<usize>> {
        let mut start = 0;
        let run = |&n: &usize| {
            let each = n / self.of;
            let first = start + self.index * each;
            start += n;
            first..first + each
        };
        segments.iter().map(run).collect()
    }
}

/// The rows of an output matrix as ranks share them: of every SEGMENT rows each has as many, so that of the first ones, which drafts
/// are made of, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedRows {
    share: Share,
}

/// Rows of which each of up to MAX_SHARES shares has as many.
const SEGMENT: usize = 256;

impl SharedRows {
    /// Of a matrix of so many rows; `None` where all ranks have all.
    pub(crate) fn of(share: Share, n_rows: usize) -> Option<Self> {
        (share != Share::WHOLE && n_rows.is_multiple_of(SEGMENT) && SEGMENT.is_multiple_of(share.of))
            .then_some(Self { share })
    }

    /// The segments of the matrix of so many rows.
    pub(crate) fn segments(n_rows: usize) -> Vec<usize> {
        vec![SEGMENT; n_rows / SEGMENT]
    }

    /// Rows of a rank that follow each other in the whole.
    pub(crate) fn each(self) -> usize {
        SEGMENT / self.share.of
    }

    /// Rows of a rank among the first `n`, or a few more.
    pub(crate) fn n_first(self, n: usize) -> usize {
        n.div_ceil(SEGMENT) * self.each()
    }

    /// The rank that has row `row`, and as which of its own.
    pub(crate) fn place(self, row: usize) -> (usize, usize) {
        let (each, within) = (self.each(), row % SEGMENT);
        (within / each, row / SEGMENT * each + within % each)
    }
}

/// Where tensors are cut that are made of several segments.
#[derive(Debug, Default)]
pub(crate) struct Cuts {
    pub(crate) share: Option<Share>,
    /// By name, the lengths of the segments.
    segments: HashMap<String, Vec<usize>>,
}

impl Cuts {
    pub(crate) fn of(share: Share) -> Self {
        Self { share: Some(share).filter(|share| *share != Share::WHOLE), segments: HashMap::new() }
    }

    /// Says of what segments a tensor is made, by their lengths.
    pub(crate) fn made_of(&mut self, name: String, segments: Vec<usize>) {
        if self.share.is_some() {
            self.segments.insert(name, segments);
        }
    }

    /// True for what is added to sums that all shares make: one of them has it.
    pub(crate) fn leaves_out(&self, name: &str) -> bool {
        let of_sum = [".attn_output.bias", ".ffn_down.bias", ".ffn_down_exps.bias"];
        self.share.is_some_and(|share| share.index > 0) && of_sum.iter().any(|end| name.ends_with(end))
    }

    /// The part of tensor `name` that has shape `wanted` where the whole has `ne`; `None` where it is the whole.
    pub(crate) fn part(&self, name: &str, ne: [u64; 4], wanted: [u64; 4]) -> Option<WeightPart> {
        let share = self.share?;
        let mut others = (0..4).filter(|&i| ne[i] != wanted[i]);
        let (axis, None) = (others.next()?, others.next()) else { return None };
        if ne[axis] != wanted[axis] * share.of as u64 {
            return None;
        }
        let length = ne[axis] as usize;
        let segments = self.segments.get(name).filter(|segments| segments.iter().sum::<usize>() == length);
        let runs = share.runs(segments.map_or(&[length], Vec::as_slice));
        Some(WeightPart { axis, runs })
    }
}

pub(crate) fn refused(what: impl Into<String>) -> LoadError {
    LoadError::TensorParallel(what.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_take_their_part_of_each_segment() {
        let second = Share { index: 1, of: 2 };
        assert_eq!(second.runs(&[8, 8, 16]), [4..8, 12..16, 24..32]);
        assert_eq!(second.count(6, "heads").unwrap(), 3);
        let error = Share { index: 0, of: 4 }.count(6, "key heads").unwrap_err().to_string();
        assert!(error.contains("6 key heads") && error.contains("4 GPUs"), "{error}");
    }

    #[test]
    fn of_the_first_rows_each_rank_has_as_many() {
        let rows = SharedRows::of(Share { index: 1, of: 4 }, 1024).unwrap();
        assert_eq!((rows.each(), rows.n_first(512), rows.n_first(300)), (64, 128, 128));
        assert_eq!([0, 64, 255, 256, 700].map(|row| rows.place(row)), [(0, 0), (1, 0), (3, 63), (0, 64), (2, 188)]);
        let mut cuts = Cuts::of(Share { index: 2, of: 4 });
        cuts.made_of("output.weight".into(), SharedRows::segments(1024));
        let part = cuts.part("output.weight", [8, 1024, 1, 1], [8, 256, 1, 1]).unwrap();
        assert_eq!(part.runs, [128..192, 384..448, 640..704, 896..960]);
        assert_eq!([SharedRows::of(Share::WHOLE, 1024), SharedRows::of(Share { index: 0, of: 2 }, 1000)], [None, None]);
    }

    #[test]
    fn parts_are_found_by_what_a_shape_lacks() {
        let mut cuts = Cuts::of(Share { index: 1, of: 2 });
        cuts.made_of("blk.0.attn_qkv.weight".into(), vec![4, 4]);
        let part = |name: &str, ne, wanted| cuts.part(name, ne, wanted);
        let of = |axis, runs: &[Range<usize>]| Some(WeightPart { axis, runs: runs.to_vec() });
        assert_eq!(part("blk.0.attn_output.weight", [8, 6, 1, 1], [4, 6, 1, 1]), of(0, std::slice::from_ref(&(4..8))));
        assert_eq!(part("blk.0.attn_qkv.weight", [6, 8, 1, 1], [6, 4, 1, 1]), of(1, &[2..4, 6..8]));
        assert_eq!(part("blk.0.attn_norm.weight", [6, 1, 1, 1], [6, 1, 1, 1]), None);
        assert_eq!(part("blk.0.attn_q.weight", [6, 8, 1, 1], [6, 3, 1, 1]), None, "the check of shapes refuses it");
        let whole = Cuts::of(Share::WHOLE);
        assert_eq!(whole.part("w", [8, 6, 1, 1], [4, 6, 1, 1]), None);
        let first = Cuts::of(Share { index: 0, of: 2 });
        let left_out = [&cuts, &first, &whole].map(|cuts| cuts.leaves_out("blk.0.attn_output.bias"));
        assert_eq!(left_out, [true, false, false], "a bias of a sum is added once");
    }
}
