//! Facts for `--version`: the git revision, when there is one.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=.git/HEAD");
    println!("cargo::rerun-if-changed=.git/refs/heads");
    let git = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    let revision = git.ok().filter(|o| o.status.success()).and_then(|o| String::from_utf8(o.stdout).ok());
    println!("cargo::rustc-env=NEXTN_REVISION={}", revision.unwrap_or_default().trim());
}
