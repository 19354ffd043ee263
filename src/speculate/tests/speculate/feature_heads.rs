//! Heads that read the streams of the target's layers (EAGLE-3, DFlash) draft from what they keep of a sequence as they would
//! from the whole text, change no generation, and are refused where they do not fit.

use std::path::PathBuf;
use std::sync::Arc;

use engine::sample::SamplingParams;
use engine::{RequestOptions, Scope};
use model::{LoadOptions, Model};
use speculate::{Depth, DraftMode, DraftVocabSize, Mode, SpecConfig, memory_plan, proposer, proposer_with};
use test_support::{config, generate, generate_all, greedy_exactly, head, some_tokens, spawn};
use text::TokenId;

use crate::heads::FeatureHead;
use crate::mtp_layers::{Checked, compared, pieces, prompts};
use crate::tiny::{Document, Meta, Spec};

fn target(arch: &'static str) -> Spec {
    Spec { n_vocab: 512, ..Spec::of(arch) }
}

fn open(spec: &Spec, head: &Document) -> Result<Arc<Model>, String> {
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = spec.document().write(&dir.path().join("tiny.gguf"));
    let head: PathBuf = head.write(&dir.path().join("head.gguf"));
    let options = LoadOptions { head: Some(head), ..LoadOptions::default() };
    Model::open(&path, &options).map_err(|error| error.to_string())
}

fn with_head(spec: &Spec, head: &FeatureHead) -> Arc<Model> {
    open(spec, &head.document(spec)).expect("a head that fits")
}

fn all_heads(spec: &Spec) -> [FeatureHead; 3] {
    [FeatureHead::eagle3(spec), FeatureHead::eagle3_own(spec), FeatureHead::dflash(spec)]
}

#[test]
fn what_is_kept_drafts_as_the_whole_text_whatever_was_accepted() {
    let spec = target("qwen3");
    for (head, depth) in all_heads(&spec).iter().zip([3, 4, 5]) {
        let model = &with_head(&spec, head);
        let what = format!("{} {depth}", head.arch);
        let prompts = prompts();
        let plain =
            generate_all(&spawn(model, pieces(1), None), prompts.clone().map(|p| (p, greedy_exactly(40))).into());
        let known: Vec<_> = prompts.iter().zip(&plain).map(|(prompt, c)| [&prompt[..], &c.tokens].concat()).collect();
        for n_sequences in [1, 3] {
            let config = pieces(n_sequences);
            let (checked, n_compared) = Checked::boxed(model, &config, depth, known.clone());
            let engine = spawn(model, config, Some(checked));
            let options = |p: &[TokenId]| RequestOptions {
                checkpoint_boundaries: if p.len() > 64 { vec![64] } else { Vec::new() },
                ..greedy_exactly(40)
            };
            let requests: Vec<_> = prompts.iter().map(|p| (p.clone(), options(p))).collect();
            for (found, plain) in generate_all(&engine, requests).iter().zip(&plain) {
                assert_eq!(found.tokens, plain.tokens, "{what}");
                assert!(found.timings().accepted > 5, "{what}: {:?}", found.timings());
            }
            assert!(compared(&n_compared) > 25);
            // Back at a checkpoint, the text goes on otherwise.
            let other = [&prompts[2][..64], &some_tokens(5)].concat();
            let found = generate(&engine, &other, greedy_exactly(20));
            assert_eq!(found.tokens, generate(&spawn(model, pieces(1), None), &other, greedy_exactly(20)).tokens);
            assert!(compared(&n_compared) > 5);
        }
    }
}

#[test]
fn a_saved_slot_drafts_on_as_one_that_was_kept() {
    let spec = target("llama");
    for of in all_heads(&spec) {
        let model = &with_head(&spec, &of);
        let drafting = || {
            let config = pieces(1);
            let head = head(model, &config, Depth::Fixed(3), DraftVocabSize::Full);
            spawn(model, config, Some(Box::new(head)))
        };
        let engine = drafting();
        let prompt = some_tokens(70);
        let first = generate(&engine, &prompt, greedy_exactly(9));
        let saved = engine.save_slot(0, Scope::default()).expect("a free slot").to_bytes().expect("the file is there");
        let more = [&prompt[..], &first.tokens, &some_tokens(2)].concat();
        let kept = generate(&engine, &more, greedy_exactly(20));
        let other = drafting();
        let slot = other.read_slot(&saved).expect("it was saved by the same model");
        other.load_slot(0, slot, Scope::default()).expect("a free slot");
        let found = generate(&other, &more, greedy_exactly(20));
        assert_eq!((&found.tokens, found.timings().cached_tokens), (&kept.tokens, more.len() - 3));
        assert_eq!(found.drafts, kept.drafts, "{}", of.arch);
    }
}

/// Greedy and sampled, in every mode that a head goes into, for targets of all kinds of state.
#[test]
fn no_head_changes_a_generation_of_any_target() {
    for arch in model::architectures().into_iter().filter(|arch| !["nemotron_h", "gemma2"].contains(arch)) {
        let spec = target(arch);
        for of in all_heads(&spec) {
            let model = &with_head(&spec, &of);
            let options = |seed| RequestOptions {
                sampling: SamplingParams { temperature: 0.8, seed: Some(seed), ..SamplingParams::default() },
                ..greedy_exactly(12)
            };
            let run = |mode, depth, draft_mode| {
                let config = config(256, 2);
                let spec = SpecConfig { mode, depth, draft_mode, ..SpecConfig::default() };
                let engine = spawn(model, config.clone(), proposer(model, &config, spec).expect("room"));
                let prompts = [some_tokens(40), some_tokens(9)];
                let greedy = prompts.iter().map(|p| (p.clone(), greedy_exactly(12)));
                let sampled = prompts.iter().map(|p| (p.clone(), options(5)));
                let replies = generate_all(&engine, greedy.chain(sampled).collect());
                let drafted: u64 = replies.iter().map(|c| c.timings().drafted as u64).sum();
                (replies.into_iter().map(|c| c.tokens).collect::<Vec<_>>(), drafted)
            };
            let (plain, _) = run(Mode::Off, Depth::Auto, DraftMode::Fused);
            for (mode, depth, draft_mode) in [
                (Mode::NextN, Depth::Fixed(3), DraftMode::Fused),
                (Mode::NextN, Depth::Fixed(6), DraftMode::Async),
                (Mode::NextNgram, Depth::Auto, DraftMode::Fused),
            ] {
                let (tokens, drafted) = run(mode, depth, draft_mode);
                assert_eq!(tokens, plain, "{arch} {} {mode} {depth} {draft_mode}", of.arch);
                assert!(drafted > 0 || depth == Depth::Auto, "{arch} {}", of.arch);
            }
        }
    }
}

#[test]
fn a_head_and_a_draft_model_are_weighed_against_each_other() {
    let spec = target("llama");
    let model = &with_head(&spec, &FeatureHead::eagle3(&spec));
    let small = &with_head(&target("qwen3"), &FeatureHead::dflash(&target("qwen3")));
    let config = config(256, 1);
    let of = |mode| SpecConfig { mode, depth: Depth::Fixed(3), ..SpecConfig::default() };
    let plain = generate(&spawn(model, config.clone(), None), &some_tokens(20), greedy_exactly(40));
    for mode in [Mode::Auto, Mode::NextNDraft, Mode::NextNDraftNgram] {
        let drafts = proposer_with(model, Some(small), &config, of(mode)).expect("room");
        let found = generate(&spawn(model, config.clone(), drafts), &some_tokens(20), greedy_exactly(40));
        assert_eq!(found.tokens, plain.tokens, "{mode}");
        assert!(found.timings().drafted > 0, "{mode}");
    }
}

#[test]
fn what_a_head_keeps_is_planned() {
    let spec = target("qwen3");
    for of in all_heads(&spec) {
        let model = &with_head(&spec, &of);
        let config = config(512, 2);
        let drafts = SpecConfig { mode: Mode::NextN, depth: Depth::Fixed(4), ..SpecConfig::default() };
        let planned = memory_plan(&config, &drafts, model.facts()).bytes(model.facts()).expect("countable");
        let kept = head(model, &config, drafts.depth, drafts.vocab).state_bytes();
        let of_head: usize = planned.blocks[spec.n_layer..].iter().sum();
        assert_eq!(planned.blocks.len(), spec.n_layer + of.n_block, "{}", of.arch);
        assert!(of_head + 4 * spec.n_vocab >= kept && kept > 0, "{}: {of_head} planned, {kept} kept", of.arch);
    }
}

#[test]
fn a_head_that_does_not_fit_is_refused_with_what_differs() {
    let spec = target("qwen3");
    let refused = |head: &FeatureHead, change: &dyn Fn(&mut Document)| {
        let mut document = head.document(&spec);
        change(&mut document);
        open(&spec, &document).expect_err("it does not fit")
    };
    let [eagle, own, dflash] = all_heads(&spec);
    let keep = |_: &mut Document| {};
    let deep = FeatureHead { layers: vec![1, 2, 5], ..eagle.clone() };
    let error = refused(&deep, &keep);
    assert!(error.contains("it reads layer 5, the model has 4"), "{error}");
    let error = refused(&FeatureHead { layers: vec![1, 2], ..eagle.clone() }, &keep);
    assert!(error.contains("eagle3.target_layers: 2 layers found, 3 expected"), "{error}");
    let error = refused(&FeatureHead { n_embd: 40, ..eagle.clone() }, &keep);
    assert!(error.contains("no embedding of its own"), "{error}");
    let error = refused(&eagle, &|d| d.set("eagle3.target_hidden_size", Meta::U32(64)));
    assert!(error.contains("hidden states of 64, the model's are 48"), "{error}");
    let error = refused(&own, &|d| {
        let d2t = d.tensors.iter_mut().find(|t| t.name == "d2t").expect("a map");
        d2t.data[..8].copy_from_slice(&512i64.to_le_bytes());
    });
    assert!(error.contains("d2t: token 512 is outside the vocabulary of 512"), "{error}");
    let error = refused(&own, &|d| {
        let d2t = d.tensors.iter_mut().find(|t| t.name == "d2t").expect("a map");
        d2t.data.copy_within(8..16, 0);
    });
    assert!(error.contains("stands there twice"), "{error}");
    let error = refused(&own, &|d| drop(d.take("output.weight")));
    assert!(error.contains("output.weight is missing"), "{error}");
    let error = refused(&dflash, &|d| d.unset("tokenizer.ggml.mask_token_id"));
    assert!(error.contains("mask_token_id: is missing"), "{error}");
    let error = refused(&dflash, &|d| {
        let mut markov = d.take("fc.weight");
        markov.name = "markov_w1.weight".into();
        d.tensors.push(markov);
    });
    assert!(error.contains("a DSpark head") && error.contains("is not read"), "{error}");
    let error = refused(&dflash, &|d| d.set("dflash.attention.causal", Meta::Bool(true)));
    assert!(error.contains("dflash.attention.causal"), "{error}");
    let error = refused(&eagle, &|d| d.set("tokenizer.ggml.tokens", Meta::Strs(vec!["a".into(); 9])));
    assert!(error.contains("its vocabulary has 9 tokens, the model's has 512"), "{error}");
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = eagle.document(&spec).write(&dir.path().join("head.gguf"));
    let error = Model::open(&path, &LoadOptions::default()).expect_err("no model").to_string();
    assert!(error.contains("`eagle3` is a draft head") && error.contains("--draft-model"), "{error}");
}
