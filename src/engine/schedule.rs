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
    /// Rows after these that only fill the pass: nobody reads what they give.
    pub(crate) n_pad: usize,
    /// The last pending token's row gives logits, and so do those of the draft: prompt or answer is complete up to here.
    pub(crate) samples: bool,
}

impl Part {
    /// Rows of the pass that are the part's, with those that only fill it.
    pub(crate) fn n_computed(&self) -> usize {
        self.n_rows + self.n_pad
    }

    /// Snapshots of the state that let a step keep whatever it may have to: a draft may be wrong from its first token on,
    /// and what fills the pass is always dropped. Of a sequence with more rows than snapshots memory has only the newest
    /// state, so as soon as one row may be dropped, each gets a snapshot.
    pub(crate) fn n_snapshots(&self) -> usize {
        if self.n_draft + self.n_pad > 0 { self.n_computed() } else { 1 }
    }
}

/// Which rows may share a pass, so that the bits of an answer's do not depend on those beside them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    /// All rows: fastest.
    Any,
    /// So many rows of answers; prompts alone.
    UpTo(usize),
    /// One answer, always in so many rows; prompts alone.
    Width(usize),
}

impl Company {
    /// Rows that one answer may have in a pass.
    fn max_rows(self) -> usize {
        match self {
            Self::Any => usize::MAX,
            Self::UpTo(n) | Self::Width(n) => n,
        }
    }

    /// The longest draft.
    pub(crate) fn max_draft(self) -> usize {
        self.max_rows() - 1
    }

    /// Rows past those that are kept, at most.
    pub(crate) fn n_past(self) -> usize {
        if let Self::Width(n) = self { n } else { 0 }
    }

    /// Puts the parts of a step into passes. `is_prompt`: those whose rows are a prompt's.
    pub(crate) fn passes(self, parts: Vec<Part>, is_prompt: impl Fn(&Part) -> bool) -> Vec<Vec<Part>> {
        let mut passes: Vec<Vec<Part>> = Vec::new();
        for part in parts {
            let fits = |pass: &Vec<Part>| match self {
                Self::Any => true,
                Self::UpTo(n) => {
                    let n_rows: usize = pass.iter().map(|p| p.n_rows).sum();
                    n_rows + part.n_rows <= n && !pass.iter().any(&is_prompt)
                }
                Self::Width(_) => false,
            };
            let n_pad = match self {
                Self::Width(n) if !is_prompt(&part) => n.saturating_sub(part.n_rows),
                _ => 0,
            };
            let alone = self != Self::Any && is_prompt(&part);
            let part = Part { n_pad, ..part };
            match passes.last_mut().filter(|pass| !alone && fits(pass)) {
                Some(pass) => pass.push(part),
                None => passes.push(vec![part]),
            }
        }
        passes
    }
}

/// Rows of forced tokens that an answer takes at a time: so many have the bits that they have alone (docs/NUMERICS.md). Fewer
/// where passes are narrower.
const MAX_PENDING: usize = 7;

/// Running answers take a row for their last token, or some for forced ones (which have no drafts), and those of their
/// drafts; what is left of the rows goes to one prompt, the one that has waited longest.
/// While answers run, a prompt gets `n_shared` rows at most, so that it does not hold them up for long. A prompt's piece
/// ends where a checkpoint is due.
pub(crate) fn schedule(sequences: &[Sequence], n_batch: usize, n_shared: usize, company: Company) -> Vec<Part> {
    let ready = |s: &Sequence| !s.finished && !s.is_blocked() && !s.is_cancelled();
    let answers = sequences.iter().enumerate().filter(|(_, s)| ready(s) && !s.is_prefill());
    let mut left = n_batch;
    let mut parts: Vec<Part> = Vec::new();
    for (sequence, s) in answers {
        // A draft follows a single pending token, and is as short as a pass needs it.
        let most = MAX_PENDING.min(company.max_rows()).min(left);
        let (n_draft, n_pending) = (s.draft.len(), s.pending.len().min(most));
        if n_pending > 0 && n_pending + n_draft <= left {
            left -= n_pending + n_draft;
            let samples = n_pending == s.pending.len();
            parts.push(Part { sequence, n_rows: n_pending + n_draft, n_draft, n_pad: 0, samples });
        }
    }
    let room = match company {
        Company::Any => left.min(if parts.is_empty() { n_batch } else { n_shared }),
        // Pieces of a prompt have passes of their own and do not depend on who else is there.
        Company::UpTo(_) | Company::Width(_) => n_shared,
    };
    let prompts = sequences.iter().enumerate().filter(|(_, s)| ready(s) && s.is_prefill() && !s.waits);
    if let Some((sequence, s)) = prompts.min_by_key(|(_, s)| s.last_step)
        && room > 0
    {
        let to_checkpoint = s.checkpoints.front().map_or(usize::MAX, |&at| at - s.n_prompt_done);
        let n_rows = s.pending.len().min(room).min(to_checkpoint);
        let samples = n_rows == s.pending.len() && !s.embeds();
        parts.push(Part { sequence, n_rows, n_draft: 0, n_pad: 0, samples });
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(sequence: usize, n_rows: usize) -> Part {
        Part { sequence, n_rows, n_draft: n_rows - 1, n_pad: 0, samples: true }
    }

    /// Rows and padding of each pass; sequence 9 has a prompt.
    fn passes(company: Company, rows: &[(usize, usize)]) -> Vec<Vec<(usize, usize)>> {
        let parts = rows.iter().map(|&(sequence, n)| part(sequence, n)).collect();
        let passes = company.passes(parts, |p| p.sequence == 9);
        passes.iter().map(|pass| pass.iter().map(|p| (p.n_rows, p.n_pad)).collect()).collect()
    }

    /// Whatever a step has to keep of its rows can be kept, by the snapshots that the engine asks for.
    #[test]
    fn every_outcome_of_a_pass_can_be_kept_at_any_width() {
        let layer = memory::Recurrent { n_conv: 1, n_channels: 1, n_heads: 1, d_state: 1 };
        let layout = memory::StateLayout { layers: vec![memory::LayerState::Recurrent(layer)] };
        let widths = (1..=32).map(Company::Width);
        for company in widths.chain([Company::Any, Company::UpTo(7), Company::UpTo(32)]) {
            let max_draft = company.max_draft().min(16);
            let config = memory::MemoryConfig {
                n_slots: 1,
                n_ctx: 256,
                type_k: memory::CacheType::F32,
                type_v: memory::CacheType::F32,
                v_transposed: false,
                n_snapshots: company.n_past().max(max_draft + 1),
                transactional: false,
            };
            let device = ggml::Device::cpu().expect("the CPU is there");
            let mut memory = memory::Memory::new(device, layout.clone(), config).expect("room");
            let slot = memory.acquire().expect("cleared").expect("a free slot");
            let forced = (1..=MAX_PENDING.min(company.max_rows())).map(|n_rows| (n_rows, 0));
            let drafted = (1..=max_draft).map(|n_draft| (1 + n_draft, n_draft));
            for (n_rows, n_draft) in forced.chain(drafted) {
                let part = Part { sequence: 0, n_rows, n_draft, n_pad: 0, samples: true };
                let part = company.passes(vec![part], |_| false)[0][0];
                if let Company::Width(n) = company {
                    assert_eq!(part.n_computed(), n);
                }
                for kept in n_rows - n_draft..=n_rows {
                    let step = memory.begin(&[(&slot, part.n_computed())], part.n_snapshots());
                    let kept = step.expect("a step that can be made").commit(&[kept]);
                    assert!(kept.is_ok(), "{company:?}, {part:?}: {kept:?}");
                    memory.reset(&slot).expect("a slot in use");
                }
            }
            // The tail of a prompt, which is kept whole.
            for n_rows in [1, 5, 40] {
                let part = Part { sequence: 0, n_rows, n_draft: 0, n_pad: 0, samples: true };
                let part = company.passes(vec![part], |_| true)[0][0];
                let step = memory.begin(&[(&slot, part.n_computed())], part.n_snapshots());
                step.expect("a step that can be made").commit(&[n_rows]).expect("all rows");
                memory.reset(&slot).expect("a slot in use");
            }
        }
    }

    #[test]
    fn rows_share_a_pass_as_far_as_they_may() {
        let rows = [(0, 3), (9, 40), (1, 4), (2, 5)];
        assert_eq!(passes(Company::Any, &rows), [[(3, 0), (40, 0), (4, 0), (5, 0)]]);
        assert_eq!(passes(Company::UpTo(7), &rows), [vec![(3, 0)], vec![(40, 0)], vec![(4, 0)], vec![(5, 0)]]);
        assert_eq!(passes(Company::UpTo(9), &rows[2..]), [[(4, 0), (5, 0)]]);
        assert_eq!(passes(Company::Width(8), &rows), [[(3, 5)], [(40, 0)], [(4, 4)], [(5, 3)]]);
    }
}
