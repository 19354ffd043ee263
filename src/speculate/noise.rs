//! Noise for drafts of sampled answers: that by which the engine will pick, so that a draft falls where the pick will.
//! Owns its layout. Knows nothing of graphs.

use engine::sample::Ahead;
use model::DraftVocab;

/// Fills `out` with what to add to the logits: for each of `depth` guesses the words of each sequence, `n_vocab` of them or
/// those of `vocab`. The guesses of a sequence stand after so many others that were guessed before. Gives false, and nothing,
/// when no sequence is sampled.
pub(crate) fn fill(
    out: &mut Vec<f32>,
    sequences: &[(Option<Ahead>, usize)],
    depth: usize,
    n_vocab: usize,
    vocab: Option<&DraftVocab>,
) -> bool {
    out.clear();
    if sequences.iter().all(|(ahead, _)| ahead.is_none()) {
        return false;
    }
    for guess in 0..depth {
        for (ahead, n_before) in sequences {
            let noise = ahead.map(|a| (a.noise((n_before + guess) as u64), a.temperature));
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
