//! Every node of our graphs is one that ggml's Metal backend computes, by the rules of the pinned ggml itself (crate
//! `nextn-metal-rules`): where one is not, a Mac would copy between CPU and GPU in every layer. Exceptions are listed here
//! and in docs/GPU.md. All architectures with and without their MTP layers, heads of other files, adapters, projectors.

mod nodes;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use crate::support::{adapters, heads, projector as projectors, tiny};
use ggml::Dtype;
use heads::FeatureHead;
use memory::{CacheType, MemoryConfig, Slot};
use metal_rules::Node;
use model::{
    AdapterSet, Draft, DraftOutput, DraftVocab, LoadOptions, Model, Noise, Pass, PassOutput, Placement, Projector,
    ProjectorOptions, Rows, Runner, architectures, nextn_architectures,
};
use nodes::nodes_of;
pub(crate) use nodes::{new_worker, worker};
use projectors::TinyProjector;
use text::TokenId;
use tiny::{Meta, Rng, Spec};
use vision::{ImageLimits, Picture};

const DEPTH: usize = 3;

/// Cells as the engine keeps them on a GPU: values as they come, for fused attention.
fn cells(cache: CacheType) -> MemoryConfig {
    MemoryConfig {
        n_slots: 3,
        n_ctx: 256,
        type_k: cache,
        type_v: cache,
        v_transposed: false,
        n_snapshots: DEPTH + 1,
        transactional: true,
        max_rows: Some(64),
        rotate: true,
    }
}

/// Tiny sizes that Metal has kernels for, as those of published models are: heads of 32 or more with its pairs of keys and
/// values, delta nets of multiples of 32.
fn spec(arch: &'static str) -> Spec {
    let mut spec = Spec { n_embd: 64, d_state: 32, ..Spec::of(arch) };
    match arch {
        // As in its files: keys of 192 and values of 128.
        "mimo2" => {
            spec.d_head = 192;
            spec.more.push(("attention.value_length", Meta::U32(128)));
        }
        "gemma4" => spec = with_wide_windows(spec),
        _ => {}
    }
    spec
}

/// Gemma 4 with heads of 64 in layers that have a window.
fn with_wide_windows(mut spec: Spec) -> Spec {
    for (key, value) in &mut spec.more {
        if ["attention.key_length_swa", "attention.value_length_swa"].contains(key) {
            *value = Meta::U32(64);
        }
    }
    spec
}

fn load(spec: &Spec, head: Option<tiny::Document>, adapters: Option<tiny::Document>) -> Arc<Model> {
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = spec.document().write(&dir.path().join("tiny.gguf"));
    let written = |document: tiny::Document, name: &str| document.write(&dir.path().join(name));
    let head: Option<PathBuf> = head.map(|head| written(head, "head.gguf"));
    let adapters = adapters.map(|adapter| written(adapter, "adapter.gguf")).into_iter().collect();
    let placement = Placement { gpus: vec![worker()], ..Placement::default() };
    let options = LoadOptions { placement, head, adapters, ..LoadOptions::default() };
    let model = Model::open(&path, &options).expect("a sound file");
    assert!(!model.is_on_cpu(), "{}: on the worker", spec.arch);
    model
}

/// Passes as engines make them: prompts, single tokens, drafts that are verified, several sequences.
fn passes(model: &Arc<Model>, config: MemoryConfig, adapters: Option<&AdapterSet>) {
    let mut memory = model.memory(config).expect("state");
    let mut runner = Runner::new(Arc::clone(model), 1).expect("the worker is there");
    if let Some(adapters) = adapters {
        runner.use_adapters(adapters).expect("adapters that are there");
    }
    let slots: Vec<Slot> = (0..3).map(|_| memory.acquire().expect("state").expect("a free slot")).collect();
    let (mut rng, mut output) = (Rng::new(5), PassOutput::default());
    let mut step = |n_tokens: &[usize], rows: Rows<'_>, n_snapshots: usize| {
        let parts: Vec<_> = slots.iter().zip(n_tokens.iter().copied()).collect();
        let tokens: Vec<_> = (0..n_tokens.iter().sum()).map(|_| TokenId(rng.below(256) as u32)).collect();
        let txn = memory.begin(&parts, n_snapshots).expect("a step that can be made");
        runner.run(txn.view(), &Pass { tokens: &tokens, rows, hidden: true }, &mut output).expect("a pass");
        txn.commit(n_tokens).expect("rows that can be kept");
    };
    step(&[40], Rows::Some(&[39]), 1);
    step(&[9], Rows::None, 1);
    step(&[1], Rows::Best(&[0]), 1);
    step(&[33, 2], Rows::Some(&[32, 34]), 1);
    step(&[DEPTH + 1], Rows::All, DEPTH + 1);
    step(&[1, 1, 1], Rows::Top(&[0, 1, 2], 8), 1);
    step(&[DEPTH + 1, 1, 2], Rows::Best(&[0, 1, 2, 3, 4, 5, 6]), DEPTH + 1);
    if output.top(0).is_some() {
        runner.logits(&mut output).expect("the last logits");
    }
}

/// Drafts of a head with cells of its own: greedy and sampled, from all words and from some. `rows`: with their hidden states,
/// which heads that read several layers do not give.
fn drafts(model: &Arc<Model>, config: MemoryConfig, rows: bool) {
    let n_embd = model.n_embd_mtp();
    let own = DraftVocab::of_head(model).expect("room");
    let part = match &own {
        None => {
            let mut part = DraftVocab::new(model, 100, 16).expect("room");
            part.see(model, [101, 250, 133].map(TokenId)).expect("three copies");
            Some(part)
        }
        Some(_) => None,
    };
    for vocab in [own.as_ref(), part.as_ref().or(own.as_ref())] {
        let n_words = vocab.map_or(model.hparams().n_vocab, DraftVocab::n_words);
        // A runner serves one part of the vocabulary only.
        let mut runner = Runner::new(Arc::clone(model), 1).expect("the worker is there");
        let mut memory = model.head_memory(config).expect("state").expect("a head");
        let slots: Vec<Slot> = (0..2).map(|_| memory.acquire().expect("state").expect("a free slot")).collect();
        for (n_entries, depth, more) in [
            ([40, 3], DEPTH, false),
            ([1, 1], DEPTH, false),
            ([2, 1], DEPTH, true),
            ([1, 1], 1, true),
            ([9, 1], 0, false),
        ] {
            let n_layers = model.n_mtp_layers();
            if depth > n_layers && n_layers > 1 && model.draft_block().is_none() {
                continue;
            }
            let n: usize = n_entries.iter().sum();
            let tokens: Vec<TokenId> = (0..n as u32).map(|i| TokenId(i * 7 % 256)).collect();
            let hidden = vec![0.25; n * n_embd];
            let noise = vec![0.5; depth * 2 * n_words];
            let noise = (more && depth > 0).then_some(Noise::Numbers(&noise));
            let more = more && depth > 0;
            let most = n_entries[0].max(n_entries[1]) + model.n_chain_rows(depth);
            let txn = memory.begin(&[(&slots[0], most), (&slots[1], most)], 1).expect("a step");
            let draft = Draft {
                tokens: &tokens,
                hidden: &hidden,
                n_entries: &n_entries,
                depth,
                vocab,
                noise,
                verbose: more,
                rows: rows && more,
                probs: more,
                ..Draft::default()
            };
            runner.draft(txn.view(), &draft, &mut DraftOutput::default()).expect("drafts");
        }
    }
}

/// Drafts of an assistant, which reads the cells of the target.
fn drafts_at_end(model: &Arc<Model>, config: MemoryConfig) {
    let mut memory = model.memory(config).expect("state");
    let slot = memory.acquire().expect("state").expect("a free slot");
    let mut runner = Runner::new(Arc::clone(model), 1).expect("the worker is there");
    let tokens = [TokenId(5); 40];
    let txn = memory.begin(&[(&slot, tokens.len())], 1).expect("a step");
    let pass = Pass { tokens: &tokens, rows: Rows::None, hidden: true };
    runner.run(txn.view(), &pass, &mut PassOutput::default()).expect("a pass");
    txn.commit(&[tokens.len()]).expect("rows that can be kept");
    let hidden = vec![0.25; model.hparams().n_embd];
    let noise = vec![0.5; DEPTH * model.hparams().n_vocab];
    for noise in [None, Some(Noise::Numbers(&noise))] {
        let (tokens, n_entries) = (&tokens[..1], &[1][..]);
        let draft = Draft {
            tokens,
            hidden: &hidden,
            n_entries,
            depth: DEPTH,
            noise,
            verbose: noise.is_some(),
            probs: noise.is_some(),
            ..Draft::default()
        };
        let ends = memory.ends(&[&slot]).expect("a sequence");
        runner.draft_at_end(ends.view(), &draft, &mut DraftOutput::default()).expect("drafts");
    }
}

/// Nodes that a Mac computes on the CPU, with the model that has them.
fn refused(name: &str, nodes: &BTreeSet<(String, Node)>) -> Vec<String> {
    assert!(nodes.len() > 20, "{name}: its nodes were not seen: {nodes:?}");
    let on_metal = |node: &Node| node.is_on_metal(true).unwrap_or_else(|what| panic!("{name}: {what}: {node:?}"));
    let lines = nodes.iter().filter(|(_, node)| !on_metal(node));
    lines.map(|(kind, n)| format!("{name}: {kind} {} -> {} {}", n.operands, n.result, n.params)).collect()
}

fn none_is_refused(found: BTreeMap<String, BTreeSet<(String, Node)>>) {
    let ops: BTreeSet<&str> = found.values().flatten().map(|(kind, _)| kind.as_str()).collect();
    println!("{} models, {} nodes of ops {ops:?}", found.len(), found.values().map(BTreeSet::len).sum::<usize>());
    let refused: Vec<String> = found.iter().flat_map(|(name, nodes)| refused(name, nodes)).collect();
    assert!(refused.is_empty(), "Metal does not compute:\n{}", refused.join("\n"));
}

#[test]
fn metal_computes_every_node_of_every_architecture() {
    let mut found = BTreeMap::new();
    for arch in architectures() {
        for nextn in [false, true] {
            if nextn && !nextn_architectures().contains(&arch) {
                continue;
            }
            let spec = Spec { nextn, ..spec(arch) };
            let nodes = nodes_of(|| {
                let model = load(&spec, None, None);
                for cache in [CacheType::F16, CacheType::Q8_0] {
                    passes(&model, cells(cache), None);
                }
                // `--flash-attn off`.
                passes(&model, MemoryConfig { v_transposed: true, ..cells(CacheType::F16) }, None);
                if nextn {
                    drafts(&model, cells(CacheType::F16), true);
                    drafts(&model, MemoryConfig { v_transposed: true, ..cells(CacheType::F16) }, true);
                }
            });
            found.insert(format!("{arch}{}", if nextn { " with its MTP layer" } else { "" }), nodes);
        }
    }
    none_is_refused(found);
}

#[test]
fn metal_computes_every_node_of_heads_of_other_files_and_of_adapters() {
    let mut found = BTreeMap::new();
    let target = spec("llama");
    for (name, head) in [
        ("eagle3", FeatureHead::eagle3(&target)),
        ("eagle3 with words of its own", FeatureHead::eagle3_own(&target)),
        ("dflash", FeatureHead::dflash(&target)),
    ] {
        let head = FeatureHead { d_head: 32, ..head };
        let nodes = nodes_of(|| {
            let model = load(&target, Some(head.document(&target)), None);
            passes(&model, cells(CacheType::F16), None);
            drafts(&model, cells(CacheType::F16), false);
        });
        found.insert(name.to_owned(), nodes);
    }
    let nodes = nodes_of(|| {
        let mut assistant = with_wide_windows(Spec::assistant());
        assistant.more.push(("embedding_length_out", Meta::U32(64)));
        let model = load(&spec("gemma4"), Some(assistant.document()), None);
        drafts_at_end(&model, cells(CacheType::F16));
    });
    found.insert("gemma4-assistant".to_owned(), nodes);
    for arch in ["llama", "qwen3moe", "qwen35"] {
        let spec = spec(arch);
        let nodes = nodes_of(|| {
            let model = load(&spec, None, Some(adapters::adapter(&spec, &spec.document(), 4, 7, |_| true)));
            let set = AdapterSet::new([(0, 0.5)], 1).expect("it is there");
            passes(&model, cells(CacheType::F16), Some(&set));
        });
        found.insert(format!("{arch} with an adapter"), nodes);
    }
    none_is_refused(found);
}

/// The same with heads of 72, as the tower of Qwen3.5 27B has them: GPUs have fused attention for these, not for those of 12.
fn widened(mut tiny: TinyProjector) -> TinyProjector {
    // A head, the width, three of it, and what four patches make.
    let widths = [12, 24, 72, 96];
    tiny.numbers.insert("embedding_length".into(), 6 * 24);
    for (ne, values) in tiny.tensors.values_mut() {
        ne.iter_mut().filter(|n| widths.contains(n)).for_each(|n| *n *= 6);
        values.resize(ne.iter().product::<u64>() as usize, 0.01);
    }
    tiny
}

#[test]
fn metal_computes_every_node_of_projectors() {
    let n = 64;
    let tiny = [
        ("qwen3vl_merger", TinyProjector::qwen(n)),
        ("gemma4v", TinyProjector::gemma(n, false)),
        ("gemma4v with limits", TinyProjector::gemma(n, true)),
        ("gemma3", TinyProjector::gemma3(n)),
    ];
    let wide = tiny.clone().map(|(name, tiny)| (name, widened(tiny)));
    let mut found = BTreeMap::new();
    for (name, tiny) in tiny.into_iter().chain(wide) {
        let width = tiny.numbers["embedding_length"];
        let nodes = nodes_of(|| {
            let dir = tempfile::TempDir::new().expect("a folder");
            let path = tiny.write(&dir.path().join("mmproj.gguf"));
            let options = ProjectorOptions { device: Some(worker()), n_threads: 1, ..ProjectorOptions::default() };
            let projector = Projector::open(&path, &options).expect("a sound file");
            let picture = Picture::new(40, 24, vec![9; 40 * 24 * 3]).expect("as many bytes");
            let max_tokens = (projector.kind() != "gemma3").then_some(20);
            let processor = projector.processor(&ImageLimits { max_tokens, ..ImageLimits::default() });
            let patches = processor.expect("sound limits").patches(&picture).expect("a sound shape");
            projector.embed(&patches).expect("a pass");
        });
        assert_eq!(nodes.iter().any(|(kind, _)| kind == "FLASH_ATTN_EXT"), width == 144, "{name}");
        found.insert(format!("{name} of width {width}"), nodes);
    }
    none_is_refused(found);
}

/// A node with these operands.
fn node(op: &str, result: &str, operands: String) -> Node {
    Node { op: op.into(), params: String::new(), result: result.into(), operands }
}

/// Types of weights with which Metal does not compute such a node.
fn lacking(of: impl Fn(Dtype) -> Node) -> Vec<String> {
    let types = (0..64).filter_map(|id| Dtype::from_id(id).ok()).filter(|t| t.is_for_weights());
    let is_there = |&t: &Dtype| of(t).is_on_metal(true).expect("a node that can be read");
    types.filter(|t| !is_there(t)).map(|t| t.to_string()).collect()
}

/// What docs/GPU.md lists: types of weights and of cells with which Metal computes nothing.
#[test]
fn types_that_metal_lacks_are_those_that_the_document_lists() {
    let products = lacking(|t| node("MUL_MAT", "f32[64,2]", format!("{t}[256,64] f32[256,2]")));
    let experts = lacking(|t| node("MUL_MAT_ID", "f32[64,2,2]", format!("{t}[256,64,4] f32[256,2,2] i32[2,2]")));
    let rows = lacking(|t| node("GET_ROWS", "f32[256,2]", format!("{t}[256,64] i32[2]")));
    println!("{products:?} {experts:?} {rows:?}");
    assert_eq!((&products, &products), (&experts, &rows));
    assert_eq!(products, ["tq1_0", "nvfp4"]);
    let attention = lacking(|t| {
        let cells = format!("{t}[128,256,2]");
        node("FLASH_ATTN_EXT", "f32[128,4,2]", format!("f32[128,2,4] {cells} {cells} f16[256,2]"))
    });
    for cache in ["f32", "f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"] {
        assert!(!attention.iter().any(|lacks| lacks == cache), "{cache}");
    }
    assert!(attention.iter().any(|lacks| lacks == "iq4_nl"));
    let mixed = "f32[128,2,4] q8_0[128,256,2] q4_0[128,256,2] f16[256,2]".to_owned();
    assert_eq!(node("FLASH_ATTN_EXT", "f32[128,4,2]", mixed).is_on_metal(true), Ok(false));
}

/// The test above sees what Metal refuses: a head of a size without a kernel, a delta net of another width.
#[test]
fn sizes_that_metal_has_no_kernel_for_are_found() {
    for (spec, op) in [
        (Spec { d_head: 24, ..spec("llama") }, "FLASH_ATTN_EXT"),
        (Spec { d_state: 16, ..spec("qwen35") }, "GATED_DELTA_NET"),
    ] {
        let nodes = nodes_of(|| passes(&load(&spec, None, None), cells(CacheType::F16), None));
        let refused = refused(spec.arch, &nodes);
        assert!(!refused.is_empty() && refused.iter().all(|line| line.contains(op)), "{op}: {refused:?}");
    }
}
