//! The program by hand: a head is trained, measured and used; what is broken off is taken up and gives the same file; bad input is
//! refused in words.

#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../../tests/support/tiny.rs"]
mod tiny;
#[path = "../../../tests/support/words.rs"]
mod words;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use model::{LoadOptions, Model};
use tiny::Spec;

/// A text in which letters follow each other in one way, so that a head can learn it.
fn text() -> String {
    (0..600).map(|i| format!("{} ", ["ab", "bc", "cd", "da"][i % 4])).collect()
}

fn folder() -> tempfile::TempDir {
    folder_of(Spec { nextn: false, ..Spec::of("qwen3") })
}

/// With a model and a text.
fn folder_of(spec: Spec) -> tempfile::TempDir {
    let dir = tempfile::TempDir::new().expect("a folder");
    spec.document().write(&dir.path().join("model.gguf"));
    fs::write(dir.path().join("text.txt"), text()).expect("room");
    dir
}

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nextn-tune"));
    command
        .current_dir(dir)
        .args(["head", "model.gguf", "-t", "1", "--context", "48", "--held-out", "0.2", "--patience", "30"])
        .args(args);
    command
}

fn run(dir: &Path, args: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = command(dir, args).output().expect("the program runs");
    (status.code(), format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)))
}

const SHORT: [&str; 6] = ["--data", "text.txt", "--batch", "200", "--tokens", "12000"];

/// The shares of draft tokens that were right, by depth, one measurement after the other.
fn shares(said: &str) -> Vec<Vec<f64>> {
    let right = |line: &str| Some(line.split("right: ").nth(1)?.split(' ').map_while(|n| n.parse().ok()).collect());
    said.lines().filter_map(right).collect()
}

#[test]
fn a_new_head_fits_its_model_and_guesses_better_than_at_first() {
    let dir = folder();
    let args = [&SHORT[..], &["-o", "head.gguf", "--plot", "plot.svg", "--slim"]].concat();
    let (code, said) = run(dir.path(), &args);
    assert_eq!(code, Some(0), "{said}");
    let shares = shares(&said);
    assert!(shares.len() > 3 && shares.iter().any(|now| now[0] > shares[0][0] + 0.05), "{said}");
    assert!(fs::read_to_string(dir.path().join("plot.svg")).expect("a picture").contains("draft token 3"));
    assert!(!dir.path().join("head.gguf.training").exists());
    let options = LoadOptions { head: Some(dir.path().join("head.gguf")), ..LoadOptions::default() };
    let model = Model::open(&dir.path().join("model.gguf"), &options).expect("the head fits");
    assert!(model.nextn().is_bound());
    let bytes = fs::read(dir.path().join("head.gguf")).expect("the file");
    let header = gguf::Header::parse(&bytes).expect("a header");
    let of = |key: &str| header.metadata().str(key).ok().flatten().map(str::to_owned);
    assert_eq!(of("nextn.training.start").as_deref(), Some("new"));
    assert_eq!(of("nextn.training.data").as_deref(), Some("text.txt"));
    assert_eq!(header.metadata().f32_array("nextn.training.acceptance").expect("shares").expect("shares").len(), 3);
}

#[test]
fn heads_with_windows_latent_attention_and_other_routers_are_trained_and_fit_their_models() {
    for arch in ["deepseek2", "step35", "nemotron_h_moe"] {
        let dir = folder_of(Spec { nextn: true, ..Spec::of(arch) });
        for (start, file, n) in [("own", "tuned.gguf", "5000"), ("new", "new.gguf", "8000")] {
            let args = ["--data", "text.txt", "--batch", "200", "--tokens", n, "--rate", "0.02"];
            let (code, said) = run(dir.path(), &[&args[..], &["--init", start, "-o", file]].concat());
            assert_eq!(code, Some(0), "{arch}: {said}");
            let sums: Vec<f64> = shares(&said).iter().map(|of| of.iter().sum()).collect();
            println!("{arch}, {start}: {sums:?}");
            assert!(sums.iter().any(|sum| *sum > sums[0] + 0.1), "{arch}, {start}: {said}");
            let options = LoadOptions { head: Some(dir.path().join(file)), ..LoadOptions::default() };
            let model = Model::open(&dir.path().join("model.gguf"), &options).expect("the head fits");
            assert!(model.nextn().is_bound(), "{arch}, {start}");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_training_that_is_broken_off_goes_on_to_the_same_file() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    let dir = folder();
    let (code, said) = run(dir.path(), &[&SHORT[..], &["-o", "whole.gguf"]].concat());
    assert_eq!(code, Some(0), "{said}");

    let args = [&SHORT[..], &["-o", "parts.gguf"]].concat();
    let mut child = command(dir.path(), &args).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it runs");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let n_measured = lines.by_ref().map_while(Result::ok).filter(|line| line.contains("right: ")).take(2).count();
    assert_eq!(n_measured, 2);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(child.wait().expect("it ends").code(), Some(130), "{rest:?}");
    assert!(!dir.path().join("parts.gguf").exists());

    let (code, said) = run(dir.path(), &args);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("--resume goes on with it"), "{said}");
    let (code, said) = run(dir.path(), &[&args[..], &["--resume", "--seed", "2"]].concat());
    assert!(code == Some(1) && said.contains("a training with other options or texts"), "{said}");
    let (code, said) = run(dir.path(), &[&args[..], &["--resume"]].concat());
    assert_eq!(code, Some(0), "{said}");
    let read = |name: &str| fs::read(dir.path().join(name)).expect("the file");
    assert!(read("whole.gguf") == read("parts.gguf"), "an interruption changed the numbers");
}

#[cfg(unix)]
#[test]
fn a_training_whose_folder_goes_away_is_kept_elsewhere_and_gives_the_same_file() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    let dir = folder();
    let (code, said) = run(dir.path(), &[&SHORT[..], &["-o", "whole.gguf"]].concat());
    assert_eq!(code, Some(0), "{said}");
    let (gone, other) = (dir.path().join("gone"), dir.path().join("temporary"));
    fs::create_dir(&gone).and_then(|()| fs::create_dir(&other)).expect("room");
    let args = [&SHORT[..], &["-o", "gone/head.gguf"]].concat();
    let mut command = command(dir.path(), &args);
    command.env("TMPDIR", &other).stderr(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().expect("it runs");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines().map_while(Result::ok);
    // The first comes before the first state.
    assert_eq!(lines.by_ref().filter(|line| line.contains("right: ")).take(2).count(), 2);
    fs::remove_dir_all(&gone).expect("it is ours");
    let said: Vec<String> = lines.collect();
    assert_eq!(child.wait().expect("it ends").code(), Some(1), "{said:?}");
    let kept = said.iter().find_map(|line| line.split("the training is kept in ").nth(1)?.split(':').next());
    let kept = kept.unwrap_or_else(|| panic!("{said:?}")).to_owned();
    assert!(Path::new(&kept).starts_with(&other), "{kept}");

    let training = gone.join("head.gguf.training");
    fs::create_dir_all(&gone).and_then(|()| fs::rename(kept, training)).expect("room");
    let (code, said) = run(dir.path(), &[&args[..], &["--resume"]].concat());
    assert_eq!(code, Some(0), "{said}");
    let read = |name: &str| fs::read(dir.path().join(name)).expect("the file");
    assert!(read("whole.gguf") == read("gone/head.gguf"), "the training was not kept whole");
}

#[cfg(target_os = "linux")]
#[test]
fn a_training_that_has_no_room_says_so_before_it_begins() {
    let dir = folder();
    let program = env!("CARGO_BIN_EXE_nextn-tune");
    // Files grow to so many blocks of 512 bytes, and an ignored signal leaves an error.
    let Output { status, stderr, .. } = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$@\"", "sh", program, "head", "model.gguf", "-t", "1"])
        .args(["--context", "48", "--held-out", "0.2"])
        .args(SHORT)
        .args(["-o", "head.gguf"])
        .current_dir(dir.path())
        .output()
        .expect("a shell");
    let said = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("state.safetensors: cannot be written"), "{said}");
    assert_eq!(said.matches("right: ").count(), 1, "it trained: {said}");
    let names: Vec<_> = fs::read_dir(dir.path()).expect("a folder").map(|f| f.expect("one").file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[cfg(unix)]
#[test]
fn passes_on_disk_change_no_number_and_go_when_the_head_is_written() {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    let dir = folder();
    let read = |name: &str| fs::read(dir.path().join(name)).expect("the file");
    let files = || fs::read_dir(dir.path().join("passes")).expect("a folder").map(|file| file.expect("one").path());
    let none = [&SHORT[..], &["--cache-size", "0", "-o", "none.gguf"]].concat();
    let (code, said) = run(dir.path(), &none);
    assert_eq!(code, Some(0), "{said}");
    let on_disk = [&SHORT[..], &["--cache-size", "0", "--cache-dir", "passes"]].concat();
    let (code, said) = run(dir.path(), &[&on_disk[..], &["-o", "disk.gguf"]].concat());
    assert_eq!(code, Some(0), "{said}");
    assert!(read("none.gguf") == read("disk.gguf"), "passes on disk changed the numbers");
    assert_eq!(files().count(), 0);

    let args = [&on_disk[..], &["-o", "parts.gguf"]].concat();
    let mut child = command(dir.path(), &args).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it runs");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let n_measured = lines.by_ref().map_while(Result::ok).filter(|line| line.contains("right: ")).take(2).count();
    assert_eq!(n_measured, 2);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::KILL)
        .expect("it runs");
    child.wait().expect("it ends");
    let path = files().next().expect("what was kept");
    let mut bytes = fs::read(&path).expect("a file");
    let n = bytes.len();
    assert!(n > 1000, "{n}");
    bytes[n / 2] ^= 1;
    fs::write(&path, bytes).expect("room");
    let (code, said) = run(dir.path(), &[&args[..], &["--resume"]].concat());
    assert!(code == Some(0) && said.contains(".passes: damaged"), "{said}");
    assert!(read("none.gguf") == read("parts.gguf"), "a damaged file changed the numbers");
    assert_eq!(files().count(), 0);
    fs::write(dir.path().join("file"), "").expect("room");
    let (code, said) = run(dir.path(), &[&SHORT[..], &["--cache-dir", "file", "-o", "x.gguf"]].concat());
    assert!(code == Some(1) && said.contains("file: cannot be made"), "{said}");
}

/// A file as `nextn-server --learn` writes it, of letters that follow each other in one way.
fn kept(dir: &Path, model: &str) -> String {
    let model = Model::open(&dir.join(model), &LoadOptions::default()).expect("a model");
    let fingerprint = text::hex(&model.fingerprint().expect("one"));
    let n_vocab = model.hparams().n_vocab;
    let head =
        format!("{{\"format\":\"nextn-replies\",\"version\":1,\"model\":\"{fingerprint}\",\"n_vocab\":{n_vocab}}}\n");
    let lines = (0..40).map(|i| {
        let ids: Vec<usize> = (0..60).map(|t| 3 + (i + t) % 4).collect();
        format!("{{\"prompt\":{:?},\"reply\":{:?},\"refused\":[[2,1],[9,2]]}}\n", &ids[..4], &ids[4..])
    });
    head + &lines.collect::<String>()
}

#[test]
fn a_head_learns_from_replies_that_a_server_kept() {
    let dir = folder();
    Spec { nextn: false, ..Spec::of("llama") }.document().write(&dir.path().join("other.gguf"));
    let (ours, others) = (kept(dir.path(), "model.gguf"), kept(dir.path(), "other.gguf"));
    let of_key = dir.path().join("kept").join("0123456789abcdef");
    fs::create_dir_all(&of_key).expect("room");
    let put = |name: &str, text: &str| fs::write(of_key.join(name), text).expect("room");
    put("a-1-0.jsonl", &others);
    // The writer of the last line was ended.
    put("b-2-0.jsonl", &format!("{ours}{{\"prompt\":[3,"));
    let args = ["--from", "kept", "--batch", "200", "--tokens", "4000", "--refused-weight", "2"];
    let (code, said) = run(dir.path(), &[&args[..], &["-o", "head.gguf"]].concat());
    assert_eq!(code, Some(0), "{said}");
    for words in
        ["40 replies of", "at 80 of them", "40 of them are longer than --context 48", "1 files of other models"]
    {
        assert!(said.contains(words), "{words} is missing: {said}");
    }
    let options = LoadOptions { head: Some(dir.path().join("head.gguf")), ..LoadOptions::default() };
    assert!(Model::open(&dir.path().join("model.gguf"), &options).expect("the head fits").nextn().is_bound());

    let refused = |wanted: &str| {
        let (code, said) = run(dir.path(), &["--from", "kept", "-o", "x.gguf"]);
        assert!(code == Some(1) && said.contains(wanted), "{wanted}: {code:?} {said}");
        assert!(!dir.path().join("x.gguf.training").exists(), "{said}");
    };
    let head = ours.lines().next().expect("a line");
    put("b-2-0.jsonl", &format!("{head}\n{{\"prompt\":[3,4],\"reply\":}}\n"));
    refused("b-2-0.jsonl, line 2: not a kept reply");
    put("b-2-0.jsonl", &format!("{head}\n{{\"prompt\":[3,4],\"reply\":[4000000000]}}\n"));
    refused("b-2-0.jsonl, line 2: token id 4000000000 is outside the vocabulary");
    put("b-2-0.jsonl", &format!("{head}\n{{\"prompt\":[3,4],\"reply\":[4],\"refused\":[[1,1]]}}\n"));
    refused("b-2-0.jsonl, line 2: a draft was refused at position 1 of a reply of 1 tokens");
    put("b-2-0.jsonl", &head.replace("\"version\":1", "\"version\":9").replace('}', "}\n"));
    refused("b-2-0.jsonl, line 1: nextn-replies 1 expected, nextn-replies 9 found");
    put("b-2-0.jsonl", "something\n");
    refused("b-2-0.jsonl, line 1: not the beginning of kept replies");
    fs::remove_file(of_key.join("b-2-0.jsonl")).expect("it is there");
    refused("replies of model ");
    fs::remove_dir_all(&of_key).expect("it is there");
    refused("kept: no kept replies are in this folder");
    fs::remove_dir_all(dir.path().join("kept")).expect("it is there");
    refused("kept: cannot be read");
}

#[test]
fn a_head_goes_on_learning_from_the_latest_replies_in_the_types_that_it_has() {
    let dir = folder();
    let (code, said) = run(dir.path(), &[&SHORT[..], &["-o", "first.gguf", "--slim"]].concat());
    assert_eq!(code, Some(0), "{said}");
    let of_key = dir.path().join("kept").join("0123456789abcdef");
    fs::create_dir_all(&of_key).expect("room");
    fs::write(of_key.join("a-1-0.jsonl"), kept(dir.path(), "model.gguf")).expect("room");
    let head = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nextn-tune"));
        let output =
            command.current_dir(dir.path()).args(["head", "model.gguf", "-t", "1", "--context", "48"]).args(args);
        let Output { status, stderr, .. } = output.output().expect("the program runs");
        (status.code(), String::from_utf8_lossy(&stderr).into_owned())
    };
    let round = ["--from", "kept", "--hold-latest", "300", "--batch", "200", "--tokens", "4000", "--measurements", "4"];
    let heads = ["--head", "first.gguf", "--rival", "first.gguf", "--report", "report.json"];
    let (code, said) = head(&[&round[..], &heads, &["-o", "second.gguf", "--slim", "--type", "keep"]].concat());
    assert_eq!(code, Some(0), "{said}");
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(dir.path().join("report.json")).expect("a file")).expect("JSON");
    let shares = |name: &str| report[name].as_array().expect("shares").iter().map(|x| x.as_f64().expect("a number"));
    assert_eq!(shares("start").count(), 3);
    // Measured with the head that is used: the one that the training starts from.
    assert!(shares("rival").eq(shares("start")), "{report}");
    assert!(shares("best").sum::<f64>() >= shares("start").sum::<f64>(), "{report}");
    assert!((300..=600).contains(&report["n_held_out"].as_u64().expect("a number")), "{report}");
    assert!(report["n_tokens"].as_u64().expect("a number") >= 4000, "{report}");

    let tensors = |name: &str| {
        let bytes = fs::read(dir.path().join(name)).expect("a file");
        let header = gguf::Header::parse(&bytes).expect("a header");
        header.tensors().iter().map(|t| (t.name.to_owned(), t.dtype, t.ne)).collect::<Vec<_>>()
    };
    assert_eq!(tensors("first.gguf"), tensors("second.gguf"));
    let options =
        LoadOptions { head: Some(dir.path().join("first.gguf")), replaceable_head: true, ..LoadOptions::default() };
    let model = Model::open(&dir.path().join("model.gguf"), &options).expect("the head fits");
    assert!(model.can_replace_head());
    model.replace_head(&dir.path().join("second.gguf")).expect("it has the same tensors");
    model.restore_head().expect("its own fits");
    let (code, said) = run(dir.path(), &[&SHORT[..], &["-o", "other.gguf", "--slim", "--type", "f16"]].concat());
    assert_eq!(code, Some(0), "{said}");
    let error = model.replace_head(&dir.path().join("other.gguf")).expect_err("other types").to_string();
    assert!(error.contains("expected, f16"), "{error}");
    Spec { nextn: false, ..Spec::of("llama") }.document().write(&dir.path().join("other.gguf"));
    let (code, said) = head(&[&round[..], &["--head", "other.gguf", "-o", "x.gguf"]].concat());
    assert!(code == Some(1) && said.contains("other.gguf: has no NextN head to give"), "{said}");
}

#[test]
fn bad_input_is_refused_with_its_place() {
    let dir = folder();
    let write = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).expect("room");
    write("empty.txt", b"");
    write("broken.jsonl", b"\n{\"messages\": [");
    write("silent.jsonl", br#"{"messages": [{"role": "user", "content": "hello"}]}"#);
    write("bytes.txt", b"good \xff bad");
    write("long.jsonl", &[b'x'; (16 << 20) + 2]);
    write("none.txt", b"\n \n");
    let say = |role: &str, n: usize| format!(r#"{{"role": "{role}", "content": "{}"}}"#, "ab ".repeat(n));
    let beyond = format!("[{}, {}]", say("user", 99), say("assistant", 1));
    write("beyond.jsonl", beyond.as_bytes());
    #[cfg(unix)]
    std::os::unix::fs::symlink("there.gguf", dir.path().join("link.gguf")).expect("room");
    let model = fs::read(dir.path().join("model.gguf")).expect("the model");
    write("there.gguf", b"something");
    let of_link = &["--data", "text.txt", "-o", "link.gguf", "--force"][..];
    let of_links = cfg!(unix).then_some((of_link, "link.gguf: is a link or a device"));
    for (args, wanted) in [
        (&["--data", "gone.txt", "-o", "x.gguf"][..], "gone.txt: cannot be opened"),
        (&["--data", "empty.txt", "-o", "x.gguf"], "empty.txt: nothing to learn from in it"),
        (&["--data", "broken.jsonl", "-o", "x.gguf"], "broken.jsonl, line 2: no JSON"),
        (&["--data", "silent.jsonl", "-o", "x.gguf"], "silent.jsonl, line 1: no message of the assistant"),
        (&["--data", "bytes.txt", "-o", "x.gguf"], "bytes.txt: not UTF-8 from byte 5 on"),
        (&["--data", "long.jsonl", "-o", "x.gguf"], "long.jsonl, line 1: longer than"),
        (&["--self", "none.txt", "-o", "x.gguf"], "none.txt: no prompts in it"),
        (&["--data", "text.txt", "-o", "there.gguf"], "--force overwrites it"),
        (&["--data", "text.txt", "-o", "x.gguf", "--init", "own"], "no head in it to start from"),
        (&["--data", "text.txt", "--measure"], "no head in it to measure"),
        (&["--data", "text.txt", "-o", "x.gguf", "--plot", "x.jpg"], "pictures are .svg or .png files"),
        (&["--data", "text.txt", "-o", "no/such/folder/x.gguf"], "cannot be made"),
        (&["--data", "beyond.jsonl", "-o", "x.gguf"], "beyond.jsonl: no reply begins within --context 48: raise it"),
        (&["--data", "text.txt", "-o", "model.gguf", "--force"], "model.gguf: is one of the inputs"),
        (&["--data", "text.txt", "-o", "./text.txt", "--force"], "text.txt: is one of the inputs"),
        (&["--data", "text.txt", "-o", "x.gguf", "--report", "model.gguf"], "model.gguf: is one of the inputs"),
        (&["--data", "text.txt", "-o", "x.gguf", "--report", "x.gguf"], "x.gguf: is two outputs at once"),
        (&["--data", "text.txt", "-o", ".", "--force"], ".: a folder, the name of a file expected"),
    ]
    .into_iter()
    .chain(of_links)
    {
        let (code, said) = run(dir.path(), args);
        assert!(code == Some(1) && said.contains(wanted), "{args:?}: {code:?} {said}");
        fs::remove_dir_all(dir.path().join("x.gguf.training")).ok();
    }
    for args in [&["-o", "x.gguf"][..], &["--data", "text.txt"], &["--data", "text.txt", "-o", "x", "--type", "q99"]] {
        let (code, said) = run(dir.path(), args);
        assert_eq!(code, Some(2), "{args:?}: {said}");
    }
    assert_eq!(fs::read(dir.path().join("there.gguf")).expect("it stays"), b"something");
    assert!(fs::read(dir.path().join("model.gguf")).expect("it stays") == model);
    assert_eq!(fs::read_to_string(dir.path().join("text.txt")).expect("it stays"), text());
}
