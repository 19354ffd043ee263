//! What one forward pass computes: tokens of scheduled sequences, and which of them may share a batch.
//! Pure arithmetic over counts. Knows nothing of requests.

/// Forced tokens that a generation computes at a time: so many have the bits that they have alone (docs/NUMERICS.md). Fewer
/// where batches are narrower.
pub(crate) const MAX_FORCED: usize = 7;

/// One sequence's part in an engine step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScheduledSequence {
    /// Index among the running sequences.
    pub(crate) index: usize,
    /// Tokens: from the front of its pending ones, then its draft.
    pub(crate) n_tokens: usize,
    /// Of those, drafted.
    pub(crate) n_draft: usize,
    /// Tokens after these that only fill the batch: nobody reads what they give.
    pub(crate) n_pad: usize,
    /// The last pending token gives logits, and so does each token of the draft: the prompt or generation is complete up to
    /// here.
    pub(crate) samples: bool,
}

impl ScheduledSequence {
    /// Tokens of the batch that are the sequence's, with those that only fill it.
    pub(crate) fn n_computed(&self) -> usize {
        self.n_tokens + self.n_pad
    }

    /// Tokens whose logits are computed.
    pub(crate) fn n_outputs(&self) -> usize {
        if self.samples { 1 + self.n_draft + self.n_pad } else { 0 }
    }

    /// Snapshots of the state that let a step keep whatever it may have to: a draft may be wrong from its first token on,
    /// and what fills the batch is always dropped. Of a sequence with more tokens than snapshots memory has only the newest
    /// state, so as soon as one token may be dropped, each gets a snapshot.
    pub(crate) fn n_snapshots(&self) -> usize {
        if self.n_draft + self.n_pad > 0 { self.n_computed() } else { 1 }
    }
}

/// Which tokens may share a batch, so that the bits of a generation do not depend on those beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchPolicy {
    /// All tokens: fastest.
    Any,
    /// So many tokens of generations; prompts alone.
    UpTo(usize),
    /// One generation, always in a batch of so many tokens; prompts alone.
    Width(usize),
}

impl BatchPolicy {
    /// Tokens that one generation may have in a batch.
    pub(crate) fn max_tokens(self) -> usize {
        match self {
            Self::Any => usize::MAX,
            Self::UpTo(n) | Self::Width(n) => n,
        }
    }

    /// The longest draft.
    pub(crate) fn max_draft(self) -> usize {
        self.max_tokens() - 1
    }

    /// Tokens past those that are kept, at most.
    pub(crate) fn n_past(self) -> usize {
        if let Self::Width(n) = self { n } else { 0 }
    }

    /// Puts the sequences of a step into batches. `is_prefill`: those whose tokens are a prompt's.
    pub(crate) fn split(
        self,
        scheduled: Vec<ScheduledSequence>,
        is_prefill: impl Fn(&ScheduledSequence) -> bool,
    ) -> Vec<Vec<ScheduledSequence>> {
        let mut batches: Vec<Vec<ScheduledSequence>> = Vec::new();
        for s in scheduled {
            let fits = |batch: &Vec<ScheduledSequence>| match self {
                Self::Any => true,
                Self::UpTo(n) => {
                    let n_tokens: usize = batch.iter().map(|p| p.n_tokens).sum();
                    n_tokens + s.n_tokens <= n && !batch.iter().any(&is_prefill)
                }
                Self::Width(_) => false,
            };
            let n_pad = match self {
                Self::Width(n) if !is_prefill(&s) => n.saturating_sub(s.n_tokens),
                _ => 0,
            };
            let alone = self != Self::Any && is_prefill(&s);
            let s = ScheduledSequence { n_pad, ..s };
            match batches.last_mut().filter(|batch| !alone && fits(batch)) {
                Some(batch) => batch.push(s),
                None => batches.push(vec![s]),
            }
        }
        batches
    }
}

/// Parts the sequences of a step into those that are alike, each in their order.
pub(crate) fn alike<K: PartialEq>(
    scheduled: Vec<ScheduledSequence>,
    kind: impl Fn(&ScheduledSequence) -> K,
) -> Vec<Vec<ScheduledSequence>> {
    let mut groups: Vec<(K, Vec<ScheduledSequence>)> = Vec::new();
    for s in scheduled {
        let kind = kind(&s);
        match groups.iter_mut().find(|(of, _)| *of == kind) {
            Some((_, group)) => group.push(s),
            None => groups.push((kind, vec![s])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheduled(index: usize, n_tokens: usize) -> ScheduledSequence {
        ScheduledSequence { index, n_tokens, n_draft: n_tokens - 1, n_pad: 0, samples: true }
    }

    /// Tokens and padding of each batch; sequence 9 has a prompt.
    fn batches(policy: BatchPolicy, tokens: &[(usize, usize)]) -> Vec<Vec<(usize, usize)>> {
        let all = tokens.iter().map(|&(index, n)| scheduled(index, n)).collect();
        let batches = policy.split(all, |p| p.index == 9);
        batches.iter().map(|batch| batch.iter().map(|p| (p.n_tokens, p.n_pad)).collect()).collect()
    }

    /// Whatever a step has to keep of its tokens can be kept, by the snapshots that the engine asks for.
    #[test]
    fn every_outcome_of_a_batch_can_be_kept_at_any_width() {
        let layer =
            memory::Recurrent { n_conv: 1, n_channels: 1, n_heads: 1, d_state: 1, d_head: 1, is_delta_net: false };
        let layout = memory::StateLayout { layers: vec![memory::LayerState::Recurrent(layer)] };
        let widths = (1..=32).map(BatchPolicy::Width);
        for policy in widths.chain([BatchPolicy::Any, BatchPolicy::UpTo(7), BatchPolicy::UpTo(32)]) {
            let max_draft = policy.max_draft().min(16);
            let config = memory::MemoryConfig {
                n_slots: 1,
                n_ctx: 256,
                type_k: memory::CacheType::F32,
                type_v: memory::CacheType::F32,
                v_transposed: false,
                n_snapshots: policy.n_past().max(max_draft + 1),
                transactional: false,
                max_rows: None,
                rotate: true,
            };
            let device = ggml::Device::cpu().expect("the CPU is there");
            let mut memory = memory::Memory::new(device, layout.clone(), config).expect("room");
            let slot = memory.acquire().expect("cleared").expect("a free slot");
            let forced = (1..=MAX_FORCED.min(policy.max_tokens())).map(|n_tokens| (n_tokens, 0));
            let drafted = (1..=max_draft).map(|n_draft| (1 + n_draft, n_draft));
            for (n_tokens, n_draft) in forced.chain(drafted) {
                let s = ScheduledSequence { index: 0, n_tokens, n_draft, n_pad: 0, samples: true };
                let s = policy.split(vec![s], |_| false)[0][0];
                if let BatchPolicy::Width(n) = policy {
                    assert_eq!(s.n_computed(), n);
                }
                for kept in n_tokens - n_draft..=n_tokens {
                    let step = memory.begin(&[(&slot, s.n_computed())], s.n_snapshots());
                    let kept = step.expect("a step that can be made").commit(&[kept]);
                    assert!(kept.is_ok(), "{policy:?}, {s:?}: {kept:?}");
                    memory.reset(&slot).expect("a slot in use");
                }
            }
            // The tail of a prompt, which is kept whole.
            for n_tokens in [1, 5, 40] {
                let s = ScheduledSequence { index: 0, n_tokens, n_draft: 0, n_pad: 0, samples: true };
                let s = policy.split(vec![s], |_| true)[0][0];
                let step = memory.begin(&[(&slot, s.n_computed())], s.n_snapshots());
                step.expect("a step that can be made").commit(&[n_tokens]).expect("all tokens");
                memory.reset(&slot).expect("a slot in use");
            }
        }
    }

    #[test]
    fn tokens_share_a_batch_as_far_as_they_may() {
        let tokens = [(0, 3), (9, 40), (1, 4), (2, 5)];
        assert_eq!(batches(BatchPolicy::Any, &tokens), [[(3, 0), (40, 0), (4, 0), (5, 0)]]);
        assert_eq!(batches(BatchPolicy::UpTo(7), &tokens), [vec![(3, 0)], vec![(40, 0)], vec![(4, 0)], vec![(5, 0)]]);
        assert_eq!(batches(BatchPolicy::UpTo(9), &tokens[2..]), [[(4, 0), (5, 0)]]);
        assert_eq!(batches(BatchPolicy::Width(8), &tokens), [[(3, 5)], [(40, 0)], [(4, 4)], [(5, 3)]]);
    }

    #[test]
    fn sequences_are_parted_by_kind_and_keep_their_order() {
        let all = (0..5).map(|index| scheduled(index, 1)).collect();
        let groups = alike(all, |s| s.index % 2);
        let indices: Vec<Vec<usize>> = groups.iter().map(|group| group.iter().map(|s| s.index).collect()).collect();
        assert_eq!(indices, [vec![0, 2, 4], vec![1, 3]]);
    }
}
