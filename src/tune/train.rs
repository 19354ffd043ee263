//! Training itself: batches through the target model and the head, the loss of each draft token, a step; and the measure that is
//! wanted in the end, the share of drafts that are right. Owns no file and no clock.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, ensure};
use candle_core::{Device, Tensor};
use convert::heads::NewHead;

use crate::batches::Part;
use crate::block::Head;
use crate::data::Text;
use crate::known::Known;
use crate::loss::{Targets, Worth, loss};
use crate::optimizer::Optimizer;
use crate::target::Target;

/// Rows of a matrix of the model, read when they are first wanted.
#[derive(Debug)]
struct Embedding {
    name: String,
    rows: HashMap<u32, Vec<f32>>,
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
    /// The output matrix, or the rows of it that drafts are made of: `[n_words, n_embd]`.
    output: Tensor,
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
    /// `words`: the tokens that drafts are made of; all if `None`.
    ///
    /// # Errors
    /// The model's file cannot be read.
    pub fn new(
        source: NewHead,
        head: Head,
        target: Target,
        words: Option<&[u32]>,
        (how, device): (How, Device),
    ) -> anyhow::Result<Self> {
        let block = format!("blk.{}.nextn", source.n_layer());
        let first_of = |names: &[&str]| -> anyhow::Result<String> {
            let found = names.iter().find(|name| source.has(name)).map(|name| (*name).to_owned());
            found.with_context(|| format!("{}: none of {} is there", source.path().display(), names.join(", ")))
        };
        let embedding = first_of(&[&format!("{block}.embed_tokens.weight"), "token_embd.weight"])?;
        let output = first_of(&[&format!("{block}.shared_head_head.weight"), "output.weight", "token_embd.weight"])?;
        let numbers = match words {
            Some(words) => source.rows(&output, words)?,
            None => source.floats(&output)?,
        };
        let numbers = numbers.context("the output matrix has rows")?;
        let n_words = words.map_or(source.n_vocab(), <[u32]>::len);
        let output = Tensor::from_vec(numbers, (n_words, source.shape().n_embd), &device)?;
        let row_of = words.map(|words| words.iter().zip(0..).map(|(&id, row)| (id, row)).collect());
        let embedding = Embedding { name: embedding, rows: HashMap::new() };
        let optimizer = Optimizer::default();
        let student = Student { head, output, row_of, n_words: target.n_words(), how, device };
        Ok(Self { source, student, optimizer, target, embedding, spent: Spent::default() })
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

    /// Learns from one batch at this rate; gives what the drafts were worth before, by depth.
    ///
    /// # Errors
    /// The device's; numbers that are none, after which the head is not to be used.
    pub fn learn(&mut self, texts: &[Text], batch: &[Part], rate: f64) -> anyhow::Result<Vec<Worth>> {
        let n: usize = batch.iter().flatten().map(|i| texts[*i].n_counted()).sum();
        let share = 1.0 / (n * self.student.how.depth).max(1) as f64;
        let (mut worth, mut gradients) = (vec![Worth::default(); self.student.how.depth], Gradients::new());
        // In the order of the parts: sums of floats depend on it.
        for (drafts, found) in self.each(texts, batch, Some(share))? {
            worth.iter_mut().zip(&drafts).for_each(|(sum, of)| sum.add(of));
            for (name, gradient) in found {
                let sum = match gradients.remove(&name) {
                    Some(before) => (gradient + before)?,
                    None => gradient,
                };
                gradients.insert(name, sum);
            }
        }
        let mut size = 0.0_f64;
        for gradient in gradients.values() {
            size += f64::from(gradient.sqr()?.sum_all()?.to_scalar::<f32>()?);
        }
        ensure!(size.is_finite(), "the gradients are no numbers any more: lower the rate (--rate)");
        let (clip, begun) = ((MOST / size.sqrt()).min(1.0), Instant::now());
        for (il, layer) in self.student.head.layers().iter().enumerate() {
            for (name, var) in layer.vars() {
                if let Some(gradient) = gradients.get(&(il, name.to_owned())) {
                    self.optimizer.step(&format!("{il}.{name}"), var, &(gradient * clip)?, rate)?;
                }
            }
        }
        self.optimizer.end_step();
        self.spent.steps += begun.elapsed().as_secs_f64();
        Ok(worth)
    }

    /// What the drafts for these texts are worth, by depth.
    ///
    /// # Errors
    /// The device's.
    pub fn measure(&mut self, texts: &[Text], parts: &[Part]) -> anyhow::Result<Vec<Worth>> {
        let mut worth = vec![Worth::default(); self.student.how.depth];
        for parts in parts.chunks(N_AT_ONCE) {
            for (drafts, _) in self.each(texts, parts, None)? {
                worth.iter_mut().zip(&drafts).for_each(|(sum, of)| sum.add(of));
            }
        }
        Ok(worth)
    }

    /// Drafts of several parts, each by one thread: the matrices of a head are small, and threads that share one wait for each
    /// other. `learns` is the weight of a token's loss in the gradients that are wanted.
    fn each(
        &mut self,
        texts: &[Text],
        parts: &[Part],
        learns: Option<f64>,
    ) -> anyhow::Result<Vec<(Vec<Worth>, Gradients)>> {
        let mut inputs = Vec::new();
        for part in parts {
            let of: Vec<(usize, &Text)> = part.iter().map(|&i| (i, &texts[i])).collect();
            let known = timed(&mut self.spent.target, || self.target.of(&of))?;
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
            let others: Vec<_> = (1..student.how.n_threads.min(parts.len())).map(|_| scope.spawn(work)).collect();
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
    fn inputs(&mut self, of: &[(usize, &Text)], known: &[Arc<Known>]) -> anyhow::Result<(Tensor, Tensor)> {
        let n_embd = self.source.shape().n_embd;
        let n = of.iter().map(|(_, text)| text.tokens.len()).max().unwrap_or(0);
        let (mut hidden, mut embeddings) = (vec![0.0_f32; of.len() * n * n_embd], vec![0.0_f32; of.len() * n * n_embd]);
        for (i, ((_, text), known)) in of.iter().zip(known).enumerate() {
            let at = i * n * n_embd;
            hidden[at..at + known.hidden.len()].iter_mut().zip(&known.hidden).for_each(|(x, y)| *x = y.to_f32());
            for (t, token) in text.tokens.iter().enumerate() {
                let row = self.embedding.of(&self.source, token.0)?;
                embeddings[at + t * n_embd..at + (t + 1) * n_embd].copy_from_slice(row);
            }
        }
        let tensor = |x: Vec<f32>| Tensor::from_vec(x, (of.len(), n, n_embd), &self.student.device);
        Ok((tensor(hidden)?, tensor(embeddings)?))
    }
}

impl Student {
    /// Drafts after every position of some texts: what they are worth, and the gradients of their loss where they are wanted.
    fn drafts(
        &self,
        of: &[(usize, &Text)],
        known: &[Arc<Known>],
        (hidden, embeddings): (&Tensor, &Tensor),
        learns: Option<f64>,
    ) -> anyhow::Result<(Vec<Worth>, Gradients)> {
        let outs = self.head.unroll(embeddings, hidden, self.how.depth)?;
        let (mut worth, mut pulled) = (Vec::new(), None);
        for (k, out) in outs.iter().enumerate() {
            let (rows, targets) = self.rows(of, known, k, out.dim(1)?);
            if rows.is_empty() {
                worth.push(Worth::default());
                continue;
            }
            let rows = Tensor::new(rows, &self.device)?;
            let h = out.flatten(0, 1)?.index_select(&rows, 0)?;
            let (gradient, of) = loss(&h.detach(), &self.output, &targets, (learns.is_some(), self.how.pull))?;
            worth.push(of);
            if let Some(gradient) = gradient {
                let pull = (h * gradient)?.sum_all()?;
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
        Ok((worth, gradients))
    }

    /// Rows of draft `k` that count, of `n_rows` for each text, and the target's words there.
    fn rows(&self, of: &[(usize, &Text)], known: &[Arc<Known>], k: usize, n_rows: usize) -> (Vec<u32>, Targets) {
        let n_words = self.n_words;
        let (mut rows, mut targets) = (Vec::new(), Targets { n_words, ..Targets::default() });
        for (i, ((_, text), known)) in of.iter().zip(known).enumerate() {
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

impl Embedding {
    fn of(&mut self, source: &NewHead, token: u32) -> anyhow::Result<&[f32]> {
        if !self.rows.contains_key(&token) {
            let row = source.rows(&self.name, &[token])?.context("the embedding was found before")?;
            self.rows.insert(token, row);
        }
        Ok(&self.rows[&token])
    }
}

/// Parts of a measurement whose inputs are held at a time.
const N_AT_ONCE: usize = 8;

/// Gradients longer than this, as one vector, are shortened to it.
const MOST: f64 = 1.0;
