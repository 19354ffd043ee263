//! All tracked files: their size, paths of one machine in them, model files and their checksums, the declarations' hashes.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::none;
use crate::tree::Tree;

/// A clone is to be quick.
const MAX_BYTES: u64 = 52_000_000;

/// Folders at the root that hold one machine's files. Written in parts, so that this list is not found itself.
const LOCAL: &[&str] = &["home", "Users", "root", "work", "tmp"];

#[test]
fn the_repository_stays_small() {
    let tree = Tree::read();
    let size = |file: &String| std::fs::symlink_metadata(tree.root.join(file)).map_or(0, |m| m.len());
    let n_bytes: u64 = tree.files.iter().map(size).sum();
    assert!(n_bytes > 20_000_000, "the model files were not counted: {n_bytes} bytes in all");
    assert!(n_bytes <= MAX_BYTES, "tracked files have {n_bytes} bytes, {MAX_BYTES} are the most");
}

#[test]
fn no_file_names_a_path_of_one_machine() {
    let tree = Tree::read();
    let mut found = Vec::new();
    for file in &tree.files {
        let Ok(text) = String::from_utf8(tree.bytes(file)) else { continue };
        for (i, line) in text.lines().enumerate() {
            found.extend(local_path(line).map(|path| format!("{file}:{}: {path}", i + 1)));
        }
    }
    none("paths of one machine", found);
}

/// The first absolute path in `line` that means something on one machine only. Users with a name of one letter are made up.
fn local_path(line: &str) -> Option<&str> {
    let is_path = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '~' | '$' | '}');
    line.match_indices('/').find_map(|(at, _)| {
        if line[..at].chars().next_back().is_some_and(is_path) {
            return None;
        }
        let end = line[at..].find(|c: char| !is_path(c)).map_or(line.len(), |n| at + n);
        let path = &line[at..end];
        let mut parts = path[1..].split('/');
        let local = LOCAL.contains(&parts.next()?) && parts.next().is_some_and(|name| name.len() > 1);
        local.then_some(path)
    })
}

#[test]
fn model_files_have_the_checksums_that_are_listed() {
    let tree = Tree::read();
    let list = tree.text("models/SHA256SUMS");
    let listed: BTreeMap<&str, &str> = list.lines().filter_map(|l| l.split_once("  ")).map(|(s, f)| (f, s)).collect();
    let files: Vec<&str> = tree.ending(".gguf").filter_map(|file| file.strip_prefix("models/")).collect();
    assert_eq!(listed.keys().copied().collect::<Vec<_>>(), files, "models/SHA256SUMS lists the model files, no others");
    let readme = tree.text("models/README.md");
    for (file, sum) in listed {
        assert_eq!(sha256(&tree.bytes(&format!("models/{file}"))), sum, "models/{file}");
        assert!(readme.contains(sum) && readme.contains(file), "models/README.md lists {file} with its checksum");
    }
}

#[test]
fn the_declarations_name_the_hash_of_every_header() {
    let tree = Tree::read();
    let bindings = tree.text("vendor/ggml-sys/bindings.rs");
    let headers = headers(&tree.text("vendor/ggml-sys/build/declarations.rs"));
    assert!(headers.contains(&"ggml.h".to_owned()), "the list of headers was not read: {headers:?}");
    let hashed = hashes(&bindings);
    assert_eq!(hashed.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>(), headers);
    for (name, hash) in hashed {
        assert!(hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()), "{name}: {hash} is no SHA-256");
    }
    let version = bindings.split("BINDINGS_VERSION: &str = \"").nth(1).and_then(|rest| rest.split('"').next());
    let version = version.expect("bindings.rs tells the version of ggml that it was made from");
    let manifest = tree.text("vendor/ggml-sys/Cargo.toml");
    assert!(manifest.contains(&format!("+ggml.{version}\"")), "vendor/ggml-sys/Cargo.toml names ggml {version}");
}

/// The quoted words of `const HEADERS`.
fn headers(source: &str) -> Vec<String> {
    let list = source.split("const HEADERS: ").nth(1).and_then(|rest| rest.split("];").next()).unwrap_or_default();
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Names and hashes of `HEADERS_SHA256`.
fn hashes(bindings: &str) -> Vec<(String, String)> {
    let list = bindings.split("HEADERS_SHA256").nth(1).and_then(|rest| rest.split("];").next()).unwrap_or_default();
    let words: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    words.chunks_exact(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect()
}

#[cfg(unix)]
#[test]
fn scripts_can_be_run() {
    use std::os::unix::fs::PermissionsExt;
    let tree = Tree::read();
    let scripts = tree.files.iter().filter(|file| tree.bytes(file).starts_with(b"#!/"));
    let mode = |file: &str| std::fs::metadata(tree.root.join(file)).map_or(0, |m| m.permissions().mode());
    let (run, not): (Vec<_>, Vec<_>) = scripts.partition(|file| mode(file) & 0o100 != 0);
    assert!(run.iter().any(|file| *file == ".ci/run"), "{run:?}");
    let own = not.into_iter().filter(|file| file.starts_with("scripts/") || file.starts_with(".ci/"));
    none("scripts without the right to be run", own.cloned().collect());
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_scanners_find_what_they_are_for() {
    let path = |parts: &[&str]| format!("/{}", parts.join("/"));
    for local in [path(&["home", "ann", "x"]), path(&["Users", "ann"]), path(&["tmp", "build.log"])] {
        assert_eq!(local_path(&format!("see `{local}`, please")), Some(local.as_str()));
        assert_eq!(local_path(&format!("X={local}")), Some(local.as_str()));
    }
    for sound in ["https://example.org/home/ann", "src/work/lib.rs", "./tmp/x", "/usr/lib/x", "home/ann", "$X/tmp/x"] {
        assert_eq!(local_path(sound), None, "{sound}");
    }
    assert_eq!(local_path(&path(&["home", "a", "x"])), None);
    assert_eq!(sha256(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!(headers("pub const HEADERS: [&str; 2] = [\"a.h\", \"b.h\"];"), ["a.h", "b.h"]);
    assert_eq!(hashes("HEADERS_SHA256: [(&str, &str); 1] = [\n(\"a.h\", \"00\"),\n];"), [("a.h".into(), "00".into())]);
}
