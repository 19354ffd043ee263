//! Heads of several layers go out of a file and back in as those of one do.

use std::path::Path;

use convert::Source;
use convert::check::{Options, Verdict, verify};
use convert::heads::{Extract, Graft, HeadSource, Layout, WeightType, extract, graft, strip};
use model::{LoadOptions, Model};

use crate::tiny::Spec;

const N_LAYERS: usize = 3;

fn source(path: &Path) -> Source {
    Source::open(path).expect("a file that can be read")
}

#[test]
fn a_head_of_several_layers_is_extracted_stripped_and_grafted_and_drafts_from_its_own_file() {
    for arch in ["qwen35", "mimo2", "step35"] {
        let dir = tempfile::tempdir().expect("a folder");
        let path = |name: &str| dir.path().join(name);
        let spec = Spec { nextn: true, n_mtp: N_LAYERS, ..Spec::of(arch) };
        let whole = spec.document().write(&path("whole.gguf"));
        let report = verify(&whole, Options { values: true, n_threads: 1 }, &Default::default()).expect("readable");
        assert_eq!(report.verdict, Verdict::Complete, "{arch}: {:?}", report.damage);
        strip(source(&whole)).expect("a head").write(&path("main.gguf"), 1, &Default::default()).expect("room");
        let main = Model::open(&path("main.gguf"), &LoadOptions::default()).expect("a sound file");
        assert_eq!(main.n_mtp_layers(), 0, "{arch}");
        for layout in [Layout::Upstream, Layout::Slim, Layout::Legacy] {
            let head = path("head.gguf");
            let how = Extract { layout, dtype: WeightType::Keep };
            extract(source(&whole), how).expect("a head").write(&head, 1, &Default::default()).expect("room");
            let report = verify(&head, Options { values: true, n_threads: 1 }, &Default::default()).expect("readable");
            assert_eq!(report.damage, [""; 0], "{arch}, {layout:?}");
            let beside = LoadOptions { head: Some(head.clone()), ..LoadOptions::default() };
            let model = Model::open(&path("main.gguf"), &beside).expect("a head that belongs to it");
            assert_eq!(model.n_mtp_layers(), N_LAYERS, "{arch}, {layout:?}");
            let donor = HeadSource::open(&head).expect("a head");
            let new = graft(source(&path("main.gguf")), donor, Graft::default()).expect("a head that belongs to it");
            new.write(&path("grafted.gguf"), 1, &Default::default()).expect("room");
            let bytes = |name: &str| std::fs::read(path(name)).expect("it was written");
            assert!(bytes("grafted.gguf") == bytes("whole.gguf"), "{arch}, {layout:?}: the file comes back");
            std::fs::remove_file(path("grafted.gguf")).expect("it is there");
            std::fs::remove_file(head).expect("it is there");
        }
    }
}
