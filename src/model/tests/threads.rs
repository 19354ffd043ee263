//! The logits of a model have the same bits with any number of threads, in prompts and one token at a time: so an executor may
//! change it between passes, where other programs take processors.

use std::path::Path;
use std::sync::Arc;

use crate::support::{rig, tiny};
use memory::{CacheType, MemoryConfig};
use model::{LoadOptions, Model, Pass, PassOutput, Rows, Runner};
use rig::exact;
use text::TokenId;
use tiny::{Rng, Spec};

/// The bits of the logits of a prompt's last token, then of passes of 1, 3 and 7 tokens.
fn bits(model: &Arc<Model>, config: MemoryConfig, n_threads: usize, n_prompt: usize) -> Vec<u32> {
    let mut memory = model.memory(config).expect("room for the state");
    let slot = memory.acquire().expect("cleared").expect("a free slot");
    let mut runner = Runner::new(Arc::clone(model), n_threads).expect("the CPU is there");
    let (mut output, mut rng, mut all) = (PassOutput::default(), Rng::new(7), Vec::new());
    for n in [n_prompt, 1, 3, 7] {
        let tokens: Vec<TokenId> = (0..n).map(|_| TokenId(rng.below(256) as u32)).collect();
        let step = memory.begin(&[(&slot, n)], 1).expect("a step that can be made");
        let last = [n - 1];
        let rows = if n == n_prompt { Rows::Some(&last) } else { Rows::All };
        runner.run(step.view(), &Pass { tokens: &tokens, rows, hidden: false }, &mut output).expect("a pass");
        step.commit(&[n]).expect("all rows");
        let n_rows = if n == n_prompt { 1 } else { n };
        all.extend((0..n_rows).flat_map(|row| output.logits(row).iter().map(|x| x.to_bits()).collect::<Vec<_>>()));
    }
    all
}

fn holds(name: &str, model: &Arc<Model>) {
    for cache in [CacheType::F16, CacheType::F32, CacheType::Q8_0] {
        for v_transposed in [false, true] {
            if v_transposed && cache == CacheType::Q8_0 {
                continue;
            }
            let config = MemoryConfig { type_k: cache, type_v: cache, v_transposed, ..exact(1, 768) };
            for n_prompt in [37, 600] {
                let one = bits(model, config, 1, n_prompt);
                for n_threads in [2, 3, 4] {
                    let equal = one == bits(model, config, n_threads, n_prompt);
                    assert!(
                        equal,
                        "{name}, {cache}, transposed {v_transposed}, {n_prompt} tokens, {n_threads} threads"
                    );
                }
            }
        }
    }
}

#[test]
#[cfg_attr(
    not(target_arch = "x86_64"),
    ignore = "products of two rows and columns by ggml depend on how rows are shared out"
)]
fn quantised_models_have_the_same_bits_with_any_number_of_threads() {
    for file in ["pocket-q4_k_m.gguf", "pocket-moe-q8_0.gguf"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(file);
        holds(file, &Model::open(&path, &LoadOptions::default()).expect("a model of the repository"));
    }
}

#[test]
#[cfg_attr(
    not(target_arch = "x86_64"),
    ignore = "products of two rows and columns by ggml depend on how rows are shared out"
)]
fn models_of_floats_have_the_same_bits_with_any_number_of_threads() {
    let archs = ["llama", "qwen3moe", "qwen35", "mistral3", "glm4"].map(Spec::of);
    // ggml would part the cells of one key head among its threads.
    let one_key_head = Spec { n_head: 4, n_head_kv: 1, ..Spec::of("llama") };
    for spec in archs.into_iter().chain([one_key_head]) {
        let dir = tempfile::TempDir::new().expect("a folder");
        let path = spec.document().write(&dir.path().join("tiny.gguf"));
        let model = Model::open(&path, &LoadOptions::default()).expect("a sound file");
        holds(&format!("{}, {} key heads", spec.arch, spec.n_head_kv), &model);
    }
}
