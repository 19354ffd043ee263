//! Golden files: models and what the reference answers for them, packed as `tests/golden/oracle/pack.py` does it.
//! Owns the figures of a comparison; the tests own the limits.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gguf::{Header, TensorType, Writer};
use model::{LoadOptions, Model};
use serde::Deserialize;
use tempfile::TempDir;

/// Sequences of tokens with what the reference computes for them.
#[derive(Deserialize)]
pub struct Golden {
    pub sequences: Vec<Sequence>,
    /// How far llama.cpp's own kernels are from the exact result; for quantised files.
    pub peer_vs_exact: Option<Yardstick>,
    #[serde(skip)]
    floats: Vec<f32>,
}

#[derive(Deserialize)]
pub struct Yardstick {
    pub kl_mean: f64,
    pub kl_max: f64,
    pub argmax_agree: f64,
}

#[derive(Deserialize)]
pub struct Sequence {
    pub name: String,
    pub ids: Vec<u32>,
    /// The best of every position.
    #[serde(alias = "exact")]
    pub positions: Vec<Top>,
    /// Offset and count among the floats.
    #[serde(alias = "exact_last")]
    last_logits: (usize, usize),
    #[serde(default)]
    hidden: (usize, usize),
    #[serde(default)]
    pub greedy: Vec<u32>,
    /// Counts of greedy self-speculation, by convention and depth, such as `std-3`.
    #[serde(default)]
    pub spec: HashMap<String, Counts>,
}

/// Tokens drafted and tokens kept.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub struct Counts {
    pub drafted: usize,
    pub accepted: usize,
}

/// The best tokens of a position, best first.
#[derive(Deserialize)]
pub struct Top {
    pub ids: Vec<usize>,
    pub logits: Vec<f32>,
}

impl Golden {
    /// One of the oracle's, by name.
    pub fn oracle(name: &str) -> Golden {
        let dir = folder().join("oracle");
        let json = unpacked(&dir.join(format!("{name}.json.z")));
        Self::new(&json, &unpacked(&dir.join(format!("{name}.f32.z4"))))
    }

    /// One of `tests/golden/<folder>`, by name.
    pub fn plain(arch: &str, name: &str) -> Golden {
        let read = |end: &str| {
            let path = folder().join(arch).join(format!("{name}.{end}"));
            std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        };
        Self::new(&read("json"), &read("f32"))
    }

    fn new(json: &[u8], floats: &[u8]) -> Golden {
        let mut golden: Golden = serde_json::from_slice(json).expect("a golden file has all that is asked of it");
        golden.floats =
            floats.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("chunks of four"))).collect();
        golden
    }

    /// Logits of the last position.
    pub fn last_logits(&self, s: &Sequence) -> &[f32] {
        &self.floats[s.last_logits.0..][..s.last_logits.1]
    }

    /// Hidden rows of the last positions, as many as were kept.
    pub fn hidden(&self, s: &Sequence) -> &[f32] {
        &self.floats[s.hidden.0..][..s.hidden.1]
    }
}

/// How far results are from the reference; grows with each sequence compared.
#[derive(Debug, Default)]
pub struct Distance {
    /// Largest difference of a logit: all of the last position, the top 8 of the others.
    pub logits: f32,
    /// Largest and summed divergence of the last positions.
    pub kl: f64,
    kl_sum: f64,
    /// Largest difference of a hidden element.
    pub hidden: f32,
    n_sequences: usize,
    n_positions: usize,
    n_agree: usize,
}

impl Distance {
    /// `logits`: `[n_vocab]` for every position; `hidden`: `[n_embd]` for every position, or empty.
    pub fn add(&mut self, golden: &Golden, s: &Sequence, logits: &[f32], hidden: &[f32]) {
        assert!(logits.iter().chain(hidden).all(|v| v.is_finite()), "{}: a result is not finite", s.name);
        let reference = golden.last_logits(s);
        assert_eq!(logits.len(), reference.len() * s.ids.len(), "{}: logits of every position", s.name);
        for (row, top) in logits.chunks_exact(reference.len()).zip(&s.positions) {
            let best = (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best });
            self.n_agree += usize::from(best == top.ids[0]);
            self.n_positions += 1;
            let differences = top.ids.iter().zip(&top.logits).map(|(&id, &logit)| (row[id] - logit).abs());
            self.logits = differences.fold(self.logits, f32::max);
        }
        let last = &logits[logits.len() - reference.len()..];
        self.logits = largest_difference(last, reference).max(self.logits);
        let kl = divergence(reference, last);
        self.kl = self.kl.max(kl);
        self.kl_sum += kl;
        self.n_sequences += 1;
        if !hidden.is_empty() {
            let reference = golden.hidden(s);
            let last = &hidden[hidden.len() - reference.len()..];
            self.hidden = largest_difference(last, reference).max(self.hidden);
        }
    }

    pub fn kl_mean(&self) -> f64 {
        self.kl_sum / self.n_sequences as f64
    }

    /// Share of the positions whose best token is the reference's.
    pub fn argmax_agree(&self) -> f64 {
        self.n_agree as f64 / self.n_positions as f64
    }
}

pub fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

/// Kullback-Leibler divergence of the distribution of logits `q` from that of `p`, in nats.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let log_sum = |x: &[f32]| {
        let max = f64::from(x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        max + x.iter().map(|&v| (f64::from(v) - max).exp()).sum::<f64>().ln()
    };
    let (a, b) = (log_sum(p), log_sum(q));
    let term = |(&x, &y): (&f32, &f32)| {
        let (x, y) = (f64::from(x) - a, f64::from(y) - b);
        x.exp() * (x - y)
    };
    p.iter().zip(q).map(term).sum()
}

/// A model in a folder that lives as long.
pub struct OpenModel {
    pub model: Arc<Model>,
    _dir: TempDir,
}

/// Opens a packed model of the oracle: as it is, or (`exact`) with every BF16 tensor widened to F32.
pub fn oracle_model(name: &str, exact: bool) -> OpenModel {
    let bytes = oracle_bytes(name);
    open_bytes(if exact { widened(&bytes) } else { bytes })
}

/// Opens the model of [`Golden::plain`].
pub fn plain_model(arch: &str, name: &str) -> OpenModel {
    let path = folder().join(arch).join(format!("{name}.gguf"));
    open_bytes(std::fs::read(&path).unwrap_or_else(|_| widened(&packed(&path))))
}

fn open_bytes(bytes: Vec<u8>) -> OpenModel {
    let dir = TempDir::new().expect("a folder for the model");
    let path = dir.path().join("model.gguf");
    std::fs::write(&path, bytes).expect("room for the model");
    OpenModel { model: open(&path), _dir: dir }
}

/// The bytes of a packed model of the oracle.
pub fn oracle_bytes(name: &str) -> Vec<u8> {
    packed(&folder().join("oracle").join(format!("{name}.gguf")))
}

/// The bytes of a packed model.
fn packed(path: &Path) -> Vec<u8> {
    let packed = ["gguf.z4", "gguf.z2", "gguf.z"].map(|end| path.with_extension(end));
    unpacked(packed.iter().find(|path| path.exists()).unwrap_or_else(|| panic!("{}: not there", path.display())))
}

pub fn open(path: &Path) -> Arc<Model> {
    Model::open(path, &LoadOptions::default()).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The folder of golden files.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Undoes `pack.py`.
pub fn unpacked(path: &Path) -> Vec<u8> {
    test_support::unpacked(path)
}

/// The same file with every BF16 tensor as F32, which holds the same values.
fn widened(bytes: &[u8]) -> Vec<u8> {
    let header = Header::parse(bytes).expect("a sound file");
    let mut writer = Writer::in_memory();
    writer.add_all(header.metadata()).expect("keys of a sound file");
    let is_bf16 = |t: &gguf::TensorInfo<'_>| t.dtype == TensorType::BF16;
    for t in header.tensors() {
        let dtype = if is_bf16(t) { TensorType::F32 } else { t.dtype };
        writer.tensor(t.name, t.dims(), dtype).expect("shapes of a sound file");
    }
    let mut data = writer.begin().expect("a header that can be read");
    for t in header.tensors() {
        let bytes = &bytes[t.range()];
        let wide: Vec<u8>;
        let bytes = if is_bf16(t) {
            wide = bytes.chunks_exact(2).flat_map(|b| [0, 0, b[0], b[1]]).collect();
            &wide
        } else {
            bytes
        };
        data.write_tensor(t.name, bytes).expect("data of the declared size");
    }
    data.finish().expect("all tensors are written")
}
