//! An option that changes nothing beside the others is named on standard error, with the reason, by every program.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// The program with nothing inherited that changes what it says.
fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stderr(Stdio::piped());
    for name in ["NEXTN_MODEL", "NEXTN_LOG", "NEXTN_SPEC", "NEXTN_DRAFT_MODE"] {
        command.env_remove(name);
    }
    command
}

/// Standard error of a run that must succeed.
fn stderr(program: &str, args: &[&str]) -> String {
    let output = command(program, args).output().expect("the binary runs");
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {err}");
    err
}

const GIVEN: [&str; 8] = ["--spec", "ngram", "--draft-mode", "async", "--draft-p-min", "0.5", "--main-gpu", "1"];
const TOLD: [&str; 3] =
    ["--draft-mode has no effect: ", "--draft-p-min has no effect: ", "--main-gpu 1 has no effect: "];

#[test]
fn nextn_cli_names_options_that_change_nothing_and_only_those() {
    let program = env!("CARGO_BIN_EXE_nextn-cli");
    let short = ["-p", "hi", "-n", "1", "-t", "1", "--temp", "0"];
    let err = stderr(program, &[&short[..], &GIVEN].concat());
    for words in TOLD {
        assert!(err.contains(words), "{words:?} is missing: {err}");
    }
    let used = ["--spec", "nextn", "--draft-mode", "async", "--draft-p-min", "0.5", "--draft-vocab", "500"];
    let err = stderr(program, &[&short[..], &used].concat());
    assert!(!err.contains("has no effect"), "{err}");
}

#[test]
fn nextn_bench_names_options_that_change_nothing() {
    let program = env!("CARGO_BIN_EXE_nextn-bench");
    let err = stderr(program, &["generate", "--tokens", "10,20", "-n", "1", "-t", "1", "--main-gpu", "1"]);
    assert!(err.contains("--main-gpu 1 has no effect: "), "{err}");
    let speed = ["speed", "-p", "0", "-n", "4", "-r", "1", "-t", "1", "--no-bandwidth", "--draft-vocab", "500", "-d"];
    let err = stderr(program, &[&speed[..], &["0,ngram:2"]].concat());
    assert!(err.contains("--draft-vocab has no effect: "), "{err}");
    let err = stderr(program, &[&speed[..], &["0,1"]].concat());
    assert!(!err.contains("has no effect"), "{err}");
}

#[test]
fn nextn_server_names_options_that_change_nothing() {
    let mut server =
        command(env!("CARGO_BIN_EXE_nextn-server"), &[&["--port", "0", "-t", "1", "-c", "64"], &GIVEN[..]].concat());
    let mut server = server.spawn().expect("the binary runs");
    let lines = BufReader::new(server.stderr.take().expect("piped")).lines();
    let mut missing = TOLD.to_vec();
    let mut all = String::new();
    // Ends with the log when the server fails.
    for line in lines.map_while(Result::ok) {
        missing.retain(|words| !line.contains(words));
        all += &format!("{line}\n");
        if missing.is_empty() {
            break;
        }
        assert!(!line.contains("model ready to answer"), "{missing:?} are missing: {all}");
    }
    server.kill().expect("it runs");
    server.wait().expect("it ends");
    assert!(missing.is_empty(), "{missing:?} are missing: {all}");
}

#[test]
fn a_source_of_drafts_that_only_looks_like_one_is_refused() {
    for program in [env!("CARGO_BIN_EXE_nextn-cli"), env!("CARGO_BIN_EXE_nextn-server")] {
        for source in ["ngram-mode", "ngram-", "draft-dspark", "none,draft-mtp"] {
            let output = command(program, &["--spec-type", source]).output().expect("the binary runs");
            let err = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{source}: {err}");
            assert!(err.contains(source), "{err}");
        }
    }
}
