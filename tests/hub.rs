//! Models of a hub end to end: both programs against a server on this machine that plays one.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use convert::Source;
use convert::heads::{Extract, Layout, WeightType, extract, strip};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use support::tiny::Spec;
use tempfile::TempDir;
use test_support::{FakeFile, FakeHub, sha256};

const POCKET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/pocket-q4_k_m.gguf");

/// A cache of its own and the programs that use it.
struct Machine {
    cache: TempDir,
    endpoint: String,
}

impl Machine {
    fn new(hub: &FakeHub) -> Self {
        Self { cache: tempfile::tempdir().expect("a folder"), endpoint: hub.address().to_owned() }
    }

    fn program(&self, path: &str, args: &[&str]) -> Command {
        let mut command = Command::new(path);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for name in ["NEXTN_MODEL", "NEXTN_LOG", "HF_TOKEN", "HF_HOME", "MODEL_ENDPOINT", "HF_HUB_OFFLINE"] {
            command.env_remove(name);
        }
        command.env("HF_TOKEN_PATH", self.cache.path().join("no-token")).env("NO_PROXY", "127.0.0.1");
        command.env("HF_HUB_CACHE", self.cache.path()).env("HF_ENDPOINT", &self.endpoint);
        command
    }

    fn cli(&self, args: &[&str]) -> Command {
        self.program(env!("CARGO_BIN_EXE_nextn-cli"), args)
    }

    fn run(&self, args: &[&str]) -> Output {
        self.cli(args).output().expect("the program runs")
    }

    /// Standard output of a run that ends well.
    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", err(&output));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Exit code and standard error of a run that does not.
    fn refused(&self, args: &[&str]) -> (i32, String) {
        let output = self.run(args);
        (output.status.code().expect("no signal"), err(&output))
    }
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn file(path: &str, bytes: &[u8]) -> FakeFile {
    FakeFile::new(path, bytes)
}

/// The small model without its MTP layer, and the layer in a file of its own.
fn pocket_in_two() -> (Vec<u8>, Vec<u8>) {
    let folder = tempfile::tempdir().expect("a folder");
    let open = || Source::open(Path::new(POCKET)).expect("the model is part of the repository");
    let (model, head) = (folder.path().join("model"), folder.path().join("head"));
    strip(open()).expect("it has a layer").write(&model, 2, &Default::default()).expect("room");
    let how = Extract { layout: Layout::Upstream, dtype: WeightType::Keep };
    extract(open(), how).expect("it has a layer").write(&head, 2, &Default::default()).expect("room");
    (fs::read(model).expect("written"), fs::read(head).expect("written"))
}

const ASK: [&str; 9] = ["-p", "What is 20 + 15?", "--think", "off", "--temp", "0", "-t", "1", "--json"];

fn ask<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [args, &ASK].concat()
}

fn answer(text: &str) -> Value {
    serde_json::from_str(text).expect("one JSON object")
}

#[test]
fn the_command_line_fetches_a_model_with_its_layer_and_answers() {
    let hub = FakeHub::start();
    let (model, head) = pocket_in_two();
    let files =
        [file("m-Q8_0.gguf", b"not this one"), file("pocket-Q4_K_M.gguf", &model), file("mmproj-F16.gguf", b"x")];
    hub.add("u/pocket-GGUF", files).add("u/pocket-GGUF", [file("mtp-pocket.gguf", &head)]);
    let machine = Machine::new(&hub);
    let output = machine.run(&ask(&["-hf", "u/pocket-GGUF", "-v"]));
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let told = err(&output);
    assert!(
        told.contains("fetching pocket-Q4_K_M.gguf: ") && !told.contains('\x1b'),
        "lines without a terminal: {told}"
    );
    // What was fetched is no projector: the model answers without it.
    assert!(told.contains("images are refused"), "{told}");
    let found = answer(std::str::from_utf8(&output.stdout).expect("UTF-8"));
    let direct = answer(&machine.ok(&ask(&["-m", POCKET])));
    assert_eq!(found["text"], direct["text"]);
    assert!(found["timings"]["drafted"].as_u64() > Some(0), "the layer that lay beside it drafts: {found}");

    let n_asked = hub.asked().len();
    for args in [&["-hf", "u/pocket-GGUF:q4_k_m", "--offline"][..], &["-m", "u/pocket-GGUF"]] {
        assert_eq!(answer(&machine.ok(&ask(args)))["text"], direct["text"], "{args:?}");
    }
    assert_eq!(hub.asked().len(), n_asked, "the cache is enough");
    let plain = answer(&machine.ok(&ask(&["-hf", "u/pocket-GGUF", "--spec", "off"])));
    assert_eq!(plain["text"], direct["text"]);
}

#[test]
fn a_layer_that_does_not_fit_is_no_reason_to_go_without_the_model() {
    let hub = FakeHub::start();
    let pocket = fs::read(POCKET).expect("it is part of the repository");
    hub.add("u/r", [file("m-Q4_K_M.gguf", &pocket), file("mtp-m.gguf", b"GGUF and nothing more")]);
    let machine = Machine::new(&hub);
    let output = machine.run(&ask(&["-hf", "u/r"]));
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(err(&output).contains("does not fit: going on without it"), "{}", err(&output));
}

#[test]
fn shards_are_opened_by_the_first() {
    let hub = FakeHub::start();
    let folder = tempfile::tempdir().expect("a folder");
    let first = Spec::of("qwen35").document().write_shards(folder.path());
    let shards = fs::read_dir(folder.path()).expect("a folder").map(|entry| entry.expect("a file").path());
    let name = |path: &Path| path.file_name().expect("a file").to_str().expect("UTF-8").to_owned();
    hub.add("u/r", shards.map(|path| file(&format!("Q8/{}", name(&path)), &fs::read(&path).expect("a file"))));
    let machine = Machine::new(&hub);
    let raw = ["--raw", "-p", "a", "-n", "3", "--temp", "0", "-t", "1", "--json", "--ignore-eos"];
    let run = |args: &[&str]| machine.run(&[args, &raw].concat());
    let (of_hub, direct) = (run(&["-hf", "u/r"]), run(&["-m", first.to_str().expect("UTF-8")]));
    assert_eq!(of_hub.status.code(), direct.status.code(), "{}", err(&of_hub));
    assert_eq!(direct.status.code(), Some(0), "{}", err(&direct));
    let text = |output: &Output| answer(std::str::from_utf8(&output.stdout).expect("UTF-8"))["text"].clone();
    assert_eq!(text(&of_hub), text(&direct));
}

#[test]
fn models_are_pulled_listed_and_removed() {
    let hub = FakeHub::start();
    hub.add("u/r", [file("m-Q4_K_M.gguf", b"four"), file("m-Q8_0.gguf", b"eight"), file("mmproj-F16.gguf", b"p")]);
    let machine = Machine::new(&hub);
    assert_eq!(machine.ok(&["models", "list"]), "");
    let pulled = machine.ok(&["models", "pull", "u/r"]);
    assert!(
        pulled.contains("m-Q4_K_M.gguf") && pulled.contains("projector ") && pulled.contains("-m u/r:Q4_K_M"),
        "{pulled}"
    );
    machine.ok(&["models", "pull", "u/r:Q8_0", "--no-mmproj"]);
    let listed = machine.ok(&["models", "list"]);
    let lines: Vec<&str> = listed.lines().collect();
    assert!(lines.len() == 3 && lines[1].starts_with("u/r:Q4_K_M  Q4_K_M  4 B"), "{listed}");
    let json: Value = serde_json::from_str(&machine.ok(&["models", "list", "--json"])).expect("JSON");
    assert_eq!((&json[1]["name"], &json[1]["size"]), (&json!("u/r:Q8_0"), &json!(5)));
    let (code, told) = machine.refused(&["models", "rm", "u/r:Q8_0"]);
    assert!(code == 2 && told.contains("--yes"), "{told}");
    assert_eq!(machine.ok(&["models", "rm", "u/r:Q8_0", "--yes"]), "removed u/r:Q8_0: 1 file, 5 B\n");
    assert_eq!(machine.ok(&["models", "rm", "u/r", "-y"]), "removed u/r: 2 files, 5 B\n");
    assert_eq!(machine.ok(&["models", "list"]), "");
    let (code, told) = machine.refused(&["models", "rm", "u/r", "-y"]);
    assert!(code == 3 && told.contains("not in the cache"), "{told}");
}

#[test]
fn what_goes_wrong_is_told_with_its_exit_code() {
    let hub = FakeHub::start();
    hub.add("u/r", [file("m-Q4_K_M.gguf", b"four")]);
    let machine = Machine::new(&hub);
    for (args, code, words) in [
        (&["-hf", "nonsense"][..], 2, "USER/REPO"),
        (&["-hf", "u/../r"], 2, "USER/REPO"),
        (&["-hf", "u/r", "-m", "x.gguf"], 2, "--hf-repo"),
        (&["--hf-file", "m.gguf"], 2, "--hf-repo"),
        (&["-hf", "u/none"], 3, "404"),
        (&["-hf", "u/r:Q2_K"], 3, "m-Q4_K_M.gguf"),
        (&["-hf", "u/r", "-hff", "../x.gguf"], 2, "path in the repository"),
        (&["-hf", "u/r", "--offline"], 3, "not in the cache"),
        (&["models", "list"], 2, "--prompt"),
        (&["-m", "u/none"], 3, "-hf u/none"),
        (&["-m", "u/none.gguf"], 3, "u/none.gguf"),
        (&["-hf", "u/r"], 3, "m-Q4_K_M.gguf"),
    ] {
        let (found, told) = machine.refused(&[&["-p", "x"], args].concat());
        assert!(found == code && told.contains(words), "{args:?}: {found} {told}");
    }
    hub.close("secret");
    let closed = Machine::new(&hub);
    let (code, told) = closed.refused(&["models", "pull", "u/r"]);
    assert!(code == 3 && told.contains("401") && told.contains("HF_TOKEN"), "{told}");
    closed.ok(&["models", "pull", "u/r", "--hf-token", "secret"]);
    let dead = Machine { endpoint: "http://127.0.0.1:1".into(), ..Machine::new(&hub) };
    let (code, told) = dead.refused(&["models", "pull", "u/r"]);
    assert!(code == 3 && told.contains("http://127.0.0.1:1"), "{told}");
}

#[test]
fn ctrl_c_ends_a_download_and_the_next_run_goes_on() {
    let hub = FakeHub::start();
    let bytes = vec![7; 100_000];
    hub.add("u/r", [FakeFile { hold: Some(60_000), ..file("m-Q4_K_M.gguf", &bytes) }]);
    let machine = Machine::new(&hub);
    let part = machine.cache.path().join(format!("models--u--r/blobs/{}.incomplete", sha256(&bytes)));
    let child = machine.cli(&["models", "pull", "u/r"]).spawn().expect("the program runs");
    while fs::metadata(&part).map_or(0, |meta| meta.len()) < 60_000 {
        std::thread::sleep(Duration::from_millis(2));
    }
    let pid = Pid::from_raw(child.id().try_into().expect("a process id")).expect("not 0");
    kill_process(pid, Signal::INT).expect("it runs");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130), "{}", err(&output));
    assert!(err(&output).contains("the next one goes on from there"), "{}", err(&output));
    hub.release();
    machine.ok(&["models", "pull", "u/r"]);
    assert_eq!(hub.asked_for_bytes().last().expect("asked").from, Some(60_000));
}

/// A server that runs, and what it writes.
struct Running {
    child: Child,
    address: String,
}

impl Running {
    fn start(machine: &Machine, args: &[&str]) -> Self {
        let fixed = ["--port", "0", "-t", "1", "-c", "512", "-np", "1"];
        let args = [&fixed, args].concat();
        let mut child = machine.program(env!("CARGO_BIN_EXE_nextn-server"), &args).spawn().expect("the program runs");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
        let address =
            lines.by_ref().find_map(|line| Some(line.split_once("listening on http://")?.1.trim().to_owned()));
        // Somebody has to read on, or the program would wait for room.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address: address.expect("a line tells the address") }
    }

    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer key\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("UTF-8");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, serde_json::from_str(body).unwrap_or_default())
    }

    fn complete(&self, model: &str) -> (u16, Value) {
        let body = json!({ "model": model, "temperature": 0, "reasoning_effort": "none",
            "messages": [{ "role": "user", "content": "What is 20 + 15?" }] });
        self.ask("POST", "/v1/chat/completions", &body.to_string())
    }

    /// A model as the list has it.
    fn listed(&self, name: &str) -> Option<Value> {
        let (_, list) = self.ask("GET", "/models", "");
        list["data"].as_array()?.iter().find(|model| model["id"] == name).cloned()
    }

    fn wait_for(&self, name: &str, status: &str) -> Value {
        loop {
            match self.listed(name) {
                Some(model) if model["status"] == status => return model,
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_server_serves_a_model_of_the_hub() {
    let hub = FakeHub::start();
    let (model, head) = pocket_in_two();
    hub.add("u/r", [file("pocket-Q4_K_M.gguf", &model), file("mtp-pocket.gguf", &head)]);
    let server = Running::start(&Machine::new(&hub), &["-hf", "u/r", "--api-key", "key"]);
    let listed = server.wait_for("u/r", "loaded");
    assert_eq!(listed["meta"]["nextn"], true, "{listed}");
    let (status, answer) = server.complete("u/r");
    assert!(status == 200 && answer.to_string().contains("20 + 15 = 35."), "{answer}");
    assert_eq!(server.ask("POST", "/models", r#"{"model":"u/r"}"#).0, 501, "downloads are not allowed");
}

#[test]
fn the_server_downloads_and_removes_models_for_clients() {
    let hub = FakeHub::start();
    let pocket = fs::read(POCKET).expect("it is part of the repository");
    hub.add("u/r", [FakeFile { hold: Some(1000), ..file("pocket-Q4_K_M.gguf", &pocket) }]);
    let machine = Machine::new(&hub);
    let server = Running::start(&machine, &["--allow-downloads", "--api-key", "key"]);
    let (status, answer) = server.ask("POST", "/models", r#"{"model":"u/../r"}"#);
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("model")), "{answer}");
    let (status, answer) = server.ask("POST", "/models", r#"{"model":"u/r"}"#);
    assert_eq!((status, &answer["status"]), (200, &json!("downloading")), "{answer}");
    let mut listed = server.wait_for("u/r", "downloading");
    while listed["progress"]["pocket-Q4_K_M.gguf"] != json!({ "done": 1000, "total": pocket.len() }) {
        listed = server.wait_for("u/r", "downloading");
    }
    hub.release();
    server.wait_for("u/r:Q4_K_M", "unloaded");
    let (status, answer) = server.complete("u/r");
    assert!(status == 200 && answer.to_string().contains("20 + 15 = 35."), "{answer}");
    drop(server);

    let server = Running::start(&machine, &["--allow-downloads", "--api-key", "key"]);
    assert_eq!(server.listed("u/r:Q4_K_M").expect("it is in the cache")["status"], "unloaded");
    assert_eq!(server.ask("DELETE", "/models?model=u/r:Q4_K_M", "").0, 200);
    assert!(server.listed("u/r:Q4_K_M").is_none());
    assert!(!machine.cache.path().join("models--u--r").exists(), "its files are gone");
    assert_eq!(server.ask("POST", "/models", r#"{"model":"u/none"}"#).0, 200);
    let failed = server.wait_for("u/none", "failed");
    assert!(failed["error"].as_str().is_some_and(|why| why.contains("404")), "{failed}");
}
