//! Projectors are shown for what they are, and verified by the tensors of their towers.

use convert::check::{Options, Report, Verdict, verify};
use convert::inspect::inspect;

use crate::tiny_projector::TinyProjector;

fn report(tiny: &TinyProjector) -> Report {
    let dir = tempfile::tempdir().unwrap();
    let path = tiny.write(&dir.path().join("mmproj.gguf"));
    verify(&path, Options { values: true, n_threads: 1 }, &Default::default()).unwrap()
}

#[test]
fn a_sound_projector_is_complete() {
    for tiny in [
        TinyProjector::qwen(16),
        TinyProjector::gemma(16, false),
        TinyProjector::gemma(16, true),
        TinyProjector::gemma3(16),
    ] {
        let report = report(&tiny);
        assert_eq!(report.verdict, Verdict::Complete, "{:?}", report.damage);
        assert_eq!(report.projector.as_deref(), Some(tiny.kind));
        let gate = report.gate.unwrap();
        assert_eq!((gate.n_present, gate.extra.len()), (tiny.tensors.len(), 0));
    }
}

#[test]
fn a_projector_that_lacks_a_tensor_or_has_numbers_that_cannot_be_is_damaged() {
    let mut without = TinyProjector::qwen(16);
    without.tensors.remove("v.blk.1.attn_out.bias");
    let mut nan = TinyProjector::gemma(16, true);
    nan.tensors.get_mut("v.blk.0.ffn_up.weight").unwrap().1[5] = f32::NAN;
    let mut sizes = TinyProjector::qwen(16);
    sizes.numbers.insert("attention.head_count".into(), 7);
    for (tiny, word) in [(without, "v.blk.1.attn_out.bias"), (nan, "v.blk.0.ffn_up.weight"), (sizes, "head_count")] {
        let report = report(&tiny);
        assert_eq!(report.verdict, Verdict::Damaged);
        assert!(report.damage.iter().any(|what| what.contains(word)), "{word}: {:?}", report.damage);
    }
}

#[test]
fn of_a_tower_that_is_not_known_the_data_is_judged() {
    let report = report(&TinyProjector { kind: "ldp", ..TinyProjector::qwen(16) });
    assert_eq!((report.verdict, report.projector), (Verdict::NoHead, None));
    assert!(report.notes.iter().any(|note| note.contains("ldp")), "{:?}", report.notes);
}

#[test]
fn inspect_shows_the_tower() {
    let dir = tempfile::tempdir().unwrap();
    let path = TinyProjector::qwen(16).write(&dir.path().join("mmproj.gguf"));
    let found = inspect(&path).unwrap();
    let tower = found.projector.unwrap();
    assert_eq!((tower.kind, tower.n_embd_text, tower.patch, tower.merge), ("qwen3vl_merger", 16, 4, 2));
    assert!(found.roles.iter().any(|role| role.name == "attention"), "{:?}", found.roles);
}
