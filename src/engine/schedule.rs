//! Which sequences take part in the next engine step, with how many tokens.
//! Pure: reads sequences, changes nothing.

use crate::batch::{BatchPolicy, MAX_FORCED, ScheduledSequence};
use crate::sequence::Sequence;

/// Running generations take one token, or some forced ones (which have no drafts), and their drafts; what is left of the
/// batch goes to one prompt, the one that has waited longest, or to as many as have room if they are embedded.
/// While generations run, a prompt gets `n_shared` tokens at most, so that it does not hold them up for long. A prompt's
/// chunk ends where a checkpoint is due, and not inside of a picture that is computed whole: such a picture may take more room.
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
    let mut prompts: Vec<_> = prompts.collect();
    prompts.sort_by_key(|(_, s)| s.last_step);
    let mut room = room;
    for (i, &(index, s)) in prompts.iter().enumerate() {
        // Prompts to embed are short and many: they fill the batch together. Others are computed one after the other.
        let joins = i == 0 || policy == BatchPolicy::Any && s.embeds() && prompts[0].1.embeds();
        if !joins || room == 0 {
            continue;
        }
        let to_checkpoint = s.checkpoints.front().map_or(usize::MAX, |&at| at - s.n_prompt_done);
        let n_tokens = s.with_whole_pictures(s.pending.len().min(room).min(to_checkpoint));
        let samples = n_tokens == s.pending.len() && !s.embeds();
        room = room.saturating_sub(n_tokens);
        scheduled.push(ScheduledSequence { index, n_tokens, n_draft: 0, n_pad: 0, samples });
    }
    scheduled
}
