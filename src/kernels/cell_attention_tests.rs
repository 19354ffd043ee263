//! Attention over cells against the definition, with unpacked cells; and its bits, in every instruction set, by any number of
//! threads, in any company.

use super::*;
use crate::turbo::slices::{pack, unpack};

fn numbers(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729 + i / 7 * 31) % 2039) as f32 / 700.0 - 1.4).collect()
}

/// How keys or values are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kept {
    Turbo(usize),
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Iq4Nl,
}

impl Kept {
    fn dtype(self) -> sys::ggml_type {
        match self {
            Kept::Turbo(_) => sys::GGML_TYPE_I8,
            Kept::F32 => sys::GGML_TYPE_F32,
            Kept::F16 => sys::GGML_TYPE_F16,
            Kept::BF16 => sys::GGML_TYPE_BF16,
            Kept::Q8_0 => sys::GGML_TYPE_Q8_0,
            Kept::Q4_0 => sys::GGML_TYPE_Q4_0,
            Kept::Q4_1 => sys::GGML_TYPE_Q4_1,
            Kept::Q5_0 => sys::GGML_TYPE_Q5_0,
            Kept::Q5_1 => sys::GGML_TYPE_Q5_1,
            Kept::Iq4Nl => sys::GGML_TYPE_IQ4_NL,
        }
    }

    fn turbo(self, d: usize) -> Option<Turbo> {
        if let Kept::Turbo(bits) = self { Turbo::of(bits, d) } else { None }
    }

    /// Rows of `d` values as bytes, and what they stand for.
    fn rows(self, x: &[f32], d: usize) -> (Vec<u8>, Vec<f32>) {
        if let Some(turbo) = self.turbo(d) {
            let bytes = pack(turbo, x);
            let plain = unpack(turbo, &bytes);
            return (bytes, plain);
        }
        let (n_rows, n) = ((x.len() / d) as i64, d as i64);
        // SAFETY: no preconditions.
        let row_bytes = unsafe { sys::ggml_row_size(self.dtype(), n) };
        let mut bytes = vec![0u8; row_bytes * n_rows as usize];
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: room for the rows.
        unsafe { sys::ggml_quantize_chunk(self.dtype(), x.as_ptr(), to, 0, n_rows, n, std::ptr::null()) };
        let mut plain = x.to_vec();
        if self != Kept::F32 {
            // SAFETY: the table has every type, and this one unpacks; rows follow each other.
            unsafe {
                let to_float = (*sys::ggml_get_type_traits(self.dtype())).to_float.expect("it unpacks");
                to_float(bytes.as_ptr().cast(), plain.as_mut_ptr(), x.len() as i64);
            }
        }
        (bytes, plain)
    }
}

#[derive(Clone)]
struct Case {
    d: [usize; 2],
    n_cells: usize,
    n_rows: usize,
    n_head: usize,
    n_head_kv: usize,
    n_seqs: usize,
    kept: [Kept; 2],
    softcap: f32,
    sinks: Option<Vec<f32>>,
    q: Vec<f32>,
    /// `[d]` of each head of each cell of each sequence.
    k: Vec<f32>,
    v: Vec<f32>,
    /// Rows see so many cells, and those after a number of the first.
    sees: Vec<std::ops::Range<usize>>,
}

const SCALE: f32 = 0.11;

impl Case {
    fn new(d: [usize; 2], [n_cells, n_rows, n_head, n_head_kv, n_seqs]: [usize; 5], kept: [Kept; 2]) -> Self {
        let n_kv = n_cells * n_head_kv * n_seqs;
        let sees = (0..n_rows * n_seqs).map(|i| {
            let last = n_cells - n_rows + i % n_rows + 1;
            (if i % 3 == 1 { last.saturating_sub(70) } else { 0 })..last
        });
        Self {
            d,
            n_cells,
            n_rows,
            n_head,
            n_head_kv,
            n_seqs,
            kept,
            softcap: 0.0,
            sinks: None,
            q: numbers(d[0] * n_head * n_rows * n_seqs, 1),
            k: numbers(d[0] * n_kv, 2),
            v: numbers(d[1] * n_kv, 3),
            sees: sees.collect(),
        }
    }

    fn attend(&self, isa: Isa, nth: usize) -> Vec<f32> {
        self.attend_by(isa, nth, false)
    }

    /// As [`Case::attend`], with runs of cells apart and added up, as for few tokens.
    fn attend_by_runs(&self, isa: Isa, nth: usize) -> Vec<f32> {
        let (n_runs, size) = (self.n_cells.div_ceil(RUN), BESIDE + self.d[1]);
        let runs = self.attend_by(isa, nth, true);
        let mut out = vec![f32::NAN; self.d[1] * self.n_head * self.sees.len()];
        let turbo = self.kept[1].turbo(self.d[1]);
        for (i, (to, runs)) in out.chunks_exact_mut(self.d[1]).zip(runs.chunks_exact(n_runs * size)).enumerate() {
            let sink = self.sinks.as_ref().map(|sinks| sinks[i % self.n_head]);
            // SAFETY: the instruction set is available.
            unsafe { sums_on(isa, runs, sink, turbo, to) };
        }
        out
    }

    fn attend_by(&self, isa: Isa, nth: usize, apart: bool) -> Vec<f32> {
        let cells = |x: &[f32], i: usize| self.kept[i].rows(x, self.d[i]).0;
        let (k, v) = (cells(&self.k, 0), cells(&self.v, 1));
        let mut mask = vec![MASKED; self.n_cells * self.sees.len()];
        for (mask, sees) in mask.chunks_exact_mut(self.n_cells).zip(&self.sees) {
            mask[sees.clone()].fill(0);
        }
        let of_token = if apart { self.n_cells.div_ceil(RUN) * (BESIDE + self.d[1]) } else { self.d[1] };
        let mut out = vec![f32::NAN; of_token * self.n_head * self.sees.len()];
        let of = |data: &Vec<u8>, i: usize| {
            let head = data.len() / (self.n_cells * self.n_head_kv * self.n_seqs);
            let cell = head * self.n_head_kv;
            let turbo = self.kept[i].turbo(self.d[i]).map(|turbo| (turbo, turbo.table()));
            let (turbo, strides) = (turbo, [cell, head, cell * self.n_cells]);
            Cells { turbo, dtype: self.kept[i].dtype(), data: data.as_ptr(), strides, d: self.d[i] }
        };
        let row = 4 * self.d[0] * self.n_head;
        let operands = Operands {
            n_cells: self.n_cells,
            n_rows: self.n_rows,
            n_head: self.n_head,
            n_head_kv: self.n_head_kv,
            n_seqs: self.n_seqs,
            q: self.q.as_ptr().cast(),
            q_strides: [row, 4 * self.d[0], row * self.n_rows],
            k: of(&k, 0),
            v: of(&v, 1),
            mask: mask.as_ptr(),
            mask_rows: self.n_rows,
            sinks: self.sinks.as_ref().map_or(std::ptr::null(), |sinks| sinks.as_ptr()),
            scale: SCALE,
            softcap: self.softcap,
            out: out.as_mut_ptr(),
            apart,
        };
        for ith in 0..nth {
            // SAFETY: everything has the sizes said above; the instruction set is available.
            unsafe { on_isa(isa, &operands, [ith, nth]) };
        }
        out
    }

    /// In double precision, by the definition.
    fn plain(&self) -> Vec<f64> {
        let [k, v] = [(&self.k, 0), (&self.v, 1)].map(|(x, i)| self.kept[i].rows(x, self.d[i]).1);
        let ([d_k, d_v], n_group) = (self.d, self.n_head / self.n_head_kv);
        let mut out = Vec::new();
        for (row, sees) in self.sees.iter().enumerate() {
            for head in 0..self.n_head {
                let q = &self.q[(row * self.n_head + head) * d_k..][..d_k];
                let at = |cell| (row / self.n_rows * self.n_cells + cell) * self.n_head_kv + head / n_group;
                let score = |cell: usize| {
                    let k = &k[at(cell) * d_k..][..d_k];
                    let product = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
                    let (score, cap) = (product * f64::from(SCALE), f64::from(self.softcap));
                    if cap > 0.0 { cap * (score / cap).tanh() } else { score }
                };
                let scores: Vec<f64> = sees.clone().map(score).collect();
                let sink = self.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
                let most = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let powers: Vec<f64> = scores.iter().map(|x| (x - most).exp()).collect();
                let sum = powers.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - most).exp());
                let value = |e: usize| {
                    let values = sees.clone().map(|cell| f64::from(v[at(cell) * d_v + e]));
                    powers.iter().zip(values).map(|(p, v)| p * v).sum::<f64>() / sum
                };
                out.extend((0..d_v).map(value));
            }
        }
        out
    }
}

fn cases() -> Vec<Case> {
    use Kept::{BF16, F16, F32, Iq4Nl, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Turbo};
    let shapes = [[256, 1, 4, 2, 1], [300, 5, 6, 2, 2], [70, 40, 3, 1, 1], [1, 1, 1, 1, 1]];
    let mut cases: Vec<Case> =
        [([64, 64], [Turbo(3); 2]), ([128, 128], [Turbo(4); 2]), ([256, 64], [Turbo(3), Turbo(4)])]
            .iter()
            .flat_map(|&(d, kept)| shapes.map(|shape| Case::new(d, shape, kept)))
            .collect();
    let mixed = [([64, 40], [Turbo(3), F16]), ([96, 192], [Q8_0, Turbo(3)]), ([20, 64], [F32, Turbo(4)])];
    cases.extend(mixed.map(|(d, kept)| Case::new(d, shapes[1], kept)));
    // Of ggml's types, each with rows that end within a group of lanes where they may.
    let of_ggml = [([64, 64], F16), ([128, 96], Q8_0), ([64, 128], Q4_0), ([40, 20], F16), ([24, 72], BF16)];
    cases.extend(of_ggml.map(|(d, kept)| Case::new(d, shapes[1], [kept; 2])));
    cases.extend([Q4_1, Q5_0, Q5_1, Iq4Nl].map(|kept| Case::new([32, 64], shapes[1], [kept; 2])));
    // Several runs, the last of which is cut, and which some rows see little of.
    let long = [1300, 3, 4, 2, 1];
    cases.extend(
        [([64, 64], Turbo(4)), ([64, 32], F16), ([128, 128], Q8_0)].map(|(d, kept)| Case::new(d, long, [kept; 2])),
    );
    let with = |softcap, sinks: bool| Case {
        softcap,
        sinks: sinks.then(|| numbers(6, 4)),
        ..Case::new([64, 128], shapes[1], [Turbo(4), Turbo(3)])
    };
    cases.extend([with(2.5, false), with(0.0, true), with(1.2, true)]);
    cases.push(Case { sinks: Some(numbers(4, 4)), ..Case::new([64, 64], long, [Kept::Q4_0, Kept::Turbo(3)]) });
    cases
}

#[test]
fn every_instruction_set_and_number_of_threads_gives_the_same_bits_and_they_are_attention() {
    for case in cases() {
        let what = format!("{:?} of {:?}, {} rows of {}", case.kept, case.d, case.n_rows, case.n_cells);
        let first = case.attend(Isa::Scalar, 1);
        for (i, (&found, expected)) in first.iter().zip(case.plain()).enumerate() {
            let error = (f64::from(found) - expected).abs();
            // Products of rotated values differ from those of unrotated ones in the last bits.
            assert!(error < 2e-5, "{what}, element {i}: {found}, {expected} expected");
        }
        for isa in Isa::available() {
            for n_threads in 1..=3 {
                let found = case.attend(isa, n_threads);
                let same = first.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{isa:?}, {what}, {n_threads} threads");
                assert_eq!(
                    found,
                    case.attend_by_runs(isa, n_threads),
                    "{isa:?}, {what}, {n_threads} threads, runs apart"
                );
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_among_others_and_before_cells_that_nobody_sees() {
    for case in cases().into_iter().filter(|case| case.n_seqs == 1 && case.n_rows > 1) {
        let row = case.d[1] * case.n_head;
        for isa in Isa::available() {
            let together = case.attend(isa, 2);
            for i in 0..case.n_rows {
                let n = case.d[0] * case.n_head;
                let q = case.q[i * n..][..n].to_vec();
                let alone = Case { n_rows: 1, q, sees: vec![case.sees[i].clone()], ..case.clone() };
                assert_eq!(alone.attend(isa, 1), together[i * row..][..row], "{isa:?}, row {i}");
                let n_more = 200;
                let more = |x: &[f32], d| [x, &numbers(d * case.n_head_kv * n_more, 5)].concat();
                let (k, v) = (more(&case.k, case.d[0]), more(&case.v, case.d[1]));
                let before = Case { n_cells: case.n_cells + n_more, k, v, ..alone };
                assert_eq!(before.attend(isa, 1), together[i * row..][..row], "{isa:?}, row {i} before others");
                let by_runs = before.attend_by_runs(isa, 1);
                assert_eq!(by_runs, together[i * row..][..row], "{isa:?}, row {i} before others, runs apart");
            }
        }
    }
}

#[test]
fn rows_that_see_nothing_are_zeros_and_cells_that_nobody_sees_are_not_looked_at() {
    let mut case = Case::new([64, 64], [256, 3, 2, 1, 1], [Kept::F32; 2]);
    case.sees = vec![0..0, 5..60, 64..100];
    let expected = case.plain();
    case.k[128 * 64..].fill(f32::NAN);
    case.v[128 * 64..].fill(f32::NAN);
    for isa in Isa::available() {
        let found = case.attend(isa, 1);
        assert!(found[..128].iter().all(|&x| x == 0.0), "{isa:?}");
        for (found, expected) in found.iter().zip(&expected).skip(128) {
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{isa:?}: {found}, {expected} expected");
        }
    }
}

#[test]
fn a_query_that_is_no_number_gives_none() {
    let mut case = Case::new([64, 64], [64, 2, 1, 1, 1], [Kept::Turbo(3); 2]);
    case.q[3] = f32::NAN;
    for isa in Isa::available() {
        let found = case.attend(isa, 1);
        for found in [found, case.attend_by_runs(isa, 1)] {
            assert!(found[..64].iter().all(|x| x.is_nan()) && found[64..].iter().all(|x| x.is_finite()), "{isa:?}");
        }
    }
}
