//! Runs again what a fuzz target was given. Included by path where it is used: it needs nothing, and some of its users know no
//! engine.

use std::path::Path;

/// Hands to `check` the seeds of a target of the crate's `fuzz` folder, and the inputs that once found a fault.
pub fn replay(target: &str, check: fn(&[u8])) {
    let mut n = 0;
    for folder in ["fuzz/seeds", "tests/fuzz/found"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(target);
        for file in std::fs::read_dir(folder).into_iter().flatten() {
            let path = file.expect("a folder that can be read").path();
            println!("{}", path.display());
            check(&std::fs::read(&path).expect("a file that can be read"));
            n += 1;
        }
    }
    assert!(n > 0, "{target}: no inputs are found");
}
