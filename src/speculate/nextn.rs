//! Drafts by the model's own NextN head, over the weights that the model has mapped already.
//! Owns the head's cells and, for each sequence, the entries that they still lack.
//!
//! Entry `i` of a sequence is (token `i + 1`, hidden row of token `i`): with `n` tokens in the model's state there are
//! `n - 1` entries, and the last hidden row waits for the token that follows. As soon as that is picked, its entry gives
//! the first guess; further guesses are chained in the same graph and their cells forgotten, so that the cells always
//! come from true hidden rows.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use engine::sample::Ahead;
use engine::{Ask, EngineConfig, Observed, Proposer};
use memory::{Memory, MemoryConfig, Slot};
use model::{Draft, DraftOutput, DraftVocab, Model, RunError, Runner};
use text::TokenId;

use crate::alarm::Alarm;
use crate::depth::DepthControl;
use crate::noise;
use crate::vocab::DraftVocabSize;

/// Entries of one graph at most; more are computed piece by piece.
const N_BATCH: usize = 512;

/// Entries that may wait while nothing is drafted: many, since one pass over all of them costs little more than one over a
/// few.
const MAX_WAITING: usize = 256;

/// The deepest draft: with the token before it a pass has 7 rows, the most for which every row of every quantised weight
/// has the bits that it has alone (docs/NUMERICS.md).
pub(crate) const MAX_DEPTH: usize = 6;

/// The deepest draft that may be asked for.
const DEEPEST: usize = 16;

/// Tokens of a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Depth {
    /// As many as pay, by measured costs and acceptance; none where drafting is slower than plain decoding.
    #[default]
    Auto,
    /// Always this many, as far as the answer has room.
    Fixed(usize),
}

impl FromStr for Depth {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s.parse() {
            _ if s == "auto" => Ok(Self::Auto),
            Ok(n) if n <= DEEPEST => Ok(Self::Fixed(n)),
            _ => Err(format!("`{s}` is not auto or a number from 0 to {DEEPEST}")),
        }
    }
}

impl fmt::Display for Depth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(n) => write!(f, "{n}"),
        }
    }
}

impl Depth {
    pub(crate) fn max(self) -> usize {
        match self {
            Depth::Auto => MAX_DEPTH,
            Depth::Fixed(n) => n,
        }
    }
}

/// How the head is used.
#[derive(Clone, Copy, Debug, Default)]
pub struct NextNConfig {
    /// Tokens of a draft.
    pub depth: Depth,
    /// Words that drafts are made of.
    pub vocab: DraftVocabSize,
}

/// The head as a source of drafts.
pub struct NextN {
    config: NextNConfig,
    n_embd: usize,
    memory: Memory,
    slots: Vec<HeadSlot>,
    /// The whole vocabulary if `None`.
    vocab: Option<DraftVocab>,
    /// `None` with a fixed depth.
    control: Option<DepthControl>,
    alarm: Alarm,
    /// The last draft computed more entries than a cycle leaves behind: its time tells nothing of its depth.
    unusual: bool,
    output: DraftOutput,
    /// Scratch.
    noise: Vec<f32>,
}

/// One sequence, as the head sees it.
struct HeadSlot {
    slot: Slot,
    /// Entries that the cells lack: tokens, and the hidden row before each.
    tokens: Vec<TokenId>,
    hidden: Vec<f32>,
    /// The hidden row of the last token in the model's state; empty when unknown.
    last: Vec<f32>,
    /// The entry of the next token is there already: it was picked in the last step.
    ahead: bool,
}

impl NextN {
    /// The head of `model` for the sequences of an engine made with `config`; `None` when the model has none.
    ///
    /// # Errors
    /// No room for the head's cells.
    pub fn new(model: &Arc<Model>, engine: &EngineConfig, config: NextNConfig) -> Result<Option<Self>, RunError> {
        let of_model = engine.memory(model);
        // The chain's cells stand past the end of the sequence.
        let of_head = MemoryConfig { n_ctx: of_model.n_ctx + config.depth.max(), n_snapshots: 1, ..of_model };
        let Some(mut memory) = model.head_memory(of_head)? else { return Ok(None) };
        let mut slots = Vec::new();
        while let Some(slot) = memory.acquire()? {
            slots.push(HeadSlot { slot, tokens: vec![], hidden: vec![], last: vec![], ahead: false });
        }
        let vocab = config.vocab.make(model)?;
        let n_embd = model.hparams().n_embd;
        let control = (config.depth == Depth::Auto).then(|| DepthControl::new(slots.len(), MAX_DEPTH));
        let (alarm, output) = (Alarm::default(), DraftOutput::default());
        Ok(Some(Self { config, n_embd, memory, slots, vocab, control, alarm, unusual: false, output, noise: vec![] }))
    }

    /// Computes entries of one sequence until at most `n_left` wait.
    fn catch_up(&mut self, runner: &mut Runner, slot: usize, n_left: usize) -> Result<(), RunError> {
        while self.slots[slot].tokens.len() > n_left {
            let n = (self.slots[slot].tokens.len() - n_left).min(N_BATCH);
            self.pass(runner, &[slot], n, &[None], 0)?;
        }
        Ok(())
    }

    /// One graph over up to `most` entries of each sequence, then a draft for each by its way of picking.
    fn pass(
        &mut self,
        runner: &mut Runner,
        which: &[usize],
        most: usize,
        ahead: &[Option<Ahead>],
        depth: usize,
    ) -> Result<(), RunError> {
        let n_chain = depth.saturating_sub(1);
        let n_entries: Vec<usize> = which.iter().map(|&i| self.slots[i].tokens.len().min(most)).collect();
        let mut tokens = Vec::new();
        let mut hidden = Vec::new();
        for (&i, &n) in which.iter().zip(&n_entries) {
            tokens.extend_from_slice(&self.slots[i].tokens[..n]);
            hidden.extend_from_slice(&self.slots[i].hidden[..n * self.n_embd]);
        }
        let parts: Vec<_> = which.iter().zip(&n_entries).map(|(&i, n)| (&self.slots[i].slot, n + n_chain)).collect();
        let step = self.memory.begin(&parts, 1)?;
        let vocab = self.vocab.as_ref();
        let n_vocab = runner.model().hparams().n_vocab;
        let noise = noise::fill(&mut self.noise, ahead, depth, n_vocab, vocab).then_some(&self.noise[..]);
        let (tokens, hidden, n_entries) = (&tokens, &hidden, &n_entries);
        let draft = Draft { tokens, hidden, n_entries, depth, vocab, noise, verbose: false };
        runner.draft(step.view(), &draft, &mut self.output)?;
        step.commit(n_entries)?;
        for (&i, &n) in which.iter().zip(n_entries) {
            let s = &mut self.slots[i];
            s.tokens.drain(..n);
            s.hidden.drain(..n * self.n_embd);
        }
        Ok(())
    }
}

impl Proposer for NextN {
    fn max_depth(&self) -> usize {
        self.config.depth.max()
    }

    fn wants_hidden(&self) -> bool {
        true
    }

    fn begin(&mut self, slot: usize, tokens: &[TokenId], hidden: Option<&[f32]>) -> Result<(), RunError> {
        let n_tokens = tokens.len();
        let n_cells = self.memory.len(&self.slots[slot].slot)?;
        let s = &mut self.slots[slot];
        let n_entries = n_tokens.saturating_sub(1);
        let n_known = n_cells + s.tokens.len();
        // Without the last hidden row, or with entries missing, the cells would not follow each other: start afresh.
        let n_entries = if n_entries > n_known || (n_tokens > 0 && hidden.is_none()) { 0 } else { n_entries };
        if n_entries < n_cells {
            self.memory.truncate(&s.slot, n_entries)?;
        }
        let n_waiting = n_entries.saturating_sub(n_cells);
        s.tokens.truncate(n_waiting);
        s.hidden.truncate(n_waiting * self.n_embd);
        s.last.clear();
        s.last.extend_from_slice(hidden.unwrap_or_default());
        s.ahead = false;
        if let Some(control) = &mut self.control {
            control.begin(slot);
        }
        Ok(())
    }

    fn hidden(&self, slot: usize) -> Option<&[f32]> {
        let last = &self.slots.get(slot)?.last;
        (!last.is_empty()).then_some(last)
    }

    fn observe(
        &mut self,
        runner: &mut Runner,
        observed: &[Observed<'_>],
        took: Option<Duration>,
    ) -> Result<(), RunError> {
        let n_embd = self.n_embd;
        for o in observed {
            self.alarm.judged(o.n_drafted, o.n_accepted);
        }
        if let Some(control) = &mut self.control {
            observed.iter().for_each(|o| control.judged(o.slot, o.n_drafted, o.n_accepted));
            let n_drafted = observed.first().map_or(0, |o| o.n_drafted);
            // Only cycles whose sequences are all alike tell what so many rows cost.
            let alike = observed.iter().all(|o| o.n_drafted == n_drafted) && !self.unusual;
            if let Some(took) = took.filter(|_| alike) {
                control.took(observed.len(), n_drafted, took);
            }
        }
        for o in observed {
            if let Some(vocab) = &mut self.vocab {
                vocab.see(runner.model(), o.tokens.iter().copied().chain(o.next))?;
            }
            let s = &mut self.slots[o.slot];
            for (i, &token) in o.tokens.iter().enumerate() {
                if i == 0 && std::mem::take(&mut s.ahead) {
                    continue;
                }
                let before = match i {
                    0 => &s.last[..],
                    i => &o.hidden[(i - 1) * n_embd..i * n_embd],
                };
                // The first token of all has no hidden row before it and no entry.
                if !before.is_empty() {
                    s.tokens.push(token);
                    s.hidden.extend_from_slice(before);
                }
            }
            let last = &o.hidden[o.hidden.len() - n_embd..];
            s.last.clear();
            s.last.extend_from_slice(last);
            if let Some(next) = o.next {
                s.tokens.push(next);
                s.hidden.extend_from_slice(last);
                s.ahead = true;
            }
        }
        for o in observed {
            let s = &self.slots[o.slot];
            if s.tokens.len() > MAX_WAITING {
                // The next token's entry stays: a draft starts from it.
                let n_left = usize::from(s.ahead);
                self.catch_up(runner, o.slot, n_left)?;
            }
        }
        Ok(())
    }

    fn propose(&mut self, runner: &mut Runner, asks: &[Ask]) -> Result<Vec<Vec<TokenId>>, RunError> {
        let most = asks.iter().map(|a| a.max).max().unwrap_or(0);
        let slots: Vec<usize> = asks.iter().map(|a| a.slot).collect();
        let depth = match &mut self.control {
            Some(control) => control.choose(&slots, most),
            None => most.min(self.config.depth.max()),
        };
        let (ready, ahead): (Vec<usize>, Vec<_>) =
            asks.iter().filter(|a| !self.slots[a.slot].tokens.is_empty()).map(|a| (a.slot, a.ahead)).unzip();
        self.unusual = false;
        if ready.is_empty() || depth == 0 {
            return Ok(vec![Vec::new(); asks.len()]);
        }
        let most_waiting = ready.iter().map(|&slot| self.slots[slot].tokens.len()).max().unwrap_or(0);
        self.unusual = most_waiting > 1 + self.max_depth();
        self.pass(runner, &ready, N_BATCH, &ahead, depth)?;
        let drafts = asks.iter().map(|a| {
            let Ok(i) = ready.binary_search(&a.slot) else { return Vec::new() };
            let mut tokens = std::mem::take(&mut self.output.tokens[i]);
            tokens.truncate(a.max.min(depth));
            tokens
        });
        Ok(drafts.collect())
    }
}
