//! `nextn-cli` end to end: the binary with its embedded model, as scripts and shells meet it.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Engines of several processes would spin against each other: one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The binary with nothing on standard input and nothing inherited that changes what it does.
fn cli(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nextn-cli"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in ["NEXTN_MODEL", "NEXTN_LOG", "NO_COLOR", "XDG_STATE_HOME"] {
        command.env_remove(name);
    }
    command
}

fn run(args: &[&str]) -> Output {
    let _alone = alone();
    cli(args).output().expect("the binary runs")
}

/// As [`run`], with `input` through a pipe.
fn run_with(args: &[&str], input: &[u8]) -> Output {
    let _alone = alone();
    let mut child = cli(args).stdin(Stdio::piped()).spawn().expect("the binary runs");
    // It may end before it has read everything: that is for the test to judge.
    let _ = child.stdin.take().expect("piped").write_all(input);
    child.wait_with_output().expect("it ends")
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("ended by itself, not by a signal")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

fn json(output: &Output) -> Value {
    assert_eq!(code(output), 0, "{}", text(&output.stderr));
    let mut lines = text(&output.stdout).lines();
    let value = serde_json::from_str(lines.next().expect("one line")).expect("JSON");
    assert_eq!(lines.next(), None, "one object and nothing else");
    value
}

const GREEDY: [&str; 6] = ["--temp", "0", "-t", "1", "-n", "24"];

fn with<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&GREEDY, args].concat()
}

#[test]
fn the_answer_is_alone_on_standard_output_and_the_figures_on_standard_error() {
    let output = run(&with(&["-p", "What is the capital of France?"]));
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let (answer, err) = (text(&output.stdout), text(&output.stderr));
    assert!(answer.trim().len() > 3 && answer.ends_with('\n'), "{answer:?}");
    assert!(!answer.contains("tok/s") && !answer.contains('\x1b'), "{answer:?}");
    let lines: Vec<_> = err.lines().collect();
    assert_eq!(lines.len(), 1, "no start line without a terminal: {err}");
    assert!(lines[0].starts_with("prompt ") && lines[0].contains(" tokens, ") && lines[0].contains(" | gen "), "{err}");
    let quiet = run(&with(&["-p", "What is the capital of France?", "--no-stats"]));
    assert_eq!((text(&quiet.stdout), text(&quiet.stderr)), (answer, ""), "greedy answers repeat");
}

#[cfg(target_os = "linux")]
#[test]
fn an_answer_is_whole_where_its_figures_cannot_be_written() {
    let question = with(&["-p", "What is 20 + 15?"]);
    let expected = run(&question);
    let _alone = alone();
    let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let output = cli(&question).stderr(full).output().expect("the binary runs");
    assert_eq!((code(&output), text(&output.stdout)), (0, text(&expected.stdout)));
}

#[test]
fn json_has_the_documented_fields_and_agrees_with_the_plain_answer() {
    let args = with(&["-p", "What is the capital of France?", "--spec", "off"]);
    let object = json(&run(&[&args[..], &["--json"]].concat()));
    let keys: Vec<_> = object.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(keys, ["text", "reasoning", "token_ids", "finish_reason", "timings"]);
    let timings = object["timings"].as_object().expect("an object");
    let keys: Vec<_> = timings.keys().map(String::as_str).collect();
    assert_eq!(
        keys,
        [
            "load_ms",
            "prompt_tokens",
            "prompt_ms",
            "generated_tokens",
            "generated_ms",
            "tokens_per_second",
            "cycles",
            "drafted",
            "accepted",
            "acceptance_by_depth",
            "cycles_per_second",
            "verify_ms",
            "draft_ms",
            "host_ms",
        ]
    );
    let ids = object["token_ids"].as_array().expect("a list");
    assert_eq!(timings["generated_tokens"], ids.len());
    assert_eq!((&timings["drafted"], &timings["acceptance_by_depth"]), (&0.into(), &Value::Array(vec![])));
    assert!(timings["load_ms"].as_f64() > Some(0.0) && timings["prompt_ms"].as_f64() > Some(0.0), "{timings:?}");
    let plain = run(&args);
    assert_eq!(text(&plain.stdout).trim_end(), object["text"].as_str().expect("a string").trim_end());
}

#[test]
fn length_stop_strings_and_logprobs_work_through_options() {
    let whole =
        json(&run(&["--raw", "-p", "One two three", "-n", "12", "--temp", "0", "-t", "1", "--ignore-eos", "--json"]));
    assert_eq!((&whole["finish_reason"], whole["token_ids"].as_array().map(Vec::len)), (&"length".into(), Some(12)));
    assert_eq!(whole.get("logprobs"), None);

    let answer = whole["text"].as_str().expect("a string");
    let (at, stop) = answer.char_indices().filter(|(_, c)| c.is_alphabetic()).nth(8).expect("some letters");
    let stop = stop.to_string();
    let first = answer.find(&stop).expect("it is there");
    assert!(first <= at);
    let cut = json(&run(&[
        "--raw",
        "-p",
        "One two three",
        "-n",
        "12",
        "--temp",
        "0",
        "-t",
        "1",
        "--ignore-eos",
        "--json",
        "--stop",
        &stop,
        "--logprobs",
        "2",
    ]));
    assert_eq!((cut["text"].as_str(), &cut["finish_reason"]), (Some(&answer[..first]), &"stop".into()));
    let logprobs = cut["logprobs"].as_array().expect("asked for");
    assert_eq!(logprobs.len(), cut["token_ids"].as_array().expect("a list").len());
    for (one, id) in logprobs.iter().zip(cut["token_ids"].as_array().expect("a list")) {
        assert_eq!((&one["token_id"], one["top"].as_array().map(Vec::len)), (id, Some(2)));
        assert_eq!(one["top"][0]["token_id"], *id, "greedy takes the likeliest: {one}");
    }
}

#[test]
fn a_seed_repeats_an_answer_and_another_seed_does_not() {
    let args = |seed| {
        [
            "--raw",
            "-p",
            "Once",
            "-n",
            "24",
            "--temp",
            "1.5",
            "--top-k",
            "0",
            "--top-p",
            "1",
            "-t",
            "1",
            "--ignore-eos",
            "--json",
            "--seed",
            seed,
        ]
    };
    let [a, b, c] = ["7", "7", "8"].map(|seed| json(&run(&args(seed)))["token_ids"].clone());
    assert_eq!(a, b);
    assert_ne!(a, c);
}

#[test]
fn jsonl_tells_the_same_story_in_events() {
    let output = run(&with(&["-p", "Hello", "--jsonl"]));
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
    let events: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(events.first().map(|e| &e["event"]), Some(&"start".into()));
    let end = events.last().expect("an end");
    assert_eq!(end["event"], "end");
    let of = |kind: &'static str| events.iter().filter(move |e| e["event"] == kind);
    let joined: String = of("text").map(|e| e["text"].as_str().expect("a string")).collect();
    assert_eq!(Some(joined.as_str()), end["text"].as_str());
    let ids: Vec<_> = of("tokens").flat_map(|e| e["ids"].as_array().expect("a list")).collect();
    assert_eq!(ids, end["token_ids"].as_array().expect("a list").iter().collect::<Vec<_>>());
}

#[test]
fn wrong_options_end_with_2_and_name_what_is_wrong() {
    for (args, word) in [
        (&["--no-such-option"][..], "--no-such-option"),
        (&["-p", "x", "--numa", "mirror"], "isolate"),
        (&["-p", "x", "-n", "0"], "--max-tokens"),
        (&["-p", "x", "--temp", "nan"], "--temp"),
        (&["-p", "x", "--spec", "4"], "not one of auto, off, nextn, ngram"),
        (&["-p", "x", "--draft-max", "99"], "0 to 16"),
        (&["-p", "x", "--stop", ""], "stop"),
        (&["-p", "x", "--samplers", "top_k;nothing"], "nothing"),
        (&["-p", "x", "--repeat-penalty", "0"], "above 0"),
        (&["-p", "x", "--logit-bias", "999999999=1", "-t", "1"], "999999999"),
        (&["-p", "x", "--raw", "-s", "y"], "--raw"),
    ] {
        let output = run(args);
        assert_eq!(code(&output), 2, "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(word), "{args:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn a_model_that_is_no_file_is_answered_with_how_to_download_it() {
    let _alone = alone();
    for name in ["qwen3", "no-such.gguf", "a/b.gguf"] {
        let output = cli(&["-m", name, "-p", "hi"]).env("HF_HUB_CACHE", "/nonexistent").output().expect("it runs");
        let err = text(&output.stderr);
        assert_eq!(code(&output), 3, "{err}");
        assert!(
            err.starts_with(&format!("error: {name}: there is no such file")) && err.contains("`-hf USER/REPO"),
            "{err}"
        );
    }
}

#[test]
fn the_short_help_is_one_screen_and_the_long_one_has_groups() {
    let short = run(&["-h"]);
    assert_eq!(code(&short), 0);
    let lines: Vec<&str> = text(&short.stdout).lines().collect();
    assert!(lines.len() <= 24 && lines.iter().all(|line| line.len() <= 80), "{lines:#?}");
    assert!(lines.contains(&"Examples:"), "{lines:#?}");
    let long = run(&["--help"]);
    let groups: Vec<&str> = text(&long.stdout).lines().filter(|line| line.ends_with(':')).collect();
    let at = |name: &str| groups.iter().position(|group| *group == name).unwrap_or_else(|| panic!("{name} {groups:?}"));
    assert!(at("Model:") < at("Prompt:") && at("Prompt:") < at("Performance:"), "{groups:?}");
    assert!(at("Devices:") < at("Sampling:") && at("Speculative decoding:") < at("Sampling:"), "{groups:?}");
}

#[test]
fn a_file_that_is_no_usable_model_ends_with_3_and_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("text.gguf"), "this is no model").expect("written");
    std::fs::write(path("cut.gguf"), &program::embedded::model_bytes()[..100_000]).expect("written");
    let mut writer = gguf::Writer::create(Path::new(&path("other.gguf"))).expect("created");
    writer.add("general.architecture", "some-other").expect("added");
    writer.begin().expect("begun").finish().expect("finished");
    for (name, word) in [
        ("missing.gguf", "there is no such file"),
        ("text.gguf", ""),
        ("cut.gguf", ""),
        ("other.gguf", "some-other"),
        ("", ""),
    ] {
        let output = run(&["-m", &path(name), "-p", "x"]);
        let err = text(&output.stderr);
        assert_eq!(code(&output), 3, "{name}: {err}");
        assert!(err.starts_with("error: ") && err.contains(&path(name)) && err.contains(word), "{name}: {err}");
    }
}

#[test]
fn a_prompt_that_cannot_be_answered_ends_with_4() {
    let long = "word ".repeat(500);
    let directory = tempfile::tempdir().expect("a directory");
    let binary = directory.path().join("binary").display().to_string();
    std::fs::write(&binary, b"\xff\xfe\x00").expect("written");
    for (args, word) in [
        (&["-p", ""][..], "empty"),
        (&[], "empty"),
        (&["-f", "/no/such/file"], "/no/such/file"),
        (&["-f", &binary], "UTF-8"),
        (&["-p", "x", "--system-file", "/no/such/file"], "/no/such/file"),
        (&["-p", &long, "-c", "128", "-t", "1"], "128"),
        (&["-p", &long, "-c", "128", "-t", "1", "--raw", "--json"], "128"),
    ] {
        let output = run(args);
        assert_eq!(code(&output), 4, "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(word), "{args:?}: {}", text(&output.stderr));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    assert_eq!(code(&run_with(&["--raw"], b"")), 4, "an empty pipe is an empty prompt");
}

#[test]
fn a_full_context_is_told_in_the_reason() {
    let object =
        json(&run(&["--raw", "-p", "One two", "-c", "32", "--ignore-eos", "--temp", "0", "-t", "1", "--json"]));
    assert_eq!(object["finish_reason"], "context");
    let timings = &object["timings"];
    let all = timings["prompt_tokens"].as_u64().zip(timings["generated_tokens"].as_u64()).map(|(a, b)| a + b);
    assert!(all.is_some_and(|n| (32..=33).contains(&n)), "prompt and answer fill the context of 32: {timings}");
}

#[test]
fn standard_input_is_the_prompt_or_joins_it() {
    let args = with(&["--json"]);
    let asked = json(&run(&[&args[..], &["-p", "Name a colour."]].concat()));
    let piped = json(&run_with(&args, b"Name a colour.\n"));
    assert_eq!(piped["token_ids"], asked["token_ids"], "one newline at the end does not count");
    let joined = json(&run_with(&[&args[..], &["-p", "Name"]].concat(), b"a colour.\n"));
    let same = json(&run(&[&args[..], &["-p", "Name\n\na colour."]].concat()));
    assert_eq!(joined["token_ids"], same["token_ids"]);
    let empty = json(&run_with(&[&args[..], &["-p", "Name a colour."]].concat(), b""));
    assert_eq!(empty["token_ids"], asked["token_ids"], "an empty pipe adds nothing");
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(b"Name a colour.\n").expect("written");
    let path = file.path().display().to_string();
    assert_eq!(json(&run(&[&args[..], &["-f", &path]].concat()))["token_ids"], asked["token_ids"]);
}

#[test]
fn a_socket_that_never_ends_is_not_waited_for_beside_a_prompt() {
    let _alone = alone();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let output =
        cli(&with(&["-p", "Hello"])).stdin(std::os::fd::OwnedFd::from(theirs)).output().expect("it ends by itself");
    drop(ours);
    assert_eq!(code(&output), 0, "{}", text(&output.stderr));
}

/// A generation that would go on for long, its first token out.
fn long_answer(args: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let args = [&["--raw", "-p", "One", "--ignore-eos", "-c", "8192", "-t", "1", "--temp", "0"], args].concat();
    let mut child = cli(&args).spawn().expect("the binary runs");
    let out = BufReader::new(child.stdout.take().expect("piped"));
    (child, out)
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let _alone = alone();
    let (mut child, mut out) = long_answer(&[]);
    let mut first = [0];
    out.read_exact(&mut first).expect("some text");
    drop(out);
    let mut err = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut err).expect("UTF-8");
    // The context is longer than the model was trained for, which is told.
    let told: Vec<&str> = err.lines().filter(|line| !line.contains("--ctx-size")).collect();
    assert_eq!((child.wait().expect("it ends").code(), told), (Some(0), Vec::new()));
}

#[test]
fn signals_stop_an_answer_and_set_the_code() {
    let _alone = alone();
    for (signal, expected) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let (mut child, mut out) = long_answer(&["--jsonl"]);
        let mut line = String::new();
        while !line.contains("\"tokens\"") {
            line.clear();
            assert_ne!(out.read_line(&mut line).expect("UTF-8"), 0, "it ended before its first token");
        }
        kill_process(Pid::from_child(&child), signal).expect("it runs");
        let mut rest = String::new();
        out.read_to_string(&mut rest).expect("UTF-8");
        assert_eq!(child.wait().expect("it ends").code(), Some(expected));
        let end: Value = serde_json::from_str(rest.lines().last().expect("an end")).expect("JSON");
        assert_eq!((&end["event"], &end["finish_reason"]), (&"end".into(), &"cancelled".into()));
        let n = end["token_ids"].as_array().expect("a list").len();
        assert!(n >= 1 && end["timings"]["generated_tokens"] == n, "what was generated is told: {end}");
    }
}

#[test]
fn version_completions_and_manual_need_no_model() {
    let version = run(&["--version"]);
    let words = text(&version.stdout);
    assert_eq!(code(&version), 0);
    assert!(
        words.contains(env!("CARGO_PKG_VERSION")) && words.contains(ggml::version()) && words.contains("CPU"),
        "{words}"
    );
    for (args, word) in
        [(&["--completions", "bash"][..], "--cache-type-k"), (&["--man"], ".TH nextn-cli 1"), (&["--help"], "130")]
    {
        let output = run(args);
        assert_eq!(code(&output), 0, "{args:?}: {}", text(&output.stderr));
        assert!(text(&output.stdout).contains(word), "{args:?}");
    }
}

#[test]
fn a_model_file_is_locked_by_option_or_variable_and_a_refusal_is_no_error() {
    let _alone = alone();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/pocket-q4_k_m.gguf");
    let answer = |value: Option<&str>| {
        let mut command = cli(&["-p", "hi", "-n", "30", "--temp", "0", "--no-stats", "-m"]);
        command.arg(&file).env_remove("NEXTN_MLOCK").envs(value.map(|value| ("NEXTN_MLOCK", value)));
        let output = command.output().expect("the binary runs");
        assert!(output.status.success(), "{value:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let plain = answer(None);
    assert!(!plain.is_empty());
    for value in ["1", "yes", "true", "0", "false"] {
        assert_eq!(answer(Some(value)), plain, "{value}");
    }
}

#[test]
fn what_was_measured_of_drafts_is_kept_where_it_is_said_and_changes_no_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("calibration");
    let kept_in = |folder: &Path| {
        let folder = folder.to_str().expect("UTF-8");
        // Tokens enough for a file, however many of them each step accepts.
        let long = ["--temp", "0", "-t", "1", "-n", "400", "--ignore-eos", "-p", "Tell me a story."];
        run(&[&long[..], &["--calibration", folder]].concat())
    };
    let first = kept_in(&place);
    assert_eq!(code(&first), 0, "{}", text(&first.stderr));
    let file = || {
        let files: Vec<_> = std::fs::read_dir(&place).expect("a folder").flatten().map(|file| file.path()).collect();
        assert_eq!(files.len(), 1, "one model: {files:?}");
        files[0].clone()
    };
    let kept: Value = serde_json::from_slice(&std::fs::read(file()).expect("readable")).expect("JSON");
    let ways = kept["ways"].as_object().expect("ways to compute the model");
    let nextn = &ways.values().next().expect("one")["sources"]["nextn"];
    assert!(nextn["costs"].as_array().is_some_and(|costs| !costs.is_empty()), "{kept}");

    assert_eq!(kept_in(&place).stdout, first.stdout);
    // A file that is no such file is said, does no harm, and is mended.
    std::fs::write(file(), "{\"version\":").expect("writable");
    let damaged = kept_in(&place);
    assert_eq!((code(&damaged), &damaged.stdout), (0, &first.stdout), "{}", text(&damaged.stderr));
    assert!(text(&damaged.stderr).contains("is measured anew"), "{}", text(&damaged.stderr));
    assert!(!text(&kept_in(&place).stderr).contains("is measured anew"));
    // Nor does a folder that cannot be one.
    let nowhere = place.join(file().file_name().expect("a name"));
    let refused = kept_in(&nowhere);
    assert_eq!((code(&refused), &refused.stdout), (0, &first.stdout), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("is not kept"), "{}", text(&refused.stderr));
}
