//! Workers lend their devices: two processes of this machine compute one model, and one that is gone is an error.

mod support;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};

use support::tiny::Spec;
use tempfile::TempDir;

/// A worker with one thread on a free port; ended with the test.
struct Worker {
    child: Child,
    address: String,
}

impl Worker {
    fn start() -> Worker {
        let mut child = Command::new(env!("CARGO_BIN_EXE_nextn-server"))
            .args(["--rpc-worker", "127.0.0.1:0", "--threads", "1"])
            .stderr(Stdio::piped())
            .spawn()
            .expect("it is built");
        let mut log = BufReader::new(child.stderr.take().expect("piped"));
        let (mut line, mut warned) = (String::new(), false);
        let address = loop {
            line.clear();
            assert!(log.read_line(&mut line).expect("text") > 0, "the worker ended before it listened");
            warned |= line.contains("protocol knows no keys");
            if let Some((_, rest)) = line.split_once("worker listening on ") {
                break rest.split_whitespace().next().expect("an address").to_owned();
            }
        };
        assert!(warned, "whoever starts a worker is told that it is open");
        // Read on, so that the worker can write.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Worker { child, address }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn bench(args: &[&str]) -> Output {
    // The workers compute with ggml's own kernels.
    let mut command = Command::new(env!("CARGO_BIN_EXE_nextn-bench"));
    command.env("NEXTN_KERNELS", "off").args(args).output().expect("it is built")
}

fn tokens(args: &[&str]) -> String {
    // The CPU would choose another form of attention for itself.
    let mut all = vec!["generate", "--tokens", "5,6,7,8", "-n", "16", "--flash-attn", "on"];
    all.extend(args);
    let output = bench(&all);
    assert!(output.status.success(), "{all:?}: {}", String::from_utf8_lossy(&output.stderr));
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    printed["tokens"].to_string()
}

#[test]
fn two_workers_compute_one_model_with_drafts_and_without() {
    let (first, second) = (Worker::start(), Worker::start());
    let both = format!("{},{}", first.address, second.address);
    let devices = bench(&["devices", "--rpc", &both]);
    let table = String::from_utf8_lossy(&devices.stdout).into_owned();
    assert!(table.contains("RPC0") && table.contains("RPC1") && table.contains(&second.address), "{table}");

    let alone = tokens(&["--device", "cpu"]);
    for draft in ["0", "2"] {
        let split = tokens(&["--rpc", &both, "--split-mode", "layer", "--draft", draft]);
        assert_eq!(split, alone, "over two workers, drafts of {draft}");
        let one = tokens(&["--rpc", &both, "--device", "rpc1", "--draft", draft]);
        assert_eq!(one, alone, "on the second worker, drafts of {draft}");
    }
    let shares = bench(&["generate", "--tokens", "5", "--rpc", &both, "--tensor-split", "1,2,3"]);
    let error = String::from_utf8_lossy(&shares.stderr).into_owned();
    assert!(!shares.status.success() && error.contains("3 numbers, and 2 GPUs"), "{error}");
}

#[test]
fn tensors_go_by_name_to_workers_and_to_the_cpu_and_tokens_stay() {
    let (first, second) = (Worker::start(), Worker::start());
    let both = format!("{},{}", first.address, second.address);
    let dir = TempDir::new().expect("a folder");
    let spec = Spec { nextn: true, ..Spec::of("qwen35moe") };
    let model = spec.document().write(&dir.path().join("moe.gguf"));
    let model = model.to_str().expect("a path of letters");
    let alone = tokens(&["-m", model, "--device", "cpu"]);
    let places: [&[&str]; 5] = [
        &["-ot", "exps=CPU"],
        &["--split-mode", "layer", "--override-tensor", r"blk\.[0-2]\.ffn_.*_exps=RPC1,ssm_conv1d=CPU"],
        &["-ot", r"blk\.[34]\.=CPU", "-ot", r"blk\.\d{1,2}\.attn=RPC1"],
        &["--cpu-moe", "-ot", r"blk\.0\.ffn_.*_exps=rpc0,nextn=cpu"],
        &["-ngl", "0", "-ot", "ffn=RPC0,ssm_out=RPC1"],
    ];
    for place in places {
        for draft in ["0", "2"] {
            let found = tokens(&[&["-m", model, "--rpc", &both, "--draft", draft], place].concat());
            assert_eq!(found, alone, "{place:?}, drafts of {draft}");
        }
    }

    let counted = |more: &[&str]| {
        let all = [&["memory", "-m", model, "-c", "1024", "--json", "--rpc", &first.address], more].concat();
        let output = bench(&all);
        assert!(output.status.success(), "{all:?}: {}", String::from_utf8_lossy(&output.stderr));
        let printed: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        printed["parts"][0]["counted"].as_u64().expect("bytes of weights")
    };
    let (all, of_experts) = (counted(&[]), counted(&["-ot", "exps=CPU"]));
    assert!(of_experts < all, "{of_experts} of {all} bytes without experts");
    assert_eq!(of_experts, counted(&["--cpu-moe"]));

    for (list, told) in [
        ("exps=CUDA7", "there is no device `CUDA7`; there are: "),
        ("exps=RPC1", "name RPC1 in --device as well"),
        ("exps=RPC", "several devices are called so: RPC0, RPC1"),
        ("(exps=CPU", "`(exps` is not a regular expression: unclosed group"),
        ("exps", "`exps` names no device"),
        ("expz=CPU", "`expz=CPU`: no tensor of the model has a name that matches"),
    ] {
        let devices = if list == "exps=RPC" { "rpc0,rpc1" } else { "rpc0" };
        let output =
            bench(&["generate", "-m", model, "--tokens", "5", "--rpc", &both, "--device", devices, "-ot", list]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(told), "{list}: {error}");
    }
}

#[test]
fn a_worker_that_goes_away_in_an_answer_is_an_error_of_the_answer() {
    let mut worker = Worker::start();
    let mut client = Command::new(env!("CARGO_BIN_EXE_nextn-cli"))
        .args(["--rpc", &worker.address, "-p", "Tell me a story.", "-n", "100000", "--ignore-eos"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it is built");
    let mut answer = client.stdout.take().expect("piped");
    answer.read_exact(&mut [0]).expect("the answer has begun");
    worker.child.kill().expect("it runs");
    let rest = std::thread::spawn(move || std::io::copy(&mut answer, &mut std::io::sink()));
    let ended = client.wait_with_output().expect("it ends");
    rest.join().expect("no panic").expect("it is read");
    let error = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(1), "{error}");
    assert!(error.contains(&worker.address) && error.contains("the worker is gone"), "{error}");
}

#[test]
fn nobody_at_the_address_is_an_error() {
    let address = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").to_string();
    let output = bench(&["devices", "--rpc", &address]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("no worker listens there"), "{error}");
}
