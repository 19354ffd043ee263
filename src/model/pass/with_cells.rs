//! Drafts of a head with cells of its own: catch-up with true hidden states, and a chain or a block behind it.

use std::sync::Arc;

use ggml::{Data, Name};
use memory::StepView;

use super::{Draft, DraftOutput, Key, Noise, Runner};
use crate::draft::DraftStep;
use crate::draft_vocab::DraftVocab;
use crate::error::RunError;
use crate::placed::{PlacedEntries, check_draft_tokens, placed_rows};

impl Runner {
    /// Brings the KV caches of the head up to date with true hidden states and, for a depth above 0, drafts: one chain
    /// of tokens for each sequence of `view`, which is a step of the head's memory over the entries and, where the head has
    /// one layer, the rows of the chain after the first token, or of the whole block where it drafts one at
    /// once. Keep the entries on commit, not the chain; of a head of `n` layers not the last `n - 1` entries either, whose tokens
    /// in later layers were drafted, and compute these again. A sequence may have more rows: the pass is filled up after its
    /// entries, so that one graph serves whatever numbers of entries sequences have.
    ///
    /// # Errors
    /// [`RunError::Pass`]: entries that are not those of the step, a depth beyond the layers of a head of several, or a model
    /// without a head. [`RunError::Device`].
    pub fn draft(&mut self, view: StepView<'_>, draft: &Draft<'_>, output: &mut DraftOutput) -> Result<(), RunError> {
        self.draft_placed(view, draft, &[], output)
    }

    /// As [`Runner::draft`], with the pictures of each sequence that has some; none at all where `placed` is empty. An entry
    /// stands at the position of the token whose hidden state it has; a chain counts on.
    ///
    /// # Errors
    /// As [`Runner::draft`]. [`RunError::Pass`]: a picture's token without its picture.
    pub fn draft_placed(
        &mut self,
        view: StepView<'_>,
        draft: &Draft<'_>,
        placed: &[Option<PlacedEntries<'_>>],
        output: &mut DraftOutput,
    ) -> Result<(), RunError> {
        let (model, n_ranks) = (Arc::clone(&self.model), self.model.n_ranks());
        let view = view.of_rank(0, n_ranks);
        let widths = self.checked_widths(view, draft)?;
        if !placed.is_empty() && placed.len() != widths.len() {
            let (n, n_seqs) = (placed.len(), widths.len());
            return Err(RunError::Pass(format!("pictures of {n} sequences, {n_seqs} expected")));
        }
        let rows = placed_rows(placed, draft.n_entries, &widths);
        check_draft_tokens((draft.tokens, draft.n_entries), &widths, self.model.hparams().n_vocab, &rows)?;
        let (sizes, n_layers) = (model.hparams(), view.n_layers());
        let (n_seqs, n_embd, block) = (draft.n_entries.len(), self.model.n_embd_mtp(), self.model.draft_block());
        let n_chain = self.model.n_chain_rows(draft.depth);
        let n_words = draft.vocab.map_or(sizes.n_vocab, DraftVocab::n_words);
        let slots: Vec<usize> = view.segments().iter().flat_map(|s| s.first_slot..s.first_slot + s.n_seqs).collect();
        let number = |slot: usize| slots.binary_search(&slot).unwrap_or(0);
        let entries_of = |slot: usize| draft.n_entries[number(slot)];
        let caught_up = view.part(|slot| (0, widths[number(slot)]));
        let chain: Vec<_> = match block {
            Some(_) if n_chain > 0 => vec![view.part(|slot| (entries_of(slot), n_chain)).mutual()],
            _ => (0..n_chain).map(|i| view.part(|slot| (entries_of(slot) + i, 1))).collect(),
        };
        let views: Vec<StepView<'_>> = chain.iter().map(memory::OwnedView::view).collect();

        let s = &mut self.scratch;
        s.fill(0, caught_up.view());
        for (i, view) in views.iter().enumerate() {
            s.fill(i + 1, *view);
        }
        s.fill_entries(draft, &widths, n_embd);
        let extras = s.place(&rows, (widths.iter().sum(), sizes.n_embd), 1);
        s.place_chain(placed, draft.n_entries, n_chain);
        s.fill_shifts(draft, &widths, if block.is_some() { 1 } else { n_layers });
        if let Some(block) = block {
            s.fill_block(block, draft.depth);
        }
        let mut inputs = s.inputs(1 + views.len());
        if block.is_some() && draft.depth > 0 {
            inputs.push((Name("block", 0), Data::I32(&s.block)));
        }
        s.given.inputs(extras, &mut inputs);
        inputs.extend(s.shifts.iter().zip(1..).map(|(shift, k)| (Name("shift", k), Data::I32(shift))));
        inputs.push((Name("hidden_in", 0), Data::F32(if s.hidden.is_empty() { draft.hidden } else { &s.hidden })));
        let n_drafting = if draft.depth > 0 { n_seqs } else { 0 };
        if n_drafting > 0 {
            if block.is_none() {
                inputs.push((Name("last", 0), Data::I32(&s.out)));
            }
            draft.noise.into_iter().for_each(|noise| noise.inputs(n_seqs * n_words, &mut inputs));
        }
        let in_use = &self.adapters;
        let key = Key::Draft {
            head: draft.head,
            segments: caught_up.view().shape(),
            chain: views.iter().map(StepView::shape).collect(),
            n_layers,
            depth: draft.depth,
            n_seqs: n_drafting,
            n_first: draft.vocab.map(DraftVocab::n_first),
            noise: draft.noise.map(Noise::by),
            verbose: draft.verbose,
            rows: draft.rows,
            probs: draft.probs,
            adapters: in_use.set.clone(),
            extras,
        };
        // A layer's entries, and what it drafts.
        let n_blocks = match block {
            Some(_) => 2 * n_layers + draft.depth,
            None => (1 + n_chain).max(2 * n_layers + n_layers * n_layers),
        };
        let max_nodes = 256 * n_blocks * (1 + view.segments().len())
            + 4 * sizes.n_expert_used * n_blocks
            + in_use.max_nodes(n_blocks);
        let build = |g: &ggml::Graph<'_>| {
            in_use.begin(g);
            let (arch, rank) = (model.arch_of(g.rank()), g.rank());
            let views: Vec<_> = views.iter().map(|view| view.of_rank(rank, n_ranks)).collect();
            let size = (draft.depth, n_drafting);
            let step =
                DraftStep::declare(g, caught_up.view().of_rank(rank, n_ranks), (&views, block.is_some()), size, n_embd);
            let step = step.with(g, sizes.n_embd, extras);
            let step = match draft.noise {
                Some(noise) => step.with_noise(g, n_words, noise.by()),
                None => step,
            };
            let Draft { head, vocab, verbose, rows, probs, .. } = *draft;
            let words = vocab.map(|vocab| vocab.words_in(g));
            arch.draft(g, &DraftStep { head, words, verbose, rows, probs, ..step });
        };
        let mut results = self.ranks.run(&key, max_nodes, build, &inputs)?;
        output.read(&mut results, draft, n_drafting, sizes.n_vocab)
    }

    /// The rows that each sequence's entries take, with those that only fill up.
    ///
    /// # Errors
    /// As [`Runner::draft`].
    fn checked_widths(&self, view: StepView<'_>, draft: &Draft<'_>) -> Result<Vec<usize>, RunError> {
        let (of_model, n_layers) = (self.model.n_mtp_layers(), view.n_layers());
        if of_model == 0 {
            return Err(RunError::Pass("the model has no NextN head".into()));
        }
        if !self.model.heads().contains(&draft.head) {
            return Err(RunError::Pass("the model's own NextN head was not kept beside that of another file".into()));
        }
        if self.model.draft_block().is_none() && (n_layers > of_model || (of_model > 1 && draft.depth > n_layers)) {
            let depth = draft.depth;
            return Err(RunError::Pass(format!("{depth} draft tokens by {n_layers} of {of_model} MTP layers")));
        }
        let sizes = self.model.hparams();
        let n_seqs = draft.n_entries.len();
        let n_entries: usize = draft.n_entries.iter().sum();
        let block = self.model.draft_block();
        if let Some(block) = block.filter(|block| draft.depth >= block.n_rows) {
            let (depth, most) = (draft.depth, block.n_rows - 1);
            return Err(RunError::Pass(format!("{depth} draft tokens by a head that drafts {most} at once")));
        }
        let n_chain = self.model.n_chain_rows(draft.depth);
        let widths =
            view.segments().iter().flat_map(|s| std::iter::repeat_n(s.n_rows.saturating_sub(n_chain), s.n_seqs));
        let widths: Vec<usize> = widths.collect();
        let n_embd = self.model.n_embd_mtp();
        let n_words = draft.vocab.map_or(sizes.n_vocab, DraftVocab::n_words);
        if let Some(own) =
            self.model.draft_words().filter(|own| draft.vocab.map(DraftVocab::n_first) != Some(own.len()))
        {
            let n = own.len();
            return Err(RunError::Pass(format!(
                "the head drafts {n} words of its own (DraftVocab::of_head), other were given"
            )));
        }
        if draft.noise.is_some_and(|noise| !noise.is_of(draft.depth, n_seqs, n_words)) {
            let depth = draft.depth;
            return Err(RunError::Pass(format!(
                "Gumbel noise of another size than {depth} draft tokens of {n_seqs} sequences among {n_words} words need"
            )));
        }
        let sound = widths.len() == n_seqs
            && draft.tokens.len() == n_entries
            && draft.hidden.len() == n_entries * n_embd
            && draft.n_entries.iter().zip(&widths).all(|(&n, &width)| n > 0 && n <= width);
        if !sound {
            let (tokens, hidden) = (draft.tokens.len(), draft.hidden.len());
            return Err(RunError::Pass(format!(
                "{tokens} tokens and {hidden} hidden values do not fit the draft's step"
            )));
        }
        Ok(widths)
    }
}
