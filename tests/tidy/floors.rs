//! Which crate may use which: the floors of docs/decisions/0002-floors.md.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use crate::none;

/// What the library hands on, and all that `nextn` is built with where it is built without programs: no terminal, no HTTP.
const ALL_OF_THE_LIBRARY: &[&str] = &[
    "nextn-constrain",
    "nextn-convert",
    "nextn-engine",
    "nextn-ggml",
    "nextn-gguf",
    "nextn-memory",
    "nextn-model",
    "nextn-session",
    "nextn-speculate",
    "nextn-text",
];

/// Every crate of the workspace, lowest first, with the crates of ours that it may use. Tests and examples may use more.
const FLOORS: &[(&str, &[&str])] = &[
    ("nextn-ggml-sys", &[]),
    // For tests only.
    ("nextn-metal-rules", &["nextn-ggml-sys"]),
    ("nextn-kernels", &["nextn-ggml-sys"]),
    ("nextn-ggml", &["nextn-kernels", "nextn-ggml-sys"]),
    ("nextn-gguf", &[]),
    ("nextn-text", &["nextn-gguf"]),
    // Pictures as numbers; no file of a model.
    ("nextn-vision", &[]),
    ("nextn-memory", &["nextn-ggml"]),
    ("nextn-model", &["nextn-ggml", "nextn-gguf", "nextn-memory", "nextn-text", "nextn-vision"]),
    ("nextn-engine", &["nextn-ggml", "nextn-memory", "nextn-model", "nextn-text"]),
    ("nextn-constrain", &["nextn-engine", "nextn-text"]),
    ("nextn-speculate", &["nextn-memory", "nextn-model", "nextn-engine", "nextn-text"]),
    // For tests only.
    ("nextn-test-support", &["nextn-engine", "nextn-model", "nextn-speculate", "nextn-text"]),
    // No more than HTTP and files; its tests share the fake hub of nextn-test-support.
    ("nextn-hub", &[]),
    ("nextn-convert", &["nextn-ggml", "nextn-gguf", "nextn-model", "nextn-text"]),
    (
        "nextn-session",
        &[
            "nextn-ggml",
            "nextn-gguf",
            "nextn-text",
            "nextn-memory",
            "nextn-model",
            "nextn-engine",
            "nextn-constrain",
            "nextn-speculate",
            "nextn-vision",
        ],
    ),
    ("nextn-api", &["nextn-model", "nextn-engine", "nextn-session", "nextn-text"]),
    ("nextn", ALL_OF_THE_LIBRARY),
    ("nextn-program", &["nextn-ggml", "nextn-hub", "nextn-session"]),
    ("nextn-plot", &[]),
    (
        "nextn-cli",
        &[
            "nextn-engine",
            "nextn-hub",
            "nextn-memory",
            "nextn-model",
            "nextn-program",
            "nextn-session",
            "nextn-speculate",
            "nextn-text",
        ],
    ),
    ("nextn-server", &["nextn-api", "nextn-engine", "nextn-ggml", "nextn-hub", "nextn-program", "nextn-session"]),
    (
        "nextn-bench",
        &[
            "nextn-engine",
            "nextn-ggml",
            "nextn-gguf",
            "nextn-memory",
            "nextn-model",
            "nextn-plot",
            "nextn-program",
            "nextn-session",
            "nextn-speculate",
            "nextn-text",
            "nextn-vision",
        ],
    ),
    ("nextn-extract", &["nextn-convert", "nextn-gguf", "nextn-model", "nextn-program"]),
    (
        "nextn-tune",
        &[
            "nextn-convert",
            "nextn-engine",
            "nextn-gguf",
            "nextn-memory",
            "nextn-model",
            "nextn-plot",
            "nextn-program",
            "nextn-session",
            "nextn-text",
        ],
    ),
    ("nextn (optional)", &["nextn-bench", "nextn-cli", "nextn-extract", "nextn-program", "nextn-server"]),
];

#[test]
fn no_floor_is_skipped() {
    let used = used();
    assert!(used["nextn-engine"].iter().any(|name| name == "nextn-model"), "the dependencies were not read: {used:?}");
    none("dependencies that the floors do not allow", skipped(&used));
}

#[test]
fn a_skipped_floor_is_found() {
    let crates = |list: &[(&str, &[&str])]| {
        list.iter().map(|(name, uses)| ((*name).to_owned(), uses.iter().map(|u| (*u).to_owned()).collect())).collect()
    };
    let used = crates(&[("nextn-gguf", &["nextn-ggml"]), ("nextn-new", &[]), ("nextn-text", &["nextn-gguf"])]);
    let found = skipped(&used);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("nextn-gguf uses nextn-ggml"), "{found:?}");
    assert!(found[1].starts_with("nextn-new has no floor"), "{found:?}");
}

#[test]
fn floors_rest_on_lower_ones() {
    for (i, (name, allowed)) in FLOORS.iter().enumerate() {
        for below in *allowed {
            assert!(FLOORS[..i].iter().any(|(lower, _)| lower == below), "{below} does not lie below {name}");
        }
    }
}

/// What disagrees with the table.
fn skipped(used: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut found = Vec::new();
    for (name, uses) in used {
        let Some((_, allowed)) = FLOORS.iter().find(|(floor, _)| floor == name) else {
            found.push(format!("{name} has no floor: give it one in tests/tidy/floors.rs and in docs/ARCHITECTURE.md"));
            continue;
        };
        let wrong = uses.iter().filter(|other| !allowed.contains(&other.as_str()));
        found.extend(wrong.map(|other| format!("{name} uses {other}; allowed: {allowed:?}")));
    }
    found
}

/// The crates of the workspace, each with those of ours that it is built with (development dependencies left out). Those that
/// only a feature brings in stand under `NAME (optional)`.
fn used() -> BTreeMap<String, Vec<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(crate::tree::Tree::read().root);
    command.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    let output = command.output().expect("cargo runs the tests, so it is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata gives JSON");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut crates = BTreeMap::<String, Vec<String>>::new();
    for package in list(&metadata["packages"]) {
        let name = text(&package["name"]);
        crates.entry(name.clone()).or_default();
        let dependencies = list(&package["dependencies"]);
        for ours in dependencies.iter().filter(|d| !d["path"].is_null() && d["kind"] != "dev") {
            let by = if ours["optional"] == true { format!("{name} (optional)") } else { name.clone() };
            crates.entry(by).or_default().push(text(&ours["name"]));
        }
    }
    crates
}
