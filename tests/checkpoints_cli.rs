//! `extract-nextn convert` and `quantize` by hand: files that verify and run, answers in words and in JSON, exit codes.

#[path = "../src/convert/tests/support/mod.rs"]
mod checkpoint;

use std::path::Path;
use std::process::{Command, Output};

use checkpoint::Oracle;
use serde_json::Value;

fn run(program: &str, args: &[&str], paths: &[&Path]) -> Output {
    Command::new(program).args(args).args(paths).output().expect("the binary was built for this test")
}

fn extract(args: &[&str], paths: &[&Path]) -> Output {
    run(env!("CARGO_BIN_EXE_extract-nextn"), args, paths)
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_converted_checkpoint_verifies_and_runs_and_can_be_quantised() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("my-model");
    std::fs::create_dir(&folder).unwrap();
    Oracle::open("moe-a").write(&folder);
    let (wide, small) = (dir.path().join("wide.gguf"), dir.path().join("small.gguf"));

    let out = extract(&["convert", "--json", "-o"], &[&wide, &folder]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(json["n_tensors"], 169);
    assert_eq!(json["n_bytes"], std::fs::metadata(&wide).unwrap().len());
    let told = stderr(&out);
    assert!(told.starts_with("note: the checkpoint sees;") && told.lines().count() == 1, "{told}");

    let out = extract(&["quantize"], &[&wide, &small, Path::new("q4_k_m")]);
    assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    assert!(
        stderr(&out).contains(&format!("next: chat with it: nextn-cli -m {}", small.display())),
        "{}",
        stderr(&out)
    );
    let again = extract(&["quantize", "--type", "q4_k_m", "-o"], &[&small, &wide]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr(&again).contains("small.gguf: the file is there; --force overwrites it"), "{}", stderr(&again));
    let before = std::fs::read(&small).unwrap();
    let again = extract(&["quantize", "--type", "q4_k_m", "--force", "--json", "-o"], &[&small, &wide]);
    assert_eq!((again.status.code(), &*stderr(&again)), (Some(0), ""));
    assert!(std::fs::read(&small).unwrap() == before, "both ways to name the type are one");
    let bare = extract(&["quantize"], &[&wide]);
    assert_eq!(bare.status.code(), Some(2));
    let untyped = extract(&["quantize", "-o"], &[&small, &wide]);
    let told = stderr(&untyped);
    let asked: Vec<&str> = told.lines().filter(|line| line.starts_with("  <")).collect();
    assert_eq!(asked, ["  <TYPE|--type <TYPE>>"], "{told}");
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.contains("small.gguf: 169 tensors") && text.contains("q8_0"), "{text}");

    for file in [&wide, &small] {
        let out = extract(&["verify"], &[file]);
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stdout));
        let out = run(env!("CARGO_BIN_EXE_nextn-cli"), &["--raw", "-p", "one two three", "-n", "4", "-m"], &[file]);
        assert_eq!(out.status.code(), Some(0), "{}", stderr(&out));
    }

    // Nothing but the two files and the folder is left.
    assert_eq!(dir.path().read_dir().unwrap().count(), 3);
}

#[test]
#[cfg(unix)]
fn a_disk_that_is_full_leaves_the_old_file_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("checkpoint");
    std::fs::create_dir(&folder).unwrap();
    Oracle::open("moe-a").write(&folder);
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/pocket-moe-q8_0.gguf");
    let out_path = dir.path().join("out.gguf");
    std::fs::write(&out_path, "old").unwrap();
    // Of 512 bytes each: files of two megabytes at the most, as if there were no room for more.
    for (command, input) in [("convert", &folder), ("strip", &model)] {
        let limited = "ulimit -f 4000 && exec \"$@\"";
        let program = env!("CARGO_BIN_EXE_extract-nextn");
        let out = run("sh", &["-c", limited, "sh", program, command, "--force", "-o"], &[&out_path, input]);
        assert_eq!(out.status.code(), Some(1), "{command}: {}", stderr(&out));
        let told = stderr(&out);
        let error = told.lines().find(|line| line.starts_with("error: "));
        assert!(error.is_some_and(|error| error.contains("write")), "{told}");
        assert_eq!(std::fs::read(&out_path).unwrap(), b"old");
        assert_eq!(dir.path().read_dir().unwrap().count(), 2, "{command}");
    }
}

#[test]
fn what_cannot_be_converted_is_said_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let out_path = dir.path().join("out.gguf");
    let out = extract(&["convert", "-o"], &[&out_path, dir.path()]);
    assert_eq!(out.status.code(), Some(1));
    assert!(stderr(&out).contains("without a checkpoint"), "{}", stderr(&out));
    let out = extract(&["convert", "--type", "q9", "-o"], &[&out_path, dir.path()]);
    assert_eq!(out.status.code(), Some(2));
    assert!(stderr(&out).contains("q4_k_m"), "{}", stderr(&out));
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/pocket-moe-q8_0.gguf");
    let out = extract(&["quantize"], &[&model, &out_path, Path::new("q4_k_m")]);
    assert_eq!(out.status.code(), Some(1));
    assert!(stderr(&out).contains("--requantize"), "{}", stderr(&out));
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
}
