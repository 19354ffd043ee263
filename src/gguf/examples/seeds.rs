//! Writes the seeds of the fuzzer into a folder: every small good file and every known attack.
//! `cargo run -p nextn-gguf --example seeds -- src/gguf/fuzz/corpus/header`

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args_os().nth(1).ok_or("a folder expected")?);
    std::fs::create_dir_all(&folder)?;
    // Beyond this a seed only slows the fuzzer down.
    let small = support::good_files().into_iter().chain(support::attacks()).filter(|(_, bytes)| bytes.len() < 100_000);
    let mut n = 0;
    for (name, bytes) in small {
        std::fs::write(folder.join(name.replace([' ', ','], "-")), bytes)?;
        n += 1;
    }
    println!("{n} seeds in {}", folder.display());
    Ok(())
}
