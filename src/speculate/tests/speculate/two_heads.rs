//! The model's own NextN head beside that of another file: whichever drafts, the text is the model's, and each sequence ends at the
//! head that is accepted more. Counted, not timed: drafts of three tokens.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::sample::SamplingParams;
use engine::{Engine, EngineConfig, EngineHandle, RequestOptions, Scope};
use gguf::Header;
use model::{LoadOptions, Model, WhichHead};
use speculate::{Depth, DraftMode, Mode, SpecConfig, proposer};
use test_support::*;
use text::TokenId;

use crate::tiny::Spec;

pub fn pocket_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pocket-q4_k_m.gguf")
}

/// A copy whose head guesses at random: the rows of its first matrix stand in the opposite order.
pub fn spoiled(dir: &Path) -> PathBuf {
    let mut bytes = std::fs::read(pocket_file()).expect("a model of the repository");
    let header = Header::parse(&bytes).expect("a sound file");
    let matrix = header.tensors().iter().find(|t| t.name.ends_with("nextn.eh_proj.weight")).expect("it has a head");
    let (range, n_rows) = (matrix.range(), matrix.ne[1] as usize);
    let rows = bytes[range.clone()].to_vec();
    let rows: Vec<u8> = rows.chunks(range.len() / n_rows).rev().flatten().copied().collect();
    bytes[range].copy_from_slice(&rows);
    let path = dir.join("spoiled.gguf");
    std::fs::write(&path, bytes).expect("room for the file");
    path
}

fn open(model: &Path, head: Option<&Path>) -> Arc<Model> {
    let options = LoadOptions { head: head.map(Path::to_owned), keep_own_head: true, ..LoadOptions::default() };
    Model::open(model, &options).expect("they belong together")
}

/// Pocket with its own head and a spoiled one, then the two in the opposite places.
fn models() -> [Arc<Model>; 2] {
    let dir = tempfile::TempDir::new().expect("a folder");
    let (good, bad) = (pocket_file(), spoiled(dir.path()));
    let models = [open(&good, Some(&bad)), open(&bad, Some(&good))];
    for model in &models {
        assert_eq!(model.heads(), [WhichHead::First, WhichHead::Own]);
    }
    models
}

fn drafting(model: &Arc<Model>, config: EngineConfig, mode: Mode, depth: Depth) -> EngineHandle {
    let spec = SpecConfig { mode, depth, draft_mode: DraftMode::Fused, ..SpecConfig::default() };
    let drafts = proposer(model, &config, spec).expect("room");
    spawn(model, config, drafts)
}

fn questions(model: &Model) -> Vec<Vec<TokenId>> {
    let texts = ["What is 17 + 25?", "Tell me a story.", "Say hello three times.", "What is 9 * 8?"];
    texts.iter().map(|text| question(model, text)).collect()
}

/// Tokens a step.
pub fn tokens_per_step<'c>(answers: impl IntoIterator<Item = &'c Completion>) -> f64 {
    let timings = answers.into_iter().map(Completion::timings);
    let (tokens, steps) = timings.fold((0, 0), |(n, steps), t| (n + t.generated_tokens, steps + t.steps));
    tokens as f64 / steps as f64
}

#[test]
fn greedy_and_sampled_text_is_that_of_the_model_whichever_head_drafts() {
    let seeded = |seed| RequestOptions {
        sampling: SamplingParams { temperature: 0.8, seed: Some(seed), ..SamplingParams::default() },
        ..greedy_exactly(30)
    };
    for model in models() {
        let run = |mode, depth| {
            let engine = drafting(&model, config(256, 2), mode, depth);
            let of = |options: RequestOptions| {
                let requests = questions(&model).into_iter().take(3).map(|p| (p, options.clone())).collect();
                generate_all(&engine, requests).into_iter().map(|c| c.tokens).collect::<Vec<_>>()
            };
            [of(greedy_exactly(30)), of(seeded(5))]
        };
        let plain = run(Mode::Off, Depth::Auto);
        for (mode, depth) in [
            (Mode::NextN, Depth::Fixed(3)),
            (Mode::Auto, Depth::Fixed(1)),
            (Mode::Auto, Depth::Fixed(3)),
            (Mode::Auto, Depth::Auto),
        ] {
            assert_eq!(run(mode, depth), plain, "{mode} {depth}");
        }
    }
}

#[test]
fn heads_of_several_layers_take_turns_too() {
    let dir = tempfile::TempDir::new().expect("a folder");
    for arch in model::nextn_architectures() {
        let file = |seed| {
            let spec = Spec { nextn: true, n_mtp: 3, n_vocab: 512, seed, ..Spec::of(arch) };
            spec.document().write(&dir.path().join(format!("{arch}-{seed}.gguf")))
        };
        let model = open(&file(1), Some(&file(2)));
        assert_eq!(model.heads().len(), 2, "{arch}");
        let prompt: Vec<TokenId> = (0..50).map(|i| TokenId(100 + 7 * i % 400)).collect();
        let run = |mode| {
            let engine = drafting(&model, config(256, 1), mode, Depth::Fixed(3));
            let answer = generate(&engine, &prompt, greedy_exactly(40));
            (answer.timings().drafted, answer.timings().steps, answer.tokens)
        };
        let (plain, (n_drafted, n_steps, both)) = (run(Mode::Off), run(Mode::Auto));
        assert_eq!(plain.2, both, "{arch}");
        // What is accepted needs fewer steps.
        assert!(2 * n_drafted > 3 * n_steps, "{arch}: {n_drafted} in {n_steps} steps");
    }
}

#[test]
fn the_better_head_drafts_whichever_of_the_two_it_is() {
    let own = pocket();
    let alone = |mode| {
        let engine = drafting(&own, config(512, 1), mode, Depth::Fixed(3));
        let all: Vec<_> = questions(&own).iter().map(|p| generate(&engine, p, greedy_exactly(80))).collect();
        tokens_per_step(&all[1..])
    };
    let good = alone(Mode::NextN);
    for (i, model) in models().into_iter().enumerate() {
        let run = |mode| {
            let engine = drafting(&model, config(512, 1), mode, Depth::Fixed(3));
            questions(&model).iter().map(|p| generate(&engine, p, greedy_exactly(80))).collect::<Vec<_>>()
        };
        let (given, both) = (tokens_per_step(&run(Mode::NextN)[1..]), run(Mode::Auto));
        // The first answer finds out.
        let others = tokens_per_step(&both[1..]);
        assert_eq!(given > 0.95 * good, i == 1, "{given} of {good}: `nextn` drafts by the given head alone");
        assert!(others > 0.97 * good, "model {i}: {others} of {good}");
    }
}

#[test]
fn several_sequences_at_a_time_end_at_the_better_head() {
    for model in models() {
        let engine = drafting(&model, config(512, 4), Mode::Auto, Depth::Fixed(3));
        let requests = |n| questions(&model).into_iter().map(|p| (p, greedy_exactly(n))).collect::<Vec<_>>();
        generate_all(&engine, requests(20));
        let together = tokens_per_step(&generate_all(&engine, requests(60)));
        let alone = drafting(&pocket(), config(512, 4), Mode::NextN, Depth::Fixed(3));
        let good = tokens_per_step(&generate_all(&alone, requests(60)));
        assert!(together > 0.97 * good, "{together} of {good}");
    }
}

#[test]
fn saved_slots_hold_both_heads_and_serve_engines_with_one() {
    let [model, _] = models();
    let prompt = some_tokens(90);
    let both = || drafting(&model, config(512, 1), Mode::Auto, Depth::Fixed(3));
    let engine = both();
    let answer = generate(&engine, &prompt, greedy_exactly(40));
    let file = slot_bytes(&engine);
    let longer = [&prompt[..], &answer.tokens, &some_tokens(5)].concat();
    let restored = both();
    let load = |engine: &EngineHandle, file: &[u8]| {
        engine.load_slot(0, engine.read_slot(file).expect("sound"), Scope::default()).expect("free");
    };
    load(&restored, &file);
    assert_eq!(slot_bytes(&restored), file, "both heads came back whole");
    let expected = generate(&engine, &longer, greedy_exactly(40));
    assert_eq!(generate(&restored, &longer, greedy_exactly(40)).tokens, expected.tokens);

    // Engines that know one of the heads draft from the file as if they had computed all of it.
    let (own, given) = (pocket(), &model);
    for alone in [&own, given] {
        let engine = || drafting(alone, config(512, 1), Mode::NextN, Depth::Fixed(3));
        let stays = engine();
        let first = generate(&stays, &prompt, greedy_exactly(40));
        assert_eq!(first.tokens, answer.tokens);
        let stayed = generate(&stays, &longer, greedy_exactly(40));
        let comes = engine();
        load(&comes, &file);
        let came = generate(&comes, &longer, greedy_exactly(40));
        assert!(came.timings().cached_tokens > prompt.len());
        assert_eq!((came.tokens, came.drafts), (stayed.tokens, stayed.drafts));
        // And the other way: what one head lacks it begins anew.
        load(&restored, &slot_bytes(&stays));
        let more = [&longer[..], &some_tokens(3)].concat();
        let (got, want) = [&restored, &stays].map(|e| generate(e, &more, greedy_exactly(10)).tokens).into();
        assert_eq!(got, want);
    }

    let at = file.windows(8).position(|w| w == b"NEXTNS 1").expect("both heads' part");
    for (place, new) in [(8, u64::MAX), (8, 3), (8, 0)] {
        let mut changed = file.clone();
        changed[at + place..at + place + 8].copy_from_slice(&new.to_le_bytes());
        let read = restored.read_slot(&changed).and_then(|slot| restored.load_slot(0, slot, Scope::default()));
        assert!(read.is_err(), "a first part of {new} bytes");
    }
    load(&restored, &file);
    assert_eq!(slot_bytes(&restored), file);
}

#[test]
fn conversations_that_leave_their_slot_come_back_with_both_heads() {
    let [model, _] = models();
    let talk = |config: EngineConfig| {
        let engine = drafting(&model, config, Mode::Auto, Depth::Fixed(3));
        let mut texts = [some_tokens(90), (0..120).map(|i| TokenId(500 + 7 * i)).collect()];
        let mut answers = Vec::new();
        for _ in 0..3 {
            for text in &mut texts {
                let answer = generate(&engine, text, greedy_exactly(40));
                text.extend(answer.tokens.iter().copied().chain(some_tokens(5)));
                answers.push((answer.timings().cached_tokens, answer.tokens.clone(), answer.drafts.clone()));
            }
        }
        answers
    };
    let stays = talk(config(512, 2));
    assert_eq!(talk(EngineConfig { store_bytes: 64 << 20, ..config(512, 1) }), stays);
}

#[test]
fn a_head_that_cannot_take_turns_replaces_the_models_own() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let file = |name: &str, spec: Spec| spec.document().write(&dir.path().join(name));
    let spec = || Spec { nextn: true, n_vocab: 512, ..Spec::of("qwen35") };
    let (one, three) = (file("one", spec()), file("three", Spec { n_mtp: 3, ..spec() }));
    let bare = file("bare", Spec { nextn: false, ..spec() });
    assert_eq!(open(&one, Some(&three)).heads(), [WhichHead::First], "they differ in layers");
    assert_eq!(open(&one, Some(&one)).heads().len(), 2);
    assert_eq!(open(&bare, Some(&one)).heads(), [WhichHead::First], "it has none");
    assert_eq!(open(&one, None).heads(), [WhichHead::First]);
    assert!(open(&bare, None).heads().is_empty());
    let head = Some(one.clone());
    let replaceable = LoadOptions { head, keep_own_head: true, replaceable_head: true, ..LoadOptions::default() };
    assert_eq!(Model::open(&one, &replaceable).expect("sound").heads(), [WhichHead::First]);
    let model = open(&one, Some(&three));
    let drafts = proposer(&model, &config(256, 1), SpecConfig::default()).expect("room");
    assert_eq!(drafts.expect("by the given head").info().n_hidden, 3);
    drop(Engine::spawn(model, config(256, 1)));
}
