//! Gumbel noise for drafts of sampled generations: that with which the engine will sample, so that a draft falls where the
//! sample will.
//! Owns its layout. Knows nothing of graphs.

use engine::sample::GumbelPlan;
use model::DraftVocab;

/// Fills `out` with what to add to the logits: for each of `depth` draft tokens the words of each sequence, `n_vocab` of
/// them or those of `vocab`. The draft tokens of a sequence stand after so many others that were drafted before. Gives
/// false, and nothing, when no sequence is sampled.
pub(crate) fn fill(
    out: &mut Vec<f32>,
    sequences: &[(Option<GumbelPlan>, usize)],
    depth: usize,
    n_vocab: usize,
    vocab: Option<&DraftVocab>,
) -> bool {
    out.clear();
    if sequences.iter().all(|(plan, _)| plan.is_none()) {
        return false;
    }
    for i in 0..depth {
        for (plan, n_before) in sequences {
            let noise = plan.map(|a| (a.noise((n_before + i) as u64), a.temperature));
            // Dividing the logits would come to the same, and cost a pass over them. Copies not in use stay out.
            let of = |id: u32| noise.map_or(0.0, |(noise, temperature)| temperature * noise.for_draft(id));
            match vocab {
                None => out.extend((0..n_vocab as u32).map(of)),
                Some(vocab) => out.extend(vocab.words().map(|word| word.map_or(-LOGIT_MAX, |word| of(word.0)))),
            }
        }
    }
    true
}

/// Beyond all logits.
const LOGIT_MAX: f32 = 1e30;
