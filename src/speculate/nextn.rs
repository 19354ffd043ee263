//! Drafts by the model's MTP (NextN) layers, over the weights that the model has mapped already: by those of one head, or for each
//! sequence by those of the head that does better there.
//! Owns the layers' KV cells and when they are brought up to date.
//!
//! MTP input `i` of a sequence is (token `i + 1`, hidden state of token `i`): with `n` tokens in the model's state there are
//! `n - 1` inputs, and the last hidden state waits for the token that follows. As soon as that is sampled, its input gives
//! the first draft token; further ones are chained in the same graph and their cells forgotten, so that the cells always
//! come from the main model's hidden states. Where there are several layers, each makes one draft token, from the same
//! inputs with later tokens.

use std::sync::Arc;

use engine::sample::GumbelPlan;
use engine::{
    DraftRequest, EngineConfig, ObservedStep, Proposer, ProposerInfo, SavedDraftError, SequenceChange, TargetState,
};
use memory::MemoryConfig;
use model::{AdapterSet, Draft, DraftOutput, DraftVocab, Facts, Model, PlacedEntries, RunError, Runner};
use text::TokenId;

use crate::async_proposer::DraftAhead;
use crate::calibration::Calibration;
use crate::depth::Depth;
use crate::draft_vocab::DraftVocabSize;
use crate::gumbel::NoiseMaker;
use crate::head_cells::HeadCells;
use crate::head_choice::HeadChoice;
use crate::mtp_inputs::{MAX_WAITING, MtpInputs};
use crate::pace::Pace;
use crate::saved_mtp::{JOIN_BYTES, join};

/// Inputs of one graph at most; more are computed in chunks.
const N_BATCH: usize = 512;

/// Numbers of inputs of several sequences may differ by so many and share one width: the shorter are filled up, and the
/// graph is the same whatever each kept.
const MAX_FILL: usize = 8;

/// On devices other than CPUs, where a graph is dear to build and a few rows more cost next to nothing, so many inputs of one
/// sequence or twice as many share one: how many a step leaves behind changes from step to step. Several sequences even that out
/// among them.
const DEVICE_WIDTH: usize = 4;

/// How the MTP layer is used.
#[derive(Clone, Copy, Debug, Default)]
pub struct NextNConfig {
    /// Tokens of a draft.
    pub depth: Depth,
    /// Words that drafts are made of.
    pub vocab: DraftVocabSize,
    /// Choose between the heads of a model that has kept its own beside that of another file.
    pub both_heads: bool,
}

/// The MTP layer as a proposer.
pub struct NextN {
    model: Arc<Model>,
    info: ProposerInfo,
    n_embd: usize,
    /// Layers that are used.
    n_layers: usize,
    /// Tokens of every draft of a block whose length was given: what stands in a block depends on how many rows it has.
    whole: Option<usize>,
    /// What each head keeps; of one that is not used, too, so that it can draft at any time.
    heads: Vec<HeadCells>,
    choice: HeadChoice,
    /// What each slot's sequence is computed with.
    adapters: Vec<AdapterSet>,
    /// The whole vocabulary if `None`.
    vocab: Option<DraftVocab>,
    pace: Pace,
    /// See [`DEVICE_WIDTH`].
    fills_up: bool,
    /// Drafts will be continued while they are verified, so their hidden states are wanted.
    drafts_ahead: bool,
    output: DraftOutput,
    noise: NoiseMaker,
}

/// The width that so many inputs are filled up to, where that is little.
fn filled_up(n: usize) -> usize {
    if n <= 2 * DEVICE_WIDTH { n.next_multiple_of(DEVICE_WIDTH) } else { n }
}

fn serve_all_slots(heads: &[HeadCells]) -> bool {
    heads.iter().all(|head| head.memory.serves_all_slots())
}

/// Some of these drafts end where tokens become improbable.
fn wants_probs(requests: &[DraftRequest]) -> bool {
    requests.iter().any(|r| r.p_min > 0.0)
}

/// What one pass of the MTP layer is to do.
#[derive(Clone, Copy, Default)]
struct Wanted<'a> {
    /// Inputs of each sequence at most.
    n_inputs: usize,
    /// Draft tokens for each sequence.
    depth: usize,
    /// How each sequence's tokens are sampled; none at all where nothing is drafted.
    gumbel: &'a [Option<GumbelPlan>],
    /// The draft tokens that are being verified count as inputs too.
    ahead: bool,
    /// How probable the draft tokens are is wanted too.
    probs: bool,
}

impl NextN {
    /// The MTP layer of `model` for the sequences of an engine made with `config`; `None` when the model has none.
    ///
    /// # Errors
    /// No room for the layer's KV cells.
    pub fn new(model: &Arc<Model>, engine: &EngineConfig, config: NextNConfig) -> Result<Option<Self>, RunError> {
        let of_head = Self::state(engine, model.facts(), config.depth);
        let max_depth = config.depth.of_head(model.facts());
        let n_heads = if config.both_heads { 2 } else { 1 };
        let cells =
            model.heads().iter().take(n_heads).map(|&head| HeadCells::new(model, head, of_head, max_depth.max(1)));
        let heads: Vec<HeadCells> = cells.filter_map(Result::transpose).collect::<Result<_, _>>()?;
        let Some(first) = heads.first() else { return Ok(None) };
        let n_embd = model.n_embd_mtp();
        let n_layers = model.n_mtp_layers().min(max_depth.max(1));
        let n_slots = first.slots.len();
        let vocab = config.vocab.make(model)?;
        let whole = model.draft_block().filter(|_| config.depth != Depth::Auto).map(|_| max_depth);
        let mut pace = Pace::new(config.depth, n_slots, max_depth);
        if serve_all_slots(&heads) {
            pace.serve_all_slots();
        }
        let info = ProposerInfo {
            wants_hidden: true,
            n_hidden: n_layers,
            state_bytes: heads.iter().map(|head| head.memory.n_bytes()).sum(),
            max_saved_bytes: JOIN_BYTES + heads.iter().map(HeadCells::max_saved_bytes).sum::<usize>(),
            ..pace.info()
        };
        Ok(Some(Self {
            model: Arc::clone(model),
            info,
            n_embd,
            n_layers,
            whole,
            choice: HeadChoice::new(heads.len(), n_slots, max_depth.max(1)),
            heads,
            adapters: vec![AdapterSet::default(); n_slots],
            vocab,
            pace,
            fills_up: !model.is_on_cpu(),
            drafts_ahead: false,
            output: DraftOutput::default(),
            noise: NoiseMaker::new(model, engine),
        }))
    }

    /// Begins with what earlier engines measured, and keeps there what this one does.
    pub fn calibrate(&mut self, calibration: &Calibration) {
        self.pace.calibrate(calibration.of("nextn"));
    }

    /// Its graphs do not depend on slots, and so the target's do not: their attention is of one kind.
    pub(crate) fn serves_all_slots(&self) -> bool {
        serve_all_slots(&self.heads)
    }

    /// The layer's KV cells for the sequences of an engine made with `engine`.
    pub(crate) fn state(engine: &EngineConfig, facts: &Facts, depth: Depth) -> MemoryConfig {
        let of_model = engine.plain_state(facts);
        // The chain's cells stand past the end of the sequence, and so do those of drafts that are continued and of
        // tokens that fill up.
        let n_past = 2 * depth.max() + 1 + MAX_FILL;
        MemoryConfig { n_ctx: of_model.n_ctx + n_past, n_snapshots: 1, ..of_model }
    }

    /// Bytes of its cells and of the words that it drafts from.
    pub fn state_bytes(&self) -> usize {
        self.info.state_bytes + self.vocab.as_ref().map_or(0, DraftVocab::n_bytes)
    }

    /// Remembers which drafts were accepted, and which tokens the text is made of.
    fn learn(&mut self, model: &Model, step: &ObservedStep<'_>) -> Result<(), RunError> {
        for s in step.sequences {
            let ended_at_cut = self.heads[self.choice.used(s.slot)].slots[s.slot].ended_at_cut(s);
            if s.n_drafted == 0 || self.choice.is_favourite(s.slot) {
                self.pace.verified(s, ended_at_cut);
            }
            let verified = (s.n_drafted + usize::from(ended_at_cut), s.n_accepted);
            if self.choice.verified(s.slot, step.sequences.len(), verified)
                && let Some(head) = self.choice.of_favourite(s.slot)
            {
                self.pace.follow(s.slot, head);
            }
            if let Some(vocab) = &mut self.vocab {
                vocab.see(model, s.tokens.iter().copied().chain(s.next))?;
            }
        }
        Ok(())
    }

    /// Inputs that a step leaves behind at most.
    fn most_of_step(&self) -> usize {
        self.n_layers + self.info.max_depth.max(1)
    }

    /// MTP prefill: computes inputs until no more of any sequence wait than a step leaves behind, but not the last: a draft
    /// starts from it. Nothing is drafted from the others, so they need keys and values and no more. By powers of two, and
    /// all sequences that have so many at once, so that graphs and passes are few. True when there were any.
    fn prefill(&mut self, runner: &mut Runner, head: usize, which: &[usize]) -> Result<bool, RunError> {
        let most_at_once = 1 << (N_BATCH / which.len().max(1)).max(2 * self.n_layers).ilog2();
        let mut any = false;
        loop {
            let most = which.iter().map(|&i| self.heads[head].slots[i].tokens.len()).max().unwrap_or(0);
            if most <= self.most_of_step() {
                return Ok(any);
            }
            let n_inputs = (1 << (most - 1).ilog2()).min(most_at_once);
            let is_longer = |&i: &usize| self.heads[head].slots[i].tokens.len() > n_inputs;
            let longer: Vec<usize> = which.iter().copied().filter(is_longer).collect();
            self.pass(runner, head, &longer, Wanted { n_inputs, ..Wanted::default() })?;
            any = true;
        }
    }

    /// Passes over sequences whatever their adapters are: those with the same ones go together.
    fn pass(&mut self, runner: &mut Runner, head: usize, which: &[usize], wanted: Wanted<'_>) -> Result<(), RunError> {
        let mut left: Vec<usize> = (0..which.len()).collect();
        while let Some(&first) = left.first() {
            let adapters = self.adapters[which[first]].clone();
            runner.use_adapters(&adapters)?;
            let (alike, others): (Vec<_>, _) = left.into_iter().partition(|&i| self.adapters[which[i]] == adapters);
            left = others;
            let gumbel: Vec<_> = alike.iter().filter_map(|&i| wanted.gumbel.get(i).copied()).collect();
            let alike: Vec<usize> = alike.into_iter().map(|i| which[i]).collect();
            self.pass_alike(runner, head, &alike, Wanted { gumbel: &gumbel, ..wanted })?;
        }
        Ok(())
    }

    /// One graph over inputs of each sequence, and the draft tokens after them.
    fn pass_alike(
        &mut self,
        runner: &mut Runner,
        head: usize,
        which: &[usize],
        wanted: Wanted<'_>,
    ) -> Result<(), RunError> {
        let Wanted { depth, ahead, .. } = wanted;
        let cells = &mut self.heads[head];
        let n_chain = self.model.n_chain_rows(depth);
        let n_true: Vec<usize> = which.iter().map(|&i| cells.slots[i].tokens.len().min(wanted.n_inputs)).collect();
        let (mut tokens, mut hidden, mut n_inputs) = (Vec::new(), Vec::new(), Vec::new());
        for (&i, &n) in which.iter().zip(&n_true) {
            let s = &cells.slots[i];
            tokens.extend_from_slice(&s.tokens[..n]);
            hidden.extend_from_slice(&s.hidden[..n * self.n_embd]);
            let (drafted, states) = s.out().filter(|_| ahead).unwrap_or_default();
            tokens.extend_from_slice(drafted);
            hidden.extend_from_slice(states);
            n_inputs.push(n + drafted.len());
        }
        let (fewest, most) = (n_inputs.iter().min(), n_inputs.iter().max());
        let fills_up = self.fills_up && which.len() == 1;
        let most = most.map(|&most| if fills_up { filled_up(most) } else { most });
        let width = most.zip(fewest).filter(|(most, fewest)| *most - *fewest <= MAX_FILL).map_or(0, |(most, _)| most);
        let n_tokens = |n: usize| n.max(width) + n_chain;
        let claims: Vec<_> = which.iter().zip(&n_inputs).map(|(&i, &n)| (&cells.slots[i].slot, n_tokens(n))).collect();
        let step = cells.memory.begin(&claims, 1)?;
        let vocab = self.vocab.as_ref();
        let n_before = n_inputs.iter().zip(&n_true).map(|(n, n_true)| n - n_true);
        let plans: Vec<_> = wanted.gumbel.iter().copied().zip(n_before).collect();
        let noise = self.noise.make(&plans, depth, vocab);
        let (tokens, hidden, n_entries, rows) = (&tokens, &hidden, &n_inputs, self.drafts_ahead);
        let head = cells.head;
        let draft =
            Draft { head, tokens, hidden, n_entries, depth, vocab, noise, verbose: false, rows, probs: wanted.probs };
        let pictures = |&i: &usize| {
            let s = &cells.slots[i];
            let placed = PlacedEntries { first: s.first_waiting(), pictures: &s.pictures };
            (!s.pictures.is_empty()).then_some(placed)
        };
        let placed: Vec<_> = which.iter().map(pictures).collect();
        let placed = if placed.iter().all(Option::is_none) { &[][..] } else { &placed };
        runner.draft_placed(step.view(), &draft, placed, &mut self.output)?;
        let n_final: Vec<usize> = which.iter().zip(&n_true).map(|(&i, &n)| cells.slots[i].n_final(n)).collect();
        step.commit(&n_final)?;
        for (sequence, (&i, &n)) in which.iter().zip(&n_final).enumerate() {
            let s = &mut cells.slots[i];
            s.computed(n);
            if depth > 0 && !ahead {
                s.forget_drafts();
            }
            for depth in 0..depth {
                let hidden = self.output.hidden.get(depth).map(|rows| &rows[sequence * self.n_embd..][..self.n_embd]);
                let prob = self.output.probs.get(sequence).map(|probs| probs[depth]);
                s.push_draft(self.output.tokens[sequence][depth], hidden.unwrap_or_default(), prob);
            }
        }
        Ok(())
    }

    /// These sequences by the head that drafts for each of them.
    fn by_head<T>(&self, of: impl Iterator<Item = (usize, T)>) -> Vec<(usize, Vec<usize>, Vec<T>)> {
        let mut by_head: Vec<(usize, Vec<usize>, Vec<T>)> =
            (0..self.heads.len()).map(|head| (head, Vec::new(), Vec::new())).collect();
        for (slot, what) in of {
            let (_, slots, whats) = &mut by_head[self.choice.used(slot)];
            slots.push(slot);
            whats.push(what);
        }
        by_head.retain(|(_, slots, _)| !slots.is_empty());
        by_head
    }

    /// The inputs of the head that drafts for `slot`.
    fn inputs(&self, slot: usize) -> &MtpInputs {
        &self.heads[self.choice.used(slot)].slots[slot]
    }

    fn inputs_mut(&mut self, slot: usize) -> &mut MtpInputs {
        &mut self.heads[self.choice.used(slot)].slots[slot]
    }
}

impl DraftAhead for NextN {
    fn draft(&mut self, runner: &mut Runner, requests: &[DraftRequest]) -> Result<Vec<Vec<TokenId>>, RunError> {
        let depth = self.pace.choose(requests);
        self.pace.begin_drafts();
        if depth == 0 {
            requests.iter().for_each(|r| self.inputs_mut(r.slot).forget_drafts());
            return Ok(vec![Vec::new(); requests.len()]);
        }
        let slots: Vec<usize> = requests.iter().map(|r| r.slot).collect();
        self.choice.choose(&slots, requests.iter().any(|r| r.warm_up));
        let depth = self.whole.unwrap_or(depth);
        let to_do = |r: &&DraftRequest| !self.inputs(r.slot).tokens.is_empty() && !self.inputs(r.slot).has_drafts();
        let probs = wants_probs(requests);
        for (head, which, gumbel) in self.by_head(requests.iter().filter(to_do).map(|r| (r.slot, r.gumbel))) {
            let caught_up = self.prefill(runner, head, &which)?;
            self.pace.caught_up(caught_up);
            self.pass(runner, head, &which, Wanted { n_inputs: N_BATCH, depth, gumbel: &gumbel, ahead: false, probs })?;
        }
        let hand_out = |r: &DraftRequest| self.inputs_mut(r.slot).hand_out(r.max.min(depth), r.p_min);
        let drafts = requests.iter().map(hand_out).collect();
        let cut = requests.iter().any(|r| self.inputs(r.slot).is_cut());
        self.pace.differ(cut);
        Ok(drafts)
    }

    fn prepare(&mut self) {
        // Several layers, and blocks, take the main model's hidden states, which those of drafts do not stand in for.
        self.drafts_ahead = self.model.n_mtp_layers() == 1 && self.model.draft_block().is_none();
    }

    fn draft_ahead(&mut self, runner: &mut Runner, requests: &[DraftRequest]) -> Result<(), RunError> {
        let continued = requests.iter().filter(|r| self.inputs(r.slot).out().is_some());
        let by_head = self.by_head(continued.map(|r| (r.slot, r.gumbel)));
        let n_out = |&slot: &usize| Some(self.inputs(slot).out()?.0.len());
        let deepest = by_head.iter().flat_map(|(_, which, _)| which.iter().filter_map(n_out)).max();
        let Some(depth) = deepest else { return Ok(()) };
        // The token that the verifying step will sample, then as many as before.
        let (depth, probs) = (depth + 1, wants_probs(requests));
        for (head, which, gumbel) in by_head {
            self.pass(runner, head, &which, Wanted { n_inputs: N_BATCH, depth, gumbel: &gumbel, ahead: true, probs })?;
        }
        Ok(())
    }
}

impl Proposer for NextN {
    fn info(&self) -> ProposerInfo {
        self.info
    }

    fn change(&mut self, slot: usize, change: SequenceChange<'_>) -> Result<(), SavedDraftError> {
        match change {
            SequenceChange::Begin { tokens, adapters, hidden, pictures } => {
                self.adapters[slot].clone_from(adapters);
                for head in &mut self.heads {
                    head.slots[slot].pictures.clone_from(pictures);
                    head.begin(slot, tokens, hidden)?;
                }
                self.pace.begin(slot);
                self.choice.begin(slot);
                if let Some(head) = self.choice.of_favourite(slot) {
                    self.pace.follow(slot, head);
                }
            }
            SequenceChange::Load { tokens, saved } => {
                // All are checked before anything changes.
                let read = self.heads.iter().map(|head| head.read(&self.model, saved, tokens));
                let read = read.collect::<Result<Vec<_>, _>>()?;
                for (head, saved) in self.heads.iter_mut().zip(read) {
                    head.load(slot, saved)?;
                }
            }
            SequenceChange::Copy { from, n_tokens } => {
                for head in &mut self.heads {
                    head.copy(from, slot, n_tokens)?;
                }
            }
            SequenceChange::Forget => {
                for head in &mut self.heads {
                    head.forget(slot)?;
                }
            }
        }
        Ok(())
    }

    fn observe(&mut self, runner: &mut Runner, step: &ObservedStep<'_>) -> Result<(), RunError> {
        if !step.warm_up {
            self.learn(runner.model(), step)?;
        }
        self.pace.took(step);
        for head in 0..self.heads.len() {
            let slots = &mut self.heads[head].slots;
            step.sequences.iter().for_each(|s| slots[s.slot].take(s));
            let mut waiting: Vec<usize> = step.sequences.iter().map(|s| s.slot).collect();
            waiting.retain(|&i| slots[i].tokens.len() > MAX_WAITING);
            if !waiting.is_empty() {
                self.prefill(runner, head, &waiting)?;
            }
        }
        Ok(())
    }

    fn propose(
        &mut self,
        runner: &mut Runner,
        _: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        self.draft(runner, requests)
    }

    fn save(&mut self, slot: usize, n_tokens: usize) -> Result<Vec<u8>, RunError> {
        let parts = self.heads.iter_mut().map(|head| head.save(&self.model, slot, n_tokens));
        Ok(join(parts.collect::<Result<Vec<_>, _>>()?))
    }
}
