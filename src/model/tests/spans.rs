//! Masks that the device makes of what each row sees: the bits that masks of the host give, whatever the architecture, for prompts
//! in parts and sequences side by side. Tiny random models.

use std::sync::Arc;

use crate::support::{rig, tiny};
use memory::MemoryConfig;
use model::{LoadOptions, Model, Pass, PassOutput, Rows, Runner};
use rig::exact;
use text::TokenId;
use tiny::{Rng, Spec};

/// Logits of the last rows of two sequences, after passes of these numbers of rows of each.
fn logits(model: &Arc<Model>, config: MemoryConfig, by_device: bool) -> (usize, Vec<f32>) {
    let mut memory = model.memory(config).expect("room for the state");
    memory.say_spans(|_| by_device);
    let mut runner = Runner::new(Arc::clone(model), 2).expect("the CPU is there");
    let slots: Vec<_> = (0..2).map(|_| memory.acquire().expect("cleared").expect("a free slot")).collect();
    let (mut rng, mut output) = (Rng::new(5), PassOutput::default());
    let (mut all, mut n_with_spans) = (Vec::new(), 0);
    for lengths in [[70, 70], [3, 100], [1, 1], [66, 9]] {
        let tokens: Vec<TokenId> = (0..lengths[0] + lengths[1]).map(|_| TokenId(rng.below(256) as u32)).collect();
        let step = memory.begin(&[(&slots[0], lengths[0]), (&slots[1], lengths[1])], 1).expect("a step");
        n_with_spans += step.view().segments().iter().filter(|s| s.says_spans).count();
        let pass = Pass { tokens: &tokens, rows: Rows::All, hidden: false };
        runner.run(step.view(), &pass, &mut output).expect("a pass");
        step.commit(&lengths).expect("all rows");
        (0..tokens.len()).for_each(|row| all.extend_from_slice(output.logits(row)));
    }
    (n_with_spans, all)
}

#[test]
fn masks_of_the_device_give_the_bits_of_the_hosts() {
    for arch in model::architectures() {
        let dir = tempfile::TempDir::new().expect("a folder");
        let path = Spec::of(arch).document().write(&dir.path().join("tiny.gguf"));
        let model = Model::open(&path, &LoadOptions::default()).expect("a sound file");
        for v_transposed in [false, true] {
            let config = MemoryConfig { v_transposed, ..exact(2, 512) };
            let (n, found) = logits(&model, config, true);
            let (none, expected) = logits(&model, config, false);
            assert!(n >= 3 && none == 0, "{arch}: {n}, {none}");
            assert!(found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()), "{arch}, {v_transposed}");
        }
    }
}
