//! The files of the repository: those that git tracks, or all of them where there is no git.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders that a build or a fuzzer fills; they are in `.gitignore`, which a tree without git cannot ask.
const UNTRACKED: &[&str] = &[".git", "target", "corpus", "artifacts"];

/// The repository's root and its files, as paths from there with `/` between their parts, sorted.
pub struct Tree {
    pub root: PathBuf,
    pub files: Vec<String>,
}

impl Tree {
    pub fn read() -> Self {
        // Cargo sets it when it runs tests; a binary that was moved looks at the tree it is told.
        let root = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = PathBuf::from(root);
        let mut files = tracked(&root).unwrap_or_else(|| {
            let mut all = Vec::new();
            walk(&root, "", &mut all);
            all
        });
        files.retain(|file| root.join(file).is_file());
        files.sort();
        assert!(files.iter().any(|f| f == "Cargo.toml"), "no files were found in {}", root.display());
        Self { root, files }
    }

    /// Files with this ending, such as `.rs`.
    pub fn ending(&self, ending: &str) -> impl Iterator<Item = &str> {
        self.files.iter().map(String::as_str).filter(move |file| file.ends_with(ending))
    }

    pub fn has(&self, file: &str) -> bool {
        self.files.binary_search_by(|f| f.as_str().cmp(file)).is_ok()
    }

    /// True when some file lies in `folder`.
    pub fn has_folder(&self, folder: &str) -> bool {
        let inside = format!("{folder}/");
        folder.is_empty() || self.files.iter().any(|file| file.starts_with(&inside))
    }

    pub fn bytes(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    pub fn text(&self, file: &str) -> String {
        String::from_utf8(self.bytes(file)).unwrap_or_else(|_| panic!("{file} is not UTF-8"))
    }
}

/// What git tracks; `None` where the root is no checkout or git is not there.
fn tracked(root: &Path) -> Option<Vec<String>> {
    if !root.join(".git").exists() {
        return None;
    }
    let output = Command::new("git").arg("-C").arg(root).args(["ls-files", "-z"]).output().ok()?;
    let names = String::from_utf8(output.stdout).ok().filter(|names| output.status.success() && !names.is_empty())?;
    Some(names.split_terminator('\0').map(str::to_owned).collect())
}

fn walk(root: &Path, folder: &str, into: &mut Vec<String>) {
    let entries = std::fs::read_dir(root.join(folder)).unwrap_or_else(|error| panic!("{folder}: {error}"));
    for entry in entries {
        let entry = entry.unwrap_or_else(|error| panic!("{folder}: {error}"));
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && !UNTRACKED.contains(&name.as_str()) => walk(root, &path, into),
            Ok(kind) if kind.is_file() || kind.is_symlink() => into.push(path),
            _ => {}
        }
    }
}

#[test]
fn a_tree_without_git_has_the_same_sources() {
    let tree = Tree::read();
    let mut walked = Vec::new();
    walk(&tree.root, "", &mut walked);
    let missing: Vec<String> = tree.files.iter().filter(|file| !walked.contains(file)).cloned().collect();
    crate::none("tracked files that the walk does not find", missing);
    assert!(!walked.iter().any(|file| file.starts_with("target/")), "build outputs were walked");
}
