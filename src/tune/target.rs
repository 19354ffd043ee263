//! What the target model makes of texts: the hidden states that a head takes, and its likeliest words. Owns the passes, and which
//! of their results are kept in memory; what has no room there goes to `disk`.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use half::f16;
use memory::{CacheType, Memory, MemoryConfig};
use model::{Model, Pass, PassOutput, Rows, Runner};

use crate::data::Text;
use crate::disk::{DiskCache, Sizes};
use crate::known::Known;
use crate::place::is_on_gpu;

/// Computes texts, and keeps what there is room for.
pub struct Target {
    runner: Runner,
    memory: Memory,
    output: PassOutput,
    n_words: usize,
    kept: Vec<Option<Arc<Known>>>,
    room: usize,
    disk: Option<DiskCache>,
    n_rows: usize,
    n_slots: usize,
}

/// What of a target's passes is kept.
#[derive(Clone, Copy, Debug)]
pub struct Keep<'a> {
    /// Bytes in memory.
    pub in_memory: usize,
    /// A folder for what has no room there, and the most bytes in it.
    pub on_disk: Option<(&'a Path, u64)>,
}

/// Tokens and texts of a pass on a CPU.
const ON_CPU: (usize, usize) = (512, 16);

/// Those of a pass on a GPU, which short passes leave without work.
const ON_GPU: (usize, usize) = (2048, 32);

/// Logits that a pass on a GPU has at most, where the vocabulary is large: 1 GiB of them.
const MOST_LOGITS: usize = 1 << 28;

/// Tokens and texts of a pass.
fn pass_sizes(model: &Model) -> (usize, usize) {
    if !is_on_gpu(model) {
        return ON_CPU;
    }
    let (n_rows, n_slots) = ON_GPU;
    (n_rows.min(MOST_LOGITS / model.hparams().n_vocab.max(1)).max(ON_CPU.0), n_slots)
}

impl Target {
    /// `n_texts`: of which results are kept as `keep` says; texts have at most `n_ctx` tokens, and `n_words` words of each token
    /// are wanted.
    ///
    /// # Errors
    /// There is no memory for the model's state; the folder for results cannot be used.
    pub fn new(
        model: &Arc<Model>,
        (n_texts, n_ctx): (usize, usize),
        n_words: usize,
        keep: Keep<'_>,
        n_threads: usize,
    ) -> anyhow::Result<Self> {
        let (n_rows, n_slots) = pass_sizes(model);
        let memory = model.memory(MemoryConfig {
            n_slots,
            n_ctx,
            type_k: CacheType::F16,
            type_v: CacheType::F16,
            v_transposed: false,
            n_snapshots: 1,
            transactional: false,
            max_rows: Some(n_rows.min(n_ctx)),
            rotate: true,
        })?;
        let runner = Runner::new(Arc::clone(model), n_threads)?;
        let n_words = n_words.min(model.hparams().n_vocab);
        let sizes = Sizes { n_embd: model.n_embd_mtp(), n_words };
        let disk = match keep.on_disk {
            Some((dir, most)) => DiskCache::open(dir, &model.fingerprint()?, sizes, most)?,
            None => None,
        };
        let kept = vec![None; n_texts];
        let (output, room) = (PassOutput::default(), keep.in_memory);
        Ok(Self { runner, memory, output, n_words, kept, room, disk, n_rows, n_slots })
    }

    /// Words of each token.
    pub fn n_words(&self) -> usize {
        self.n_words
    }

    /// The file on disk that results are kept in.
    pub fn on_disk(&self) -> Option<&Path> {
        self.disk.as_ref().map(DiskCache::path)
    }

    /// What is known of these texts, each with its number.
    ///
    /// # Errors
    /// The device's.
    pub fn of(&mut self, texts: &[(usize, &Text)]) -> anyhow::Result<Vec<Arc<Known>>> {
        let mut all: Vec<Option<Arc<Known>>> = texts.iter().map(|(n, _)| self.kept[*n].clone()).collect();
        let (mut together, mut n_rows) = (Vec::new(), 0);
        for (i, (_, text)) in texts.iter().enumerate() {
            if all[i].is_none() {
                all[i] = self.disk.as_mut().and_then(|disk| disk.get(&text.tokens)).map(Arc::new);
            }
            if all[i].is_some() {
                continue;
            }
            let n = text.tokens.len();
            if !together.is_empty() && (n_rows + n > self.n_rows || together.len() == self.n_slots) {
                self.compute(texts, &std::mem::take(&mut together), &mut all)?;
                n_rows = 0;
            }
            together.push(i);
            n_rows += n;
        }
        self.compute(texts, &together, &mut all)?;
        all.into_iter().map(|known| known.ok_or_else(|| anyhow!("a text was not computed"))).collect()
    }

    /// Computes some of `texts`: several short ones, or one.
    fn compute(
        &mut self,
        texts: &[(usize, &Text)],
        together: &[usize],
        all: &mut [Option<Arc<Known>>],
    ) -> anyhow::Result<()> {
        let longest = together.iter().map(|&i| texts[i].1.tokens.len()).max().unwrap_or(0);
        let most = self.n_rows;
        let mut slots = Vec::new();
        for _ in together {
            slots.push(self.memory.acquire()?.context("the memory has a free slot for each text")?);
        }
        slots.sort_by_key(memory::Slot::index);
        let mut known = vec![Known::default(); together.len()];
        // More than one text are no more tokens than a pass has.
        for first in (0..longest).step_by(most) {
            let cut = |i: usize| {
                let tokens = &texts[i].1.tokens;
                &tokens[first.min(tokens.len())..(first + most).min(tokens.len())]
            };
            let parts: Vec<_> = slots.iter().zip(together).map(|(slot, &i)| (slot, cut(i).len())).collect();
            let n_rows: Vec<usize> = parts.iter().map(|(_, n)| *n).collect();
            let tokens: Vec<_> = together.iter().flat_map(|&i| cut(i)).copied().collect();
            let step = self.memory.begin(&parts, 1)?;
            let rows: Vec<usize> = (0..tokens.len()).collect();
            let pass = Pass { tokens: &tokens, rows: Rows::Top(&rows, self.n_words), hidden: true };
            self.runner.run(step.view(), &pass, &mut self.output)?;
            step.commit(&n_rows)?;
            let (mut row, n_embd) = (0, self.output.mtp_hidden().len() / tokens.len());
            for (known, n) in known.iter_mut().zip(n_rows) {
                let hidden = &self.output.mtp_hidden()[row * n_embd..(row + n) * n_embd];
                known.hidden.extend(hidden.iter().map(|x| f16::from_f32(*x)));
                for row in row..row + n {
                    add_words(known, self.output.top(row).context("the likeliest words were asked for")?);
                }
                row += n;
            }
        }
        for slot in slots {
            self.memory.release(slot);
        }
        for (&i, known) in together.iter().zip(known) {
            let known = Arc::new(known);
            if known.n_bytes() <= self.room {
                self.room -= known.n_bytes();
                self.kept[texts[i].0] = Some(Arc::clone(&known));
            } else if let Some(disk) = &mut self.disk {
                disk.put(&texts[i].1.tokens, &known);
            }
            all[i] = Some(known);
        }
        Ok(())
    }
}

/// Adds the words of one token, the likeliest first, with their share among these words.
fn add_words(known: &mut Known, top: &[(text::TokenId, f32)]) {
    let mut top = top.to_vec();
    top.iter_mut().filter(|(_, logit)| logit.is_nan()).for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
    top.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.0.cmp(&b.0.0)));
    let most = top.first().map_or(0.0, |(_, logit)| *logit);
    let sum: f32 = top.iter().map(|(_, logit)| (logit - most).exp()).sum();
    known.ids.extend(top.iter().map(|(id, _)| id.0));
    known.probs.extend(top.iter().map(|(_, logit)| f16::from_f32((logit - most).exp() / sum)));
}
