//! `nextn-server --learn`: what is kept of finished replies, whose it is, how much of it, and what is not.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

#[path = "support/server.rs"]
mod support;

use support::Running;

fn start(folder: &Path) -> Running {
    let folder = folder.to_str().expect("a path in UTF-8");
    let kept = ["--learn", folder, "--learn-size", "1"];
    support::start(&[&["--api-key", "one,two", "--draft-max", "3", "--spec", "nextn"], &kept[..]].concat())
}

fn say(server: &Running, head: &str, key: &str, body: &str) -> String {
    let n = body.len();
    let answer = server.say(&format!(
        "{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: {n}\r\n\r\n{body}"
    ));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
}

fn complete(server: &Running, key: &str, body: Value) -> Value {
    serde_json::from_str(&say(server, "POST /completion", key, &body.to_string())).expect("JSON")
}

fn metric(server: &Running, name: &str) -> u64 {
    let text = say(server, "GET /metrics", "one", "");
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
    line.rsplit(' ').next().and_then(|n| n.parse().ok()).expect("a number")
}

/// Replies are written after they were answered.
fn wait(server: &Running, name: &str, n: u64) {
    let start = Instant::now();
    while metric(server, name) < n {
        assert!(start.elapsed() < Duration::from_secs(30), "{name} is {}, {n} expected", metric(server, name));
    }
    assert_eq!(metric(server, name), n);
}

fn end(server: Running) {
    server.signal(Signal::TERM);
    assert_eq!(server.end().code(), Some(0));
}

/// The files of each folder in `folder`.
fn kept(folder: &Path) -> Vec<Vec<PathBuf>> {
    let list = |path: &Path| -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> = fs::read_dir(path).expect("it is there").map(|e| e.expect("one").path()).collect();
        all.sort();
        all
    };
    list(folder).iter().map(|scope| list(scope)).collect()
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("it is there");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

const KEPT: &str = "nextn:model_learn_replies{";

#[test]
fn replies_are_kept_by_key_unless_a_request_says_no() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("kept");
    let server = start(&folder);
    assert!(server.said.contains("replies are kept to train the head on"), "{}", server.said);
    let body = |text: &str, more: &[(&str, Value)]| {
        let mut body = json!({"prompt": text, "n_predict": 60, "temperature": 1.5, "seed": 4, "ignore_eos": true, "return_tokens": true});
        more.iter().for_each(|(name, value)| body[*name] = value.clone());
        body
    };
    let first = complete(&server, "one", body("Once upon a time", &[]));
    complete(&server, "two", body("There was a dog", &[]));
    complete(&server, "two", body("There was a cat", &[("store", json!(false))]));
    complete(&server, "two", body("There was a cat", &[("cache_prompt", json!(false))]));
    let ollama =
        json!({"model": "pocket", "prompt": "A bird", "stream": false, "options": {"store": false, "num_predict": 8}});
    say(&server, "POST /api/generate", "two", &ollama.to_string());
    complete(&server, "two", body("There was a bird", &[]));
    wait(&server, KEPT, 3);
    assert_eq!(metric(&server, "nextn:model_learn_dropped{"), 0);

    let files = kept(&folder);
    let mut counts: Vec<usize> = files.iter().map(|of_key| lines(&of_key[0]).len()).collect();
    counts.sort_unstable();
    assert_eq!((files.len(), &counts[..]), (2, &[2, 3][..]), "a line at the beginning, and one for each reply");
    let all: Vec<&PathBuf> = files.iter().flatten().collect();
    let n_bytes: u64 = all.iter().map(|path| fs::metadata(path).expect("it is there").len()).sum();
    assert_eq!(metric(&server, "nextn:model_learn_bytes{"), n_bytes);
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    assert!(all.iter().all(|path| mode(path) == 0o600 && mode(path.parent().expect("a folder")) == 0o700));

    let of_one = files.iter().map(|of_key| lines(&of_key[0])).find(|lines| lines.len() == 2).expect("one reply");
    assert_eq!((&of_one[0]["format"], &of_one[0]["version"]), (&json!("nextn-replies"), &json!(1)));
    assert_eq!(of_one[1]["reply"], first["tokens"]);
    let refused = of_one[1]["refused"].as_array().expect("a list");
    assert!(!refused.is_empty(), "at this temperature drafts are refused: {}", of_one[1]);
    let positions: Vec<u64> = refused.iter().map(|r| r[0].as_u64().expect("a position")).collect();
    assert!(positions.is_sorted() && positions.iter().all(|at| *at < 60), "{refused:?}");
    assert!(refused.iter().all(|r| (1..=3).contains(&r[1].as_u64().expect("a depth"))), "{refused:?}");
    let n_accepted = first["timings"]["draft_n_accepted"].as_u64().expect("a number");
    assert!(refused.len() as u64 + n_accepted <= 60, "{refused:?}, {n_accepted} accepted");
    end(server);
}

#[test]
fn the_folder_has_a_bound_and_the_oldest_file_goes_first() {
    let dir = tempfile::tempdir().expect("a folder");
    let of_key = dir.path().join("0123456789abcdef");
    fs::create_dir(&of_key).expect("room");
    let old = of_key.join("0123456789abcdef-100-0.jsonl");
    let others = [of_key.join("notes.txt"), dir.path().join("0123456789abcdef-100-0.jsonl")];
    for path in others.iter().chain([&old]) {
        fs::write(path, vec![b'x'; (1 << 20) - 200]).expect("room");
    }
    let server = start(dir.path());
    complete(&server, "one", json!({"prompt": "Once upon a time", "n_predict": 60, "temperature": 0}));
    wait(&server, KEPT, 1);
    assert!(!old.exists(), "there was no room for both");
    assert!(others.iter().all(|path| path.exists()), "files of others stay");
    assert!(metric(&server, "nextn:model_learn_bytes{") < 1 << 20);
    end(server);
}

#[test]
fn a_folder_that_cannot_be_written_harms_no_request() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("file");
    fs::write(&file, "no folder").expect("room");
    let server = start(&file.join("kept"));
    let answer = complete(&server, "one", json!({"prompt": "Once upon a time", "n_predict": 8, "temperature": 0}));
    assert_eq!(answer["tokens_predicted"], 8);
    wait(&server, "nextn:model_learn_dropped{", 1);
    assert_eq!(metric(&server, KEPT), 0);
    end(server);
}
