//! The lines that call our CUDA kernels find their places in ggml's files: nvcc is not needed to know that.

#[path = "../build/source.rs"]
#[allow(dead_code)] // The build script uses all of it.
mod source;

use std::path::Path;

#[test]
fn every_hook_has_one_place_in_ggmls_source_and_names_what_we_have() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pin = source::pin(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda")).expect("the pin of the checkout");
    let ggml = source::locate(&pin, env!("GGML_SYS_TARGET")).expect("ggml was compiled before this test");
    let hooks = std::fs::read_to_string(here.join("cuda/hooks")).expect("it lies in the checkout");
    let ours = std::fs::read_to_string(here.join("cuda/few_columns.cuh")).expect("it lies in the checkout");
    assert!(hooks.lines().count() >= 8, "{hooks}");
    for hook in hooks.lines() {
        let [file, line, what] = hook.splitn(3, '|').collect::<Vec<_>>()[..] else { panic!("`{hook}` is no hook") };
        let path = ggml.src().join("ggml-cuda").join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(text.lines().filter(|l| *l == line).count(), 1, "`{line}` in {}", path.display());
        for (at, _) in what.match_indices("nextn::") {
            let name = what[at + "nextn::".len()..].split('(').next().expect("a name");
            assert!(ours.contains(&format!(" {name}(")), "few_columns.cuh has no {name}");
        }
    }
}
