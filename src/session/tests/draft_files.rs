//! Files given for drafts are taken for what they are: a head for the target, or a model of its own.

use std::path::{Path, PathBuf};

use session::options::DraftOptions;
use session::{DraftFiles, ModelOptions, ModelSource};
use speculate::{Depth, Mode};

fn pocket(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name)
}

fn drafts(spec: Mode, files: &[&Path]) -> DraftOptions {
    DraftOptions { spec, draft_model: files.iter().map(|f| f.to_path_buf()).collect(), ..DraftOptions::default() }
}

#[test]
fn a_whole_model_is_a_head_for_its_like_and_a_draft_model_for_others() {
    let (dense, moe) = (pocket("pocket-q4_k_m.gguf"), pocket("pocket-moe-q8_0.gguf"));
    let head = |file: &Path| DraftFiles { head: Some(file.to_owned()), model: None };
    let model = |file: &Path| DraftFiles { head: None, model: Some(file.to_owned()) };
    let of = |target: &Path, spec, files: &[&Path]| {
        DraftFiles::of(&ModelSource::File(target.to_owned()), &drafts(spec, files)).map_err(|error| error.to_string())
    };
    assert_eq!(of(&moe, Mode::Auto, &[]), Ok(DraftFiles::default()));
    assert_eq!(of(&moe, Mode::Auto, &[&dense]), Ok(model(&dense)));
    assert_eq!(of(&dense, Mode::Auto, &[&dense]), Ok(head(&dense)));
    assert_eq!(of(&dense, Mode::Draft, &[&dense]), Ok(model(&dense)));
    assert_eq!(of(&moe, Mode::NextN, &[&dense]), Ok(head(&dense)), "and it will not fit");
    let both = DraftFiles { head: Some(moe.clone()), model: Some(dense.clone()) };
    assert_eq!(of(&moe, Mode::Auto, &[&dense, &moe]), Ok(both));
    let error = of(&moe, Mode::Auto, &[&dense, &dense]).expect_err("two of a kind");
    assert!(error.contains("each a model") && error.contains("pocket-q4_k_m.gguf"), "{error}");
    let error = of(&moe, Mode::Auto, &[Path::new("nowhere.gguf")]).expect_err("no file");
    assert!(error.contains("nowhere.gguf"), "{error}");
}

#[test]
fn a_model_opens_with_another_that_drafts_for_it() {
    let (dense, moe) = (pocket("pocket-q4_k_m.gguf"), pocket("pocket-moe-q8_0.gguf"));
    let open = |spec, draft_max, files: &[&Path]| {
        let drafts = DraftOptions { draft_max, ..drafts(spec, files) };
        session::open(moe.as_path(), &ModelOptions { drafts, ..ModelOptions::default() })
    };
    for (spec, max) in [(Mode::Draft, 4), (Mode::NextNDraft, 4), (Mode::Auto, 4), (Mode::Off, 0), (Mode::NextN, 4)] {
        let files: &[&Path] = if spec == Mode::NextN { &[] } else { &[&dense] };
        let model = open(spec, Depth::Fixed(4), files).unwrap_or_else(|error| panic!("{spec}: {error}"));
        assert_eq!(model.drafts().max, max, "{spec}");
    }
    let error = open(Mode::Draft, Depth::Auto, &[]).expect_err("none was given");
    assert_eq!(error.fault(), session::Fault::Options);
    assert!(error.to_string().contains("--draft-model"), "{error}");
}
