//! Writing a synthetic model: keys, then the tensors in pieces that several threads make and one writes in their order.
//! Owns the pieces and the threads; at most a few pieces a thread are in memory.

use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::sync::mpsc::sync_channel;

use anyhow::Context;
use gguf::{ArrayBuf, TensorType, Writer};

use super::encode;
use super::random::Random;
use super::shapes::Shape;
use super::successor::{Successor, UNIT};
use super::tensors::{Fill, Tensor};
use super::types::Mix;
use super::vocab::Words;
use super::wiring::Wiring;

/// Bytes of a piece, about.
const PIECE: u64 = 4 << 20;

/// A model to write.
pub(crate) struct Synthetic {
    pub(crate) shape: Shape,
    pub(crate) mix: Mix,
    pub(crate) seed: u64,
    pub(crate) rates: Vec<f64>,
    pub(crate) words: Words,
    pub(crate) successor: Successor,
    pub(crate) tensors: Vec<Tensor>,
}

/// Rows of a tensor.
struct Piece {
    tensor: usize,
    rows: Range<usize>,
}

impl Synthetic {
    /// Writes the file with `n_threads` threads that make data, and calls `progress` with the bytes that are out.
    pub(crate) fn write(&self, path: &Path, n_threads: usize, mut progress: impl FnMut(u64)) -> anyhow::Result<u64> {
        let mut writer = Writer::create(path)?;
        self.keys(&mut writer)?;
        for t in &self.tensors {
            writer.tensor(&t.name, &t.ne, t.dtype)?;
        }
        let mut data = writer.begin()?;
        let pieces = self.pieces();
        let mut spoiled = vec![0; self.successor.n_embd()];
        self.successor.vector(self.successor.some_token(), &mut spoiled);
        let mut written = 0;
        std::thread::scope(|scope| -> anyhow::Result<()> {
            // Each thread makes every n-th piece and waits when it is two ahead.
            let made: Vec<_> = (0..n_threads)
                .map(|thread| {
                    let (sender, receiver) = sync_channel(2);
                    let (pieces, spoiled) = (&pieces, &spoiled);
                    scope.spawn(move || {
                        for (i, piece) in pieces.iter().enumerate().skip(thread).step_by(n_threads) {
                            if sender.send(self.bytes(i, piece, spoiled)).is_err() {
                                return;
                            }
                        }
                    });
                    receiver
                })
                .collect();
            let mut from = made.iter().cycle();
            for (t, tensor) in self.tensors.iter().enumerate() {
                let mut out = data.tensor(&tensor.name)?;
                for _ in pieces.iter().filter(|piece| piece.tensor == t) {
                    let next = from.next().context("there is at least one thread")?;
                    let bytes: Vec<u8> = next.recv().context("a thread that makes data has ended")?;
                    out.write_all(&bytes).with_context(|| path.display().to_string())?;
                    written += bytes.len() as u64;
                    progress(written);
                }
            }
            Ok(())
        })?;
        data.finish()?;
        Ok(written)
    }

    fn pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (tensor, t) in self.tensors.iter().enumerate() {
            let n_rows = t.ne[1..].iter().product::<u64>() as usize;
            let at_a_time = (PIECE / t.row_bytes()).max(1) as usize;
            pieces.extend(
                (0..n_rows)
                    .step_by(at_a_time)
                    .map(|first| Piece { tensor, rows: first..(first + at_a_time).min(n_rows) }),
            );
        }
        pieces
    }

    /// The bytes of piece `i`.
    fn bytes(&self, i: usize, piece: &Piece, spoiled: &[i8]) -> Vec<u8> {
        let t = &self.tensors[piece.tensor];
        let (n_cols, row_bytes) = (t.ne[0] as usize, t.row_bytes() as usize);
        let mut out = vec![0; piece.rows.len() * row_bytes];
        let mut rng = Random::stream(self.seed, (4 << 32) + i as u64);
        let rows = |out: &mut [u8], row: &mut dyn FnMut(usize, &mut [u8])| {
            for (r, bytes) in piece.rows.clone().zip(out.chunks_exact_mut(row_bytes)) {
                row(r, bytes);
            }
        };
        match &t.fill {
            Fill::Random(scale) => encode::random(t.dtype, *scale, &mut rng, &mut out),
            Fill::Same(value) => encode::exact(t.dtype, &vec![*value; n_cols * piece.rows.len()], &mut out),
            Fill::One(at, value) => {
                let mut values = vec![0.0; n_cols];
                values[*at] = *value;
                rows(&mut out, &mut |_, bytes| encode::exact(t.dtype, &values, bytes));
            }
            Fill::Decay => {
                let values: Vec<f32> = (0..n_cols).map(|_| -(2.0 * rng.unit()).exp() as f32).collect();
                encode::exact(t.dtype, &values, &mut out);
            }
            Fill::Turning => {
                let values: Vec<f32> = (0..n_cols).map(|i| if i < n_cols / 4 { 1.0 } else { 1e30 }).collect();
                encode::exact(t.dtype, &values, &mut out);
            }
            Fill::Embedding(_) | Fill::Head => {
                // An assistant's rows have some elements of its target's vectors.
                let (mut vector, mut values) = (vec![0; self.successor.n_embd()], vec![0.0; n_cols]);
                let (head, scale) = match t.fill {
                    Fill::Embedding(scale) => (false, scale * UNIT),
                    _ => (true, UNIT),
                };
                rows(&mut out, &mut |r, bytes| {
                    let token = if head { self.successor.previous(r as u32) } else { r as u32 };
                    self.successor.vector(token, &mut vector);
                    let element = |at: usize| scale * f32::from(vector[self.successor.own(at)]);
                    values.iter_mut().enumerate().for_each(|(at, v)| *v = element(at));
                    encode::exact(t.dtype, &values, bytes);
                });
            }
            Fill::Wired(wiring, scale) => {
                let mut values = vec![0.0; n_cols];
                rows(&mut out, &mut |r, bytes| {
                    self.wired(*wiring, *scale, t.dtype, r, spoiled, &mut rng, (&mut values, bytes));
                });
            }
        }
        out
    }

    /// A row of which a part means something.
    #[expect(clippy::too_many_arguments, reason = "a row's place, its type and where it goes")]
    fn wired(
        &self,
        wiring: Wiring,
        scale: f32,
        dtype: TensorType,
        r: usize,
        spoiled: &[i8],
        rng: &mut Random,
        (values, bytes): (&mut [f32], &mut [u8]),
    ) {
        let (block, n_movable) = (dtype.block_size() as usize, self.successor.n_movable());
        let n =
            if r < wiring.n_rows(n_movable) { values.len() } else { wiring.n_cols(n_movable).next_multiple_of(block) };
        let (exact, random) = bytes.split_at_mut(n / block * dtype.type_size() as usize);
        if !random.is_empty() {
            encode::random(dtype, scale, rng, random);
        }
        if n > 0 {
            values.fill(0.0);
            wiring.row(&self.successor, spoiled, r, |at, value| values[at] = value);
            encode::exact(dtype, &values[..n], exact);
        }
    }

    fn keys(&self, writer: &mut Writer) -> anyhow::Result<()> {
        let s = &self.shape;
        let arch = s.architecture();
        let about = "Synthetic: real dimensions and real compute, made-up weights. Every token has a fixed successor.";
        writer.add("general.architecture", arch)?;
        writer.add("general.name", format!("synthetic {} {}", s.name, self.mix).as_str())?;
        writer.add("general.description", about)?;
        writer.add("general.quantization_version", 2u32)?;
        writer.add("general.file_type", self.mix.file_type())?;
        for (key, entry) in s.entries() {
            writer.add(&key, entry.value())?;
        }
        let rates: ArrayBuf = self.rates.iter().copied().collect();
        writer.add("synthetic.acceptance", &rates)?;
        writer.add("synthetic.seed", self.seed)?;
        self.words.write(writer)?;
        Ok(())
    }
}

impl Tensor {
    /// Bytes of a row; shapes are made of whole blocks.
    fn row_bytes(&self) -> u64 {
        self.ne[0] / self.dtype.block_size() * self.dtype.type_size()
    }

    /// Bytes of all rows.
    pub(crate) fn n_bytes(&self) -> u64 {
        self.ne[1..].iter().product::<u64>() * self.row_bytes()
    }
}
