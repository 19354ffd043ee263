//! Drafts of a head that reads the target model's cells: all of them stand after the last token of their sequence.

use ggml::{Data, Name};
use memory::StepView;

use super::{Draft, DraftOutput, Key, Noise, Runner};
use crate::draft::DraftStep;
use crate::draft_vocab::DraftVocab;
use crate::error::RunError;

impl Runner {
    /// Drafts for each sequence of `view`, which is what stands after their last tokens ([`memory::Memory::ends`]): the entry
    /// of each is the token that follows, with the hidden state of the last token. Nothing is written into the memory.
    ///
    /// # Errors
    /// [`RunError::Pass`]: other than one entry for each sequence, nothing to draft, or a model without such a head.
    /// [`RunError::Device`].
    pub fn draft_at_end(
        &mut self,
        view: StepView<'_>,
        draft: &Draft<'_>,
        output: &mut DraftOutput,
    ) -> Result<(), RunError> {
        let model = &self.model;
        let arch = model.arch();
        if !arch.head_reads_target() {
            return Err(RunError::Pass("the model has no head that reads its cells".into()));
        }
        let (sizes, n_seqs, depth) = (self.model.hparams(), view.n_tokens(), draft.depth);
        let n_words = draft.vocab.map_or(sizes.n_vocab, DraftVocab::n_words);
        let sound = depth > 0
            && !draft.rows
            && draft.n_entries.len() == n_seqs
            && draft.n_entries.iter().all(|&n| n == 1)
            && draft.tokens.len() == n_seqs
            && draft.hidden.len() == n_seqs * sizes.n_embd
            && draft.noise.is_none_or(|noise| noise.is_of(depth, n_seqs, n_words))
            && draft.tokens.iter().all(|id| (id.0 as usize) < sizes.n_vocab);
        if !sound {
            let (tokens, hidden) = (draft.tokens.len(), draft.hidden.len());
            let what =
                format!("{tokens} tokens and {hidden} hidden values for {depth} draft tokens of {n_seqs} sequences");
            return Err(RunError::Pass(what));
        }
        let s = &mut self.scratch;
        s.fill(0, view);
        s.tokens.clear();
        s.tokens.extend(draft.tokens.iter().map(|id| id.0 as i32));
        let mut inputs = s.inputs(1);
        inputs.push((Name("hidden_in", 0), Data::F32(draft.hidden)));
        draft.noise.into_iter().for_each(|noise| noise.inputs(n_seqs * n_words, &mut inputs));
        let in_use = &self.adapters;
        let key = Key::DraftAtEnd {
            segments: view.shape(),
            depth,
            n_first: draft.vocab.map(DraftVocab::n_first),
            noise: draft.noise.map(Noise::by),
            verbose: draft.verbose,
            probs: draft.probs,
            adapters: in_use.set.clone(),
        };
        let max_nodes = depth * arch.max_draft_nodes(view.segments()) + in_use.max_nodes(depth);
        let build = |g: &ggml::Graph<'_>| {
            in_use.begin(g);
            let (arch, view) = (model.arch_of(g.rank()), view.of_rank(g.rank(), model.n_ranks()));
            let step = DraftStep::at_end(g, view, depth, sizes.n_embd);
            let step = match draft.noise {
                Some(noise) => step.with_noise(g, n_words, noise.by()),
                None => step,
            };
            let Draft { vocab, verbose, probs, .. } = *draft;
            let words = vocab.map(|vocab| vocab.words_in(g));
            arch.draft(g, &DraftStep { words, verbose, probs, ..step });
        };
        let mut results = self.ranks.run(&key, max_nodes, build, &inputs)?;
        output.read(&mut results, draft, n_seqs, sizes.n_vocab)
    }
}
