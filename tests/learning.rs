//! `nextn-server --learn`: what is kept of finished replies, whose it is, how much of it, and what is not.
#![cfg(unix)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

struct Running {
    child: Child,
    address: String,
    /// What it said until it could answer.
    said: String,
    lines: Option<std::thread::JoinHandle<()>>,
}

fn start(folder: &Path, size: &str) -> Running {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nextn-server"))
        .args(["--port", "0", "-t", "1", "-c", "512", "-np", "1", "--api-key", "one,two", "--draft-max", "3"])
        .args(["--learn-size", size, "--spec", "nextn", "--learn"])
        .arg(folder)
        .env_remove("NEXTN_LOG")
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program is built");
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines().map_while(Result::ok);
    let mut said = String::new();
    let mut tell = |line: String| {
        said += &format!("{line}\n");
        Some(line.split_once("listening on http://")?.1.trim().to_owned())
    };
    let address = lines.by_ref().find_map(&mut tell).expect("a line tells the address");
    let lines = Some(std::thread::spawn(move || lines.for_each(drop)));
    Running { child, address, said, lines }
}

impl Running {
    fn say(&self, head: &str, key: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
        let n = body.len();
        let request = format!(
            "{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: {n}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers in UTF-8");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
    }

    fn complete(&self, key: &str, body: Value) -> Value {
        serde_json::from_str(&self.say("POST /completion", key, &body.to_string())).expect("JSON")
    }

    fn metric(&self, name: &str) -> u64 {
        let text = self.say("GET /metrics", "one", "");
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        line.rsplit(' ').next().and_then(|n| n.parse().ok()).expect("a number")
    }

    /// Replies are written after they were answered.
    fn wait(&self, name: &str, n: u64) {
        let start = Instant::now();
        while self.metric(name) < n {
            assert!(start.elapsed() < Duration::from_secs(30), "{name} is {}, {n} expected", self.metric(name));
        }
        assert_eq!(self.metric(name), n);
    }

    fn end(mut self) {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a process id")).expect("not 0");
        kill_process(pid, Signal::TERM).expect("it runs");
        assert_eq!(self.child.wait().expect("it is ours").code(), Some(0));
        if let Some(lines) = self.lines.take() {
            let _ = lines.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
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
    let server = start(&folder, "1");
    assert!(server.said.contains("replies are kept to train the head on"), "{}", server.said);
    let body = |text: &str, more: &[(&str, Value)]| {
        let mut body = json!({"prompt": text, "n_predict": 60, "temperature": 1.5, "seed": 4, "ignore_eos": true, "return_tokens": true});
        more.iter().for_each(|(name, value)| body[*name] = value.clone());
        body
    };
    let first = server.complete("one", body("Once upon a time", &[]));
    server.complete("two", body("There was a dog", &[]));
    server.complete("two", body("There was a cat", &[("store", json!(false))]));
    server.complete("two", body("There was a cat", &[("cache_prompt", json!(false))]));
    server.complete("two", body("There was a bird", &[]));
    server.wait(KEPT, 3);
    assert_eq!(server.metric("nextn:model_learn_dropped{"), 0);

    let files = kept(&folder);
    let mut counts: Vec<usize> = files.iter().map(|of_key| lines(&of_key[0]).len()).collect();
    counts.sort_unstable();
    assert_eq!((files.len(), &counts[..]), (2, &[2, 3][..]), "a line at the beginning, and one for each reply");
    let all: Vec<&PathBuf> = files.iter().flatten().collect();
    let n_bytes: u64 = all.iter().map(|path| fs::metadata(path).expect("it is there").len()).sum();
    assert_eq!(server.metric("nextn:model_learn_bytes{"), n_bytes);
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
    server.end();
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
    let server = start(dir.path(), "1");
    server.complete("one", json!({"prompt": "Once upon a time", "n_predict": 60, "temperature": 0}));
    server.wait(KEPT, 1);
    assert!(!old.exists(), "there was no room for both");
    assert!(others.iter().all(|path| path.exists()), "files of others stay");
    assert!(server.metric("nextn:model_learn_bytes{") < 1 << 20);
    server.end();
}

#[test]
fn a_folder_that_cannot_be_written_harms_no_request() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("file");
    fs::write(&file, "no folder").expect("room");
    let server = start(&file.join("kept"), "1");
    let answer = server.complete("one", json!({"prompt": "Once upon a time", "n_predict": 8, "temperature": 0}));
    assert_eq!(answer["tokens_predicted"], 8);
    server.wait("nextn:model_learn_dropped{", 1);
    assert_eq!(server.metric(KEPT), 0);
    server.end();
}
