//! Sequence state under real graphs: however a sequence comes to its state, what follows is the same.
//! Tiny random models; every failure names its seed.
//!
//! Two tolerances. None, where the compared passes have the same numbers of rows: the same kernels run on the same
//! numbers. `CLOSE`, where they differ: ggml's matrix products sum in another order for one row than for several.

use std::path::Path;
use std::sync::Arc;

use crate::support::{rig, tiny};
use memory::{CacheType, MemoryConfig, Slot};
use model::{Draft, DraftOutput, Likeliest, LoadOptions, Model, Pass, PassOutput, Rows, RunError, Runner};
use rig::{Rig, exact};
use text::TokenId;
use tiny::{Rng, Spec};

/// For logits of size up to about 5; measured at most: 9e-6.
const CLOSE: f32 = 1e-4;

fn model(arch: &'static str) -> Arc<Model> {
    model_of(&Spec::of(arch))
}

fn model_of(spec: &Spec) -> Arc<Model> {
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = spec.document().write(&dir.path().join("tiny.gguf"));
    Model::open(&path, &LoadOptions::default()).expect("a sound file")
}

/// A model of every architecture, and of those with delta nets some whose heads log tokens, small and large ones.
fn models() -> Vec<(String, Arc<Model>)> {
    let all = model::architectures().into_iter().map(|arch| (arch.to_owned(), model(arch)));
    let logging = ["qwen35", "qwen35moe", "qwen3next"].into_iter().flat_map(|arch| {
        [32, 128].map(|d_state| {
            let model = model_of(&Spec { d_state, ..Spec::of(arch) });
            let mut memory = model.memory(MemoryConfig { n_snapshots: 4, ..exact(1, 256) }).expect("a small state");
            let slot = memory.acquire().expect("state").expect("a free slot");
            let step = memory.begin(&[(&slot, 1)], 1).expect("a step");
            assert_eq!(step.view().logs_some(), ggml::log_capacity(d_state).is_some(), "{arch}, {d_state}");
            drop(step);
            (format!("{arch} with heads of {d_state}"), model)
        })
    });
    all.chain(logging).collect()
}

fn is_recurrent(model: &Model) -> bool {
    model.state_layout().is_recurrent()
}

fn random_ids(rng: &mut Rng, n: usize) -> Vec<u32> {
    (0..n).map(|_| rng.below(256) as u32).collect()
}

/// Cuts `n` rows at random places.
fn random_lengths(rng: &mut Rng, mut n: usize) -> Vec<usize> {
    let mut lengths = Vec::new();
    while n > 0 {
        lengths.push(1 + rng.below(n.min(23)));
        n -= lengths[lengths.len() - 1];
    }
    lengths
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    assert!(found.iter().all(|v| v.is_finite()), "{what}: not finite");
    let difference = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(difference <= tolerance, "{what}: logits differ by {difference}");
}

/// Logits of `ids` after `past`, by a rig that does nothing else.
fn after(model: &Arc<Model>, config: MemoryConfig, past: &[u32], ids: &[u32]) -> Vec<f32> {
    let mut rig = Rig::new(model, config);
    let slot = rig.slot();
    if !past.is_empty() {
        rig.step(&[(&slot, past)]);
    }
    rig.step(&[(&slot, ids)])
}

#[test]
fn a_prompt_in_pieces_equals_the_whole() {
    for arch in model::architectures() {
        let model = model(arch);
        for seed in 0..6 {
            let mut rng = Rng::new(seed);
            let n = 2 + rng.below(300);
            let ids = random_ids(&mut rng, n);
            let lengths = random_lengths(&mut rng, ids.len());
            for v_transposed in [true, false] {
                let config = MemoryConfig { v_transposed, ..exact(1, 320) };
                let whole = after(&model, config, &[], &ids);
                let mut rig = Rig::new(&model, config);
                let slot = rig.slot();
                let pieces = rig.in_pieces(&slot, &ids, &lengths);
                assert_close(&pieces, &whole, CLOSE, &format!("{arch}, seed {seed}, v_transposed {v_transposed}"));
            }
        }
    }
}

#[test]
fn a_batch_of_sequences_equals_its_parts_whatever_their_lengths_and_planes() {
    for (arch, model) in models() {
        for (seed, transactional) in (0..8).map(|seed| (seed, seed % 2 == 1)) {
            let mut rng = Rng::new(seed);
            let config = MemoryConfig { n_snapshots: 4, transactional, ..exact(4, 320) };
            let mut rig = Rig::new(&model, config);
            let mut slots: Vec<Slot> = (0..4).map(|_| rig.slot()).collect();
            // One slot stays out of the step, so that slots are not always adjacent.
            let idle = slots.remove(rng.below(4));
            let past: Vec<Vec<u32>> = slots
                .iter()
                .map(|slot| {
                    let n = 2 + rng.below(290);
                    let ids = random_ids(&mut rng, n);
                    // The last row comes with up to three others that are dropped: each sequence has its own state slot.
                    rig.step(&[(slot, &ids[..n - 1])]);
                    let n_dropped = rng.below(4);
                    let mut tail = vec![ids[n - 1]];
                    tail.extend(random_ids(&mut rng, n_dropped));
                    rig.step_keeping(&[(slot, &tail)], 4, &[1]);
                    ids
                })
                .collect();
            let equal_rows = rng.below(2) == 0;
            let n = 1 + rng.below(5);
            let next: Vec<Vec<u32>> = slots
                .iter()
                .map(|_| {
                    let n = if equal_rows { n } else { 1 + rng.below(9) };
                    random_ids(&mut rng, n)
                })
                .collect();
            let parts: Vec<_> = slots.iter().zip(&next).map(|(slot, ids)| (slot, &ids[..])).collect();
            let together = rig.step(&parts);
            let alone: Vec<f32> =
                past.iter().zip(&next).flat_map(|(past, next)| after(&model, exact(1, 320), past, next)).collect();
            assert_close(&together, &alone, CLOSE, &format!("{arch}, seed {seed}, transactional {transactional}"));
            assert!(rig.memory.is_empty(&idle).expect("a slot in use"));
        }
    }
}

#[test]
fn graphs_do_not_depend_on_how_many_rows_each_sequence_kept() {
    for (arch, n_seqs) in model::architectures().into_iter().flat_map(|arch| [(arch, 1), (arch, 3)]) {
        let model = model(arch);
        let mut rng = Rng::new(1);
        let mut rig = Rig::new(&model, MemoryConfig { n_snapshots: 4, ..exact(n_seqs, 256) });
        let slots: Vec<Slot> = (0..n_seqs).map(|_| rig.slot()).collect();
        for _ in 0..30 {
            let ids = random_ids(&mut rng, 4);
            let parts: Vec<_> = slots.iter().map(|slot| (slot, &ids[..])).collect();
            let kept: Vec<usize> = slots.iter().map(|_| 1 + rng.below(4)).collect();
            rig.step_keeping(&parts, 4, &kept);
        }
        let most = match n_seqs {
            _ if ggml::take_state_numbers() || !is_recurrent(&model) => 1,
            // One for each state slot that the sequence may stand on.
            1 => 4,
            // One where all stand on the first state slot, one for all mixtures.
            _ => 2,
        };
        assert!(rig.n_builds() <= most, "{arch}, {n_seqs} sequences: {} graphs", rig.n_builds());
    }
}

/// The head over some sequences.
struct Head {
    memory: memory::Memory,
    slots: Vec<Slot>,
    runner: Runner,
    output: DraftOutput,
}

impl Head {
    fn new(model: &Arc<Model>, n_slots: usize) -> Self {
        let mut memory = model.head_memory(exact(n_slots, 256)).expect("state").expect("a head");
        let slots = (0..n_slots).map(|_| memory.acquire().expect("state").expect("a free slot")).collect();
        let runner = Runner::new(Arc::clone(model), 1).expect("the CPU is there");
        Self { memory, slots, runner, output: DraftOutput::default() }
    }

    /// Drafts after these entries of each sequence, in so many rows at least; gives draft tokens and their logits.
    fn draft(&mut self, entries: &[(&[TokenId], &[f32])], width: usize, depth: usize) -> Vec<(Vec<TokenId>, Vec<f32>)> {
        let n_entries: Vec<usize> = entries.iter().map(|(tokens, _)| tokens.len()).collect();
        let rows = |n: &usize| n.max(&width) + depth - 1;
        let parts: Vec<_> = self.slots.iter().zip(n_entries.iter().map(rows)).collect();
        let step = self.memory.begin(&parts, 1).expect("a step that can be made");
        let tokens: Vec<TokenId> = entries.iter().flat_map(|(tokens, _)| tokens.iter().copied()).collect();
        let hidden: Vec<f32> = entries.iter().flat_map(|(_, hidden)| hidden.iter().copied()).collect();
        let (tokens, hidden, n_entries) = (&tokens, &hidden, &n_entries);
        let draft = Draft { tokens, hidden, n_entries, depth, verbose: true, ..Draft::default() };
        self.runner.draft(step.view(), &draft, &mut self.output).expect("a draft that can be computed");
        step.commit(n_entries).expect("rows that can be kept");
        let n_vocab = self.runner.model().hparams().n_vocab;
        let logits =
            |i: usize| self.output.logits.iter().flat_map(move |l| l[i * n_vocab..][..n_vocab].to_vec()).collect();
        self.output.tokens.iter().cloned().enumerate().map(|(i, tokens)| (tokens, logits(i))).collect()
    }
}

#[test]
fn a_sequence_of_nan_has_no_likeliest_token_and_changes_no_other() {
    for arch in model::architectures() {
        let mut document = Spec::of(arch).document();
        let table = document.tensors.iter_mut().find(|t| t.name == "token_embd.weight").expect("every model has one");
        let n_embd = table.ne[0] as usize;
        table.data[4 * 77 * n_embd..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
        let dir = tempfile::TempDir::new().expect("a folder");
        let path = document.write(&dir.path().join("tiny.gguf"));
        let model = Model::open(&path, &LoadOptions::default()).expect("a sound file");
        let best = |tokens: [[u32; 3]; 3], rows: Rows<'_>| {
            let mut memory = model.memory(exact(3, 256)).expect("a small state");
            let slots = [(); 3].map(|()| memory.acquire().expect("state can be cleared").expect("a free slot"));
            let step = memory.begin(&[(&slots[0], 3), (&slots[1], 3), (&slots[2], 3)], 1).expect("a step");
            let (tokens, mut output) = (tokens.as_flattened().iter().map(|&id| TokenId(id)), PassOutput::default());
            let tokens: Vec<_> = tokens.collect();
            let pass = Pass { tokens: &tokens, rows, hidden: false };
            let mut runner = Runner::new(Arc::clone(&model), 1).expect("the CPU is there");
            runner.run(step.view(), &pass, &mut output).expect("a pass");
            output
        };
        let sound = best([[1, 2, 3], [4, 5, 6], [7, 8, 9]], Rows::Best(&[2, 5, 8]));
        let damaged = [[1, 2, 3], [4, 5, 77], [7, 8, 9]];
        let found = best(damaged, Rows::Best(&[2, 5, 8]));
        assert_eq!([0, 1, 2].map(|i| found.best[i].is_number()), [true, false, true], "{arch}");
        assert!((found.best[1].token.0 as usize) < model.hparams().n_vocab);
        assert_eq!((found.best[0], found.best[2]), (sound.best[0], sound.best[2]), "{arch}");
    }
}

#[test]
fn a_draft_from_nan_is_of_tokens_and_changes_no_other() {
    let dir = tempfile::TempDir::new().expect("a folder");
    let path = Spec { nextn: true, ..Spec::of("qwen35") }.document().write(&dir.path().join("tiny.gguf"));
    let model = Model::open(&path, &LoadOptions::default()).expect("a sound file");
    let n_embd = model.hparams().n_embd;
    let sound: Vec<f32> = (0..n_embd).map(|i| (i % 7) as f32 / 7.0 - 0.4).collect();
    let nan = vec![f32::NAN; n_embd];
    let entry = [TokenId(5)];
    let expected = Head::new(&model, 2).draft(&[(&entry, &sound), (&entry, &sound)], 0, 4);
    let found = Head::new(&model, 2).draft(&[(&entry, &nan), (&entry, &sound)], 0, 4);
    assert!(found[0].0.iter().all(|id| (id.0 as usize) < model.hparams().n_vocab), "{:?}", found[0].0);
    assert!(found[0].1.iter().all(|logit| logit.is_nan()));
    assert_eq!(found[1], expected[1]);
}

#[test]
fn drafts_do_not_depend_on_rows_that_only_fill_the_pass() {
    for arch in ["qwen35", "qwen35moe"] {
        let dir = tempfile::TempDir::new().expect("a folder");
        let path = Spec { nextn: true, ..Spec::of(arch) }.document().write(&dir.path().join("tiny.gguf"));
        let model = Model::open(&path, &LoadOptions::default()).expect("a sound file");
        let n_embd = model.hparams().n_embd;
        let mut rng = Rng::new(3);
        let (mut both, mut first, mut second) = (Head::new(&model, 2), Head::new(&model, 1), Head::new(&model, 1));
        for (n, m) in [(1, 3), (3, 1), (2, 2), (1, 1), (3, 2)] {
            let mut some = |n: usize| {
                let tokens: Vec<TokenId> = random_ids(&mut rng, n).into_iter().map(TokenId).collect();
                let hidden: Vec<f32> = (0..n * n_embd).map(|_| rng.below(2000) as f32 / 1000.0 - 1.0).collect();
                (tokens, hidden)
            };
            let (a, b) = (some(n), some(m));
            let together = both.draft(&[(&a.0, &a.1), (&b.0, &b.1)], 3, 3);
            for (found, (alone, (tokens, hidden))) in together.iter().zip([(&mut first, &a), (&mut second, &b)]) {
                let expected = &alone.draft(&[(tokens, hidden)], 0, 3)[0];
                assert_eq!(found.0, expected.0, "{arch}, {n} and {m} entries");
                assert_close(&found.1, &expected.1, CLOSE, &format!("{arch}, {n} and {m} entries"));
            }
        }
        assert_eq!(both.runner.stats().n_builds, 1, "{arch}");
    }
}

#[test]
fn rolled_back_equals_never_advanced() {
    for (arch, model) in models() {
        for (seed, transactional) in (0..16).map(|seed| (seed, seed % 2 == 1)) {
            let what = format!("{arch}, seed {seed}, transactional {transactional}");
            let mut rng = Rng::new(seed);
            let config = MemoryConfig { n_snapshots: 4, transactional, ..exact(2, 256) };
            let mut past = [random_ids(&mut rng, 40), random_ids(&mut rng, 57)];
            // Twins: the same true rows, other false ones.
            let mut twins = [Rig::new(&model, config), Rig::new(&model, config)];
            let slots = twins.each_mut().map(|rig| [rig.slot(), rig.slot()]);
            for (rig, slots) in twins.iter_mut().zip(&slots) {
                rig.step(&[(&slots[0], &past[0])]);
                rig.step(&[(&slots[1], &past[1])]);
            }
            for _round in 0..5 {
                let least = usize::from(is_recurrent(&model));
                let n_rows = [1 + rng.below(4), 1 + rng.below(4)];
                let kept = n_rows.map(|n| least + rng.below(n + 1 - least));
                let next = kept.map(|n| random_ids(&mut rng, n));
                for (rig, slots) in twins.iter_mut().zip(&slots) {
                    let mut rows = next.clone();
                    for (rows, n) in rows.iter_mut().zip(n_rows) {
                        let n_false = n - rows.len();
                        rows.extend(random_ids(&mut rng, n_false));
                    }
                    rig.step_keeping(&[(&slots[0], &rows[0]), (&slots[1], &rows[1])], 4, &kept);
                }
                for (past, next) in past.iter_mut().zip(&next) {
                    past.extend(next);
                }
            }
            for i in 0..2 {
                let [a, b] = [0, 1].map(|twin| twins[twin].memory.save(&slots[twin][i]).expect("state that is there"));
                assert_eq!(a.len(), past[i].len(), "{what}");
                assert!(a == b, "{what}: dropped rows are seen in the state of slot {i}");
                let next = random_ids(&mut rng, 3);
                let found = twins[0].step(&[(&slots[0][i], &next)]);
                assert_close(&found, &after(&model, exact(1, 256), &past[i], &next), CLOSE, &what);
            }
        }
    }
}

#[test]
fn a_dropped_step_changes_nothing_or_marks_the_sequence_lost() {
    for (arch, model) in models() {
        for transactional in [true, false] {
            let what = format!("{arch}, transactional {transactional}");
            let mut rng = Rng::new(7);
            let config = MemoryConfig { n_snapshots: 4, transactional, ..exact(2, 256) };
            let mut rig = Rig::new(&model, config);
            let (slot, other) = (rig.slot(), rig.slot());
            let (past, next) = (random_ids(&mut rng, 30), random_ids(&mut rng, 5));
            rig.step(&[(&slot, &past)]);
            rig.step(&[(&other, &next)]);
            let (before, other_before) = (rig.memory.save(&slot), rig.memory.save(&other));
            for n in [1, 3, 9, 2] {
                let ids = random_ids(&mut rng, n);
                if transactional || !is_recurrent(&model) || n == 1 {
                    rig.step_dropped(&[(&slot, &ids)], 4);
                }
            }
            let undisturbed = other_before.expect("state that is there") == rig.memory.save(&other).expect("the same");
            assert!(undisturbed, "{what}: another sequence has changed");
            if transactional || !is_recurrent(&model) {
                assert!(rig.memory.save(&slot).expect("the state is there") == before.expect("it was"), "{what}");
                let expected = after(&model, exact(1, 256), &past, &next);
                assert_close(&rig.step(&[(&slot, &next)]), &expected, 0.0, &what);
                continue;
            }
            let refused = rig.memory.begin(&[(&slot, 1)], 1).expect_err("the state is lost").to_string();
            assert!(refused.contains("its state is lost; reset the sequence"), "{refused}");
            assert!(rig.memory.save(&slot).is_err() && rig.memory.checkpoint(&slot).is_err(), "{what}");
            rig.memory.reset(&slot).expect("a slot in use");
            assert_close(&rig.step(&[(&slot, &past)]), &after(&model, exact(1, 256), &[], &past), 0.0, &what);
        }
    }
}

#[test]
fn logged_tokens_go_along_when_a_sequence_is_saved_copied_and_held() {
    for (arch, model) in models() {
        let mut rng = Rng::new(5);
        let mut rig = Rig::new(&model, MemoryConfig { n_snapshots: 4, ..exact(3, 256) });
        let slots = [(); 3].map(|()| rig.slot());
        rig.step(&[(&slots[0], &random_ids(&mut rng, 33))]);
        let next = random_ids(&mut rng, 2);
        for (round, kept) in [2, 1, 4, 3, 1].into_iter().enumerate() {
            let what = format!("{arch}, round {round}");
            rig.step_keeping(&[(&slots[0], &random_ids(&mut rng, 4))], 4, &[kept]);
            let saved = rig.memory.save(&slots[0]).expect("state that is there");
            rig.memory.load(&slots[1], &saved).expect("it fits");
            assert!(rig.memory.save(&slots[1]).expect("state that is there") == saved, "{what}");
            let expected = rig.step(&[(&slots[1], &next)]);
            let len = rig.memory.len(&slots[0]).expect("a slot in use");
            rig.memory.copy(&slots[0], &slots[2], len, None).expect("whole copies");
            assert_close(&rig.step(&[(&slots[2], &next)]), &expected, 0.0, &format!("{what}: a copy"));
            rig.memory.hold(&slots[0]).expect("a state to hold");
            for _ in 0..3 {
                rig.step(&[(&slots[0], &random_ids(&mut rng, 1))]);
            }
            rig.memory.take_back(&slots[0]).expect("a held sequence");
            assert!(rig.memory.save(&slots[0]).expect("state that is there") == saved, "{what}: taken back");
            rig.memory.let_go(&slots[0]).expect("a slot in use");
        }
    }
}

#[test]
fn a_saved_sequence_goes_on_in_another_slot_as_if_never_saved() {
    let types = [
        (CacheType::F32, true),
        (CacheType::F16, true),
        (CacheType::F16, false),
        (CacheType::Q8_0, false),
        (CacheType::Q4_0, false),
    ];
    for arch in model::architectures() {
        let model = model(arch);
        for (cache, v_transposed) in types {
            let what = format!("{arch}, {cache}, v_transposed {v_transposed}");
            let mut rng = Rng::new(3);
            let config = MemoryConfig { type_k: cache, type_v: cache, v_transposed, ..exact(3, 300) };
            // Heads of the tiny Gemma 4's layers with a window are half a block.
            if arch == "gemma4" && !cache.is_plain() {
                assert!(model.memory(config).is_err(), "{what}");
                continue;
            }
            let (past, next) = (random_ids(&mut rng, 270), random_ids(&mut rng, 4));
            let mut rig = Rig::new(&model, config);
            let slot = rig.slot();
            rig.step(&[(&slot, &past)]);
            let saved = rig.memory.save(&slot).expect("state that is there");
            assert!(saved.len() == past.len() && saved.n_bytes() > 0, "{what}");
            let expected = rig.step(&[(&slot, &next)]);

            let used = rig.slot();
            rig.step(&[(&used, &random_ids(&mut rng, 280))]);
            rig.memory.load(&used, &saved).expect("it fits");
            assert_close(&rig.step(&[(&used, &next)]), &expected, 0.0, &what);
            // Another memory of the same shape.
            let mut rig = Rig::new(&model, MemoryConfig { n_slots: 1, ..config });
            let slot = rig.slot();
            rig.memory.load(&slot, &saved).expect("it fits");
            assert!(rig.memory.save(&slot).expect("state that is there") == saved, "{what}");
            assert_close(&rig.step(&[(&slot, &next)]), &expected, 0.0, &what);
        }
    }
}

#[test]
fn a_restored_checkpoint_goes_on_as_if_never_advanced() {
    for arch in model::architectures() {
        let model = model(arch);
        for seed in 0..4 {
            let mut rng = Rng::new(seed);
            let config = MemoryConfig { n_snapshots: 2, ..exact(1, 256) };
            let mut rig = Rig::new(&model, config);
            let slot = rig.slot();
            rig.step(&[(&slot, &random_ids(&mut rng, 20))]);
            let checkpoint = rig.memory.checkpoint(&slot).expect("state that is there");
            assert_eq!((checkpoint.position(), checkpoint.n_bytes() > 0), (20, is_recurrent(&model)));
            let next = random_ids(&mut rng, 7);
            let expected = rig.step(&[(&slot, &next)]);
            // Far ahead, and onto another state slot.
            rig.step(&[(&slot, &random_ids(&mut rng, 60))]);
            rig.step_keeping(&[(&slot, &random_ids(&mut rng, 2))], 2, &[1]);
            rig.memory.restore(&slot, &checkpoint).expect("a checkpoint of this sequence");
            assert_eq!(rig.memory.len(&slot).expect("a slot in use"), 20);
            assert_close(&rig.step(&[(&slot, &next)]), &expected, 0.0, &format!("{arch}, seed {seed}"));
        }
    }
}

/// Types of cells change what attention reads; measured for these models: 4e-3, 3.4e-2, 0.54.
#[test]
fn cells_of_fewer_bits_stay_near_exact_ones() {
    // Fewer bits may turn a router's near tie the other way, and move logits far: these have none with this seed.
    for arch in ["qwen35", "qwen35moe", "llama"] {
        let model = model_of(&Spec { seed: 2, ..Spec::of(arch) });
        let ids = random_ids(&mut Rng::new(5), 120);
        let expected = after(&model, exact(1, 256), &[], &ids);
        for (cache, v_transposed, tolerance) in [
            (CacheType::F16, true, 1e-2),
            (CacheType::F16, false, 1e-2),
            (CacheType::Q8_0, false, 0.1),
            (CacheType::Q4_0, false, 1.5),
        ] {
            let config = MemoryConfig { type_k: cache, type_v: cache, v_transposed, ..exact(1, 256) };
            let mut rig = Rig::new(&model, config);
            let slot = rig.slot();
            let found = rig.in_pieces(&slot, &ids, &[100, 19, 1]);
            assert_close(&found, &expected, tolerance, &format!("{arch}, {cache}, v_transposed {v_transposed}"));
            assert!(found != expected, "{arch}: {cache} was not used");
        }
    }
}

#[test]
fn a_pass_that_does_not_fit_its_step_is_refused_and_the_runner_goes_on() {
    let model = model("qwen35");
    let mut memory = model.memory(exact(1, 256)).expect("room");
    let slot = memory.acquire().expect("cleared").expect("a free slot");
    let mut runner = Runner::new(Arc::clone(&model), 1).expect("the CPU is there");
    let mut output = PassOutput::default();
    let n_vocab = model.hparams().n_vocab as u32;
    let mut run = |memory: &mut memory::Memory, tokens: &[u32], rows: Rows<'_>| {
        let tokens: Vec<_> = tokens.iter().copied().map(TokenId).collect();
        let txn = memory.begin(&[(&slot, 2)], 1)?;
        runner.run(txn.view(), &Pass { tokens: &tokens, rows, hidden: false }, &mut output)?;
        txn.commit(&[2])?;
        Ok::<usize, RunError>(output.logits.len())
    };
    for (tokens, rows, says) in [
        (&[1, 2, 3][..], Rows::All, "3 tokens for a step of 2 rows"),
        (&[1, n_vocab], Rows::All, "token id 272 is outside the vocabulary of 272"),
        (&[1, 2], Rows::Some(&[2]), "row 2 was asked for, the step has 2"),
    ] {
        let error = run(&mut memory, tokens, rows).expect_err(says);
        assert!(matches!(error, RunError::Pass(_)) && error.to_string() == says, "{error}");
        memory.reset(&slot).expect("a slot in use");
    }
    for (rows, n) in [(Rows::None, 0), (Rows::All, 2), (Rows::Some(&[1]), 1), (Rows::Some(&[1, 0, 1]), 3)] {
        assert_eq!(run(&mut memory, &[5, 6], rows).expect("a sound pass"), n * n_vocab as usize, "{rows:?}");
    }
}

#[test]
fn hidden_rows_that_are_wanted_too_leave_every_bit_of_the_logits() {
    // K types: many rows have other bits than a few, so the row that gives logits must stay among its like.
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pocket-q4_k_m.gguf");
    let model = Model::open(&path, &LoadOptions::default()).expect("a model of the repository");
    let mut rng = Rng::new(7);
    let ids: Vec<TokenId> = random_ids(&mut rng, 100).into_iter().map(TokenId).collect();
    let mut runner = Runner::new(Arc::clone(&model), 1).expect("the CPU is there");
    let mut logits_of = |rows: &[usize], hidden: bool| {
        let mut memory = model.memory(exact(1, 128)).expect("state");
        let slot = memory.acquire().expect("state can be cleared").expect("a free slot");
        let txn = memory.begin(&[(&slot, ids.len())], 1).expect("a step");
        let mut output = PassOutput::default();
        runner
            .run(txn.view(), &Pass { tokens: &ids, rows: Rows::Some(rows), hidden }, &mut output)
            .expect("a pass that can be computed");
        assert_eq!(output.hidden.len(), if hidden { ids.len() * model.hparams().n_embd } else { 0 });
        output.logits
    };
    for rows in [&[99][..], &[40, 98, 99]] {
        assert!(logits_of(rows, false) == logits_of(rows, true), "rows {rows:?}");
    }
}

#[test]
fn the_likeliest_tokens_are_those_of_the_largest_logits() {
    let pocket = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pocket-q4_k_m.gguf");
    let pocket = Model::open(&pocket, &LoadOptions::default()).expect("a model of the repository");
    // A small vocabulary is searched in one piece, that of pocket in parts.
    for model in [model("qwen35"), pocket] {
        let mut memory = model.memory(MemoryConfig { transactional: true, ..exact(1, 256) }).expect("a small state");
        let slot = memory.acquire().expect("state can be cleared").expect("a free slot");
        let mut runner = Runner::new(Arc::clone(&model), 1).expect("the CPU is there");
        let tokens = [11, 200, 3, 77, 150].map(TokenId);
        let mut of = |rows: Rows<'_>| {
            let step = memory.begin(&[(&slot, tokens.len())], 1).expect("a step that can be made");
            let mut output = PassOutput::default();
            runner.run(step.view(), &Pass { tokens: &tokens, rows, hidden: false }, &mut output).expect("a pass");
            output
        };
        for rows in [&[0, 1, 2, 3, 4][..], &[1, 4], &[3]] {
            let (logits, best) = (of(Rows::Some(rows)), of(Rows::Best(rows)).best);
            let largest = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).expect("words");
            let likeliest = |row: &[f32]| Likeliest { token: TokenId(largest(row) as u32), logit: row[largest(row)] };
            let expected: Vec<_> = (0..rows.len()).map(|i| likeliest(logits.logits(i))).collect();
            assert_eq!(best, expected, "rows {rows:?} of {}", model.hparams().n_vocab);
        }
    }
}

#[test]
fn the_top_tokens_are_those_of_the_largest_logits_and_all_logits_can_be_had_after_them() {
    let model = model("qwen35");
    let mut memory = model.memory(MemoryConfig { transactional: true, ..exact(1, 256) }).expect("a small state");
    let slot = memory.acquire().expect("state can be cleared").expect("a free slot");
    let mut runner = Runner::new(Arc::clone(&model), 1).expect("the CPU is there");
    let tokens = [11, 200, 3, 77, 150].map(TokenId);
    for rows in [&[0, 1, 2, 3, 4][..], &[1, 4], &[3]] {
        let mut of = |rows: Rows<'_>, output: &mut PassOutput| {
            let step = memory.begin(&[(&slot, tokens.len())], 1).expect("a step that can be made");
            runner.run(step.view(), &Pass { tokens: &tokens, rows, hidden: false }, output).expect("a pass");
        };
        let (mut all, mut top) = (PassOutput::default(), PassOutput::default());
        of(Rows::Some(rows), &mut all);
        of(Rows::Top(rows, 9), &mut top);
        for i in 0..rows.len() {
            let mut expected: Vec<_> = (0..).map(TokenId).zip(all.logits(i).iter().copied()).collect();
            expected.sort_by(|a, b| b.1.total_cmp(&a.1));
            let mut found: Vec<_> = top.top(i).expect("asked for").to_vec();
            found.sort_by(|a, b| b.1.total_cmp(&a.1));
            assert_eq!(found, expected[..9], "row {i} of {rows:?}");
            assert!(top.is_finite(i));
        }
        runner.logits(&mut top).expect("nothing was computed since");
        assert_eq!((top.logits, top.best.len()), (all.logits, 0), "{rows:?}");
    }
}
