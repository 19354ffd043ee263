//! Training itself: batches through the target model and the head, the loss of each draft token, a step; and the measure that is
//! wanted in the end, the share of drafts that are right. Owns no file and no clock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use candle_core::{D, DType, Device, Tensor};
use convert::heads::NewHead;

use crate::batches::Part;
use crate::block::Head;
use crate::data::Text;
use crate::device_loss::{self, Counted, fetched};
use crate::known::Known;
use crate::loss::{Targets, Worth, loss};
use crate::optimizer::{Optimizer, square_sum};
use crate::target::Target;

/// The embeddings of the tokens of all texts.
#[derive(Debug)]
struct Embedding {
    /// `[n_tokens, n_embd]`, the first of zeros, for rows of a text that has ended.
    table: Tensor,
    row_of: HashMap<u32, u32>,
}

/// Gradients by layer and variable.
type Gradients = BTreeMap<(usize, String), Tensor>;

/// A head in training.
pub struct Trainer {
    source: NewHead,
    student: Student,
    /// How it moves.
    pub optimizer: Optimizer,
    target: Target,
    embedding: Embedding,
    /// Where the time went.
    pub spent: Spent,
    /// Steps on a GPU whose numbers are still there.
    pending: Vec<Pending>,
    latest: Vec<Worth>,
}

/// What a step on a GPU leaves there.
#[derive(Debug)]
struct Pending {
    counted: Vec<Vec<Counted>>,
    /// The squared length of the gradients.
    size: Tensor,
}

/// Seconds of training, by what they were for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// Passes of the target model.
    pub target: f64,
    /// The head and its output matrix, there and back.
    pub head: f64,
    /// Steps.
    pub steps: f64,
}

/// Adds what `work` takes to `sum`.
fn timed<T>(sum: &mut f64, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = work();
    *sum += begun.elapsed().as_secs_f64();
    result
}

/// What makes drafts of inputs, and their losses; several threads may ask it.
#[derive(Debug)]
struct Student {
    head: Head,
    /// The output matrices of the layers, or the rows of them that drafts are made of: `[n_words, n_embd]` each. One where all
    /// layers share it.
    outputs: Vec<Tensor>,
    /// The row of each token in it.
    row_of: Option<HashMap<u32, u32>>,
    /// Words of the target model for each token.
    n_words: usize,
    how: How,
    device: Device,
}

/// What drafts and losses are.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Draft tokens that are trained.
    pub depth: usize,
    /// Weight of the chance of acceptance beside the divergence.
    pub pull: f32,
    /// Weight of tokens in whose place a draft was refused; 1 is that of others.
    pub refused: f32,
    /// Threads that compute parts of a batch.
    pub n_threads: usize,
}

impl Trainer {
    /// For these texts and parts of them. `words`: the tokens that drafts are made of; all if `None`.
    ///
    /// # Errors
    /// The model's file cannot be read.
    pub fn new(
        source: NewHead,
        head: Head,
        target: Target,
        (texts, words): (&[Text], Option<&[u32]>),
        how: How,
    ) -> anyhow::Result<Self> {
        let device = head.device().clone();
        let embedding = Embedding::of(&source, texts, &device)?;
        let outputs = outputs(&source, words, &device)?;
        let row_of = words.map(|words| words.iter().zip(0..).map(|(&id, row)| (id, row)).collect());
        let optimizer = Optimizer::default();
        let student = Student { head, outputs, row_of, n_words: target.n_words(), how, device };
        let (spent, latest) = (Spent::default(), vec![Worth::default(); how.depth]);
        Ok(Self { source, student, optimizer, target, embedding, spent, pending: Vec::new(), latest })
    }

    /// What learns.
    pub fn head(&self) -> &Head {
        &self.student.head
    }

    /// The file on disk in which the target's passes are kept.
    pub fn on_disk(&self) -> Option<&Path> {
        self.target.on_disk()
    }

    /// What the head is of, and the head; the trainer ends.
    pub fn into_parts(self) -> (NewHead, Head) {
        (self.source, self.student.head)
    }

    /// What drafts were worth in the latest steps of which that is known, by depth.
    pub fn latest(&self) -> &[Worth] {
        &self.latest
    }

    /// From now on the target's passes over these parts are kept, the first ones first, as long as there is room; `parts` are those
    /// that are measured on and those of the first round, and what is kept is computed in their company in every round.
    pub fn keep<'a>(&mut self, texts: &[Text], parts: impl Iterator<Item = &'a Part>) {
        self.target.keep(texts, parts);
    }

    /// Learns from one batch at this rate; gives the number of tokens that counted.
    ///
    /// # Errors
    /// The device's; numbers that are none, after which the head is not to be used. On a GPU they can be those of a step before.
    pub fn learn(&mut self, texts: &[Text], batch: &[Part], rate: f64) -> anyhow::Result<usize> {
        let n: usize = batch.iter().flatten().map(|i| texts[*i].n_counted()).sum();
        let share = 1.0 / (n * self.student.how.depth).max(1) as f64;
        let (mut counted, mut gradients) = (Vec::new(), Gradients::new());
        // In the order of the parts: sums of floats depend on it.
        for (drafts, found) in self.each(texts, batch, Some(share))? {
            counted.push(drafts);
            for (name, gradient) in found {
                let sum = match gradients.remove(&name) {
                    Some(before) => (gradient + before)?,
                    None => gradient,
                };
                gradients.insert(name, sum);
            }
        }
        let squares = gradients.values().map(square_sum).collect::<candle_core::Result<Vec<_>>>()?;
        let n_learned = counted.iter().filter_map(|part| part.first()).map(Counted::n).sum();
        let clip = if self.student.device.is_cpu() {
            let (worth, squares) = fetched(self.student.how.depth, &counted, &squares)?;
            self.latest = worth;
            let size = squares.iter().map(|square| f64::from(*square)).sum();
            Clip::ByNumber((MOST / sound(size)?.sqrt()).min(1.0))
        } else if squares.is_empty() {
            Clip::ByNumber(1.0)
        } else {
            // Nothing waits for the GPU here: it is asked for the numbers of many steps at once.
            let size = Tensor::stack(&squares, 0)?.sum_all()?;
            let clip = (size.sqrt()?.recip()? * MOST)?.minimum(1.0)?;
            self.pending.push(Pending { counted, size });
            Clip::OnDevice(clip)
        };
        let begun = Instant::now();
        for (il, layer) in self.student.head.layers().iter().enumerate() {
            for (name, var) in layer.vars() {
                if let Some(gradient) = gradients.get(&(il, name.to_owned())) {
                    self.optimizer.step(&format!("{il}.{name}"), var, &clip.of(gradient)?, rate)?;
                }
            }
        }
        self.optimizer.end_step();
        self.spent.steps += begun.elapsed().as_secs_f64();
        if self.pending.len() >= N_AHEAD {
            self.settle()?;
        }
        Ok(n_learned)
    }

    /// Waits until a GPU has made all steps that it was asked for.
    ///
    /// # Errors
    /// As [`Trainer::learn`].
    pub fn settle(&mut self) -> anyhow::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let (counted, sizes): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.pending).into_iter().map(|step| (step.counted, step.size)).unzip();
        let depth = self.student.how.depth;
        let (worth, sizes) = timed(&mut self.spent.head, || fetched(depth, &counted.concat(), &sizes))?;
        self.latest = worth;
        sizes.into_iter().try_for_each(|size| sound(size.into()).map(drop))
    }

    /// What the drafts for these texts are worth, by depth.
    ///
    /// # Errors
    /// As [`Trainer::learn`].
    pub fn measure(&mut self, texts: &[Text], parts: &[Part]) -> anyhow::Result<Vec<Worth>> {
        self.settle()?;
        let mut counted = Vec::new();
        for parts in parts.chunks(N_AT_ONCE) {
            counted.extend(self.each(texts, parts, None)?.into_iter().map(|(drafts, _)| drafts));
        }
        let depth = self.student.how.depth;
        Ok(timed(&mut self.spent.head, || fetched(depth, &counted, &[]))?.0)
    }

    /// Drafts of several parts, on a CPU each by one thread: the matrices of a head are small, and threads that share one wait for
    /// each other. A GPU gets one after the other, all from this thread, whose stream of work it is. `learns` is the weight of a
    /// token's loss in the gradients that are wanted.
    fn each(
        &mut self,
        texts: &[Text],
        parts: &[Part],
        learns: Option<f64>,
    ) -> anyhow::Result<Vec<(Vec<Counted>, Gradients)>> {
        let mut inputs = Vec::new();
        for part in parts {
            let of: Vec<&Text> = part.iter().map(|&i| &texts[i]).collect();
            let known = timed(&mut self.spent.target, || self.target.of(texts, part))?;
            let (hidden, embeddings) = self.inputs(&of, &known)?;
            inputs.push((of, known, hidden, embeddings));
        }
        let begun = Instant::now();
        let next = AtomicUsize::new(0);
        let (student, inputs, next) = (&self.student, &inputs, &next);
        let work = || {
            let mut done = Vec::new();
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                let Some((of, known, hidden, embeddings)) = inputs.get(i) else { break };
                done.push((i, student.drafts(of, known, (hidden, embeddings), learns)));
            }
            done
        };
        let mut done = thread::scope(|scope| {
            let n_threads = if student.device.is_cpu() { student.how.n_threads.min(parts.len()) } else { 1 };
            let others: Vec<_> = (1..n_threads).map(|_| scope.spawn(work)).collect();
            let mut done = work();
            others.into_iter().for_each(|other| done.extend(other.join().unwrap_or_default()));
            done
        });
        self.spent.head += begun.elapsed().as_secs_f64();
        ensure!(done.len() == parts.len(), "a thread of the training has ended");
        done.sort_by_key(|(i, _)| *i);
        done.into_iter().map(|(_, result)| result).collect()
    }

    /// Hidden states and embeddings of some texts, `[n_texts, n, n_embd]`; the shorter ones end in zeros.
    fn inputs(&self, of: &[&Text], known: &[Arc<Known>]) -> anyhow::Result<(Tensor, Tensor)> {
        let n_embd = self.source.shape().n_embd;
        let n = of.iter().map(|text| text.tokens.len()).max().unwrap_or(0);
        let (mut hidden, mut rows) = (vec![half::f16::ZERO; of.len() * n * n_embd], vec![0_u32; of.len() * n]);
        for (i, (text, known)) in of.iter().zip(known).enumerate() {
            hidden[i * n * n_embd..][..known.hidden.len()].copy_from_slice(&known.hidden);
            for (row, token) in rows[i * n..].iter_mut().zip(&text.tokens) {
                *row = *self.embedding.row_of.get(&token.0).context("a token of another text")?;
            }
        }
        let shape = (of.len(), n, n_embd);
        // Half of the bytes go to the device.
        let hidden = Tensor::from_vec(hidden, shape, &self.student.device)?.to_dtype(DType::F32)?;
        let rows = Tensor::from_vec(rows, of.len() * n, &self.student.device)?;
        Ok((hidden, self.embedding.table.index_select(&rows, 0)?.reshape(shape)?))
    }
}

impl Student {
    /// Drafts after every position of some texts: what they are worth, and the gradients of their loss where they are wanted.
    fn drafts(
        &self,
        of: &[&Text],
        known: &[Arc<Known>],
        (hidden, embeddings): (&Tensor, &Tensor),
        learns: Option<f64>,
    ) -> anyhow::Result<(Vec<Counted>, Gradients)> {
        let outs = self.head.unroll(embeddings, hidden, self.how.depth)?;
        let (mut counted, mut pulled) = (Vec::new(), None);
        for (k, out) in outs.iter().enumerate() {
            let (rows, targets) = self.rows(of, known, k, out.dim(1)?);
            if rows.is_empty() {
                counted.push(Counted::Host(Worth::default()));
                continue;
            }
            let out = out.flatten(0, 1)?; // [n_texts * n_rows, n_embd]
            let h = out.detach().index_select(&Tensor::new(&rows[..], &self.device)?, 0)?;
            let output = &self.outputs[k.min(self.outputs.len() - 1)];
            let (gradient, of) = self.loss((&h, output), &targets, learns.is_some())?;
            counted.push(of);
            if let Some(gradient) = gradient {
                let pull = (&out * self.spread(&gradient, &rows, out.dim(0)?)?)?.sum(D::Minus1)?.sum_all()?;
                pulled = Some(match pulled {
                    Some(sum) => (pull + sum)?,
                    None => pull,
                });
            }
        }
        let mut gradients = Gradients::new();
        if let (Some(pulled), Some(share)) = (pulled, learns) {
            // What each draft is pulled by is known: the rest is the library's.
            let found = (pulled * share)?.backward()?;
            for (il, layer) in self.head.layers().iter().enumerate() {
                for (name, var) in layer.vars() {
                    if let Some(gradient) = found.get(var) {
                        gradients.insert((il, name.to_owned()), gradient.detach());
                    }
                }
            }
        }
        Ok((counted, gradients))
    }

    /// The gradient of the loss by some rows, where it is wanted, and what they are worth.
    fn loss(
        &self,
        (h, output): (&Tensor, &Tensor),
        targets: &Targets,
        wanted: bool,
    ) -> candle_core::Result<(Option<Tensor>, Counted)> {
        let how = (wanted, self.how.pull);
        if self.device.is_cpu() {
            let (gradient, worth) = loss(h, output, targets, how)?;
            return Ok((gradient, Counted::Host(worth)));
        }
        let (gradient, sums) = device_loss::loss(h, output, targets, how)?;
        Ok((gradient, Counted::Device(sums)))
    }

    /// `x` has a row for each of `rows`, ascending: they get to their places among `n_rows`, and the others are zeros. The other
    /// way round, to add rows at places, is slow on a GPU.
    fn spread(&self, x: &Tensor, rows: &[u32], n_rows: usize) -> candle_core::Result<Tensor> {
        if rows.len() == n_rows {
            return Ok(x.clone());
        }
        let mut places = vec![rows.len() as u32; n_rows];
        (0..).zip(rows).for_each(|(place, &row)| places[row as usize] = place);
        let zeros = Tensor::zeros((1, x.dim(1)?), x.dtype(), &self.device)?;
        Tensor::cat(&[x, &zeros], 0)?.index_select(&Tensor::from_vec(places, n_rows, &self.device)?, 0)
    }

    /// Rows of draft `k` that count, of `n_rows` for each text, and the target's words there.
    fn rows(&self, of: &[&Text], known: &[Arc<Known>], k: usize, n_rows: usize) -> (Vec<u32>, Targets) {
        let n_words = self.n_words;
        let (mut rows, mut targets) = (Vec::new(), Targets { n_words, ..Targets::default() });
        for (i, (text, known)) in of.iter().zip(known).enumerate() {
            for t in 0..text.tokens.len().saturating_sub(k + 2) {
                // The token that is guessed, and the one after which the target says what it thinks of it.
                let (guessed, before) = (t + k + 2, t + k + 1);
                if !text.counted[guessed] {
                    continue;
                }
                let at = before * n_words..(before + 1) * n_words;
                if self.add_words(&known.ids[at.clone()], &known.probs[at], &mut targets) {
                    rows.push((i * n_rows + t) as u32);
                    let was_refused = text.refused.binary_search(&guessed).is_ok();
                    targets.weights.push(if was_refused { self.how.refused } else { 1.0 });
                }
            }
        }
        (rows, targets)
    }

    /// The target's words as rows of the output matrix; false where none of them has one.
    fn add_words(&self, ids: &[u32], probs: &[half::f16], targets: &mut Targets) -> bool {
        let row = |id: &u32| self.row_of.as_ref().map_or(Some(*id), |rows| rows.get(id).copied());
        let words: Vec<(u32, f32)> = ids.iter().zip(probs).filter_map(|(id, p)| Some((row(id)?, p.to_f32()))).collect();
        let sum: f32 = words.iter().map(|(_, p)| p).sum();
        // A row that drafts cannot guess teaches nothing.
        if sum <= 0.0 || row(&ids[0]).is_none() {
            return false;
        }
        targets.ids.extend(words.iter().map(|(id, _)| id));
        targets.probs.extend(words.iter().map(|(_, p)| p / sum));
        for _ in words.len()..ids.len() {
            targets.ids.push(words[0].0);
            targets.probs.push(0.0);
        }
        true
    }
}

/// The first of `names` that a model or its head has a tensor of.
fn first_of(source: &NewHead, names: &[&str]) -> anyhow::Result<String> {
    let found = names.iter().find(|name| source.has(name)).map(|name| (*name).to_owned());
    found.with_context(|| format!("{}: none of {} is there", source.path().display(), names.join(", ")))
}

/// [`Student::outputs`].
fn outputs(source: &NewHead, words: Option<&[u32]>, device: &Device) -> anyhow::Result<Vec<Tensor>> {
    let matrix = |name: &str| -> anyhow::Result<Tensor> {
        let numbers = match words {
            Some(words) => source.rows(name, words)?,
            None => source.floats(name)?,
        };
        let numbers = numbers.with_context(|| format!("{name} has rows"))?;
        let n_words = words.map_or(source.n_vocab(), <[u32]>::len);
        Ok(Tensor::from_vec(numbers, (n_words, source.shape().n_embd), device)?)
    };
    let own = |k: usize| format!("blk.{}.nextn.shared_head_head.weight", source.n_layer() + k);
    let own: Vec<_> = (0..source.n_layers()).map(|k| Some(own(k)).filter(|name| source.has(name))).collect();
    let of_model = || first_of(source, &["output.weight", "token_embd.weight"]).and_then(|name| matrix(&name));
    if own.iter().all(Option::is_none) {
        return Ok(vec![of_model()?]);
    }
    own.into_iter().map(|name| name.map_or_else(of_model, |name| matrix(&name))).collect()
}

impl Embedding {
    /// That of `source`: the head's own, or the model's.
    fn of(source: &NewHead, texts: &[Text], device: &Device) -> anyhow::Result<Self> {
        let own = |k: usize| format!("blk.{}.nextn.embed_tokens.weight", source.n_layer() + k);
        if let Some(k) = (1..source.n_layers()).find(|k| source.has(&own(*k))) {
            bail!("{}: of a head's layers each with an embedding of its own none can be trained", own(k));
        }
        let name = first_of(source, &[&own(0), "token_embd.weight"])?;
        let ids: BTreeSet<u32> = texts.iter().flat_map(|text| &text.tokens).map(|token| token.0).collect();
        let ids: Vec<u32> = ids.into_iter().collect();
        let n_embd = source.shape().n_embd;
        let numbers = source.rows(&name, &ids)?.context("the embedding was found before")?;
        let rows = Tensor::from_vec(numbers, (ids.len(), n_embd), device)?;
        let table = Tensor::cat(&[&Tensor::zeros((1, n_embd), DType::F32, device)?, &rows], 0)?;
        Ok(Self { table, row_of: ids.into_iter().zip(1..).collect() })
    }
}

/// By what gradients are shortened.
enum Clip {
    ByNumber(f64),
    OnDevice(Tensor),
}

impl Clip {
    fn of(&self, gradient: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::ByNumber(factor) => gradient * *factor,
            Self::OnDevice(factor) => gradient.broadcast_mul(factor),
        }
    }
}

/// The squared length of gradients, if it is a number.
fn sound(size: f64) -> anyhow::Result<f64> {
    ensure!(size.is_finite(), "the gradients are no numbers any more: lower the rate (--rate)");
    Ok(size)
}

/// Parts of a measurement whose inputs are held at a time.
const N_AT_ONCE: usize = 8;

/// Steps on a GPU after which their numbers are asked for: what was asked of it before is done then, and memory that is free goes
/// back to the driver.
const N_AHEAD: usize = 16;

/// Gradients longer than this, as one vector, are shortened to it.
const MOST: f64 = 1.0;

#[cfg(test)]
#[path = "train_tests.rs"]
mod tests;
