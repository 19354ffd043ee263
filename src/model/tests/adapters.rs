//! LoRA adapters: passes with them give what the merged weights give, whatever stands beside a row; what does not fit is refused.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::{adapters, rig, tiny};
use adapters::{adapter, floats, merged};
use gguf::TensorType;
use model::{AdapterSet, Draft, DraftOutput, DraftVocab, LoadOptions, Model, Runner};
use rig::{Rig, exact};
use tempfile::TempDir;
use text::TokenId;
use tiny::{Document, Meta, Rng, Spec, Tensor};

fn open(path: &Path, adapters: &[PathBuf]) -> Result<Arc<Model>, String> {
    let options = LoadOptions { adapters: adapters.to_vec(), ..LoadOptions::default() };
    Model::open(path, &options).map_err(|error| error.to_string())
}

fn set(model: &Model, scales: &[(usize, f32)]) -> AdapterSet {
    AdapterSet::new(scales.iter().copied(), model.adapters().len()).expect("adapters that are there")
}

fn tokens(n: usize) -> Vec<u32> {
    let mut rng = Rng::new(3);
    (0..n).map(|_| rng.below(256) as u32).collect()
}

/// Logits of all rows of a prompt with these adapters.
fn logits(model: &Arc<Model>, scales: &[(usize, f32)]) -> Vec<f32> {
    let mut rig = Rig::new(model, exact(1, 64));
    rig.use_adapters(&set(model, scales));
    let slot = rig.slot();
    rig.step(&[(&slot, &tokens(11))])
}

/// The largest difference, as a share of the largest number.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let size = a.iter().fold(0f32, |most, x| most.max(x.abs()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max) / size
}

/// Sums of F32 numbers in another order: the largest seen is 4e-6.
const CLOSE: f32 = 5e-5;

fn specs() -> Vec<Spec> {
    let archs =
        ["llama", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "glm4", "glm4moe", "qwen3next", "granite", "lfm2"];
    let nextn = |arch| model::nextn_architectures().contains(&arch);
    archs.into_iter().map(|arch| Spec { nextn: nextn(arch), ..Spec::of(arch) }).collect()
}

#[test]
fn a_pass_with_adapters_on_every_matrix_is_a_pass_of_the_merged_weights() {
    for spec in specs() {
        let dir = TempDir::new().expect("a folder");
        let file = |name: &str| dir.path().join(name);
        let base = spec.document();
        // One rank that is filled up, and one that is not.
        let one = adapter(&spec, &base, 3, 5, |_| true);
        let two = adapter(&spec, &base, 16, 6, |name| name.contains("attn") || name.contains("ffn"));
        let files = [one.write(&file("one.gguf")), two.write(&file("two.gguf"))];
        let with = open(&base.write(&file("base.gguf")), &files).expect("a sound model");
        let plain = logits(&with, &[]);
        for (scale_one, scale_two) in [(1.0, 0.0), (0.5, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.7, -0.4)] {
            let by_hand = merged(&merged(&base, &one, scale_one), &two, scale_two).write(&file("merged.gguf"));
            let expected = logits(&open(&by_hand, &[]).expect("a sound model"), &[]);
            let found = logits(&with, &[(1, scale_two), (0, scale_one)]);
            let (off, moved) = (distance(&expected, &found), distance(&expected, &plain));
            assert!(off < CLOSE, "{}, {scale_one} and {scale_two}: off by {off}", spec.arch);
            assert!(moved > 100.0 * CLOSE, "{}: the adapters change too little to tell, {moved}", spec.arch);
        }
        let without = open(&file("base.gguf"), &[]).expect("a sound model");
        let bits = |x: Vec<f32>| x.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(logits(&without, &[])), bits(plain), "{}: unused adapters change bits", spec.arch);
    }
}

#[test]
fn the_embedding_of_a_tied_model_is_updated_where_it_is_looked_up_and_its_head_by_the_heads_name() {
    let dir = TempDir::new().expect("a folder");
    let spec = Spec { tied: true, ..Spec::of("llama") };
    let base = spec.document();
    let embed = base.tensors.iter().find(|t| t.name == "token_embd.weight").expect("it has one").clone();
    let untied = |mut d: Document| {
        d.tensors.push(Tensor { name: "output.weight".into(), ..embed.clone() });
        d
    };
    let path = base.write(&dir.path().join("base.gguf"));
    for name in ["token_embd.weight", "output.weight"] {
        let update = adapter(&spec, &untied(base.clone()), 4, 9, |of| of == name);
        let file = update.write(&dir.path().join("adapter.gguf"));
        let with = open(&path, &[file]).expect("a sound model");
        let by_hand = merged(&untied(base.clone()), &update, 1.0).write(&dir.path().join("merged.gguf"));
        let expected = logits(&open(&by_hand, &[]).expect("a sound model"), &[]);
        let off = distance(&expected, &logits(&with, &[(0, 1.0)]));
        assert!(off < CLOSE, "{name}: off by {off}");
        assert!(distance(&expected, &logits(&with, &[])) > 100.0 * CLOSE, "{name} changes too little to tell");
    }
}

#[test]
fn tensors_of_every_published_type_are_read() {
    let dir = TempDir::new().expect("a folder");
    let spec = Spec { n_embd: 64, n_ff: 96, ..Spec::of("qwen3") };
    let base = spec.document();
    let path = base.write(&dir.path().join("base.gguf"));
    let exact = adapter(&spec, &base, 32, 5, |name| name.starts_with("blk."));
    let expected = logits(&open(&merged(&base, &exact, 1.0).write(&dir.path().join("merged.gguf")), &[]).unwrap(), &[]);
    // What rounding the update costs; products round activations to the weights' counterpart.
    for (dtype, close) in [(TensorType::F16, 2e-3), (TensorType::BF16, 1e-2), (TensorType::Q8_0, 2e-2)] {
        let mut rounded = exact.clone();
        for t in &mut rounded.tensors {
            let kind = ggml::Dtype::from_id(dtype.id()).expect("a type of ggml");
            let numbers = floats(t);
            let n_rows = numbers.len() / t.ne[0] as usize;
            t.data = vec![0; n_rows * kind.row_bytes(t.ne[0] as i64).expect("whole blocks")];
            ggml::pack_rows(kind, &numbers, t.ne[0] as usize, None, &mut t.data).expect("whole rows");
            t.dtype = dtype;
        }
        let file = rounded.write(&dir.path().join("adapter.gguf"));
        let off = distance(&expected, &logits(&open(&path, &[file]).expect("a sound model"), &[(0, 1.0)]));
        assert!(off < close, "{dtype:?}: off by {off}");
    }
}

#[test]
fn a_row_has_the_same_bits_alone_and_in_company_with_an_adapter() {
    // Wide enough for the kernels of large matrices; a rank that they do not serve unless it is filled up.
    let spec = Spec { n_embd: 256, n_ff: 512, n_vocab: 8192, ..Spec::of("qwen3") };
    let dir = TempDir::new().expect("a folder");
    let base = spec.document();
    let file = adapter(&spec, &base, 8, 5, |_| true).write(&dir.path().join("adapter.gguf"));
    let model = open(&base.write(&dir.path().join("base.gguf")), &[file]).expect("a sound model");
    let width = model.rows_alike().expect("it lies on the CPU").min(19);
    let ids = tokens(width);
    let run = |lengths: &[usize]| {
        let mut rig = Rig::new(&model, exact(1, 64));
        rig.use_adapters(&set(&model, &[(0, 0.7)]));
        let slot = rig.slot();
        rig.in_pieces(&slot, &ids, lengths).into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    assert!(run(&vec![1; width]) == run(&[width]), "a row's bits depend on how many stand beside it");
}

/// Logits of the draft tokens after a prompt of the head, from the whole vocabulary or from a part.
fn draft_logits(model: &Arc<Model>, scales: &[(usize, f32)], part: bool) -> Vec<f32> {
    let mut memory = model.head_memory(exact(1, 64)).expect("room").expect("it has a head");
    let slot = memory.acquire().expect("cleared").expect("a free slot");
    let mut runner = Runner::new(Arc::clone(model), 1).expect("the CPU is there");
    runner.use_adapters(&set(model, scales)).expect("adapters that are there");
    let mut vocab = DraftVocab::new(model, 64, 4).expect("it has a head");
    vocab.see(model, [TokenId(200), TokenId(70)]).expect("rows can be copied");
    let n_embd = model.hparams().n_embd;
    let mut rng = Rng::new(8);
    let hidden: Vec<f32> = (0..3 * n_embd).map(|_| rng.normal()).collect();
    let tokens = [TokenId(5), TokenId(9), TokenId(11)];
    let step = memory.begin(&[(&slot, 4)], 1).expect("a step that can be made");
    let vocab = part.then_some(&vocab);
    let wanted =
        Draft { tokens: &tokens, hidden: &hidden, n_entries: &[3], depth: 2, vocab, verbose: true, ..Draft::default() };
    let mut output = DraftOutput::default();
    runner.draft(step.view(), &wanted, &mut output).expect("a draft that can be computed");
    output.logits.concat()
}

#[test]
fn drafts_are_made_with_the_adapters_of_the_mtp_layer_and_the_head() {
    let spec = Spec { nextn: true, ..Spec::of("qwen35moe") };
    let dir = TempDir::new().expect("a folder");
    let base = spec.document();
    let update = adapter(&spec, &base, 3, 5, |name| name.starts_with("blk.4.") || name == "output.weight");
    let file = update.write(&dir.path().join("adapter.gguf"));
    let with = open(&base.write(&dir.path().join("base.gguf")), &[file]).expect("a sound model");
    let by_hand = merged(&base, &update, 1.0).write(&dir.path().join("merged.gguf"));
    let by_hand = open(&by_hand, &[]).expect("a sound model");
    for part in [false, true] {
        let (expected, found) = (draft_logits(&by_hand, &[], part), draft_logits(&with, &[(0, 1.0)], part));
        let off = distance(&expected, &found);
        assert!(off < CLOSE, "part of the vocabulary {part}: off by {off}");
        assert!(distance(&expected, &draft_logits(&with, &[], part)) > 100.0 * CLOSE, "it changes too little to tell");
    }
}

#[test]
fn an_adapter_that_does_not_fit_is_refused_with_its_file_and_the_reason() {
    let dir = TempDir::new().expect("a folder");
    let spec = Spec::of("qwen3");
    let base = spec.document();
    let path = base.write(&dir.path().join("base.gguf"));
    let sound = adapter(&spec, &base, 4, 5, |name| name == "blk.1.attn_q.weight");
    let with = |change: &dyn Fn(&mut Document)| {
        let mut d = sound.clone();
        change(&mut d);
        d
    };
    let reshaped = |i: usize, ne: &[u64]| {
        let ne = ne.to_vec();
        with(&move |d| {
            d.tensors[i].data = vec![0; 4 * ne.iter().product::<u64>() as usize];
            d.tensors[i].ne.clone_from(&ne);
        })
    };
    let key = |key: &'static str, value: Meta| with(&move |d| d.set(key, value.clone()));
    let text = |text: &str| Meta::Str(text.into());
    let cases = [
        (key("general.type", text("model")), "general.type: `model` found, `adapter` expected"),
        (with(&|d| d.unset("general.type")), "general.type: `nothing` found"),
        (key("adapter.type", text("control")), "`control` found, `lora` expected"),
        (key("general.architecture", text("llama")), "general.architecture: `llama` found, `qwen3` expected"),
        (key("adapter.lora.alpha", Meta::F32(f32::NAN)), "adapter.lora.alpha: NaN found"),
        (key("adapter.lora.alpha", Meta::F32(f32::INFINITY)), "adapter.lora.alpha: inf found"),
        (key("adapter.lora.alpha", text("8")), "adapter.lora.alpha"),
        (key("adapter.alora.invocation_tokens", Meta::U32s(vec![1, 2])), "aLoRA"),
        (with(&|d| drop(d.tensors.pop())), "`.lora_a` is there, and `.lora_b` is missing"),
        (with(&|d| drop(d.tensors.remove(0))), "`.lora_b` is there, and `.lora_a` is missing"),
        (with(&|d| d.tensors.clear()), "NAME.lora_a of any matrix"),
        (with(&|d| d.tensors[0].name = "blk.1.attn_q.weight".into()), "a name that ends in `.lora_a` or `.lora_b`"),
        (with(&|d| d.tensors.iter_mut().for_each(|t| t.name = t.name.replace("blk.1", "blk.9"))), "no such matrix"),
        (
            with(&|d| d.tensors.iter_mut().for_each(|t| t.name = t.name.replace("attn_q", "attn_norm"))),
            "no such matrix",
        ),
        (reshaped(0, &[48, 5]), "`.lora_a`: [48, 4] expected, [48, 5] found"),
        (reshaped(0, &[47, 4]), "`.lora_a`: [48, 4] expected, [47, 4] found"),
        (reshaped(0, &[4, 48]), "`.lora_a`: [48, 4] expected, [4, 48] found"),
        (reshaped(1, &[4, 129]), "`.lora_b`: [4, 128] expected, [4, 129] found"),
        (reshaped(1, &[4, 128, 2]), "`.lora_b`: [4, 128] expected, [4, 128, 2] found"),
    ];
    for (i, (adapter, reason)) in cases.into_iter().enumerate() {
        let file = adapter.write(&dir.path().join(format!("bad{i}.gguf")));
        let error = open(&path, &[file]).expect_err(reason);
        assert!(error.contains(reason) && error.contains(&format!("bad{i}.gguf")), "`{error}` is not `{reason}`");
    }
    let whole = std::fs::read(sound.write(&dir.path().join("sound.gguf"))).expect("it was just written");
    let cut = dir.path().join("cut.gguf");
    for n in [0, 3, 40, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&cut, &whole[..n]).expect("the folder is writable");
        assert!(open(&path, std::slice::from_ref(&cut)).expect_err("it is cut off").contains("cut.gguf"), "{n} bytes");
    }
    let error = open(&path, &[dir.path().join("absent.gguf")]).expect_err("it is not there");
    assert!(error.contains("absent.gguf"), "{error}");
    assert!(open(&path, std::slice::from_ref(&path)).expect_err("a model is no adapter").contains("general.type"));
}

#[test]
fn a_runner_refuses_adapters_that_its_model_has_not_and_goes_on() {
    let dir = TempDir::new().expect("a folder");
    let model = open(&Spec::of("llama").document().write(&dir.path().join("base.gguf")), &[]).expect("a sound model");
    let mut runner = Runner::new(Arc::clone(&model), 1).expect("the CPU is there");
    let other = AdapterSet::new([(0, 1.0)], 1).expect("one of one");
    assert!(runner.use_adapters(&other).is_err());
    assert!(runner.use_adapters(&AdapterSet::default()).is_ok());
}
