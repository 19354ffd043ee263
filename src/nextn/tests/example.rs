//! The example of the library, run as a user runs it.

use std::path::Path;
use std::process::Command;

#[test]
fn the_example_answers() {
    let programs =
        std::env::current_exe().expect("this program").parent().and_then(Path::parent).expect("target").to_owned();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/pocket-q4_k_m.gguf");
    let example = programs.join("examples").join("chat").with_extension(std::env::consts::EXE_EXTENSION);
    let output = Command::new(example)
        .arg(model)
        .arg("What is 17 plus 25?")
        .output()
        .expect("the example is built: `cargo test -p nextn` does it, `--test example` alone does not");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("42"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}
