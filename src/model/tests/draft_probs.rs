//! How probable the head finds its draft tokens: the softmax of the logits that it picks them from, against a plain one.

use std::sync::Arc;

use crate::support::{rig, tiny};
use model::{Draft, DraftOutput, DraftVocab, LoadOptions, Model, Noise, NoiseKey, Runner};
use rig::exact;
use text::TokenId;
use tiny::{Rng, Spec};

/// Sums of a few hundred floats; measured at most: 2e-7.
const CLOSE: f64 = 2e-6;

const SEED: u64 = 20;
const DEPTH: usize = 3;
/// Entries of the two sequences.
const N_ENTRIES: [usize; 2] = [2, 1];

/// One draft of two sequences.
pub fn draft(model: &Arc<Model>, vocab: Option<&DraftVocab>, noise: Option<Noise<'_>>, probs: bool) -> DraftOutput {
    let n_embd = model.hparams().n_embd;
    let mut rng = Rng::new(SEED);
    let n: usize = N_ENTRIES.iter().sum();
    let tokens: Vec<TokenId> = (0..n).map(|_| TokenId(rng.below(256) as u32)).collect();
    let hidden: Vec<f32> = (0..n * n_embd).map(|_| rng.below(2000) as f32 / 1000.0 - 1.0).collect();
    let mut memory = model.head_memory(exact(2, 64)).expect("state").expect("a head");
    let slots = [(); 2].map(|()| memory.acquire().expect("state").expect("a free slot"));
    let parts: Vec<_> = slots.iter().zip(N_ENTRIES.map(|n| n + DEPTH - 1)).collect();
    let step = memory.begin(&parts, 1).expect("a step that can be made");
    let (tokens, hidden, n_entries) = (&tokens, &hidden, &N_ENTRIES);
    let wanted =
        Draft { tokens, hidden, n_entries, depth: DEPTH, vocab, noise, verbose: true, probs, ..Draft::default() };
    let mut output = DraftOutput::default();
    let mut runner = Runner::new(Arc::clone(model), 1).expect("the CPU is there");
    runner.draft(step.view(), &wanted, &mut output).expect("a draft that can be computed");
    output
}

#[test]
fn a_draft_token_is_as_probable_as_the_softmax_of_the_heads_logits_says() {
    println!("seed {SEED}");
    for arch in ["qwen35", "qwen35moe"] {
        let dir = tempfile::TempDir::new().expect("a folder");
        let path = Spec { nextn: true, ..Spec::of(arch) }.document().write(&dir.path().join("tiny.gguf"));
        let model = Model::open(&path, &LoadOptions::default()).expect("a sound file");
        let mut part = DraftVocab::new(&model, 100, 16).expect("room for a part of the vocabulary");
        part.see(&model, [101, 250, 133].map(TokenId)).expect("three copies");
        for vocab in [None, Some(&part)] {
            let all = || (0..model.hparams().n_vocab as u32).map(|id| Some(TokenId(id))).collect();
            let words: Vec<Option<TokenId>> = vocab.map_or_else(all, |vocab| vocab.words().collect());
            let mut rng = Rng::new(SEED);
            let mut some =
                |word: &Option<TokenId>| if word.is_some() { rng.below(4000) as f32 / 1000.0 } else { -1e30 };
            let noise: Vec<f32> =
                (0..2 * DEPTH).flat_map(|_| words.iter().map(&mut some).collect::<Vec<_>>()).collect();
            let mut least = 1.0;
            for noise in [None, Some(Noise::Numbers(&noise))] {
                let found = draft(&model, vocab, noise, true);
                for (i, logits) in found.logits.iter().enumerate() {
                    for (sequence, logits) in logits.chunks_exact(words.len()).enumerate() {
                        let sum: f64 = words
                            .iter()
                            .zip(logits)
                            .filter(|(w, _)| w.is_some())
                            .map(|(_, l)| f64::from(*l).exp())
                            .sum();
                        let token = found.tokens[sequence][i];
                        let place = words.iter().position(|word| *word == Some(token)).expect("a word to draft from");
                        let expected = f64::from(logits[place]).exp() / sum;
                        let p = f64::from(found.probs[sequence][i]);
                        assert!(
                            (p - expected).abs() <= CLOSE,
                            "{arch}, draft token {i} of {sequence}: {p}, {expected} expected"
                        );
                        least = p.min(least);
                    }
                }
                let without = draft(&model, vocab, noise, false);
                assert_eq!(
                    (&without.tokens, &without.logits),
                    (&found.tokens, &found.logits),
                    "asking changes nothing"
                );
                assert!(without.probs.is_empty() && found.probs.iter().all(|of| of.len() == DEPTH));
            }
            assert!(least < 0.5, "{arch}: probabilities that are not all near 1: {least}");
        }
    }
}

#[test]
fn noise_made_from_keys_is_that_of_the_numbers() {
    println!("seed {SEED}");
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = Spec { nextn: true, ..Spec::of("qwen35") }.document().write(&dir.path().join("tiny.gguf"));
    let model = Model::open(&path, &LoadOptions::default()).expect("a sound file");
    let mut part = DraftVocab::new(&model, 100, 16).expect("room for a part of the vocabulary");
    part.see(&model, [101, 250].map(TokenId)).expect("two copies");
    let mut rng = Rng::new(SEED);
    for vocab in [None, Some(&part)] {
        // The second sequence is not sampled.
        let keys: Vec<NoiseKey> = (0..2 * DEPTH)
            .map(|i| NoiseKey {
                key: (rng.below(1 << 30) as u64) << 34 | rng.below(1 << 30) as u64,
                temperature: if i % 2 == 0 { 3.0 } else { 0.0 },
            })
            .collect();
        let all = || (0..model.hparams().n_vocab as u32).map(|id| Some(TokenId(id))).collect();
        let words: Vec<Option<TokenId>> = vocab.map_or_else(all, |vocab| vocab.words().collect());
        let of = |key: &NoiseKey, id: u32| match key.temperature {
            0.0 => 0.0,
            temperature => temperature * ggml::gumbel(key.key, id),
        };
        let row = |key: &NoiseKey| words.iter().map(|w| w.map_or(-1e30, |w| of(key, w.0))).collect::<Vec<_>>();
        let numbers: Vec<f32> = keys.iter().flat_map(row).collect();
        let keys: Vec<i32> = keys.iter().flat_map(|key| key.numbers()).collect();
        let by_host = draft(&model, vocab, Some(Noise::Numbers(&numbers)), false).tokens;
        let by_device = draft(&model, vocab, Some(Noise::Keys(&keys)), false).tokens;
        let likeliest = draft(&model, vocab, None, false).tokens;
        assert_eq!(by_device, by_host);
        assert_eq!(by_device[1], likeliest[1], "no noise");
        assert_ne!(by_device[0], likeliest[0], "noise of this temperature is louder than the logits of a tiny model");
    }
}
