//! Facts for `--version`: the git revision, when there is one.

use std::path::Path;
use std::process::Command;

fn main() {
    let revision = revision().unwrap_or_default();
    println!("cargo::rustc-env=NEXTN_REVISION={revision}");
}

/// The revision of the repository that this crate is a folder of; none for a packed crate, also where it was unpacked
/// inside a repository of something else.
fn revision() -> Option<String> {
    // A name that does not exist would make every build start anew, so each is looked for first.
    println!("cargo::rerun-if-changed=build.rs");
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if Path::new(&top).join("src/program").canonicalize().ok()? != Path::new(".").canonicalize().ok()? {
        return None;
    }
    for name in ["HEAD", "refs/heads", "packed-refs"] {
        let path = git(&["rev-parse", "--git-path", name])?;
        if Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// What git answers, without the end of the line.
fn git(arguments: &[&str]) -> Option<String> {
    let answer = Command::new("git").args(arguments).output().ok().filter(|answer| answer.status.success())?;
    String::from_utf8(answer.stdout).ok().map(|text| text.trim().to_string())
}
