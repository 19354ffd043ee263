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

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use convert::Source;
use convert::heads::{Extract, Layout, NewHead, WeightType};
use model::{
    Draft, DraftOutput, HeadFfn, HeadGate, HeadGlu, HeadScores, HeadShape, LoadOptions, Model, Runner, block_of,
};
use text::TokenId;
use tiny::{Document, Meta, Rng, Spec};
use tune::block::{Head, Layer};

/// Sums of a few hundred floats in another order; measured at most: 6e-7.
const CLOSE: f32 = 1e-5;

/// Those whose heads can be trained, with keys beside those of [`Spec::of`].
fn specs() -> Vec<Spec> {
    let plain = ["qwen35", "qwen35moe", "qwen3next", "qwen3", "qwen3moe", "qwen2", "llama", "glm4moe", "mimo2"];
    let rest = ["step35", "deepseek2", "nemotron_h", "nemotron_h_moe"];
    let mut specs: Vec<Spec> = plain.into_iter().chain(rest).map(Spec::of).collect();
    let with = |arch, more: &[(&'static str, Meta)]| {
        let spec = Spec::of(arch);
        Spec { more: spec.more.iter().chain(more).cloned().collect(), ..spec }
    };
    let yarn = [
        ("rope.scaling.type", Meta::Str("yarn".into())),
        ("rope.scaling.factor", Meta::F32(4.0)),
        ("rope.scaling.original_context_length", Meta::U32(64)),
    ];
    specs.push(with("qwen3", &yarn));
    // A window that ends within a draft.
    specs.push(with("mimo2", &[("attention.sliding_window", Meta::U32(2))]));
    // Limits in all layers, and full layers alone, which rotate otherwise.
    specs.push(with("step35", &[("swiglu_clamp_shexp", Meta::F32(0.4))]));
    specs.push(with("step35", &[("attention.sliding_window_pattern", Meta::Bools(vec![true, true, false, false]))]));
    // Latent attention whose queries are made at once and get longer, with one matrix for keys and values.
    let joint = [
        ("attention.q_lora_rank", Meta::U32(0)),
        ("attention.key_length_mla", Meta::U32(0)),
        ("attention.key_length", Meta::U32(24 + 32)),
        ("attention.value_length", Meta::U32(20)),
        ("attention.temperature_scale", Meta::F32(0.4)),
        ("rope.scaling.original_context_length", Meta::U32(4)),
    ];
    specs.push(with("deepseek2", &joint));
    specs.push(with("deepseek2", &[("expert_gating_func", Meta::U32(3)), ("expert_group_count", Meta::U32(1))]));
    specs
}

/// A model without a head; that of `mimo2` has its queries, keys and values in one matrix, as published files do.
fn document(spec: Spec) -> Document {
    let (arch, n_layer) = (spec.arch, spec.n_layer);
    let mut document = Spec { nextn: false, ..spec }.document();
    for il in 0..if arch == "mimo2" { n_layer } else { 0 } {
        let name = |part: &str| format!("blk.{il}.{part}.weight");
        document.fuse(&[&name("attn_q"), &name("attn_k"), &name("attn_v")], &name("attn_qkv"));
    }
    document
}

/// What of a head the test is about, besides what all have.
fn words_of(shape: &HeadShape) -> Vec<&'static str> {
    let a = &shape.attention;
    let experts = match &shape.ffn {
        HeadFfn::Moe(moe) => Some(*moe),
        HeadFfn::Dense(_) => None,
    };
    let glu = match &shape.ffn {
        HeadFfn::Dense(inner) => inner.glu,
        HeadFfn::Moe(moe) => moe.each.glu,
    };
    let is_there = [
        ("a window", a.window.is_some()),
        ("sinks", a.sinks),
        ("a factor on values", a.value_scale != 1.0),
        ("normed heads", a.qk_norm),
        ("a gate by elements", a.gate == Some(HeadGate::Elements)),
        ("a gate by heads", a.gate == Some(HeadGate::Heads)),
        ("no rotation", a.rotation.frequencies.is_empty()),
        ("a magnitude", a.rotation.magnitude != 1.0),
        ("queries that get longer", a.temperature.is_some()),
        ("matrices of heads", a.latent.is_some_and(|latent| latent.by_head && latent.low_rank_q)),
        ("a matrix of all heads", a.latent.is_some_and(|latent| !latent.by_head && !latent.low_rank_q)),
        ("a layer norm", shape.layer_norm.is_some()),
        ("limits", matches!(glu, HeadGlu::Limited(_))),
        ("a squared ReLU", glu == HeadGlu::SquaredRelu),
        ("groups", experts.is_some_and(|moe| moe.router.groups.is_some())),
        ("sigmoids", experts.is_some_and(|moe| moe.router.scores == HeadScores::Sigmoid)),
        ("a softmax of the chosen", experts.is_some_and(|moe| moe.router.scores == HeadScores::SoftmaxOfChosen)),
        ("a narrow image", experts.is_some_and(|moe| moe.narrow)),
        ("a shared expert", experts.is_some_and(|moe| moe.shared.is_some_and(|shared| !shared.gated))),
    ];
    is_there.into_iter().filter(|(_, is_there)| *is_there).map(|(word, _)| word).collect()
}

/// All of [`words_of`].
const N_WORDS: usize = 19;

const DEPTH: usize = 3;

/// Known entries before the draft, more than a window has.
const N_ENTRIES: usize = 9;

fn numbers(rng: &mut Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.below(2000) as f32 / 1000.0 - 1.0).collect()
}

/// A new head of random numbers for the model of `path`: as a file, and as the function.
fn new_head(path: &Path, n_layers: u64, file: &Path, rng: &mut Rng) -> (NewHead, Head) {
    let open = || NewHead::of(Source::open(path).expect("a file"), Some(n_layers)).expect("a model that takes a head");
    let head = open();
    let mut values = HashMap::new();
    for t in head.tensors() {
        let n = t.ne.iter().product::<u64>() as usize;
        values.insert(t.name.clone(), numbers(rng, n).iter().map(|x| x * 0.5).collect::<Vec<f32>>());
    }
    let function = function(&head, |name| values[name].clone());
    let how = Extract { layout: Layout::Slim, dtype: WeightType::Keep };
    let new = open().into_file(values, Vec::new(), how).expect("all tensors have numbers");
    new.write(file, 1, &Default::default()).expect("the folder is writable");
    (head, function)
}

/// A head of these numbers as the function.
fn function(head: &NewHead, numbers: impl Fn(&str) -> Vec<f32>) -> Head {
    let mut layers = vec![Vec::new(); head.n_layers()];
    for t in head.tensors().iter().filter(|t| !t.name.ends_with("shared_head_head.weight")) {
        let ne: Vec<usize> = t.ne.iter().map(|n| *n as usize).collect();
        let (il, name) = block_of(&t.name).expect("a tensor of a block");
        layers[il as usize - head.n_layer()].push((name.to_owned(), ne, numbers(&t.name)));
    }
    let device = Device::Cpu;
    let layers = layers.into_iter().map(|tensors| Layer::new(tensors, DType::F32, &device).expect("tensors")).collect();
    let floats = |name: &str| head.floats(name).expect("a readable file");
    let (norm, factors) = (floats("output_norm.weight").expect("a final norm"), floats("rope_freqs.weight"));
    Head::new(head.shape().clone(), layers, (&norm, factors.as_deref()), 64, &device).expect("a head")
}

/// The output matrix of a layer.
fn output(head: &NewHead, k: usize) -> Tensor {
    let k = k.min(head.n_layers() - 1);
    let own = format!("blk.{}.nextn.shared_head_head.weight", head.n_layer() + k);
    let names = [own.as_str(), "output.weight", "token_embd.weight"];
    let numbers = names.iter().find_map(|name| head.floats(name).expect("a file")).expect("a matrix");
    Tensor::from_vec(numbers, (head.n_vocab(), head.shape().n_embd), &Device::Cpu).expect("a tensor")
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

/// Compares the logits of the runtime's drafts by `model` with those of the function.
fn compare(label: &str, (head, function): (&NewHead, &Head), model: &Arc<Model>, rng: &mut Rng) {
    let (n_embd, n_vocab) = (head.shape().n_embd, head.n_vocab());
    let mut entries: Vec<TokenId> = (0..N_ENTRIES).map(|_| TokenId(rng.below(n_vocab) as u32)).collect();
    let hidden = numbers(rng, N_ENTRIES * n_embd);
    // Layers of their own see texts that are known: the runtime's and the function's have the same entries then.
    let found = drafted(model, &entries, &hidden);
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
    assert_eq!(found.logits.len(), DEPTH, "{label}");
    for (k, logits) in found.logits.iter().enumerate() {
        let h = outs[k].get(0).and_then(|out| out.narrow(0, N_ENTRIES - 1, 1)).expect("the last entry's row");
        let own = h.matmul(&output(head, k).t().expect("a matrix")).and_then(|x| x.flatten_all()?.to_vec1::<f32>());
        let own = own.expect("logits");
        let size = logits.iter().map(|x| x * x).sum::<f32>().sqrt();
        let apart = logits.iter().zip(&own).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt();
        println!("{label}, draft {k}: {:e}", apart / size);
        assert!(apart < CLOSE * size, "{label}, draft {k}: {apart} of {size}");
    }
}

#[test]
fn a_trained_head_makes_the_same_logits_in_the_runtime() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let mut said = BTreeSet::new();
    for (i, spec) in specs().into_iter().enumerate() {
        let arch = spec.arch;
        let mut rng = Rng::new(7 + i as u64);
        let path = document(spec).write(&dir.path().join("tiny.gguf"));
        for n_layers in [1, 3] {
            let file = dir.path().join("head.gguf");
            let (head, function) = new_head(&path, n_layers, &file, &mut rng);
            let options = LoadOptions { head: Some(file), ..LoadOptions::default() };
            let model = Model::open(&path, &options).expect("a sound head");
            said.extend(words_of(head.shape()));
            compare(&format!("{arch}, {n_layers} layers"), (&head, &function), &model, &mut rng);
        }
    }
    assert_eq!(said.len(), N_WORDS, "{said:?}");
}

#[test]
fn a_models_own_head_is_the_function_that_is_trained() {
    let dir = tempfile::TempDir::new().expect("a folder");
    // Five layers, the last one of another kind than those of the head.
    let specs = specs().into_iter().map(|spec| Spec { nextn: true, n_layer: 5, ..spec });
    for (i, spec) in specs.enumerate() {
        for n_mtp in [1, 3] {
            let (arch, spec) = (spec.arch, Spec { n_mtp, ..spec.clone() });
            if spec.more.iter().any(|(key, _)| *key == "attention.sliding_window_pattern") {
                continue;
            }
            let mut document = spec.document();
            if arch == "mimo2" {
                // As its files call it.
                let renamed = |name: &str| name.replace("nextn.shared_head_norm", "layer_output_norm");
                document.tensors.iter_mut().for_each(|t| t.name = renamed(&t.name));
            }
            let path = document.write(&dir.path().join("tiny.gguf"));
            let head = NewHead::of(Source::open(&path).expect("a file"), None).expect("a model with a head");
            assert!(head.is_own());
            let function = function(&head, |name| head.floats(name).expect("a file").expect("a tensor"));
            let model = Model::open(&path, &LoadOptions::default()).expect("a sound model");
            compare(&format!("{arch}, its own {n_mtp} layers"), (&head, &function), &model, &mut Rng::new(i as u64));
        }
    }
}
