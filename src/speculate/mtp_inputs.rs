//! One sequence, as the MTP layers see it: its KV cells, the inputs that they lack, and draft tokens that nobody has verified.
//! Owns which token goes with which hidden state. Knows nothing of graphs.
//!
//! Of `n` layers, those after the first take tokens that come later than an input's own, so the last `n - 1` inputs are never
//! in cells for good: they wait, and are computed again with the tokens that turned out to be true.

use engine::ObservedSequence;
use memory::Slot;
use model::Pictures;
use text::TokenId;

/// Inputs that may wait while nothing is drafted: many, since one pass over all of them costs little more than one over a
/// few.
pub(crate) const MAX_WAITING: usize = 256;

/// One sequence of the MTP layer.
pub(crate) struct MtpInputs {
    /// Its cells.
    pub(crate) slot: Slot,
    n_embd: usize,
    /// Layers.
    n_layers: usize,
    /// Tokens of the sequence so far, without one that was sampled in the last step.
    n_seen: usize,
    pub(crate) pictures: Pictures,
    /// Inputs that the cells lack: tokens, and the hidden state before each, `[n_embd]`.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) hidden: Vec<f32>,
    /// The input of the next token is there already: it was sampled in the last step.
    pub(crate) ahead: bool,
    /// The inputs begin at the first token, so that a number of inputs tells which tokens they are of.
    whole: bool,
    /// Draft of the tokens after those inputs, and the hidden state that each was made from.
    drafted: Vec<TokenId>,
    draft_hidden: Vec<f32>,
    /// How probable the MTP layer found each; nothing where nobody asked.
    draft_probs: Vec<f32>,
    /// Of the draft, the tokens that are being verified.
    n_out: usize,
    /// They were fewer than wanted, because the next was too improbable.
    cut: bool,
}

impl MtpInputs {
    pub(crate) fn new(slot: Slot, n_embd: usize, n_layers: usize) -> Self {
        let (tokens, hidden) = (vec![], vec![]);
        let (drafted, draft_hidden, draft_probs) = (vec![], vec![], vec![]);
        let (ahead, whole, n_out, cut) = (false, true, 0, false);
        let (n_seen, pictures) = (0, Pictures::default());
        Self {
            slot,
            n_embd,
            n_layers,
            n_seen,
            pictures,
            tokens,
            hidden,
            ahead,
            whole,
            drafted,
            draft_hidden,
            draft_probs,
            n_out,
            cut,
        }
    }

    /// The sequence now stands after `tokens`, of the last of which the hidden states are known, or of none; `n_cells` inputs
    /// are in cells. Gives the number of cells to keep.
    pub(crate) fn begin(&mut self, n_cells: usize, tokens: &[TokenId], hidden: &[f32]) -> usize {
        let (n_tokens, n_inputs, n_embd) = (tokens.len(), tokens.len().saturating_sub(1), self.n_embd);
        let (n_kept, n_waiting) = self.first(n_cells, n_inputs);
        let (n_missing, n_known) = (n_inputs - n_kept - n_waiting, hidden.len() / n_embd);
        // Without the last hidden state, or with inputs missing, the cells would not follow each other: start afresh.
        let there = n_inputs == 0 || self.whole && n_missing < n_known;
        self.whole = n_tokens == 0 || n_known > 0 && there;
        let (n_kept, n_waiting, n_missing) = if self.whole { (n_kept, n_waiting, n_missing) } else { (0, 0, 0) };
        self.tokens.truncate(n_waiting);
        self.hidden.truncate(n_waiting * n_embd);
        // The last hidden state is that of the token after the last input's.
        let before = (n_known * n_embd).saturating_sub((1 + n_missing) * n_embd);
        self.tokens.extend_from_slice(&tokens[n_tokens - n_missing..]);
        self.hidden.extend_from_slice(&hidden[before..][..n_missing * n_embd]);
        self.ahead = false;
        self.n_seen = n_tokens;
        self.forget_drafts();
        n_kept
    }

    /// The number in the sequence of the token whose hidden state the first waiting input has.
    pub(crate) fn first_waiting(&self) -> usize {
        (self.n_seen + usize::from(self.ahead)).saturating_sub(1 + self.tokens.len())
    }

    /// Of the first `n_inputs` inputs, those in cells that hold nothing of later tokens, and those that wait behind them.
    fn first(&self, n_cells: usize, n_inputs: usize) -> (usize, usize) {
        let n_kept = n_cells.min(n_inputs.saturating_sub(self.n_layers - 1));
        (n_kept, if n_kept == n_cells { self.tokens.len().min(n_inputs - n_kept) } else { 0 })
    }

    /// What is there of the first `n_inputs` inputs of the sequence, `n_cells` in cells: how many cells, and how many that
    /// wait. `None` when it is too little to go on from.
    pub(crate) fn saved(&self, n_cells: usize, n_inputs: usize) -> Option<(usize, usize)> {
        let (n_kept, n_waiting) = self.first(n_cells, n_inputs);
        let there = self.whole && n_inputs - n_kept - n_waiting < self.n_layers;
        (n_inputs > 0 && there).then_some((n_kept, n_waiting))
    }

    /// Of `n` inputs that a pass computes, those whose cells stay.
    pub(crate) fn n_final(&self, n: usize) -> usize {
        n.saturating_sub(self.n_layers - 1)
    }

    /// Takes over the inputs behind those in cells, from where the sequence was computed.
    pub(crate) fn replace(&mut self, tokens: Vec<TokenId>, hidden: Vec<f32>) {
        (self.tokens, self.hidden, self.whole, self.ahead) = (tokens, hidden, true, false);
        self.forget_drafts();
    }

    /// Takes the inputs of the tokens that a step kept, and of the one sampled after them.
    pub(crate) fn take(&mut self, o: &ObservedSequence<'_>) {
        let n_embd = self.n_embd;
        self.n_seen += o.tokens.len();
        for (i, &token) in o.tokens.iter().enumerate() {
            if i == 0 && std::mem::take(&mut self.ahead) {
                continue;
            }
            let before = match i {
                0 => &o.hidden_before[o.hidden_before.len().saturating_sub(n_embd)..],
                i => &o.hidden[(i - 1) * n_embd..i * n_embd],
            };
            // The first token of all has no hidden state before it and no input.
            if !before.is_empty() {
                self.tokens.push(token);
                self.hidden.extend_from_slice(before);
            }
        }
        if let Some(next) = o.next {
            self.tokens.push(next);
            self.hidden.extend_from_slice(&o.hidden[o.hidden.len() - n_embd..]);
            self.ahead = true;
        }
        self.settle_draft(o);
    }

    /// Draft tokens that follow others which came as drafted stay; all others go.
    fn settle_draft(&mut self, o: &ObservedSequence<'_>) {
        let all_accepted = o.n_drafted > 0 && o.n_drafted == self.n_out && o.n_accepted == self.n_out;
        if all_accepted && o.next.is_some() && o.next.as_ref() == self.drafted.get(self.n_out) {
            self.drafted.drain(..=self.n_out);
            // Hidden states and probabilities are there where somebody asked for them.
            self.draft_hidden.drain(..((self.n_out + 1) * self.n_embd).min(self.draft_hidden.len()));
            self.draft_probs.drain(..(self.n_out + 1).min(self.draft_probs.len()));
            (self.n_out, self.cut) = (0, false);
        } else {
            self.forget_drafts();
        }
    }

    pub(crate) fn forget_drafts(&mut self) {
        self.drafted.clear();
        self.draft_hidden.clear();
        self.draft_probs.clear();
        (self.n_out, self.cut) = (0, false);
    }

    /// Gives out up to `n` draft tokens that are there already, to be verified: those before the first that is less probable
    /// than `p_min`. What is behind that one goes, so that the draft can be continued.
    pub(crate) fn hand_out(&mut self, n: usize, p_min: f32) -> Vec<TokenId> {
        let wanted = n.min(self.drafted.len());
        let sure = self.draft_probs.iter().take(wanted).position(|p| p_min > 0.0 && (p.is_nan() || *p < p_min));
        self.n_out = sure.unwrap_or(wanted);
        self.cut = sure.is_some();
        if self.cut {
            self.drafted.truncate(self.n_out);
            self.draft_hidden.truncate(self.n_out * self.n_embd);
            self.draft_probs.truncate(self.n_out);
        }
        self.drafted[..self.n_out].to_vec()
    }

    /// The draft handed out last ends before a token that was too improbable.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut
    }

    /// The step kept all of such a draft: what came next was not drafted, for want of trust in it.
    pub(crate) fn ended_at_cut(&self, o: &ObservedSequence<'_>) -> bool {
        self.cut && o.n_drafted == self.n_out && o.n_accepted == self.n_out
    }

    /// True when there are draft tokens that are not being verified.
    pub(crate) fn has_drafts(&self) -> bool {
        self.n_out == 0 && !self.drafted.is_empty()
    }

    /// Adds a draft token, the hidden state that it was made from, and how probable it is where that is known.
    pub(crate) fn push_draft(&mut self, token: TokenId, hidden: &[f32], prob: Option<f32>) {
        self.drafted.push(token);
        self.draft_hidden.extend_from_slice(hidden);
        self.draft_probs.extend(prob);
    }

    /// The draft that is being verified, as inputs: tokens and hidden states. None when there are others behind it, or
    /// when the hidden states are not known.
    pub(crate) fn out(&self) -> Option<(&[TokenId], &[f32])> {
        let whole = self.n_out > 0 && self.drafted.len() == self.n_out;
        (whole && self.draft_hidden.len() == self.n_out * self.n_embd).then_some((&self.drafted, &self.draft_hidden))
    }

    /// The first `n` inputs are in cells now.
    pub(crate) fn computed(&mut self, n: usize) {
        self.tokens.drain(..n);
        self.hidden.drain(..n * self.n_embd);
    }
}
