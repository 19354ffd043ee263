//! Which sequences take part in the next engine step, with how many tokens.
//! Pure: reads sequences, changes nothing.

use crate::batch::{BatchPolicy, MAX_FORCED, ScheduledSequence};
use crate::sequence::Sequence;

/// Running generations take one token, or some forced ones (which have no drafts), and their drafts; what is left of the
/// batch goes to one prompt, the one that has waited longest.
/// While generations run, a prompt gets `n_shared` tokens at most, so that it does not hold them up for long. A prompt's
/// chunk ends where a checkpoint is due.
pub(crate) fn schedule(
    sequences: &[Sequence],
    n_batch: usize,
    n_shared: usize,
    policy: BatchPolicy,
) -> Vec<ScheduledSequence> {
    let ready = |s: &Sequence| !s.finished && !s.is_blocked() && !s.is_cancelled();
    let generating = sequences.iter().enumerate().filter(|(_, s)| ready(s) && !s.is_prefill());
    let mut left = n_batch;
    let mut scheduled: Vec<ScheduledSequence> = Vec::new();
    for (index, s) in generating {
        // A draft follows a single pending token, and is as short as a batch needs it.
        let most = MAX_FORCED.min(policy.max_tokens()).min(left);
        let (n_draft, n_pending) = (s.draft.len(), s.pending.len().min(most));
        if n_pending > 0 && n_pending + n_draft <= left {
            left -= n_pending + n_draft;
            let samples = n_pending == s.pending.len();
            scheduled.push(ScheduledSequence { index, n_tokens: n_pending + n_draft, n_draft, n_pad: 0, samples });
        }
    }
    let room = match policy {
        BatchPolicy::Any => left.min(if scheduled.is_empty() { n_batch } else { n_shared }),
        // Chunks of a prompt have batches of their own and do not depend on who else is there.
        BatchPolicy::UpTo(_) | BatchPolicy::Width(_) => n_shared,
    };
    let prompts = sequences.iter().enumerate().filter(|(_, s)| ready(s) && s.is_prefill() && !s.waits);
    if let Some((index, s)) = prompts.min_by_key(|(_, s)| s.last_step)
        && room > 0
    {
        let to_checkpoint = s.checkpoints.front().map_or(usize::MAX, |&at| at - s.n_prompt_done);
        let n_tokens = s.pending.len().min(room).min(to_checkpoint);
        let samples = n_tokens == s.pending.len() && !s.embeds();
        scheduled.push(ScheduledSequence { index, n_tokens, n_draft: 0, n_pad: 0, samples });
    }
    scheduled
}
