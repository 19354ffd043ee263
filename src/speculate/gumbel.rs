//! Gumbel noise for drafts of sampled generations: that with which the engine will sample, so that a draft falls where the
//! sample will.
//! Owns its layout. Knows nothing of graphs.

use engine::EngineConfig;
use engine::sample::{GumbelNoise, GumbelPlan};
use model::{DraftVocab, Model, Noise, NoiseKey};

/// Words of a row that one thread takes at a time.
const PART: usize = 32 << 10;

/// Threads at most.
const MAX_THREADS: usize = 8;

/// Makes noise; owns what is reused from draft to draft.
#[derive(Debug)]
pub(crate) struct NoiseMaker {
    n_vocab: usize,
    n_threads: usize,
    by_device: bool,
    numbers: Vec<f32>,
    keys: Vec<i32>,
}

impl NoiseMaker {
    /// For drafts of `model` in an engine made with `engine`.
    pub(crate) fn new(model: &Model, engine: &EngineConfig) -> Self {
        Self {
            n_vocab: model.hparams().n_vocab,
            n_threads: n_threads(model, engine),
            by_device: model.makes_noise(),
            numbers: Vec::new(),
            keys: Vec::new(),
        }
    }

    /// The noise of `depth` draft tokens of each sequence among the words of `vocab`, or all. The draft tokens of a sequence stand
    /// after so many others that were drafted before. `None` when no sequence is sampled.
    pub(crate) fn make(
        &mut self,
        sequences: &[(Option<GumbelPlan>, usize)],
        depth: usize,
        vocab: Option<&DraftVocab>,
    ) -> Option<Noise<'_>> {
        if depth == 0 || sequences.iter().all(|(plan, _)| plan.is_none()) {
            return None;
        }
        if self.by_device {
            self.keys.clear();
            let all = (0..depth).flat_map(|i| sequences.iter().map(move |&(plan, n_before)| key(plan, n_before + i)));
            all.for_each(|key| self.keys.extend(key.numbers()));
            return Some(Noise::Keys(&self.keys));
        }
        fill(&mut self.numbers, sequences, depth, self.n_vocab, vocab, self.n_threads)
            .then_some(Noise::Numbers(&self.numbers))
    }
}

/// That of a sequence's draft token with so many before it.
fn key(plan: Option<GumbelPlan>, n_before: usize) -> NoiseKey {
    plan.map_or_else(NoiseKey::default, |plan| NoiseKey {
        key: plan.noise(n_before as u64).key(),
        temperature: plan.temperature,
    })
}

/// Threads for noise: where the model computes on a CPU, its own are waiting for it, and more would be in their way.
fn n_threads(model: &Model, engine: &EngineConfig) -> usize {
    if model.is_on_cpu() { 1 } else { engine.n_threads().min(MAX_THREADS) }
}

/// Fills `out` with what to add to the logits: for each of `depth` draft tokens the words of each sequence, `n_vocab` of
/// them or those of `vocab`. The draft tokens of a sequence stand after so many others that were drafted before. Gives
/// false, and nothing of use, when no sequence is sampled.
fn fill(
    out: &mut Vec<f32>,
    sequences: &[(Option<GumbelPlan>, usize)],
    depth: usize,
    n_vocab: usize,
    vocab: Option<&DraftVocab>,
    n_threads: usize,
) -> bool {
    if sequences.iter().all(|(plan, _)| plan.is_none()) {
        return false;
    }
    let n_words = vocab.map_or(n_vocab, DraftVocab::n_words);
    out.resize(depth * sequences.len() * n_words, 0.0);
    let mut parts: Vec<Part<'_>> = Vec::new();
    for (row, words) in out.chunks_exact_mut(n_words.max(1)).enumerate() {
        let (plan, n_before) = sequences[row % sequences.len()];
        let noise = plan.map(|plan| (plan.noise((n_before + row / sequences.len()) as u64), plan.temperature));
        parts.extend(words.chunks_mut(PART).enumerate().map(|(i, words)| Part { words, first: i * PART, noise }));
    }
    let each = parts.len().div_ceil(n_threads.max(1)).max(1);
    let n_own = each.min(parts.len());
    let (own, others) = parts.split_at_mut(n_own);
    std::thread::scope(|scope| {
        for parts in others.chunks_mut(each) {
            scope.spawn(|| parts.iter_mut().for_each(|part| part.fill(vocab)));
        }
        own.iter_mut().for_each(|part| part.fill(vocab));
    });
    true
}

/// Some words of a row, from number `first` on.
struct Part<'a> {
    words: &'a mut [f32],
    first: usize,
    /// That of the row and its temperature; `None` where nothing is sampled.
    noise: Option<(GumbelNoise, f32)>,
}

impl Part<'_> {
    fn fill(&mut self, vocab: Option<&DraftVocab>) {
        let noise = self.noise;
        // Dividing the logits would come to the same, and cost a pass over them. Copies not in use stay out.
        let of = |id: u32| noise.map_or(0.0, |(noise, temperature)| temperature * noise.for_draft(id));
        match vocab {
            None => (self.first as u32..).zip(&mut *self.words).for_each(|(id, x)| *x = of(id)),
            Some(vocab) => {
                let words = vocab.words().skip(self.first).zip(&mut *self.words);
                words.for_each(|(word, x)| *x = word.map_or(-LOGIT_MAX, |word| of(word.0)));
            }
        }
    }
}

/// Beyond all logits.
const LOGIT_MAX: f32 = 1e30;

#[cfg(test)]
mod tests {
    use engine::sample::{Sampler, SamplingParams};

    use super::*;

    #[test]
    fn any_number_of_threads_makes_the_same_noise() {
        let params = SamplingParams { temperature: 0.7, seed: Some(5), ..SamplingParams::default() };
        let plan = Sampler::new(&params, 100, &|_, _| {}).expect("sound parameters").gumbel_plan();
        assert!(plan.is_some(), "it samples");
        let n_vocab = 2 * PART + 7;
        let made = |n_threads| {
            // What was there before is overwritten.
            let mut out = vec![9.0; 5];
            assert!(fill(&mut out, &[(plan, 3), (None, 0)], 2, n_vocab, None, n_threads));
            out
        };
        let (one, three) = (made(1), made(3));
        assert_eq!(one.len(), 4 * n_vocab);
        assert_eq!(one, three);
        assert_eq!(made(64), one);
        let noise = plan.expect("as above").noise(4);
        assert_eq!(one[2 * n_vocab + 11], 0.7 * noise.for_draft(11), "the second draft token of the first sequence");
        assert!(one[n_vocab..2 * n_vocab].iter().all(|&x| x == 0.0), "a greedy sequence has none");
    }
}
