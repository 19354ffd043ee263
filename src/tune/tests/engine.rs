//! The function that is trained against the graphs that draft: a head of random numbers, written to a file of its own, makes the
//! same logits in both, down the whole chain.

#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../../tests/support/rig.rs"]
mod rig;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../../tests/support/tiny.rs"]
mod tiny;
#[path = "../../../tests/support/words.rs"]
mod words;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use convert::Source;
use convert::heads::{Extract, Layout, NewHead, WeightType};
use model::{Draft, DraftOutput, LoadOptions, Model, Runner, block_of};
use text::TokenId;
use tiny::{Rng, Spec};
use tune::block::{Head, Layer};

/// Sums of a few hundred floats in another order; measured at most: 6e-7.
const CLOSE: f32 = 1e-5;

const DEPTH: usize = 3;

/// Known entries before the draft.
const N_ENTRIES: usize = 5;

fn numbers(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.below(2000) as f32 / 1000.0 - 1.0).collect()
}

/// A new head of random numbers for the model of `path`: as a file, and as the function.
fn new_head(path: &Path, n_layers: u64, file: &Path, rng: &mut Rng) -> (NewHead, Head) {
    let open = || NewHead::of(Source::open(path).expect("a file"), Some(n_layers)).expect("a model that takes a head");
    let head = open();
    let mut values = HashMap::new();
    let mut layers = vec![Vec::new(); head.n_layers()];
    for t in head.tensors() {
        let ne: Vec<usize> = t.ne.iter().map(|n| *n as usize).collect();
        let numbers: Vec<f32> = numbers(rng, ne.iter().product()).iter().map(|x| x * 0.5).collect();
        let (il, name) = block_of(&t.name).expect("a tensor of a block");
        layers[il as usize - head.n_layer()].push((name.to_owned(), ne, numbers.clone()));
        values.insert(t.name.clone(), numbers);
    }
    let how = Extract { layout: Layout::Slim, dtype: WeightType::Keep };
    let new = open().into_file(values, Vec::new(), how).expect("all tensors have numbers");
    new.write(file, 1, &Default::default()).expect("the folder is writable");
    let device = Device::Cpu;
    let layers = layers.into_iter().map(|tensors| Layer::new(tensors, DType::F32, &device).expect("tensors")).collect();
    let floats = |name: &str| head.floats(name).expect("a readable file");
    let (norm, factors) = (floats("output_norm.weight").expect("a final norm"), floats("rope_freqs.weight"));
    let function = Head::new(head.shape().clone(), layers, (&norm, factors.as_deref()), 64, &device);
    (head, function.expect("a head"))
}

/// What the runtime drafts after these entries, and the logits.
fn drafted(model: &Arc<Model>, tokens: &[TokenId], hidden: &[f32]) -> DraftOutput {
    let mut memory = model.head_memory(rig::exact(1, 64)).expect("state").expect("a head");
    let slot = memory.acquire().expect("state").expect("a free slot");
    let n_layers = model.n_mtp_layers();
    let n_rows = if n_layers > 1 { tokens.len() } else { tokens.len() + DEPTH - 1 };
    let step = memory.begin(&[(&slot, n_rows)], 1).expect("a step that can be made");
    let wanted = Draft {
        tokens,
        hidden,
        n_entries: &[tokens.len()],
        depth: DEPTH.min(if n_layers > 1 { n_layers } else { DEPTH }),
        verbose: true,
        ..Draft::default()
    };
    let mut output = DraftOutput::default();
    let mut runner = Runner::new(Arc::clone(model), 1).expect("the CPU is there");
    runner.draft(step.view(), &wanted, &mut output).expect("a draft that can be computed");
    output
}

#[test]
fn a_trained_head_makes_the_same_logits_in_the_runtime() {
    let dir = tempfile::TempDir::new().expect("a folder");
    for (i, arch) in ["qwen35", "qwen35moe", "qwen3next", "qwen3", "qwen3moe", "qwen2", "llama"].into_iter().enumerate()
    {
        let mut rng = Rng::new(7 + i as u64);
        let path = Spec { nextn: false, ..Spec::of(arch) }.document().write(&dir.path().join("tiny.gguf"));
        for n_layers in [1, 3] {
            let file = dir.path().join("head.gguf");
            let (head, function) = new_head(&path, n_layers, &file, &mut rng);
            let options = LoadOptions { head: Some(file), ..LoadOptions::default() };
            let model = Model::open(&path, &options).expect("a sound head");
            let n_embd = head.shape().n_embd;
            let n_vocab = model.hparams().n_vocab;
            let mut entries: Vec<TokenId> = (0..N_ENTRIES).map(|_| TokenId(rng.below(n_vocab) as u32)).collect();
            let hidden = numbers(&mut rng, N_ENTRIES * n_embd);
            // Layers of their own see texts that are known: the runtime's and the function's have the same entries then.
            let found = drafted(&model, &entries, &hidden);
            entries.extend(&found.tokens[0]);

            // A text whose first token stands before all entries.
            let n = 1 + entries.len() + 1;
            let mut embeddings = vec![0.0; n_embd];
            let ids: Vec<u32> = entries.iter().map(|id| id.0).collect();
            embeddings.extend(head.rows("token_embd.weight", &ids).expect("a file").expect("an embedding"));
            embeddings.resize(n * n_embd, 0.0);
            let mut states = hidden.clone();
            states.resize(n * n_embd, 0.0);
            let tensor = |x: Vec<f32>| Tensor::from_vec(x, (1, n, n_embd), &Device::Cpu).expect("a tensor");
            let outs = function.unroll(&tensor(embeddings), &tensor(states), DEPTH).expect("a chain");
            let output =
                ["output.weight", "token_embd.weight"].iter().find_map(|name| head.floats(name).expect("a file"));
            let output =
                Tensor::from_vec(output.expect("a matrix"), (n_vocab, n_embd), &Device::Cpu).expect("a tensor");
            assert_eq!(found.logits.len(), DEPTH, "{arch}");
            for (k, logits) in found.logits.iter().enumerate() {
                let h = outs[k].get(0).and_then(|out| out.narrow(0, N_ENTRIES - 1, 1)).expect("the last entry's row");
                let own = h.matmul(&output.t().expect("a matrix")).and_then(|x| x.flatten_all()?.to_vec1::<f32>());
                let own = own.expect("logits");
                let size = logits.iter().map(|x| x * x).sum::<f32>().sqrt();
                let apart = logits.iter().zip(&own).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt();
                println!("{arch}, {n_layers} layers, draft {k}: {:e}", apart / size);
                assert!(apart < CLOSE * size, "{arch}, {n_layers} layers, draft {k}: {apart} of {size}");
            }
        }
    }
}
