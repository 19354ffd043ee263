//! The rotation of positions by flags and keys: what it changes beside logits, and what is refused. Logits are compared with
//! llama.cpp's in `tests/golden.rs`.

use std::sync::Arc;

use crate::support::tiny;
use model::{LoadError, LoadOptions, Model, RopeOptions, RopeScaling};
use tiny::{Meta, Spec};

fn open(more: &[(&'static str, Meta)], rope: RopeOptions) -> Result<Arc<Model>, LoadError> {
    let dir = tempfile::TempDir::new().expect("a folder");
    let mut document = Spec { nextn: true, ..Spec::of("qwen35") }.document();
    for (key, value) in more {
        document.set(&format!("qwen35.{key}"), value.clone());
    }
    let path = document.write(&dir.path().join("tiny.gguf"));
    Model::open(&path, &LoadOptions { rope, ..LoadOptions::default() })
}

/// Options that all change something.
fn all_options() -> Vec<RopeOptions> {
    let none = RopeOptions::default();
    vec![
        RopeOptions { scaling: Some(RopeScaling::None), ..none },
        RopeOptions { scaling: Some(RopeScaling::Linear), ..none },
        RopeOptions { scaling: Some(RopeScaling::Yarn), ..none },
        RopeOptions { freq_base: Some(5e5), ..none },
        RopeOptions { freq_scale: Some(0.5), ..none },
        RopeOptions { yarn_orig_ctx: Some(100), ..none },
        RopeOptions { yarn_ext_factor: Some(0.5), ..none },
        RopeOptions { yarn_attn_factor: Some(0.5), ..none },
        RopeOptions { yarn_beta_fast: Some(0.5), ..none },
        RopeOptions { yarn_beta_slow: Some(0.5), ..none },
    ]
}

#[test]
fn states_of_another_rotation_are_not_those_of_the_model() {
    let prints = |rope| {
        let model = open(&[], rope).expect("a sound model");
        [model.fingerprint().expect("its file is there"), model.head_fingerprint().expect("its file is there")]
    };
    let plain = prints(RopeOptions::default());
    assert_eq!(plain, prints(RopeOptions::default()));
    let mut seen = vec![plain];
    for rope in all_options() {
        let found = prints(rope);
        assert!(seen.iter().all(|other| other[0] != found[0] && other[1] != found[1]), "{rope:?}");
        seen.push(found);
    }
}

#[test]
fn yarn_by_flags_stretches_the_context_and_nothing_else_does() {
    let yarn = |factor: f32| {
        [
            ("rope.scaling.type", Meta::Str("yarn".into())),
            ("rope.scaling.factor", Meta::F32(factor)),
            ("rope.scaling.original_context_length", Meta::U32(1000)),
        ]
    };
    let n_ctx = |more: &[_], rope| open(more, rope).expect("a sound model").hparams().n_ctx_train;
    let none = RopeOptions::default();
    let flags = RopeOptions { scaling: Some(RopeScaling::Yarn), freq_scale: Some(0.25), ..none };
    assert_eq!(n_ctx(&[], none), 4096);
    assert_eq!(n_ctx(&[], RopeOptions { freq_scale: Some(0.25), ..none }), 4096);
    assert_eq!(n_ctx(&[], flags), 4 * 4096);
    assert_eq!(n_ctx(&[], RopeOptions { yarn_orig_ctx: Some(512), ..flags }), 4 * 512);
    // A file's own context holds its own factor.
    assert_eq!(n_ctx(&yarn(4.0), none), 4096);
    assert_eq!(n_ctx(&yarn(4.0), RopeOptions { freq_scale: Some(0.125), ..none }), 8 * 1000);
}

#[test]
fn keys_that_cannot_be_followed_are_refused_by_name() {
    for (key, value) in [
        ("rope.scaling.type", Meta::Str("longrope".into())),
        ("rope.scaling.type", Meta::U32(2)),
        ("rope.scaling.factor", Meta::F32(-4.0)),
        ("rope.scaling.factor", Meta::F32(1e-30)),
        ("rope.scaling.factor", Meta::F32(f32::NAN)),
        ("rope.scale_linear", Meta::F32(f32::INFINITY)),
        ("rope.scaling.original_context_length", Meta::U32(0)),
        ("rope.scaling.attn_factor", Meta::F32(f32::NAN)),
        ("rope.freq_base", Meta::F32(0.0)),
    ] {
        let error =
            open(&[(key, value.clone())], RopeOptions::default()).expect_err("it cannot be followed").to_string();
        assert!(error.contains(&format!("qwen35.{key}")), "{value:?}: {error}");
    }
    for (key, value) in [
        ("rope.scaling.yarn_log_multiplier", Meta::F32(-1.0)),
        ("rope.scaling.yarn_beta_fast", Meta::F32(f32::INFINITY)),
        ("rope.scaling.yarn_ext_factor", Meta::Str("much".into())),
    ] {
        let more = [("rope.scaling.type", Meta::Str("yarn".into())), (key, value.clone())];
        let error = open(&more, RopeOptions::default()).expect_err("it cannot be followed").to_string();
        assert!(error.contains(&format!("qwen35.{key}")), "{value:?}: {error}");
    }
    // Who says how positions are scaled needs no kind of scaling in the file.
    let rope = RopeOptions { scaling: Some(RopeScaling::None), ..RopeOptions::default() };
    assert!(open(&[("rope.scaling.type", Meta::Str("longrope".into()))], rope).is_ok());
}
