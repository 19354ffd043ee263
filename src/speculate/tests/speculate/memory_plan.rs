//! What is planned beside a model's weights is what an engine and its source of drafts allocate, and who asks for too much
//! is told how much and what would fit. Tiny random models.

use std::path::Path;
use std::sync::Arc;

use crate::tiny::{Rng, Spec};
use engine::{Engine, EngineConfig, EngineError, Exact, FlashAttention, Proposer};
use memory::CacheType;
use model::{Facts, GpuLayers, LoadOptions, MemoryPlanner, Model, Placement};
use speculate::{Depth, DraftMode, DraftVocabSize, Mode, NextN, NextNConfig, SpecConfig, memory_plan};

fn file(dir: &Path, spec: &Spec) -> std::path::PathBuf {
    spec.document().write(&dir.join(format!("{}.gguf", spec.arch)))
}

fn model(spec: &Spec) -> Arc<Model> {
    let dir = tempfile::TempDir::new().expect("a folder");
    Model::open(&file(dir.path(), spec), &LoadOptions::default()).expect("a sound file")
}

/// The model with its own head and the same once more, as that of another file.
fn with_two_heads(spec: &Spec) -> Arc<Model> {
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = file(dir.path(), spec);
    let options = LoadOptions { head: Some(path.clone()), keep_own_head: true, ..LoadOptions::default() };
    Model::open(&path, &options).expect("a sound file")
}

fn models() -> Vec<Arc<Model>> {
    let with_head = |arch| Spec { nextn: true, n_vocab: 4096, ..Spec::of(arch) };
    let two = [with_two_heads(&with_head("qwen35")), with_two_heads(&Spec { n_mtp: 3, ..with_head("step35") })];
    [with_head("qwen35"), with_head("qwen35moe"), Spec::of("llama"), Spec { n_mtp: 3, ..with_head("qwen35") }]
        .iter()
        .map(model)
        .chain(two)
        .collect()
}

fn some_engine(rng: &mut Rng) -> EngineConfig {
    // The heads of these models are too short for the types of our own.
    let types: Vec<_> = CacheType::ALL.into_iter().filter(|t| !t.is_turbo()).collect();
    let cache_type_v = rng.pick(&types);
    let forms: &[_] = match cache_type_v.is_plain() {
        true => &[FlashAttention::On, FlashAttention::Off, FlashAttention::Auto],
        false => &[FlashAttention::On, FlashAttention::Auto],
    };
    EngineConfig {
        n_ctx: (rng.below(5) > 0).then(|| 1 + rng.below(3000)),
        n_sequences: 1 + rng.below(5),
        threads: Some(1),
        cache_type_k: rng.pick(&types),
        cache_type_v,
        flash_attention: rng.pick(forms),
        n_batch: 64 + rng.below(300),
        exact: rng.pick(&[Exact::Off, Exact::Off, Exact::On, Exact::Width(8), Exact::Width(3)]),
        warm_up: Some(false),
        ..EngineConfig::default()
    }
}

fn some_drafts(rng: &mut Rng) -> SpecConfig {
    SpecConfig {
        mode: rng.pick(&[Mode::Auto, Mode::Auto, Mode::Auto, Mode::Off]),
        depth: rng.pick(&[Depth::Auto, Depth::Fixed(0), Depth::Fixed(1), Depth::Fixed(5)]),
        vocab: rng.pick(&[DraftVocabSize::Auto, DraftVocabSize::Full, DraftVocabSize::First(700)]),
        draft_mode: rng.pick(&[DraftMode::Auto, DraftMode::Auto, DraftMode::Async]),
    }
}

#[test]
fn what_is_planned_is_what_is_allocated() {
    let models = models();
    for seed in 0..120 {
        let mut rng = Rng::new(seed);
        let model = &models[seed as usize % models.len()];
        let (config, drafts) = (some_engine(&mut rng), some_drafts(&mut rng));
        let what = format!("seed {seed}: {model:?}, {config:?}, {drafts:?}");
        let planned = memory_plan(&config, &drafts, model.facts());
        let needs = planned.bytes(model.facts()).expect(&what);
        let n_layer = model.hparams().n_layer;

        let wanted = drafts.mode == Mode::Auto && drafts.depth != Depth::Fixed(0);
        let as_head = NextNConfig { depth: drafts.depth, vocab: drafts.vocab, both_heads: drafts.chooses_heads() };
        let head = wanted.then(|| NextN::new(model, &config, as_head).expect(&what)).flatten();
        let of_head = head.as_ref().map_or(0, NextN::state_bytes);
        assert_eq!(needs.blocks[n_layer..].iter().sum::<usize>(), of_head, "{what}");
        let head = head.map(|head| Box::new(head) as Box<dyn Proposer>);
        let engine = Engine::spawn_with(Arc::clone(model), config.clone(), head).expect(&what);
        let stats = engine.stats().expect("it runs");
        assert_eq!(needs.blocks[..n_layer].iter().sum::<usize>(), stats.state_bytes, "{what}");
        assert!(stats.compute_bytes <= needs.passes, "{} of {} bytes, {what}", stats.compute_bytes, needs.passes);

        // Layers are placed when it is open where the weights will lie: but for what hangs on that, by the same numbers.
        if config.exact != Exact::On && drafts.vocab != DraftVocabSize::Auto {
            let before = Facts { on_cpu: false, rows_alike: None, ..model.facts().clone() };
            assert_eq!(
                memory_plan(&config, &drafts, &before).bytes(&before).expect(&what).blocks,
                needs.blocks,
                "{what}"
            );
        }
    }
}

/// The server's default, which was planned as 16 planes.
#[test]
fn four_sequences_with_drafts_of_six_have_28_recurrent_states() {
    let model = model(&Spec { nextn: true, ..Spec::of("qwen35") });
    let config = EngineConfig { n_sequences: 4, ..EngineConfig::default() };
    let planned = memory_plan(&config, &SpecConfig::default(), model.facts());
    assert_eq!(planned.state.n_slots * planned.state.n_snapshots, 28);
}

#[test]
fn a_context_that_does_not_fit_is_refused_with_the_numbers_and_settings_that_fit() {
    let model = model(&Spec { nextn: true, ..Spec::of("qwen35") });
    let config = EngineConfig { n_ctx: Some(1 << 30), n_sequences: 64, threads: Some(1), ..EngineConfig::default() };
    let drafts = SpecConfig::default();
    let error = speculate::proposer(&model, &config, drafts).err().expect("petabytes").to_string();
    let alone = Engine::spawn(Arc::clone(&model), config.clone()).err().expect("petabytes");
    assert!(matches!(alone, EngineError::Room(_)), "{alone}");
    for word in [
        "one sequence of 1073741824 positions",
        "MiB of keys and values",
        "for drafts",
        "are free",
        "What fits",
        "was trained for",
    ] {
        assert!(error.contains(word), "{word}: {error}");
    }
    // What is proposed does fit, and an eighth more does not.
    let n_ctx = error.split("-c ").nth(1).and_then(|rest| rest.split(',').next()).expect("a context");
    let n_ctx: usize = n_ctx.trim().parse().unwrap_or_else(|_| panic!("{error}"));
    let (free, _) = model.weights().device().memory();
    let needed = |n_ctx| {
        // On a CPU the others take what is left.
        let one = EngineConfig { n_ctx: Some(n_ctx), n_sequences: 1, ..config.clone() };
        let needs = memory_plan(&one, &drafts, model.facts()).bytes(model.facts());
        needs.map(|needs| needs.state() + needs.passes).expect("small")
    };
    assert!(needed(n_ctx) <= free && needed(n_ctx + n_ctx / 8) > free, "{n_ctx}: {} of {free}", needed(n_ctx));
}

#[test]
fn layers_that_do_not_fit_with_their_state_are_refused_with_the_numbers() {
    let spec = Spec { nextn: true, ..Spec::of("qwen35") };
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = file(dir.path(), &spec);
    // The CPU in the place of a GPU: what it has free is all of the machine's memory.
    let gpus = model(&spec).weights().devices().to_vec();
    let open = |n_ctx: usize, layers| {
        let config = EngineConfig { n_ctx: Some(n_ctx), n_sequences: 4, ..EngineConfig::default() };
        let planner = MemoryPlanner::new(move |facts| memory_plan(&config, &SpecConfig::default(), facts));
        let placement = Placement { gpus: gpus.clone(), layers, planner, ..Placement::default() };
        Model::open(&path, &LoadOptions { placement, ..LoadOptions::default() })
    };
    open(1024, GpuLayers::Count(99)).expect("kilobytes");
    open(1 << 30, GpuLayers::Auto).expect("fewer layers");
    let error = open(1 << 30, GpuLayers::Count(99)).expect_err("terabytes").to_string();
    for word in ["sequence state", "for passes", "-ngl", "MiB are free"] {
        assert!(error.contains(word), "{word}: {error}");
    }
}
