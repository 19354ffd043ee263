//! One sequence, as the head sees it: its cells, the entries that they lack, and guesses that nobody has judged.
//! Owns which token goes with which hidden row. Knows nothing of graphs.

use engine::Observed;
use memory::Slot;
use text::TokenId;

/// One sequence of the head.
pub(crate) struct Entries {
    /// Its cells.
    pub(crate) slot: Slot,
    n_embd: usize,
    /// Entries that the cells lack: tokens, and the hidden row before each, `[n_embd]`.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) hidden: Vec<f32>,
    /// The hidden row of the last token in the model's state; empty when unknown.
    pub(crate) last: Vec<f32>,
    /// The entry of the next token is there already: it was picked in the last step.
    pub(crate) ahead: bool,
    /// The entries begin at the first token, so that a number of entries tells which tokens they are of.
    whole: bool,
    /// Guesses of the tokens after those entries, and the hidden row that each was made from.
    guesses: Vec<TokenId>,
    guess_rows: Vec<f32>,
    /// How probable the head found each; nothing where nobody asked.
    guess_probs: Vec<f32>,
    /// Of the guesses, those that are being judged.
    n_out: usize,
    /// They were fewer than wanted, because the next was too improbable.
    cut: bool,
}

impl Entries {
    pub(crate) fn new(slot: Slot, n_embd: usize) -> Self {
        let (tokens, hidden, last) = (vec![], vec![], vec![]);
        let (guesses, guess_rows, guess_probs) = (vec![], vec![], vec![]);
        let (ahead, whole, n_out, cut) = (false, true, 0, false);
        Self { slot, n_embd, tokens, hidden, last, ahead, whole, guesses, guess_rows, guess_probs, n_out, cut }
    }

    /// The sequence now stands after `n_tokens`, the last of which left `hidden`; `n_cells` entries are in cells. Gives the
    /// number of cells to keep.
    pub(crate) fn begin(&mut self, n_cells: usize, n_tokens: usize, hidden: Option<&[f32]>) -> usize {
        let n_entries = n_tokens.saturating_sub(1);
        // Without the last hidden row, or with entries missing, the cells would not follow each other: start afresh.
        self.whole = n_tokens == 0 || hidden.is_some() && self.has(n_cells, n_entries);
        let n_entries = if self.whole { n_entries } else { 0 };
        let n_waiting = n_entries.saturating_sub(n_cells);
        self.tokens.truncate(n_waiting);
        self.hidden.truncate(n_waiting * self.n_embd);
        self.last.clear();
        self.last.extend_from_slice(hidden.unwrap_or_default());
        self.ahead = false;
        self.forget_guesses();
        n_entries.min(n_cells)
    }

    /// True when the first `n_entries` of the sequence are there, `n_cells` in cells.
    pub(crate) fn has(&self, n_cells: usize, n_entries: usize) -> bool {
        n_entries == 0 || self.whole && n_entries <= n_cells + self.tokens.len()
    }

    /// Takes over the entries behind those in cells, from where the sequence was computed.
    pub(crate) fn replace(&mut self, tokens: Vec<TokenId>, hidden: Vec<f32>) {
        (self.tokens, self.hidden, self.whole, self.ahead) = (tokens, hidden, true, false);
        self.last.clear();
        self.forget_guesses();
    }

    /// Takes the entries of the tokens that a step kept, and of the one picked after them.
    pub(crate) fn take(&mut self, o: &Observed<'_>) {
        let n_embd = self.n_embd;
        for (i, &token) in o.tokens.iter().enumerate() {
            if i == 0 && std::mem::take(&mut self.ahead) {
                continue;
            }
            let before = match i {
                0 => &self.last[..],
                i => &o.hidden[(i - 1) * n_embd..i * n_embd],
            };
            // The first token of all has no hidden row before it and no entry.
            if !before.is_empty() {
                self.tokens.push(token);
                self.hidden.extend_from_slice(before);
            }
        }
        let last = &o.hidden[o.hidden.len() - n_embd..];
        self.last.clear();
        self.last.extend_from_slice(last);
        if let Some(next) = o.next {
            self.tokens.push(next);
            self.hidden.extend_from_slice(last);
            self.ahead = true;
        }
        self.judged(o);
    }

    /// Guesses that follow tokens which came as guessed stay; all others go.
    fn judged(&mut self, o: &Observed<'_>) {
        let all_right = o.n_drafted > 0 && o.n_drafted == self.n_out && o.n_accepted == self.n_out;
        if all_right && o.next.is_some() && o.next.as_ref() == self.guesses.get(self.n_out) {
            self.guesses.drain(..=self.n_out);
            self.guess_rows.drain(..(self.n_out + 1) * self.n_embd);
            self.guess_probs.drain(..(self.n_out + 1).min(self.guess_probs.len()));
            (self.n_out, self.cut) = (0, false);
        } else {
            self.forget_guesses();
        }
    }

    pub(crate) fn forget_guesses(&mut self) {
        self.guesses.clear();
        self.guess_rows.clear();
        self.guess_probs.clear();
        (self.n_out, self.cut) = (0, false);
    }

    /// Gives out up to `n` guesses that are there already, to be judged: those before the first that is less probable than
    /// `p_min`. What is behind that one goes, so that guesses can be guessed on from.
    pub(crate) fn hand_out(&mut self, n: usize, p_min: f32) -> Vec<TokenId> {
        let wanted = n.min(self.guesses.len());
        let sure = self.guess_probs.iter().take(wanted).position(|p| p_min > 0.0 && (p.is_nan() || *p < p_min));
        self.n_out = sure.unwrap_or(wanted);
        self.cut = sure.is_some();
        if self.cut {
            self.guesses.truncate(self.n_out);
            self.guess_rows.truncate(self.n_out * self.n_embd);
            self.guess_probs.truncate(self.n_out);
        }
        self.guesses[..self.n_out].to_vec()
    }

    /// The draft handed out last ends before a guess that was too improbable.
    pub(crate) fn is_cut(&self) -> bool {
        self.cut
    }

    /// The step kept all of such a draft: what came next was not drafted, for want of trust in it.
    pub(crate) fn ended_at_cut(&self, o: &Observed<'_>) -> bool {
        self.cut && o.n_drafted == self.n_out && o.n_accepted == self.n_out
    }

    /// True when there are guesses that are not being judged.
    pub(crate) fn has_guesses(&self) -> bool {
        self.n_out == 0 && !self.guesses.is_empty()
    }

    /// Adds a guess, the hidden row that it was made from, and how probable it is where that is known.
    pub(crate) fn guess(&mut self, token: TokenId, row: &[f32], prob: Option<f32>) {
        self.guesses.push(token);
        self.guess_rows.extend_from_slice(row);
        self.guess_probs.extend(prob);
    }

    /// The guesses that are being judged, as entries: tokens and hidden rows. None when there are others behind them, or
    /// when their rows are not known.
    pub(crate) fn out(&self) -> Option<(&[TokenId], &[f32])> {
        let whole = self.n_out > 0 && self.guesses.len() == self.n_out;
        (whole && self.guess_rows.len() == self.n_out * self.n_embd).then_some((&self.guesses, &self.guess_rows))
    }

    /// The first `n` entries are in cells now.
    pub(crate) fn computed(&mut self, n: usize) {
        self.tokens.drain(..n);
        self.hidden.drain(..n * self.n_embd);
    }
}
