//! What the target model makes of texts: the hidden states that a head takes, and its likeliest words. Owns the passes and those of
//! their results that `passes` says to keep in memory; the others go to `disk`.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use half::f16;
use memory::{CacheType, Memory, MemoryConfig};
use model::{Model, Pass, PassOutput, Rows, Runner};

use crate::batches::Part;
use crate::data::Text;
use crate::disk::{DiskCache, Sizes};
use crate::known::Known;
use crate::passes::{Plan, Room};
use crate::place::is_on_gpu;

/// Computes texts, and keeps what there is room for.
pub struct Target {
    runner: Runner,
    memory: Memory,
    output: PassOutput,
    n_words: usize,
    kept: Vec<Option<Arc<Known>>>,
    plan: Plan,
    /// Bytes of results that memory has room for, and those of a token.
    n_bytes: (usize, usize),
    disk: Option<DiskCache>,
    room: Room,
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
const ON_CPU: Room = Room { n_rows: 512, n_texts: 16 };

/// Those of a pass on a GPU, which short passes leave without work.
const ON_GPU: Room = Room { n_rows: 2048, n_texts: 32 };

/// Logits that a pass on a GPU has at most, where the vocabulary is large: 1 GiB of them.
const MOST_LOGITS: usize = 1 << 28;

/// Tokens and texts of a pass.
fn pass_room(model: &Model) -> Room {
    if !is_on_gpu(model) {
        return ON_CPU;
    }
    let most = MOST_LOGITS / model.hparams().n_vocab.max(1);
    Room { n_rows: ON_GPU.n_rows.min(most).max(ON_CPU.n_rows), ..ON_GPU }
}

impl Target {
    /// For texts of at most `n_ctx` tokens, of each of which `n_words` words are wanted; `keep` says what there is room for.
    ///
    /// # Errors
    /// There is no memory for the model's state; the folder for results cannot be used.
    pub fn new(
        model: &Arc<Model>,
        n_ctx: usize,
        n_words: usize,
        keep: Keep<'_>,
        n_threads: usize,
    ) -> anyhow::Result<Self> {
        let room = pass_room(model);
        let memory = model.memory(MemoryConfig {
            n_slots: room.n_texts,
            n_ctx,
            type_k: CacheType::F16,
            type_v: CacheType::F16,
            v_transposed: false,
            n_snapshots: 1,
            transactional: false,
            max_rows: Some(room.n_rows.min(n_ctx)),
            rotate: true,
        })?;
        let runner = Runner::new(Arc::clone(model), n_threads)?;
        let n_words = n_words.min(model.hparams().n_vocab);
        let sizes = Sizes { n_embd: model.n_embd_mtp(), n_words };
        let disk = match keep.on_disk {
            Some((dir, most)) => DiskCache::open(dir, &model.fingerprint()?, sizes, most)?,
            None => None,
        };
        let (output, plan) = (PassOutput::default(), Plan::default());
        let n_bytes = (keep.in_memory, sizes.of_token());
        Ok(Self { runner, memory, output, n_words, kept: Vec::new(), plan, n_bytes, disk, room })
    }

    /// From now on keeps in memory what these parts need, the first ones first, as long as there is room. Before this, and of
    /// other texts, nothing is kept there.
    pub fn keep<'a>(&mut self, texts: &[Text], parts: impl Iterator<Item = &'a Part>) {
        let lengths: Vec<usize> = texts.iter().map(|text| text.tokens.len()).collect();
        self.plan = Plan::new(parts, &lengths, self.room, self.n_bytes);
        self.kept = vec![None; texts.len()];
    }

    /// Words of each token.
    pub fn n_words(&self) -> usize {
        self.n_words
    }

    /// The file on disk that results are kept in.
    pub fn on_disk(&self) -> Option<&Path> {
        self.disk.as_ref().map(DiskCache::path)
    }

    /// What is known of those of `texts` that `part` names.
    ///
    /// # Errors
    /// The device's.
    pub fn of(&mut self, texts: &[Text], part: &[usize]) -> anyhow::Result<Vec<Arc<Known>>> {
        let (mut all, mut rest) = (vec![None; part.len()], Vec::new());
        for (place, &i) in part.iter().enumerate() {
            all[place] = self.known(texts, i)?;
            if all[place].is_none() {
                rest.push(place);
            }
        }
        for together in self.room.passes(rest.into_iter(), |place| texts[part[place]].tokens.len()) {
            let numbers: Vec<usize> = together.iter().map(|&place| part[place]).collect();
            for ((&i, place), known) in numbers.iter().zip(together).zip(self.compute(texts, &numbers)?) {
                if let Some(disk) = &mut self.disk {
                    disk.put(&texts[i].tokens, &known);
                }
                all[place] = Some(Arc::new(known));
            }
        }
        all.into_iter().map(|known| known.ok_or_else(|| anyhow!("a text was not computed"))).collect()
    }

    /// What is known of a text. One that is kept in memory is computed in its pass where it is not; `None` for others.
    fn known(&mut self, texts: &[Text], text: usize) -> anyhow::Result<Option<Arc<Known>>> {
        if let Some(known) = self.kept.get(text).and_then(Option::as_ref) {
            return Ok(Some(Arc::clone(known)));
        }
        let on_disk = self.on_disk_of(&texts[text]);
        let Some(pass) = self.plan.pass_of(text).map(<[usize]>::to_vec) else { return Ok(on_disk) };
        if on_disk.is_some() {
            self.kept[text] = on_disk;
        } else {
            for (&i, known) in pass.iter().zip(self.compute(texts, &pass)?) {
                // What an earlier training left on disk goes before, whichever text is asked for first.
                self.kept[i] = self.on_disk_of(&texts[i]).or_else(|| Some(Arc::new(known)));
            }
        }
        Ok(self.kept[text].clone())
    }

    fn on_disk_of(&mut self, text: &Text) -> Option<Arc<Known>> {
        self.disk.as_mut().and_then(|disk| disk.get(&text.tokens)).map(Arc::new)
    }

    /// Computes some of `texts`: several short ones, or one.
    fn compute(&mut self, texts: &[Text], together: &[usize]) -> anyhow::Result<Vec<Known>> {
        let longest = together.iter().map(|&i| texts[i].tokens.len()).max().unwrap_or(0);
        let most = self.room.n_rows;
        let mut slots = Vec::new();
        for _ in together {
            slots.push(self.memory.acquire()?.context("the memory has a free slot for each text")?);
        }
        slots.sort_by_key(memory::Slot::index);
        let mut known = vec![Known::default(); together.len()];
        // More than one text are no more tokens than a pass has.
        for first in (0..longest).step_by(most) {
            let cut = |i: usize| {
                let tokens = &texts[i].tokens;
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
        Ok(known)
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
