//! Computes passes: fills a step's inputs, runs the architecture's graph, reads logits and hidden states.
//! Owns the executor and its scratch. Knows a step's rows; knows nothing of what the tokens are for.

mod at_end;
mod placed;
mod with_cells;

use std::ops::Range;
use std::sync::Arc;

use ggml::{Data, Dtype, Name, NoiseKey, Ranks, Stats, WeightId};
use memory::{Segment, StepView};
use text::TokenId;

use crate::adapter::InUse;
use crate::adapter_set::AdapterSet;
use crate::attention_data::AttentionData;
use crate::blocks::Linear;
use crate::draft::{DraftBlock, NoiseBy, WhichHead};
use crate::draft_vocab::DraftVocab;
use crate::error::RunError;
use crate::model::Model;
use crate::placed::{GivenData, PlacedRows, check_rows, check_tokens, given, in_table};
use crate::step::{Extras, Give, Likeliest, OutRows, Step};

/// Which rows of a pass give logits.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// None: the pass only fills the state.
    None,
    /// Every row.
    All,
    /// These, by number among the step's rows, in this order.
    Some(&'a [usize]),
    /// These likewise, but only the likeliest token of each is wanted: the logits stay where they were computed.
    Best(&'a [usize]),
    /// These likewise, and so many of the likeliest tokens of each: [`Runner::logits`] gives all of them if that was too few.
    Top(&'a [usize], usize),
}

/// What one pass computes.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// The token of each row of the step, in the step's order.
    pub tokens: &'a [TokenId],
    /// Rows that give logits.
    pub rows: Rows<'a>,
    /// Also give the hidden states (after the final norm) of all tokens, and what MTP layers take of them.
    pub hidden: bool,
}

/// Results of a pass; reused from pass to pass.
#[derive(Clone, Debug, Default)]
pub struct PassOutput {
    /// `[n_vocab]` for each row asked for, one after the other.
    pub logits: Vec<f32>,
    /// `[n_embd]` for each token, when hidden states were asked for.
    pub hidden: Vec<f32>,
    /// The residual stream after the last layer, likewise, where MTP layers take that; what a head of another file makes of
    /// several layers' streams, [`Model::n_embd_mtp`] for each token, where there is such a head.
    stream: Vec<f32>,
    /// The likeliest token of each row, when only these were asked for.
    pub best: Vec<Likeliest>,
    /// `n_top` of the likeliest tokens of each row with their logits, in no order, when these were asked for.
    top: Vec<(TokenId, f32)>,
    /// Zero when they were not.
    n_top: usize,
    /// The sum of each hidden state that gave logits.
    sums: Vec<f32>,
    /// The sum of each row's residual stream before the last layer.
    stream_sums: Vec<f32>,
    n_vocab: usize,
}

impl PassOutput {
    /// What the NextN head takes of each token, [`Model::n_embd_mtp`] numbers, when hidden states were asked for: those after
    /// the final norm or before it, or what it makes of several layers'.
    pub fn mtp_hidden(&self) -> &[f32] {
        if self.stream.is_empty() { &self.hidden } else { &self.stream }
    }

    /// Whether these rows of the step hold neither NaN nor infinity in their residual stream. Logits alone do not tell:
    /// products with quantised weights need not pass NaN on.
    pub fn rows_are_finite(&self, rows: Range<usize>) -> bool {
        self.stream_sums.get(rows).is_some_and(|sums| sums.iter().all(|sum| sum.is_finite()))
    }

    /// Whether the `i`-th row asked for can be gone on from: likewise, the hidden state that its logits come from, and
    /// some logit is finite.
    pub fn is_finite(&self, i: usize) -> bool {
        let some = self.logits.is_empty() || self.logits(i).iter().any(|x| x.is_finite());
        some && self.sums.get(i).is_some_and(|sum| sum.is_finite())
    }

    /// Some of the likeliest tokens of the `i`-th row asked for with their logits, in no order, when these were asked for.
    /// One that the device gave wrong has a logit of NaN.
    pub fn top(&self, i: usize) -> Option<&[(TokenId, f32)]> {
        let n = self.n_top;
        (n > 0).then(|| self.top.get(i * n..(i + 1) * n)).flatten()
    }

    /// Logits of the `i`-th row asked for.
    ///
    /// # Panics
    /// If fewer rows were asked for.
    pub fn logits(&self, i: usize) -> &[f32] {
        &self.logits[i * self.n_vocab..(i + 1) * self.n_vocab]
    }
}

/// Tells graphs apart: everything that a graph's shape depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// The target model over these segments.
    Trunk { segments: Vec<Segment>, out: OutRows, hidden: bool, give: Give, adapters: AdapterSet, extras: Extras },
    /// The product of a matrix with so many columns.
    Product { weight: WeightId, n_columns: usize },
    /// The head: which, catch-up segments, those of each further draft token, layers, draft tokens, sequences that draft, first rows
    /// of the head, with Gumbel noise, verbose, with hidden states, with probabilities.
    Draft {
        head: WhichHead,
        segments: Vec<Segment>,
        chain: Vec<Vec<Segment>>,
        n_layers: usize,
        depth: usize,
        n_seqs: usize,
        n_first: Option<usize>,
        noise: Option<NoiseBy>,
        verbose: bool,
        rows: bool,
        probs: bool,
        adapters: AdapterSet,
        extras: Extras,
    },
    /// A head that reads the target model's cells: the sequences, draft tokens of each, and what is as above.
    DraftAtEnd {
        segments: Vec<Segment>,
        depth: usize,
        n_first: Option<usize>,
        noise: Option<NoiseBy>,
        verbose: bool,
        probs: bool,
        adapters: AdapterSet,
    },
}

/// Computes passes of one model.
pub struct Runner {
    model: Arc<Model>,
    ranks: Ranks<Key>,
    scratch: Scratch,
    adapters: InUse,
}

/// Contents of the inputs; kept from pass to pass.
#[derive(Default)]
struct Scratch {
    tokens: Vec<i32>,
    /// One for each view of the graph.
    attention: Vec<AttentionData>,
    out: Vec<i32>,
    best_logits: Vec<f32>,
    /// Hidden states of a draft whose entries are padded.
    hidden: Vec<f32>,
    /// See [`DraftStep`]; one for each MTP layer after the first.
    shifts: Vec<Vec<i32>>,
    /// The rows of blocks that are drafted at once.
    block: Vec<i32>,
    given: GivenData,
}

impl Scratch {
    /// Fills the attention inputs of view number `part`.
    fn fill(&mut self, part: usize, view: StepView<'_>) {
        if self.attention.len() <= part {
            self.attention.resize_with(part + 1, AttentionData::default);
        }
        self.attention[part].fill(view);
    }

    /// Fills tokens, hidden states (none where those of the draft will do) and the number of each sequence's last true
    /// entry, with `widths` rows of each sequence.
    fn fill_entries(&mut self, draft: &Draft<'_>, widths: &[usize], n_embd: usize) {
        self.tokens.clear();
        self.out.clear();
        self.hidden.clear();
        let padded = draft.n_entries != widths;
        let mut first = 0;
        for (&n, &width) in draft.n_entries.iter().zip(widths) {
            self.out.push((self.tokens.len() + n) as i32 - 1);
            self.tokens.extend(draft.tokens[first..first + n].iter().map(|&id| in_table(id)));
            self.tokens.extend(std::iter::repeat_n(0, width - n));
            if padded {
                self.hidden.extend_from_slice(&draft.hidden[first * n_embd..(first + n) * n_embd]);
                self.hidden.resize(self.hidden.len() + (width - n) * n_embd, 0.0);
            }
            first += n;
        }
    }

    /// Says which token each entry has in each MTP layer after the first, with `widths` rows of each sequence: those of layer
    /// `k` are `k` further on, and then come what the layers before it drafted. Beyond that it is any: such cells are not
    /// kept.
    fn fill_shifts(&mut self, draft: &Draft<'_>, widths: &[usize], n_layers: usize) {
        let (n_seqs, n_rows) = (widths.len(), widths.iter().sum::<usize>());
        self.shifts.resize_with(n_layers.saturating_sub(1), Vec::new);
        for (shift, k) in self.shifts.iter_mut().zip(1..) {
            shift.clear();
            let mut first = 0;
            for (i, (&n, &width)) in draft.n_entries.iter().zip(widths).enumerate() {
                shift.extend((k..k + width).map(|at| match at.checked_sub(n) {
                    None => (first + at) as i32,
                    Some(drafted) if drafted < k.min(draft.depth) => (n_rows + drafted * n_seqs + i) as i32,
                    Some(_) => 0,
                }));
                first += width;
            }
        }
    }

    /// Fills the rows of each sequence's block: its last token, then masks. After [`Scratch::fill_entries`].
    fn fill_block(&mut self, block: DraftBlock, depth: usize) {
        self.block.clear();
        for &last in &self.out {
            let last = usize::try_from(last).ok().and_then(|at| self.tokens.get(at)).copied().unwrap_or(0);
            self.block.push(last);
            self.block.extend(std::iter::repeat_n(block.mask as i32, depth));
        }
    }

    /// The inputs of the first `n_parts` views.
    fn inputs(&self, n_parts: usize) -> Vec<(Name, Data<'_>)> {
        let mut inputs = vec![(Name("tokens", 0), Data::I32(&self.tokens))];
        let parts = self.attention[..n_parts].iter().enumerate();
        parts.for_each(|(part, data)| data.inputs(part as u32, &mut inputs));
        inputs
    }
}

impl Runner {
    /// A runner with `n_threads` threads of its own (on a CPU).
    ///
    /// # Errors
    /// [`RunError::Device`]: the device cannot be opened.
    pub fn new(model: Arc<Model>, n_threads: usize) -> Result<Self, RunError> {
        let ranks = Ranks::new(&model.weights_of_ranks(), n_threads)?;
        Ok(Self { model, ranks, scratch: Scratch::default(), adapters: InUse::default() })
    }

    /// Computes all passes and drafts from here on with these adapters; a runner begins with none.
    ///
    /// # Errors
    /// [`RunError::Pass`]: the model has not all of them; nothing has changed.
    pub fn use_adapters(&mut self, adapters: &AdapterSet) -> Result<(), RunError> {
        if self.adapters.set != *adapters {
            let of_model = self.model.adapters();
            self.adapters = InUse::of(of_model, adapters).ok_or_else(|| {
                RunError::Pass(format!("adapters {adapters:?} were asked for of a model with {}", of_model.len()))
            })?;
        }
        Ok(())
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Has its threads sleep until its next pass: another runner's turn has come, and threads that spin would take its
    /// processors.
    pub fn rest(&mut self) {
        self.ranks.rest();
    }

    /// Where the time went.
    pub fn stats(&self) -> Stats {
        self.ranks.stats()
    }

    /// Bytes of compute buffers.
    pub fn buffer_bytes(&self) -> usize {
        self.ranks.buffer_bytes()
    }

    /// [`Runner::buffer_bytes`] of one device.
    pub fn buffer_bytes_on(&self, device: ggml::Device) -> usize {
        self.ranks.buffer_bytes_on(device)
    }

    /// Makes room for steps of this size, so that later ones need no new memory.
    ///
    /// # Errors
    /// [`RunError::Device`]: no room.
    pub fn reserve(&mut self, view: StepView<'_>, n_out: usize, hidden: bool) -> Result<(), RunError> {
        let n_tokens = view.n_tokens();
        let out = out_rows(n_out.min(n_tokens), n_tokens);
        // With all adapters it is largest.
        let n = self.model.adapters().len();
        let all = AdapterSet::new((0..n).map(|id| (id, 1.0)), n).unwrap_or_default();
        let in_use = InUse::of(self.model.adapters(), &all).unwrap_or_default();
        let (give, extras) = (Give::Logits, Extras::default());
        let key = Key::Trunk { segments: view.shape(), out, hidden, give, adapters: all, extras };
        let model = &self.model;
        let max_nodes = model.arch().max_nodes(view.segments()) + in_use.max_nodes(2);
        let build = |g: &ggml::Graph<'_>| {
            in_use.begin(g);
            let (arch, view) = (model.arch_of(g.rank()), view.of_rank(g.rank(), model.n_ranks()));
            arch.forward(g, &Step::declare(g, view, out, hidden, Give::Logits).with_features(arch.features()));
        };
        Ok(self.ranks.reserve(max_nodes, &key, build)?)
    }

    /// Computes one pass over the rows of `view`. The state is written; commit the step to keep it.
    ///
    /// # Errors
    /// [`RunError::Pass`]: tokens, or rows asked for, that are not those of the step, or outside the vocabulary.
    /// [`RunError::Device`].
    pub fn run(&mut self, view: StepView<'_>, pass: &Pass<'_>, output: &mut PassOutput) -> Result<(), RunError> {
        self.run_placed(view, pass, &[], output)
    }

    /// As [`Runner::run`], with sequences that have pictures, which `placed` names in the order of their rows.
    ///
    /// # Errors
    /// As [`Runner::run`]. [`RunError::Pass`]: a picture's token without its picture, or a part of a picture whose tokens see
    /// one another.
    pub fn run_placed(
        &mut self,
        view: StepView<'_>,
        pass: &Pass<'_>,
        placed: &[PlacedRows<'_>],
        output: &mut PassOutput,
    ) -> Result<(), RunError> {
        let n_tokens = view.n_tokens();
        let n_vocab = self.model.hparams().n_vocab;
        if pass.tokens.len() != n_tokens {
            return Err(RunError::Pass(format!("{} tokens for a step of {n_tokens} rows", pass.tokens.len())));
        }
        check_rows(placed, n_tokens)?;
        check_tokens(pass.tokens, n_vocab, |row| given(placed, row, 0).is_some())?;
        let give = match pass.rows {
            Rows::Best(_) => Give::Best,
            Rows::Top(_, n) => Give::Top(n.clamp(1, n_vocab)),
            Rows::None | Rows::All | Rows::Some(_) => Give::Logits,
        };
        let out = match pass.rows {
            Rows::None => OutRows::None,
            Rows::All => OutRows::All,
            Rows::Some(rows) | Rows::Best(rows) | Rows::Top(rows, _) => {
                if let Some(row) = rows.iter().find(|&&row| row >= n_tokens) {
                    return Err(RunError::Pass(format!("row {row} was asked for, the step has {n_tokens}")));
                }
                let in_order = rows.len() == n_tokens && rows.iter().enumerate().all(|(i, &row)| i == row);
                if in_order { OutRows::All } else { out_rows_of(rows.len()) }
            }
        };
        let s = &mut self.scratch;
        s.tokens.clear();
        s.tokens.extend(pass.tokens.iter().map(|&id| in_table(id)));
        s.fill(0, view);
        let extras = s.place(placed, (n_tokens, self.model.hparams().n_embd), 0);
        s.see_pictures(view, placed)?;
        s.out.clear();
        if let (OutRows::Some(_), Rows::Some(rows) | Rows::Best(rows) | Rows::Top(rows, _)) = (out, pass.rows) {
            s.out.extend(rows.iter().map(|&row| row as i32));
        }
        let mut inputs = s.inputs(1);
        s.given.inputs(extras, &mut inputs);
        if matches!(out, OutRows::Some(_)) {
            inputs.push((Name("out", 0), Data::I32(&s.out)));
        }
        let in_use = &self.adapters;
        let adapters = in_use.set.clone();
        let key = Key::Trunk { segments: view.shape(), out, hidden: pass.hidden, give, adapters, extras };
        let (model, n_embd) = (&self.model, self.model.hparams().n_embd);
        let arch = model.arch();
        // What follows the last mixer may be there twice: `Step::end`.
        let max_nodes = arch.max_nodes(view.segments()) + in_use.max_nodes(2);
        let build = |g: &ggml::Graph<'_>| {
            in_use.begin(g);
            let (arch, view) = (model.arch_of(g.rank()), view.of_rank(g.rank(), model.n_ranks()));
            let step = Step::declare(g, view, out, pass.hidden, give).with_features(arch.features());
            arch.forward(g, &step.with(g, n_embd, extras));
        };
        let mut results = self.ranks.run(&key, max_nodes, build, &inputs)?;
        output.n_vocab = n_vocab;
        output.logits.clear();
        output.hidden.clear();
        output.stream.clear();
        output.best.clear();
        output.sums.clear();
        output.top.clear();
        output.n_top = 0;
        if out != OutRows::None {
            let Scratch { out: ids, best_logits, .. } = &mut self.scratch;
            match give {
                Give::Logits => results.f32("logits", &mut output.logits)?,
                Give::Best => {
                    results.i32("best", ids)?;
                    results.f32("best_logits", best_logits)?;
                    Likeliest::read(ids, best_logits, n_vocab, &mut output.best);
                }
                Give::Top(n) => {
                    results.i32("top", ids)?;
                    results.f32("top_logits", best_logits)?;
                    Likeliest::read_top(ids, best_logits, n_vocab, &mut output.top);
                    output.n_top = n;
                }
            }
            results.f32("sums", &mut output.sums)?;
        }
        results.f32("stream_sums", &mut output.stream_sums)?;
        if pass.hidden {
            results.f32("hidden", &mut output.hidden)?;
            if arch.features().is_some() {
                results.f32("features", &mut output.stream)?;
            } else if arch.mtp_takes_stream() {
                results.f32("stream", &mut output.stream)?;
            }
        }
        Ok(())
    }

    /// Gives the logits of the last pass, of which only the largest were asked for ([`Rows::Top`]), in their place.
    ///
    /// # Errors
    /// [`RunError::Pass`]: something else was computed since. [`RunError::Device`].
    pub fn logits(&mut self, output: &mut PassOutput) -> Result<(), RunError> {
        let none = || RunError::Pass("the logits of the last pass are gone".into());
        self.ranks.last().ok_or_else(none)?.f32("logits", &mut output.logits)?;
        output.n_top = 0;
        Ok(())
    }

    /// What the model's rank head says of pooled hidden states, `[n_embd]` each: `[n_classes]` for each of them.
    ///
    /// # Errors
    /// [`RunError::Pass`]: a model without a rank head, or numbers that are no hidden states. [`RunError::Device`].
    pub fn rank(&mut self, pooled: &[f32]) -> Result<Vec<f32>, RunError> {
        let model = Arc::clone(&self.model);
        let n_embd = model.hparams().n_embd;
        let head = model.arch().rank_head().ok_or_else(|| RunError::Pass("the model has no rank head".into()))?;
        if !pooled.len().is_multiple_of(n_embd) {
            return Err(RunError::Pass(format!("{} numbers are no hidden states of {n_embd}", pooled.len())));
        }
        head.scores(pooled, n_embd, |matrix, n_in, x| self.product(matrix, n_in, x))
    }

    /// A matrix of the model times `x: [n_in, n_columns]`, outside of a forward pass.
    fn product(&mut self, matrix: &Linear, n_in: usize, x: &[f32]) -> Result<Vec<f32>, RunError> {
        let n_columns = x.len() / n_in;
        let build = |g: &ggml::Graph<'_>| {
            let x = g.input("x", Dtype::F32, [n_in as i64, n_columns as i64, 1, 1]);
            g.output("y", matrix.forward(g, x));
        };
        let key = Key::Product { weight: matrix.weight(), n_columns };
        let inputs = [(Name("x", 0), Data::F32(x))];
        let mut y = Vec::new();
        self.ranks.run(&key, MAX_PRODUCT_NODES, build, &inputs)?.f32("y", &mut y)?;
        Ok(y)
    }
}

/// Gumbel noise of sampled drafts.
#[derive(Clone, Copy, Debug)]
pub enum Noise<'a> {
    /// For each draft token of the chain `[n_words, n_seqs]`, `n_words` being [`DraftVocab::n_words`] or the whole vocabulary.
    Numbers(&'a [f32]),
    /// [`NoiseKey::numbers`] for each draft token and sequence: the device makes the noise ([`Model::makes_noise`]).
    Keys(&'a [i32]),
}

impl<'a> Noise<'a> {
    fn by(self) -> NoiseBy {
        match self {
            Noise::Numbers(_) => NoiseBy::Host,
            Noise::Keys(_) => NoiseBy::Device,
        }
    }

    /// True where it is that of so many draft tokens, sequences and words.
    fn is_of(self, depth: usize, n_seqs: usize, n_words: usize) -> bool {
        match self {
            Noise::Numbers(noise) => noise.len() == depth * n_seqs * n_words,
            Noise::Keys(keys) => keys.len() == depth * n_seqs * NoiseKey::N,
        }
    }

    /// The inputs of a graph, in each of which are `n` numbers where the host makes them.
    fn inputs(self, n: usize, inputs: &mut Vec<(Name, Data<'a>)>) {
        match self {
            Noise::Numbers(noise) => {
                let noise = noise.chunks_exact(n).enumerate();
                inputs.extend(noise.map(|(i, noise)| (Name("noise", i as u32), Data::F32(noise))));
            }
            Noise::Keys(keys) => inputs.push((Name("noise_keys", 0), Data::I32(keys))),
        }
    }
}

/// What one draft computes, for the sequences of a step of the head's memory, in ascending order of their slots.
#[derive(Clone, Copy, Debug, Default)]
pub struct Draft<'a> {
    /// The head that drafts. The step is one of its memory ([`Model::memory_of_head`]).
    pub head: WhichHead,
    /// The token of each entry, sequence after sequence.
    pub tokens: &'a [TokenId],
    /// The hidden state before it: `[n_embd]` for each entry, [`Model::n_embd_mtp`] wide.
    pub hidden: &'a [f32],
    /// Entries of each sequence, at least one.
    pub n_entries: &'a [usize],
    /// Tokens to draft for each sequence; 0 only brings the KV caches up to date.
    pub depth: usize,
    /// Words to draft from; the whole vocabulary if `None`. A runner serves one such part only.
    pub vocab: Option<&'a DraftVocab>,
    /// Added to the logits before the largest is taken, for sampled replies; `None` takes the likeliest.
    pub noise: Option<Noise<'a>>,
    /// Also give the logits of every draft token.
    pub verbose: bool,
    /// Also give the hidden state that every draft token was made from: with the draft token it makes the entry of a
    /// chain that goes on.
    pub rows: bool,
    /// Also give how probable the head finds every draft token, without the Gumbel noise.
    pub probs: bool,
}

/// Results of a draft; reused from draft to draft.
#[derive(Clone, Debug, Default)]
pub struct DraftOutput {
    /// The chain of each sequence.
    pub tokens: Vec<Vec<TokenId>>,
    /// Beside [`DraftOutput::tokens`], the head's own probability of each among the words to draft from, when it was
    /// asked for.
    pub probs: Vec<Vec<f32>>,
    /// For each draft token of the chain, the logits of all sequences, when they were asked for.
    pub logits: Vec<Vec<f32>>,
    /// For each draft token of the chain, the hidden states `[n_embd]` of all sequences, when they were asked for.
    pub hidden: Vec<Vec<f32>>,
}

impl DraftOutput {
    /// Reads what a draft graph of so many sequences put out.
    fn read(
        &mut self,
        results: &mut ggml::Outputs<'_>,
        draft: &Draft<'_>,
        n_seqs: usize,
        n_vocab: usize,
    ) -> Result<(), RunError> {
        self.tokens.clear();
        self.tokens.resize(n_seqs, Vec::new());
        self.probs.clear();
        self.probs.resize(if draft.probs { n_seqs } else { 0 }, Vec::new());
        self.logits.resize_with(if draft.verbose { draft.depth } else { 0 }, Vec::new);
        self.hidden.resize_with(if draft.rows { draft.depth } else { 0 }, Vec::new);
        let (mut ids, mut probs) = (Vec::new(), Vec::new());
        for i in 0..draft.depth {
            results.i32(Name("draft", i as u32), &mut ids)?;
            for (tokens, &id) in self.tokens.iter_mut().zip(&ids) {
                // The graph keeps them in range; a device that does not is no reason to fail: a wrong draft token is
                // none.
                let id = u32::try_from(id).ok().filter(|&id| (id as usize) < n_vocab);
                tokens.push(TokenId(id.unwrap_or(0)));
            }
            if draft.probs {
                results.f32(Name("draft_probs", i as u32), &mut probs)?;
                self.probs.iter_mut().zip(&probs).for_each(|(of, &p)| of.push(p));
            }
            if draft.verbose {
                results.f32(Name("draft_logits", i as u32), &mut self.logits[i])?;
            }
            if draft.rows {
                results.f32(Name("draft_hidden", i as u32), &mut self.hidden[i])?;
            }
        }
        Ok(())
    }
}

/// Nodes of a product with scale and bias, with room to spare.
const MAX_PRODUCT_NODES: usize = 64;

fn out_rows(n_out: usize, n_tokens: usize) -> OutRows {
    if n_out == n_tokens { OutRows::All } else { out_rows_of(n_out) }
}

fn out_rows_of(n_out: usize) -> OutRows {
    if n_out == 0 { OutRows::None } else { OutRows::Some(n_out) }
}
