//! The main model's forward pass over a batch, and what is made of its logits: sampled tokens, and verified drafts.

use std::ops::Range;
use std::time::Instant;

use memory::{Memory, Txn};
use model::{Pass, PassOutput, PlacedRows, Rows, RunError, Runner};
use text::{TokenId, Vocab};

use super::Engine;
use crate::batch::{BatchPolicy, ScheduledSequence, alike};
use crate::cache::SlotCache;
use crate::schedule::schedule;
use crate::sequence::{NOT_FINITE, Scores, Sequence, millis};

/// What sequences want of the logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    All,
    /// The best token.
    Best,
    /// So many of the best tokens.
    Top(usize),
}

impl Wanted {
    /// What all of these will do with, if the device can choose among tokens.
    fn by<'s>(sampled: impl Iterator<Item = (&'s Sequence, usize)> + Clone, n_vocab: usize) -> Self {
        if sampled.clone().all(|(s, _)| s.takes_the_best()) {
            return Self::Best;
        }
        let needed = |(s, n_draft): (&Sequence, usize)| Some(s.n_needed()? + n_draft + ROOM);
        let most = sampled.map(needed).try_fold(0, |most, n| Some(most.max(n?)));
        let n = most.and_then(|most| TOPS.into_iter().find(|&n| n >= most && n <= n_vocab / MIN_SHARE));
        n.map_or(Self::All, Self::Top)
    }
}

/// How many tokens a device is asked for: few numbers, since each is a graph of its own.
const TOPS: [usize; 3] = [64, 128, 256];
/// More than are needed, since which of several equal ones come is up to the device.
const ROOM: usize = 8;
/// Logits of smaller vocabularies are as quickly fetched as chosen from.
const MIN_SHARE: usize = 64;

/// What one forward pass computes.
pub(super) struct Batch {
    /// In ascending order of their slots, all with the same adapters.
    pub(super) scheduled: Vec<ScheduledSequence>,
    /// The tokens of all of them, in order.
    pub(super) tokens: Vec<TokenId>,
    /// Tokens whose logits are wanted.
    outputs: Vec<usize>,
    /// Hidden states are wanted, of every token.
    hidden: bool,
    /// What is wanted of the logits.
    wanted: Wanted,
    /// How long the pass took.
    pub(super) forward_ms: f64,
}

impl Batch {
    /// `chooses`: of how large a vocabulary the device can say itself which tokens are the best.
    fn new(
        scheduled: Vec<ScheduledSequence>,
        sequences: &[Sequence],
        wants_hidden: bool,
        chooses: Option<usize>,
    ) -> Self {
        let mut tokens: Vec<TokenId> = Vec::with_capacity(scheduled.iter().map(|p| p.n_computed()).sum());
        let mut outputs = Vec::with_capacity(scheduled.len());
        for p in &scheduled {
            let s = &sequences[p.index];
            tokens.extend(s.pending.iter().take(p.n_tokens - p.n_draft));
            outputs.extend((0..p.n_outputs()).map(|i| tokens.len() - 1 + i));
            tokens.extend_from_slice(&s.draft);
            tokens.extend(std::iter::repeat_n(TokenId(0), p.n_pad));
        }
        let hidden = wants_hidden || scheduled.iter().any(|p| sequences[p.index].wants_hidden(p.n_tokens));
        let sampled = scheduled.iter().filter(|p| p.samples).map(|p| (&sequences[p.index], p.n_draft));
        let wanted = chooses.map_or(Wanted::All, |n_vocab| Wanted::by(sampled, n_vocab));
        Self { scheduled, tokens, outputs, hidden, wanted, forward_ms: 0.0 }
    }

    /// Some of its tokens are a prompt's.
    pub(super) fn has_prompt(&self, sequences: &[Sequence]) -> bool {
        self.scheduled.iter().any(|p| sequences[p.index].is_prefill())
    }

    /// Each sequence with its tokens that were kept, as a range of the batch's; `kept`: how many.
    pub(super) fn spans<'b>(
        &'b self,
        kept: &'b [usize],
    ) -> impl Iterator<Item = (&'b ScheduledSequence, Range<usize>)> {
        let mut first = 0;
        self.scheduled.iter().zip(kept).map(move |(p, &n_kept)| {
            let span = first..first + n_kept;
            first += p.n_computed();
            (p, span)
        })
    }
}

impl Engine {
    /// The batches of this step; none where nothing can be computed.
    pub(super) fn batch(&mut self) -> Vec<Batch> {
        let on_host = self.model.weights().device().kind() == ggml::DeviceKind::Cpu;
        let mut scheduled = schedule(&self.sequences, self.config.n_batch, self.n_shared(on_host), self.policy);
        if scheduled.is_empty() {
            return Vec::new();
        }
        self.stats.n_steps += 1;
        self.stats.n_busy += scheduled.len() as u64;
        for p in &scheduled {
            self.stats.n_tokens += p.n_tokens as u64;
            self.sequences[p.index].last_step = self.stats.n_steps;
        }
        scheduled.sort_by_key(|p| self.sequences[p.index].slot);
        let wants_hidden = self.state.drafter.info().wants_hidden;
        // From a GPU the logits of a large vocabulary take longer to come than ids do.
        let chooses = (!on_host).then_some(self.model.hparams().n_vocab);
        // A forward pass has one set of adapters.
        let groups = alike(scheduled, |p| &self.sequences[p.index].request.options().adapters);
        let is_prefill = |p: &ScheduledSequence| self.sequences[p.index].is_prefill();
        let batches: Vec<_> = groups.into_iter().flat_map(|group| self.policy.split(group, is_prefill)).collect();
        self.clock.drafting = self.clock.start.elapsed() / batches.len() as u32;
        batches.into_iter().map(|batch| Batch::new(batch, &self.sequences, wants_hidden, chooses)).collect()
    }

    /// Prompt tokens of a batch beside generations. A GPU may take nearly as long for a few as for a whole batch; but how a prompt
    /// is cut must not depend on a clock where bits count.
    fn n_shared(&self, on_host: bool) -> usize {
        let n_batch = self.config.n_batch;
        let least = self.config.n_batch_shared.min(n_batch);
        if self.config.n_sequences == 1 {
            n_batch
        } else if on_host {
            least
        } else if self.policy == BatchPolicy::Any {
            self.pass_times.chunk(least, n_batch)
        } else {
            n_batch
        }
    }
}

/// Computes a batch. What it wrote into the memory counts when the transaction is committed.
pub(super) fn forward<'m>(
    batch: &mut Batch,
    memory: &'m mut Memory,
    cache: &SlotCache,
    sequences: &[Sequence],
    runner: &mut Runner,
    output: &mut PassOutput,
) -> Result<Txn<'m>, RunError> {
    let slot = |p: &ScheduledSequence| (&cache.get(sequences[p.index].slot).slot, p.n_computed());
    let slots: Vec<_> = batch.scheduled.iter().map(slot).collect();
    let n_snapshots = batch.scheduled.iter().map(ScheduledSequence::n_snapshots).max().unwrap_or(1);
    let txn = memory.begin(&slots, n_snapshots)?;
    let start = Instant::now();
    if let Some(p) = batch.scheduled.first() {
        runner.use_adapters(&sequences[p.index].request.options().adapters)?;
    }
    let rows = match batch.wanted {
        Wanted::All => Rows::Some(&batch.outputs),
        Wanted::Best => Rows::Best(&batch.outputs),
        Wanted::Top(n) => Rows::Top(&batch.outputs, n),
    };
    let placed = placed_rows(batch, cache, sequences);
    runner.run_placed(txn.view(), &Pass { tokens: &batch.tokens, rows, hidden: batch.hidden }, &placed, output)?;
    if matches!(batch.wanted, Wanted::Top(_)) && !is_enough(batch, sequences, output) {
        runner.logits(output)?;
    }
    batch.forward_ms = millis(start.elapsed());
    Ok(txn)
}

/// The rows of sequences with pictures.
fn placed_rows<'s>(batch: &Batch, cache: &SlotCache, sequences: &'s [Sequence]) -> Vec<PlacedRows<'s>> {
    let mut start = 0;
    let mut placed = Vec::new();
    for p in &batch.scheduled {
        let s = &sequences[p.index];
        let (pictures, rows) = (s.request.pictures(), start..start + p.n_computed());
        start = rows.end;
        if !pictures.is_empty() {
            placed.push(PlacedRows { rows, first: cache.get(s.slot).tokens.len(), pictures });
        }
    }
    placed
}

/// Samples tokens, verifies drafts with them, and keeps the state of the tokens that agree; gives their numbers.
pub(super) fn verify(
    batch: &Batch,
    txn: Txn<'_>,
    sequences: &mut [Sequence],
    output: &PassOutput,
    vocab: &Vocab,
) -> Result<Vec<usize>, RunError> {
    let (mut first_token, mut first_output) = (0, 0);
    let mut kept = Vec::with_capacity(batch.scheduled.len());
    for p in &batch.scheduled {
        let s = &mut sequences[p.index];
        // Not the tokens of a draft, which may be wrong: they are looked at as far as they are accepted.
        let certain = first_token..first_token + p.n_tokens - p.n_draft;
        let first = first_output;
        (first_token, first_output) = (first_token + p.n_computed(), first_output + p.n_outputs());
        let mut n_kept = p.n_tokens;
        if !output.rows_are_finite(certain) {
            s.spoil(NOT_FINITE.into());
        } else {
            if s.is_prefill() {
                s.prompt_advanced(p.n_tokens);
            } else {
                s.timings.verify_ms += batch.forward_ms;
            }
            if p.samples {
                n_kept -= p.n_draft - s.verify(|i| scores(output, first + i), vocab);
            }
        }
        kept.push(n_kept);
    }
    txn.commit(&kept)?;
    Ok(kept)
}

/// Whether the tokens that the device chose tell all that is sampled from them.
fn is_enough(batch: &Batch, sequences: &[Sequence], output: &PassOutput) -> bool {
    let mut first = 0;
    batch.scheduled.iter().all(|p| {
        let outputs = first..first + p.n_outputs();
        first = outputs.end;
        let is_enough = |(i, at)| output.top(at).is_some_and(|few| sequences[p.index].is_enough(few, i));
        !p.samples || outputs.enumerate().all(is_enough)
    })
}

/// What the pass gave to sample output `i` from.
fn scores(output: &PassOutput, i: usize) -> Scores<'_> {
    match output.best.get(i) {
        _ if !output.is_finite(i) => Scores::NotFinite,
        Some(best) if !best.is_number() => Scores::NotFinite,
        Some(best) => Scores::Best(best.token),
        None => output.top(i).map_or_else(|| Scores::Logits(output.logits(i)), Scores::Few),
    }
}
