//! Which sequences take part in the next step, with how many rows.
//! Pure: reads sequences, changes nothing.

use crate::sequence::Sequence;

/// One sequence's part in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Index among the running sequences.
    pub(crate) sequence: usize,
    /// Rows: from the front of its pending tokens, then its draft.
    pub(crate) n_rows: usize,
    /// Of those, drafted.
    pub(crate) n_draft: usize,
    /// The last pending token's row gives logits, and so do those of the draft: prompt or answer is complete up to here.
    pub(crate) samples: bool,
}

/// Rows of forced tokens that an answer takes at a time: so many have the bits that they have alone (docs/NUMERICS.md).
const MAX_PENDING: usize = 7;

/// Running answers take a row for their last token, or some for forced ones (which have no drafts), and those of their
/// drafts; what is left of the rows goes to one prompt, the one that has waited longest.
/// While answers run, a prompt gets `n_shared` rows at most, so that it does not hold them up for long. A prompt's piece
/// ends where a checkpoint is due.
pub(crate) fn schedule(sequences: &[Sequence], n_batch: usize, n_shared: usize) -> Vec<Part> {
    let ready = |s: &Sequence| !s.finished && !s.is_blocked() && !s.is_cancelled();
    let answers = sequences.iter().enumerate().filter(|(_, s)| ready(s) && !s.is_prefill());
    let mut left = n_batch;
    let mut parts: Vec<Part> = Vec::new();
    for (sequence, s) in answers {
        let (n_draft, n_pending) = (s.draft.len(), s.pending.len().min(MAX_PENDING).min(left));
        if n_pending > 0 && n_pending + n_draft <= left {
            left -= n_pending + n_draft;
            let samples = n_pending == s.pending.len();
            parts.push(Part { sequence, n_rows: n_pending + n_draft, n_draft, samples });
        }
    }
    let room = left.min(if parts.is_empty() { n_batch } else { n_shared });
    let prompts = sequences.iter().enumerate().filter(|(_, s)| ready(s) && s.is_prefill());
    if let Some((sequence, s)) = prompts.min_by_key(|(_, s)| s.last_step)
        && room > 0
    {
        let to_checkpoint = s.checkpoints.front().map_or(usize::MAX, |&at| at - s.n_prompt_done);
        let n_rows = s.pending.len().min(room).min(to_checkpoint);
        parts.push(Part { sequence, n_rows, n_draft: 0, samples: n_rows == s.pending.len() && !s.embeds() });
    }
    parts
}
