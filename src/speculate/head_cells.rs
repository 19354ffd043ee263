//! The KV cells of one head for the sequences of an engine, and the inputs that they lack.
//! Owns how both follow a sequence that begins, is copied, saved or forgotten. Knows nothing of passes.

use engine::SavedDraftError;
use memory::{Memory, MemoryConfig};
use model::{Model, RunError, WhichHead};
use text::TokenId;

use crate::mtp_inputs::MtpInputs;
use crate::saved_mtp::SavedMtp;

/// What one head keeps of all sequences.
pub(crate) struct HeadCells {
    pub(crate) head: WhichHead,
    pub(crate) memory: Memory,
    pub(crate) slots: Vec<MtpInputs>,
    n_embd: usize,
    n_layers: usize,
}

impl HeadCells {
    /// Of the first `n_layers` layers of this head; `None` where the model has it not.
    ///
    /// # Errors
    /// No room for the cells.
    pub(crate) fn new(
        model: &Model,
        head: WhichHead,
        config: MemoryConfig,
        n_layers: usize,
    ) -> Result<Option<Self>, RunError> {
        let Some(mut memory) = model.memory_of_head(head, config, n_layers)? else { return Ok(None) };
        let n_embd = model.n_embd_mtp();
        let n_layers = model.n_mtp_layers().min(n_layers);
        let mut slots = Vec::new();
        while let Some(slot) = memory.acquire()? {
            slots.push(MtpInputs::new(slot, n_embd, n_layers));
        }
        Ok(Some(Self { head, memory, slots, n_embd, n_layers }))
    }

    /// Bytes that [`HeadCells::save`] gives at most.
    pub(crate) fn max_saved_bytes(&self) -> usize {
        SavedMtp::max_bytes(self.n_embd, &self.memory.shape())
    }

    /// The sequence of `slot` stands after `tokens`, whose cells have been kept as far as they are there, with these hidden
    /// states of the last ones.
    pub(crate) fn begin(&mut self, slot: usize, tokens: &[TokenId], hidden: &[f32]) -> Result<(), RunError> {
        let n_cells = self.memory.len(&self.slots[slot].slot)?;
        let s = &mut self.slots[slot];
        let n_kept = s.begin(n_cells, tokens, hidden);
        if n_kept < n_cells {
            self.memory.truncate(&s.slot, n_kept)?;
        }
        Ok(())
    }

    /// The first `n_tokens` of the sequence of slot `from` are those of slot `to`, with the same inputs and cells.
    pub(crate) fn copy(&mut self, from: usize, to: usize, n_tokens: usize) -> Result<(), RunError> {
        let source = &self.slots[from];
        let there = source.saved(self.memory.len(&source.slot)?, n_tokens.saturating_sub(1));
        // Cells that windows have left behind are there no more.
        let earliest = self.memory.rewinds_to(&source.slot)?;
        let Some((n_cells, n_waiting)) = there.filter(|(n_cells, _)| *n_cells >= earliest) else {
            return self.begin(to, &[], &[]);
        };
        let (tokens, hidden) = (source.tokens[..n_waiting].to_vec(), source.hidden[..n_waiting * self.n_embd].to_vec());
        self.memory.copy(&source.slot, &self.slots[to].slot, n_cells, None)?;
        self.slots[to].replace(tokens, hidden);
        Ok(())
    }

    /// Nothing that is kept of the sequence may be used again.
    pub(crate) fn forget(&mut self, slot: usize) -> Result<(), RunError> {
        let s = &mut self.slots[slot];
        s.begin(0, &[], &[]);
        Ok(self.memory.spoil(&s.slot).and_then(|()| self.memory.discard(&s.slot))?)
    }

    /// What is kept of the first `n_tokens` of the sequence, as bytes; nothing where that is too little to go on from.
    pub(crate) fn save(&mut self, model: &Model, slot: usize, n_tokens: usize) -> Result<Vec<u8>, RunError> {
        let s = &self.slots[slot];
        let there = s.saved(self.memory.len(&s.slot)?, n_tokens.saturating_sub(1));
        let Some((n_cells, n_waiting)) = there else { return Ok(Vec::new()) };
        let state = self.memory.save_first(&s.slot, n_cells)?;
        let (tokens, hidden) = (&s.tokens[..n_waiting], &s.hidden[..n_waiting * self.n_embd]);
        SavedMtp::write((model, self.head), self.n_layers, (tokens, hidden), &state)
    }

    /// What [`HeadCells::save`] made of a sequence of `tokens`; `None` where this head saved nothing.
    ///
    /// # Errors
    /// [`SavedDraftError::Refused`]: bytes that are not sound.
    pub(crate) fn read(
        &self,
        model: &Model,
        saved: &[u8],
        tokens: &[TokenId],
    ) -> Result<Option<SavedMtp>, SavedDraftError> {
        SavedMtp::read((model, self.head), self.n_layers, saved, tokens, &self.memory.shape())
    }

    /// The sequence of `slot` is the saved one; nothing is kept of it where there is `None`.
    pub(crate) fn load(&mut self, slot: usize, saved: Option<SavedMtp>) -> Result<(), RunError> {
        let Some(saved) = saved else { return self.begin(slot, &[], &[]) };
        let s = &mut self.slots[slot];
        self.memory.load(&s.slot, &saved.state)?;
        s.replace(saved.tokens, saved.hidden);
        Ok(())
    }
}
