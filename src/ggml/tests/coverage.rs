//! `docs/ggml-coverage.md` lists the C functions that this crate calls, with the files that call them: no more, no fewer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

type Calls = BTreeMap<String, BTreeSet<String>>;

fn crate_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Words that begin with `ggml_`.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|w| w.starts_with("ggml_"))
}

/// Every function that the bindings declare.
fn declared() -> BTreeSet<String> {
    let bindings = text(&crate_dir().join("../../vendor/ggml-sys/bindings.rs"));
    let functions = bindings.lines().filter_map(|line| line.trim_start().strip_prefix("pub fn "));
    functions.flat_map(|rest| words(rest.split('(').next().unwrap_or(""))).map(str::to_owned).collect()
}

/// The declared functions that stand in the crate's code, comments left out, by file.
fn called() -> Calls {
    let (declared, mut calls) = (declared(), Calls::new());
    for folder in ["", "ops"] {
        for entry in std::fs::read_dir(crate_dir().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|e| e != "rs") {
                continue;
            }
            let file = path.strip_prefix(crate_dir()).unwrap().to_str().unwrap().replace('\\', "/");
            for line in text(&path).lines() {
                let code = line.split("//").next().unwrap_or("");
                for word in words(code).filter(|&w| declared.contains(w)) {
                    calls.entry(word.to_owned()).or_default().insert(file.clone());
                }
            }
        }
    }
    calls
}

/// A line of the list, as it stands in the document.
fn line(function: &str, files: &BTreeSet<String>) -> String {
    let files: Vec<String> = files.iter().map(|f| format!("`{f}`")).collect();
    format!("- [x] `{function}`: {}", files.join(", "))
}

#[test]
fn the_list_is_what_the_sources_call() {
    let calls = called();
    // Were the search broken, an empty list would agree with an empty document.
    for known in ["ggml_mul_mat", "ggml_backend_graph_compute", "ggml_gallocr_new"] {
        assert!(calls.contains_key(known), "{known} is called, but the search does not see it");
    }
    let want: BTreeSet<String> = calls.iter().map(|(function, files)| line(function, files)).collect();
    let document = text(&crate_dir().join("../../docs/ggml-coverage.md"));
    let listed: Vec<&str> = document.lines().filter(|l| l.starts_with("- [")).collect();
    let found: BTreeSet<String> = listed.iter().map(|&l| l.to_owned()).collect();
    assert_eq!(listed.len(), found.len(), "docs/ggml-coverage.md has a line twice");
    let missing: Vec<_> = want.difference(&found).cloned().collect();
    let surplus: Vec<_> = found.difference(&want).cloned().collect();
    assert!(
        missing.is_empty() && surplus.is_empty(),
        "docs/ggml-coverage.md: add\n{}\nremove\n{}",
        missing.join("\n"),
        surplus.join("\n")
    );
}
