//! The graph of a draft: catch-up of the KV cache of the head with true hidden states, then draft tokens. One launch; only
//! the ids of the draft tokens come back.
//!
//! Entry `i` of the head is (token `i + 1`, hidden state `i` of the target model): the convention of training (the head's
//! first entry is the second token with the first hidden state). A head of one layer makes a chain, each token fed the one
//! before. Of several, layer `k` makes draft token `k + 1`: its entry `i` is (token `i + 1 + k`, hidden state `i`), so its
//! last `k` tokens are those that the layers before it drafted. All layers have their entries at the same positions.

use ggml::{Dtype, Graph, Name, NoiseKey, Tensor, WeightId};
use memory::StepView;

use crate::blocks::{Linear, embedded};
use crate::step::{AttentionInputs, Extras, GivenRows};

/// Which of a model's NextN heads drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WhichHead {
    /// That of another file where one was given, else the model's own.
    #[default]
    First,
    /// The model's own beside that of another file ([`crate::LoadOptions::keep_own_head`]).
    Own,
}

/// A block of tokens that a head drafts at once: the last token, and masks in the places of those that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftBlock {
    /// Rows, the last token's counted.
    pub n_rows: usize,
    /// The token that stands for one that is not known.
    pub mask: u32,
}

/// Part of a head's vocabulary as tensors of a graph: its first rows, then copies of others.
pub(crate) struct DraftWords<'g> {
    /// Rows of the head that are taken where they lie.
    pub(crate) n_first: usize,
    /// The copies of each output matrix: `[n_embd, n_side]`; none where the first rows are all there are.
    pub(crate) rows: Vec<(WeightId, Tensor<'g>)>,
    /// The token of each row, first rows and copies: i32 `[1, n_first + n_side]`.
    pub(crate) ids: Tensor<'g>,
    /// What is added to the logits before a softmax over them: F32 `[n_first + n_side]`, without the copies not in use; `None`
    /// without copies.
    pub(crate) mask: Option<Tensor<'g>>,
}

/// The noise of a draft graph, one tensor for each draft token.
pub(crate) enum StepNoise<'g> {
    /// The likeliest words are taken.
    None,
    /// F32 `[n_words, n_seqs]`.
    Numbers(Vec<Tensor<'g>>),
    /// What the device makes it from: I32 `[4, n_seqs]`.
    Keys(Vec<Tensor<'g>>),
}

/// Who makes the noise of a draft graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum NoiseBy {
    Host,
    Device,
}

/// What a draft graph reads: the KV cache of the head, the entries to catch up with, and the rows of the chain.
pub(crate) struct DraftStep<'s, 'g> {
    /// The head that drafts.
    pub(crate) head: WhichHead,
    /// Where the entries stand.
    pub(crate) inputs: AttentionInputs<'s, 'g>,
    /// The token of each entry, 0 for one of a picture: i32 `[n_entries]`.
    pub(crate) tokens: Tensor<'g>,
    pub(crate) given: Option<GivenRows<'g>>,
    /// The hidden state of each entry: F32 `[n_embd, n_entries]`.
    pub(crate) hidden: Tensor<'g>,
    /// The last entry of each sequence: i32 `[n_seqs]`; `None` when nothing is drafted, or there is one entry of each.
    pub(crate) last: Option<Tensor<'g>>,
    /// Draft tokens for each sequence.
    pub(crate) depth: usize,
    /// MTP layers that are computed, from the first.
    pub(crate) n_layers: usize,
    /// Where the rows of each further draft token of a chain stand, one row for each sequence.
    pub(crate) chain: Vec<AttentionInputs<'s, 'g>>,
    /// The block of each sequence that is drafted at once, its last token and then masks: i32 `[n_rows * n_seqs]`. Where its
    /// rows stand is the one part of `chain`.
    pub(crate) block: Option<Tensor<'g>>,
    /// For each layer after the first, which token each of its entries has: a number among the tokens of the entries and
    /// then the draft tokens of the layers before it, i32 `[n_entries]`.
    pub(crate) shifts: Vec<Tensor<'g>>,
    /// The words that draft tokens are picked from; the whole vocabulary if `None`.
    pub(crate) words: Option<DraftWords<'g>>,
    /// What is added to the logits of each draft token before the largest is taken.
    pub(crate) noise: StepNoise<'g>,
    /// The logits of the draft tokens are wanted too.
    pub(crate) verbose: bool,
    /// The hidden states that the draft tokens were made from are wanted too.
    pub(crate) rows: bool,
    /// How probable the head finds each draft token is wanted too.
    pub(crate) probs: bool,
}

impl<'s, 'g> DraftStep<'s, 'g> {
    /// Declares the inputs for `depth` draft tokens of `n_seqs` sequences. `chain`: the views of the second draft token and
    /// those after it, for a head of one layer; of the whole block where all are drafted at once (`is_block`).
    pub(crate) fn declare(
        g: &Graph<'g>,
        view: StepView<'s>,
        (chain, is_block): (&[StepView<'s>], bool),
        (depth, n_seqs): (usize, usize),
        n_embd: usize,
    ) -> Self {
        let n_entries = view.n_tokens() as i64;
        let n_layers = if is_block { 1 } else { view.n_layers() };
        let inputs = AttentionInputs::declare(g, view, 0);
        let shift = |k: usize| g.input(Name("shift", k as u32), Dtype::I32, [n_entries, 1, 1, 1]);
        Self {
            head: WhichHead::First,
            depth,
            n_layers,
            shifts: (1..n_layers).map(shift).collect(),
            tokens: g.input("tokens", Dtype::I32, [n_entries, 1, 1, 1]),
            given: None,
            hidden: g.input("hidden_in", Dtype::F32, [n_embd as i64, n_entries, 1, 1]),
            last: (depth > 0 && !is_block).then(|| g.input("last", Dtype::I32, [n_seqs as i64, 1, 1, 1])),
            chain: chain.iter().enumerate().map(|(i, &view)| AttentionInputs::declare(g, view, i as u32 + 1)).collect(),
            block: chain.first().filter(|_| is_block).map(|rows| {
                let n_rows = rows.n_tokens() as i64;
                g.input("block", Dtype::I32, [n_rows, 1, 1, 1])
            }),
            inputs,
            words: None,
            noise: StepNoise::None,
            verbose: false,
            rows: false,
            probs: false,
        }
    }

    /// Declares the inputs of a head that reads the target model's cells: one entry for each sequence of `view`
    /// ([`memory::Memory::ends`]), which stands after its last token, as do all `depth` drafts.
    pub(crate) fn at_end(g: &Graph<'g>, view: StepView<'s>, depth: usize, n_embd: usize) -> Self {
        let n_seqs = view.n_tokens() as i64;
        Self {
            head: WhichHead::First,
            inputs: AttentionInputs::declare(g, view, 0),
            tokens: g.input("tokens", Dtype::I32, [n_seqs, 1, 1, 1]),
            given: None,
            hidden: g.input("hidden_in", Dtype::F32, [n_embd as i64, n_seqs, 1, 1]),
            last: None,
            depth,
            n_layers: 1,
            chain: Vec::new(),
            block: None,
            shifts: Vec::new(),
            words: None,
            noise: StepNoise::None,
            verbose: false,
            rows: false,
            probs: false,
        }
    }

    /// The same with what a pass has beside tokens.
    pub(crate) fn with(self, g: &Graph<'g>, n_embd: usize, extras: Extras) -> Self {
        let given = GivenRows::declare(g, self.inputs.view.n_tokens(), n_embd, extras);
        Self { given, inputs: self.inputs.with_sections(g, 0, extras), ..self }
    }

    /// The same with Gumbel noise of so many words for every draft token.
    pub(crate) fn with_noise(self, g: &Graph<'g>, n_words: usize, by: NoiseBy) -> Self {
        let n_seqs = match self.block {
            Some(rows) => rows.ne()[0] / (self.depth as i64 + 1),
            None => self.last.unwrap_or(self.tokens).ne()[0],
        };
        let noise = match by {
            NoiseBy::Host => {
                let input = |i| g.input(Name("noise", i as u32), Dtype::F32, [n_words as i64, n_seqs, 1, 1]);
                StepNoise::Numbers((0..self.depth).map(input).collect())
            }
            NoiseBy::Device => {
                let n = NoiseKey::N as i64;
                let keys = g.input("noise_keys", Dtype::I32, [n, n_seqs, self.depth as i64, 1]);
                let (of_seq, of_token) =
                    (size_of::<i32>() * NoiseKey::N, size_of::<i32>() * NoiseKey::N * n_seqs as usize);
                let of = |i: usize| g.view(keys, [n, n_seqs, 1, 1], [of_seq, of_token, of_token], i * of_token);
                StepNoise::Keys((0..self.depth).map(of).collect())
            }
        };
        Self { noise, ..self }
    }

    /// Embeddings by `table` of the tokens of layer `k`'s entries: `[n_embd, n_entries]`. `drafted`: what the layers before it
    /// drafted, i32 `[n_seqs]` each.
    pub(crate) fn embedded(&self, g: &Graph<'g>, k: usize, table: WeightId, drafted: &[Tensor<'g>]) -> Tensor<'g> {
        let known = GivenRows::over(self.given, g, embedded(g, table, self.tokens));
        let Some(&shift) = k.checked_sub(1).and_then(|i| self.shifts.get(i)) else { return known };
        let all = drafted.iter().fold(known, |all, &ids| g.concat(all, embedded(g, table, ids), 1));
        g.get_rows(all, shift) // of [n_embd, n_entries + drafted * n_seqs]
    }

    /// The last entry of each sequence: `x: [n_embd, n_entries]` gives `[n_embd, n_seqs]`.
    pub(crate) fn cut(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        self.last.filter(|last| x.ne()[1] != last.ne()[0]).map_or(x, |last| g.get_rows(x, last))
    }

    /// Puts out what an entry after the `i`-th draft token would take as its hidden state, where that is wanted.
    pub(crate) fn hand_on(&self, g: &Graph<'g>, i: usize, hidden: Tensor<'g>) {
        if self.rows {
            g.output(Name("draft_hidden", i as u32), hidden);
        }
    }

    /// Picks a token for each sequence from the head's rows on `h: [n_embd, n_seqs]`; gives i32 `[n_seqs]` and puts it
    /// out as the `i`-th draft token.
    pub(crate) fn pick(&self, g: &Graph<'g>, i: usize, h: Tensor<'g>, head: &Linear) -> Tensor<'g> {
        self.choose(g, i, self.logits(g, h, head))
    }

    /// The logits of the words to draft from: `h: [n_embd, n]` gives `[n_words, n]`.
    pub(crate) fn logits(&self, g: &Graph<'g>, h: Tensor<'g>, head: &Linear) -> Tensor<'g> {
        let Some(words) = &self.words else { return head.forward(g, h) };
        let first = head.forward_first(g, h, words.n_first);
        let n_side = words.ids.ne()[1] - words.n_first as i64;
        if n_side == 0 {
            return first;
        }
        let ids = || g.view(words.ids, [n_side, 1, 1, 1], [4 * n_side as usize; 3], 4 * words.n_first);
        let rows = words.rows.iter().find(|(of, _)| *of == head.weight()).map(|(_, rows)| *rows);
        let others = head.forward_copies(g, h, rows.expect("every draft head has its copies"), ids);
        g.concat(first, others, 0) // [n_first + n_side, n]
    }

    /// Picks a token for each sequence by `logits: [n_words, n_seqs]`; gives i32 `[n_seqs]` and puts it out as the `i`-th
    /// draft token.
    pub(crate) fn choose(&self, g: &Graph<'g>, i: usize, logits: Tensor<'g>) -> Tensor<'g> {
        let n_seqs = logits.ne()[1];
        let scores = match &self.noise {
            StepNoise::None => logits,
            StepNoise::Numbers(noise) => noise.get(i).map_or(logits, |&noise| g.add(logits, noise)),
            StepNoise::Keys(keys) => {
                let words = self.words.as_ref().map(|words| (words.ids, words.mask));
                keys.get(i).map_or(logits, |&keys| g.add_gumbel(logits, keys, words))
            }
        };
        let best = g.argmax(scores); // [n_seqs]
        // Rows of NaN have none: the draft token is a wrong one then, and must still be a token.
        let best = g.within(best, logits.ne()[0]);
        let ids = match &self.words {
            None => best,
            Some(words) => g.reshape(g.get_rows(words.ids, best), [n_seqs]), // was [1, n_seqs]
        };
        g.output(Name("draft", i as u32), ids);
        if self.probs {
            g.output(Name("draft_probs", i as u32), self.probs_of(g, logits, best));
        }
        if self.verbose {
            g.output(Name("draft_logits", i as u32), logits);
        }
        ids
    }

    /// The softmax of `logits: [n_words, n_seqs]` at the words `best: [n_seqs]`: F32 `[n_seqs]`.
    fn probs_of(&self, g: &Graph<'g>, logits: Tensor<'g>, best: Tensor<'g>) -> Tensor<'g> {
        let [n_words, n_seqs, ..] = logits.ne();
        let rows = g.reshape(logits, [n_words, 1, n_seqs]); // one mask serves all sequences
        let probs = g.soft_max(rows, self.words.as_ref().and_then(|words| words.mask), 1.0);
        let picked = g.get_rows(g.reshape(probs, [1, n_words, n_seqs]), g.reshape(best, [1, n_seqs])); // [1, 1, n_seqs]
        g.reshape(picked, [n_seqs])
    }
}
