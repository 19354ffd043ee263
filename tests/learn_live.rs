//! `nextn-server --learn-live`: rounds by a program that does what each test says, what becomes of its heads, and that no request
//! notices.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use convert::Source;
use convert::heads::{Extract, Layout, WeightType, extract};
use convert::stream::Control;
use rustix::process::Signal;
use serde_json::{Value, json};

#[path = "support/server.rs"]
mod support;

use support::Running;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/pocket-q4_k_m.gguf");

/// A program in place of `nextn-tune`, which does what the file `does` beside it says.
struct Program {
    folder: tempfile::TempDir,
}

impl Program {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let script = "#!/bin/sh\nhere=$(dirname \"$0\")\necho \"$@\" >> \"$here/asked\"\nwhile [ $# -gt 0 ]; do\n\
                      case $1 in -o) out=$2;; --report) report=$2;; esac; shift\ndone\n. \"$here/does\"\n";
        let path = folder.path().join("tune");
        fs::write(&path, script).expect("room");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("it is ours");
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn does(&self, what: &str) {
        // In one step: a round may begin at any time.
        fs::write(self.path("new"), what).expect("room");
        fs::rename(self.path("new"), self.path("does")).expect("room");
    }

    /// It gives the head `file` and says what it is worth.
    fn gives(&self, file: &str, report: &Value) {
        self.does(&format!("cp \"$here/{file}\" \"$out\"\ncat > \"$report\" <<'END'\n{report}\nEND\n"));
    }

    fn start(&self, more: &[&str]) -> Running {
        let (program, kept) = (self.path("tune"), self.path("kept"));
        let [program, kept] = [&program, &kept].map(|path| path.to_str().expect("a path in UTF-8"));
        let live = ["--learn-live", "--learn-live-program", program, "--learn-live-tokens", "1024"];
        let base = ["-m", MODEL, "--learn", kept, "--draft-max", "3", "--spec", "nextn", "--calibration", "off"];
        support::start(&[&base[..], &live, more].concat())
    }

    /// The model's own head, and the same with rows of a matrix in another order, which guesses badly.
    fn heads(&self) {
        let how = Extract { layout: Layout::Slim, dtype: WeightType::Keep };
        let own = extract(Source::open(Path::new(MODEL)).expect("a model"), how).expect("a head");
        own.write(&self.path("own.gguf"), 1, &Control::default()).expect("room");
        let mut bytes = fs::read(self.path("own.gguf")).expect("a file");
        let header = gguf::Header::parse(&bytes).expect("a header");
        let matrix = header.tensors().iter().find(|t| t.name.ends_with("nextn.eh_proj.weight")).expect("a projection");
        let (range, n_rows) = (matrix.range(), matrix.ne[1] as usize);
        let rows = bytes[range.clone()].to_vec();
        let turned: Vec<u8> = rows.chunks(rows.len() / n_rows).rev().flatten().copied().collect();
        bytes[range].copy_from_slice(&turned);
        fs::write(self.path("bad.gguf"), bytes).expect("room");
    }
}

fn say(server: &Running, head: &str, body: &str) -> String {
    let n = body.len();
    let answer = server.say(&format!(
        "{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {n}\r\n\r\n{body}"
    ));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
}

/// A greedy reply, and how many tokens of drafts were accepted for it.
fn reply(server: &Running, prompt: &str) -> (String, u64) {
    let body = json!({"prompt": prompt, "n_predict": 70, "temperature": 0, "ignore_eos": true});
    let answer: Value = serde_json::from_str(&say(server, "POST /completion", &body.to_string())).expect("JSON");
    let accepted = answer["timings"]["draft_n_accepted"].as_u64().expect("a number");
    (answer["content"].as_str().expect("text").to_owned(), accepted)
}

fn metric(server: &Running, name: &str) -> f64 {
    let text = say(server, "GET /metrics", "");
    let line = text.lines().find(|line| line.starts_with(&format!("nextn:model_learn_live_{name}{{")));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("{name}: {text}"))
}

fn wait(server: &Running, name: &str, n: f64) {
    until(|| metric(server, name) >= n, name);
    assert_eq!(metric(server, name), n, "{name}");
}

fn until(mut is_so: impl FnMut() -> bool, what: &str) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what} does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn end(server: Running) {
    server.signal(Signal::TERM);
    assert_eq!(server.end().code(), Some(0));
}

fn worth(start: f64, best: f64) -> Value {
    json!({"n_tokens": 1024, "n_held_out": 1000, "start": [start, start, start], "best": [best, best, best]})
}

const AT_ONCE: [&str; 2] = ["--learn-live-idle", "0.05"];

#[test]
fn heads_are_exchanged_and_taken_back_while_replies_stay_what_they_are() {
    let program = Program::new();
    program.heads();
    program.gives("bad.gguf", &worth(0.5, 0.9));
    let server = program.start(&AT_ONCE);
    assert!(server.said.contains("the head learns from kept replies while no request waits"), "{}", server.said);
    let (text, with_own) = reply(&server, "Once upon a time");
    wait(&server, "kept", 1.0);
    assert!((metric(&server, "tokens_per_pass") - (1.0 + 0.9 + 0.81 + 0.729)).abs() < 1e-9);
    let asked = fs::read_to_string(program.path("asked")).expect("it was asked");
    assert!(!asked.contains("--rival") && asked.contains("--type keep"), "{asked}");
    // Nothing better comes, and the text goes on in the state of the former head.
    program.gives("own.gguf", &worth(0.9, 0.9));
    let (again, with_bad) = reply(&server, "Once upon a time");
    assert_eq!(again, text);
    assert!(with_bad * 2 < with_own, "{with_bad} and {with_own} tokens were accepted");
    wait(&server, "rounds", 2.0);
    end(server);

    let server = program.start(&AT_ONCE);
    assert!(server.said.contains("the head that was learned before is in use again"), "{}", server.said);
    let mut undone = worth(0.3, 0.4);
    undone["rival"] = json!([0.9, 0.9, 0.9]);
    program.gives("bad.gguf", &undone);
    assert_eq!(reply(&server, "Once upon a time"), (text.clone(), with_bad));
    wait(&server, "undone", 1.0);
    assert_eq!(metric(&server, "kept"), 0.0);
    let asked = fs::read_to_string(program.path("asked")).expect("it was asked");
    let last = asked.lines().last().expect("a line");
    assert!(last.contains(&format!("--rival {MODEL}")) && last.contains("/head.gguf --rival"), "{last}");
    program.gives("bad.gguf", &worth(0.9, 0.9));
    assert_eq!(reply(&server, "Once upon a time"), (text, with_own));
    end(server);
}

#[test]
fn a_program_that_fails_or_writes_rubbish_harms_nobody() {
    let program = Program::new();
    program.heads();
    program.does("echo 'error: no tokens to learn from' >&2\nexit 1\n");
    let server = program.start(&AT_ONCE);
    let before = reply(&server, "Once upon a time");
    wait(&server, "failed", 1.0);
    let good = worth(0.5, 0.9);
    for (n, does) in [
        "exit 0".to_owned(),
        "head -c 100000 /dev/zero > \"$report\"".to_owned(),
        format!("echo '{good}' > \"$report\""),
        format!("echo '{good}' > \"$report\"; head -c 5000 /dev/urandom > \"$out\""),
        format!("echo '{good}' > \"$report\"; head -c 20000 \"$here/own.gguf\" > \"$out\""),
        "kill -9 $$".to_owned(),
    ]
    .iter()
    .enumerate()
    {
        program.does(does);
        // After each failure more has to come.
        let n_failed = 2.0 + n as f64;
        let asked = Instant::now();
        while metric(&server, "failed") < n_failed {
            assert!(asked.elapsed() < Duration::from_secs(60), "{does}: no round");
            assert_eq!(reply(&server, "Once upon a time"), before, "{does}");
            // A round begins only where no request comes at once.
            let idle = Instant::now();
            while metric(&server, "failed") < n_failed && idle.elapsed() < Duration::from_millis(400) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
    assert_eq!((metric(&server, "kept"), metric(&server, "undone")), (0.0, 0.0));
    end(server);
    assert!(!program.path("kept/live").join("round").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn a_request_stops_a_round_and_the_end_of_the_server_ends_it() {
    let program = Program::new();
    program.heads();
    // It waits for a line that never comes.
    program.does("mkfifo \"$here/never\"\nexec 3<>\"$here/never\"\necho $$ > \"$here/pid\"\nread x <&3\n");
    let server = program.start(&["--learn-live-idle", "2"]);
    let before = reply(&server, "Once upon a time");
    until(|| program.path("pid").exists(), "a round");
    let pid = || fs::read_to_string(program.path("pid")).expect("a file").trim().to_owned();
    until(|| !pid().is_empty(), "its number");
    let pid = pid();
    let state = || fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.rsplit(") ").next()?.chars().next();
    assert_ne!(state(), Some('T'));
    assert_eq!(reply(&server, "Once upon a time"), before);
    // It stays so for two seconds after the reply.
    until(|| state() == Some('T'), "the stop for the request");
    assert!(metric(&server, "paused") >= 1.0);
    until(|| state() != Some('T'), "the round going on");
    assert_eq!(metric(&server, "rounds"), 1.0, "it is still the same round");
    end(server);
    until(|| state().is_none(), "the program's end");
}

#[test]
fn what_cannot_be_is_said_at_the_start() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().to_str().expect("a path in UTF-8");
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nextn-server"));
        let output =
            command.args(["--port", "0", "--learn", folder, "--learn-live"]).args(more).env("PATH", "").output();
        let output = output.expect("the program runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run(&["--learn-live-program", "/no/such/file"]);
    assert!(code == Some(2) && said.contains("--learn-live-program /no/such/file: no such file"), "{said}");
    let (code, said) = run(&["--api-key", "one,two"]);
    assert!(code == Some(2) && said.contains("--cache-scope all"), "{said}");
    let program = Program::new();
    program.does("exit 1");
    let path = program.path("tune");
    let path = path.to_str().expect("a path in UTF-8");
    let live = ["--learn", folder, "--learn-live", "--learn-live-program", path];
    let server = support::start(&live);
    assert!(server.said.contains("wants a model in a file (-m)"), "{}", server.said);
    end(server);
}
