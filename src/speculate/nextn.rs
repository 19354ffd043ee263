//! Drafts by the model's own NextN head, over the weights that the model has mapped already.
//! Owns the head's cells and when they are brought up to date.
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
use engine::{Ask, EngineConfig, Observed, Proposer, SavedDraftError};
use memory::{Memory, MemoryConfig};
use model::{Draft, DraftOutput, DraftVocab, Facts, Model, RunError, Runner};
use text::TokenId;

use crate::alarm::Alarm;
use crate::depth::DepthControl;
use crate::entries::Entries;
use crate::noise;
use crate::saved::SavedEntries;
use crate::vocab::DraftVocabSize;

/// Entries of one graph at most; more are computed piece by piece.
const N_BATCH: usize = 512;

/// Entries that may wait while nothing is drafted: many, since one pass over all of them costs little more than one over a
/// few.
pub(crate) const MAX_WAITING: usize = 256;

/// Numbers of entries of several sequences may differ by so many and share one width: the shorter are filled up, and the
/// graph is the same whatever each kept.
const MAX_FILL: usize = 8;

/// The deepest draft: with the token before it a pass has 7 rows, the most for which every row of every quantised weight
/// has the bits that it has alone (docs/NUMERICS.md).
pub(crate) const MAX_DEPTH: usize = 6;

/// Cycles of a rehearsal with a fixed depth: graphs are built, and the device has seen them more than once.
const REHEARSED: usize = 4;

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

/// A source of drafts that can guess on while the model judges.
pub trait GuessOn: Proposer {
    /// Told once, before all drafts: [`GuessOn::guess_on`] will be called.
    fn prepare(&mut self);

    /// Guesses on from drafts that are being judged, as if all of them were right: should that be so, and the token picked
    /// after them be the one guessed here, the next draft is there at once.
    ///
    /// # Errors
    /// As [`Proposer::propose`].
    fn guess_on(&mut self, runner: &mut Runner, asks: &[Ask]) -> Result<(), RunError>;
}

/// The head as a source of drafts.
pub struct NextN {
    model: Arc<Model>,
    config: NextNConfig,
    n_embd: usize,
    memory: Memory,
    slots: Vec<Entries>,
    /// The whole vocabulary if `None`.
    vocab: Option<DraftVocab>,
    /// `None` with a fixed depth.
    control: Option<DepthControl>,
    alarm: Alarm,
    /// The last draft computed more entries than a cycle leaves behind, or more guesses than it gave: its time tells nothing
    /// of its depth.
    unusual: bool,
    /// Nothing is remembered but what cycles cost.
    rehearsing: bool,
    /// Guesses will be guessed on from, so their hidden rows are wanted.
    guesses_on: bool,
    output: DraftOutput,
    /// Scratch.
    noise: Vec<f32>,
}

/// Some of these drafts end where guesses become improbable.
fn wants_probs(asks: &[Ask]) -> bool {
    asks.iter().any(|a| a.p_min > 0.0)
}

/// What one pass of the head is to do.
#[derive(Clone, Copy, Default)]
struct Wanted<'a> {
    /// Entries of each sequence at most.
    n_entries: usize,
    /// Guesses for each sequence.
    depth: usize,
    /// How each sequence's tokens are picked; none at all where nothing is drafted.
    ahead: &'a [Option<Ahead>],
    /// The guesses that are being judged count as entries too.
    on: bool,
    /// How probable guesses are is wanted too.
    probs: bool,
}

impl NextN {
    /// The head of `model` for the sequences of an engine made with `config`; `None` when the model has none.
    ///
    /// # Errors
    /// No room for the head's cells.
    pub fn new(model: &Arc<Model>, engine: &EngineConfig, config: NextNConfig) -> Result<Option<Self>, RunError> {
        let of_head = Self::state(engine, model.facts(), config.depth);
        let Some(mut memory) = model.head_memory(of_head)? else { return Ok(None) };
        let n_embd = model.hparams().n_embd;
        let mut slots = Vec::new();
        while let Some(slot) = memory.acquire()? {
            slots.push(Entries::new(slot, n_embd));
        }
        let vocab = config.vocab.make(model)?;
        let control = (config.depth == Depth::Auto).then(|| DepthControl::new(slots.len(), MAX_DEPTH));
        Ok(Some(Self {
            model: Arc::clone(model),
            config,
            n_embd,
            memory,
            slots,
            vocab,
            control,
            alarm: Alarm::default(),
            unusual: false,
            rehearsing: false,
            guesses_on: false,
            output: DraftOutput::default(),
            noise: Vec::new(),
        }))
    }

    /// The head's cells for the sequences of an engine made with `engine`.
    pub(crate) fn state(engine: &EngineConfig, facts: &Facts, depth: Depth) -> MemoryConfig {
        let of_model = engine.plain_state(facts);
        // The chain's cells stand past the end of the sequence, and so do those of guesses that are guessed on from and of
        // rows that fill up.
        let n_past = 2 * depth.max() + 1 + MAX_FILL;
        MemoryConfig { n_ctx: of_model.n_ctx + n_past, n_snapshots: 1, ..of_model }
    }

    /// Bytes of its cells and of the words that it drafts from.
    pub fn state_bytes(&self) -> usize {
        self.memory.n_bytes() + self.vocab.as_ref().map_or(0, DraftVocab::n_bytes)
    }

    /// Entries that a cycle leaves behind at most.
    fn most_of_cycle(&self) -> usize {
        1 + self.max_depth().max(1)
    }

    /// Computes entries until no more of any sequence wait than a cycle leaves behind, but not the last: a draft starts from
    /// it. Nothing is guessed from the others, so they need keys and values and no more. By powers of two, and all sequences
    /// that have so many at once, so that graphs and passes are few. True when there were any.
    fn catch_up(&mut self, runner: &mut Runner, which: &[usize]) -> Result<bool, RunError> {
        let most_at_once = 1 << (N_BATCH / which.len().max(1)).max(1).ilog2();
        let mut any = false;
        loop {
            let most = which.iter().map(|&i| self.slots[i].tokens.len()).max().unwrap_or(0);
            if most <= self.most_of_cycle() {
                return Ok(any);
            }
            let n_entries = (1 << (most - 1).ilog2()).min(most_at_once);
            let longer: Vec<usize> =
                which.iter().copied().filter(|&i| self.slots[i].tokens.len() > n_entries).collect();
            self.pass(runner, &longer, Wanted { n_entries, ..Wanted::default() })?;
            any = true;
        }
    }

    /// One graph over entries of each sequence, and the guesses after them.
    fn pass(&mut self, runner: &mut Runner, which: &[usize], wanted: Wanted<'_>) -> Result<(), RunError> {
        let Wanted { depth, on, .. } = wanted;
        let n_chain = depth.saturating_sub(1);
        let n_true: Vec<usize> = which.iter().map(|&i| self.slots[i].tokens.len().min(wanted.n_entries)).collect();
        let (mut tokens, mut hidden, mut n_entries) = (Vec::new(), Vec::new(), Vec::new());
        for (&i, &n) in which.iter().zip(&n_true) {
            let s = &self.slots[i];
            tokens.extend_from_slice(&s.tokens[..n]);
            hidden.extend_from_slice(&s.hidden[..n * self.n_embd]);
            let (guesses, rows) = s.out().filter(|_| on).unwrap_or_default();
            tokens.extend_from_slice(guesses);
            hidden.extend_from_slice(rows);
            n_entries.push(n + guesses.len());
        }
        let (fewest, most) = (n_entries.iter().min(), n_entries.iter().max());
        let width = most.zip(fewest).filter(|(most, fewest)| *most - *fewest <= MAX_FILL).map_or(0, |(&most, _)| most);
        let rows = |n: usize| n.max(width) + n_chain;
        let parts: Vec<_> = which.iter().zip(&n_entries).map(|(&i, &n)| (&self.slots[i].slot, rows(n))).collect();
        let step = self.memory.begin(&parts, 1)?;
        let vocab = self.vocab.as_ref();
        let n_vocab = runner.model().hparams().n_vocab;
        let n_guessed = n_entries.iter().zip(&n_true).map(|(n, n_true)| n - n_true);
        let ahead: Vec<_> = wanted.ahead.iter().copied().zip(n_guessed).collect();
        let noise = noise::fill(&mut self.noise, &ahead, depth, n_vocab, vocab).then_some(&self.noise[..]);
        let (tokens, hidden, n_entries, rows) = (&tokens, &hidden, &n_entries, self.guesses_on);
        let draft = Draft { tokens, hidden, n_entries, depth, vocab, noise, verbose: false, rows, probs: wanted.probs };
        runner.draft(step.view(), &draft, &mut self.output)?;
        step.commit(&n_true)?;
        for (sequence, (&i, &n)) in which.iter().zip(&n_true).enumerate() {
            let s = &mut self.slots[i];
            s.computed(n);
            if depth > 0 && !on {
                s.forget_guesses();
            }
            for guess in 0..depth {
                let row = self.output.hidden.get(guess).map(|rows| &rows[sequence * self.n_embd..][..self.n_embd]);
                let prob = self.output.probs.get(sequence).map(|probs| probs[guess]);
                s.guess(self.output.tokens[sequence][guess], row.unwrap_or_default(), prob);
            }
        }
        Ok(())
    }
}

impl GuessOn for NextN {
    fn prepare(&mut self) {
        self.guesses_on = true;
    }

    fn guess_on(&mut self, runner: &mut Runner, asks: &[Ask]) -> Result<(), RunError> {
        let (which, ahead): (Vec<usize>, Vec<_>) =
            asks.iter().filter(|a| self.slots[a.slot].out().is_some()).map(|a| (a.slot, a.ahead)).unzip();
        let Some(depth) = which.iter().filter_map(|&i| Some(self.slots[i].out()?.0.len())).max() else { return Ok(()) };
        // The token that the judging step will pick, then as many as before.
        let probs = wants_probs(asks);
        self.pass(runner, &which, Wanted { n_entries: N_BATCH, depth: depth + 1, ahead: &ahead, on: true, probs })
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
        let n_cells = self.memory.len(&self.slots[slot].slot)?;
        let s = &mut self.slots[slot];
        let n_kept = s.begin(n_cells, tokens.len(), hidden);
        if n_kept < n_cells {
            self.memory.truncate(&s.slot, n_kept)?;
        }
        if let Some(control) = &mut self.control {
            control.begin(slot);
        }
        Ok(())
    }

    fn forget(&mut self, slot: usize) -> Result<(), RunError> {
        let s = &mut self.slots[slot];
        s.begin(0, 0, None);
        self.memory.spoil(&s.slot)?;
        Ok(self.memory.reset(&s.slot)?)
    }

    fn save(&mut self, slot: usize, n_tokens: usize) -> Result<Vec<u8>, RunError> {
        let s = &self.slots[slot];
        let (n_cells, n_entries) = (self.memory.len(&s.slot)?, n_tokens.saturating_sub(1));
        if n_entries == 0 || !s.has(n_cells, n_entries) {
            return Ok(Vec::new());
        }
        let n_cells = n_cells.min(n_entries);
        let n_waiting = n_entries - n_cells;
        let state = self.memory.save_first(&s.slot, n_cells)?;
        let (tokens, hidden) = (&s.tokens[..n_waiting], &s.hidden[..n_waiting * self.n_embd]);
        SavedEntries::write(&self.model, tokens, hidden, &state)
    }

    fn max_saved_bytes(&self) -> usize {
        SavedEntries::max_bytes(self.n_embd, &self.memory.shape())
    }

    fn load(&mut self, slot: usize, tokens: &[TokenId], saved: &[u8]) -> Result<(), SavedDraftError> {
        let Some(saved) = SavedEntries::read(&self.model, saved, tokens, &self.memory.shape())? else {
            return Ok(self.begin(slot, &[], None)?);
        };
        let s = &mut self.slots[slot];
        self.memory.load(&s.slot, &saved.state).map_err(RunError::from)?;
        s.replace(saved.tokens, saved.hidden);
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
        for o in observed.iter().filter(|_| !self.rehearsing) {
            self.alarm.judged(o.n_drafted, o.n_accepted);
            if let Some(control) = &mut self.control {
                // A guess that was too improbable to be drafted gives no token either.
                let n_more = usize::from(self.slots[o.slot].ended_at_cut(o));
                control.judged(o.slot, o.n_drafted + n_more, o.n_accepted);
            }
        }
        if let Some(control) = &mut self.control {
            let n_drafted = observed.first().map_or(0, |o| o.n_drafted);
            // Only cycles whose sequences are all alike tell what so many rows cost.
            let alike = observed.iter().all(|o| o.n_drafted == n_drafted) && !self.unusual;
            if let Some(took) = took.filter(|_| alike) {
                control.took(observed.len(), n_drafted, took);
            }
        }
        for o in observed {
            if let Some(vocab) = self.vocab.as_mut().filter(|_| !self.rehearsing) {
                vocab.see(runner.model(), o.tokens.iter().copied().chain(o.next))?;
            }
            self.slots[o.slot].take(o);
        }
        let mut waiting: Vec<usize> = observed.iter().map(|o| o.slot).collect();
        waiting.retain(|&i| self.slots[i].tokens.len() > MAX_WAITING);
        if !waiting.is_empty() {
            self.catch_up(runner, &waiting)?;
        }
        Ok(())
    }

    fn rehearse(&mut self, n_answers: Option<usize>) -> usize {
        self.rehearsing = n_answers.is_some();
        self.control.as_ref().map_or(REHEARSED, |c| c.n_to_rehearse(n_answers.unwrap_or(1)))
    }

    fn propose(&mut self, runner: &mut Runner, asks: &[Ask]) -> Result<Vec<Vec<TokenId>>, RunError> {
        let most = asks.iter().map(|a| a.max).max().unwrap_or(0);
        let slots: Vec<usize> = asks.iter().map(|a| a.slot).collect();
        let depth = match &mut self.control {
            Some(control) if self.rehearsing => control.choose_unknown(slots.len(), most),
            Some(control) => control.choose(&slots, most),
            None => most.min(self.config.depth.max()),
        };
        self.unusual = false;
        if depth == 0 {
            asks.iter().for_each(|a| self.slots[a.slot].forget_guesses());
            return Ok(vec![Vec::new(); asks.len()]);
        }
        let to_do = |a: &&Ask| !self.slots[a.slot].tokens.is_empty() && !self.slots[a.slot].has_guesses();
        let (which, ahead): (Vec<usize>, Vec<_>) = asks.iter().filter(to_do).map(|a| (a.slot, a.ahead)).unzip();
        if !which.is_empty() {
            self.unusual = self.catch_up(runner, &which)?;
            let probs = wants_probs(asks);
            self.pass(runner, &which, Wanted { n_entries: N_BATCH, depth, ahead: &ahead, on: false, probs })?;
        }
        let drafts = asks.iter().map(|a| self.slots[a.slot].hand_out(a.max.min(depth), a.p_min)).collect();
        self.unusual |= asks.iter().any(|a| self.slots[a.slot].is_cut());
        Ok(drafts)
    }
}
