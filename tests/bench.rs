//! `nextn-bench` end to end on models that it makes itself.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn bench(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nextn-bench"));
    command.args(args).output().expect("nextn-bench was built with the tests")
}

/// Standard output of a run that must succeed.
fn text(args: &[&str]) -> String {
    let out = bench(args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("output is UTF-8")
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&text(args)).expect("one JSON value")
}

/// Standard error of a run that must fail.
fn refusal(args: &[&str]) -> String {
    let out = bench(args);
    assert!(!out.status.success(), "{args:?} was taken");
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn synth(dir: &TempDir, shape: &str, dtype: &str, accept: &str) -> PathBuf {
    let path = dir.path().join(format!("{shape}-{dtype}-{accept}.gguf"));
    text(&["synth", "--shape", shape, "--type", dtype, "--accept", accept, "-o", arg(&path)]);
    path
}

fn arg(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

/// Tokens, drafted, accepted of a greedy answer.
fn generate(model: &Path, n: &str, depth: &str) -> (Vec<u64>, f64, f64) {
    let v = json(&["generate", "-m", arg(model), "--tokens", "10,20,30", "-n", n, "--draft", depth, "-t", "1"]);
    let tokens = v["tokens"].as_array().expect("tokens").iter().map(|t| t.as_u64().expect("an id")).collect();
    (tokens, v["drafted"].as_f64().expect("a count"), v["accepted"].as_f64().expect("a count"))
}

#[test]
fn synthetic_models_say_the_same_whatever_their_shape_and_type() {
    let dir = TempDir::new().expect("a temporary folder");
    let (expected, ..) = generate(&synth(&dir, "tiny", "f32", "0.7"), "200", "0");
    let mut seen = expected.clone();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), expected.len(), "a token came twice");
    for (shape, dtype) in [
        ("tiny", "q4_0"),
        ("tiny-tied", "q4_k_m"),
        ("tiny-tied", "f16"),
        ("tiny-moe", "q5_k_m"),
        ("tiny-qwen3next", "q4_k_m"),
        ("tiny-glm4moe", "q8_0"),
        ("tiny-deepseek2", "q4_k_m"),
        ("tiny-mimo2", "q8_0"),
        ("tiny-step35", "q4_k_m"),
    ] {
        let (tokens, drafted, accepted) = generate(&synth(&dir, shape, dtype, "0.7"), "200", "1");
        assert_eq!(tokens, expected, "{shape} {dtype}");
        // About 118 cycles: 0.13 is three standard deviations.
        assert!((accepted / drafted - 0.7).abs() < 0.13, "{shape} {dtype}: {accepted} of {drafted}");
    }
}

#[test]
fn a_synthetic_assistant_drafts_for_its_target_from_a_file_of_its_own() {
    let dir = TempDir::new().expect("a temporary folder");
    for (shape, dtype) in [("tiny-gemma4", "q4_k_m"), ("tiny-gemma4-moe", "q8_0")] {
        let (model, head) =
            (synth(&dir, shape, dtype, "1,0,1"), synth(&dir, &format!("{shape}-assistant"), dtype, "1,0,1"));
        let (expected, ..) = generate(&model, "101", "0");
        let args = ["generate", "-m", arg(&model), "--draft-model", arg(&head), "--tokens", "10,20,30", "-t", "1"];
        let v = json(&[&args[..], &["-n", "101", "--draft", "3"]].concat());
        assert_eq!(v["tokens"], serde_json::json!(expected), "{shape}");
        assert_eq!((v["drafted"].as_u64(), v["accepted"].as_u64()), (Some(148), Some(50)), "{shape}");
    }
}

#[test]
fn drafts_of_synthetic_models_are_right_as_often_as_asked_at_each_depth() {
    let dir = TempDir::new().expect("a temporary folder");
    let model = synth(&dir, "tiny-tied", "q4_k_m", "1,0,1");
    let (_, drafted, accepted) = generate(&model, "101", "3");
    // Every cycle keeps one draft of three and adds a token; the last drafts no more than it may keep.
    assert_eq!((drafted, accepted), (148.0, 50.0));
    let (_, drafted, accepted) = generate(&synth(&dir, "tiny-moe", "q8_0", "1"), "101", "3");
    assert_eq!((drafted, accepted), (75.0, 75.0));
    // Three heads, each for its own depth.
    for shape in ["tiny-mimo2", "tiny-step35"] {
        let (_, drafted, accepted) = generate(&synth(&dir, shape, "q8_0", "1,0,1"), "101", "3");
        assert_eq!((drafted, accepted), (148.0, 50.0), "{shape}");
    }
}

#[test]
fn the_same_seed_gives_the_same_file_with_any_number_of_threads() {
    let dir = TempDir::new().expect("a temporary folder");
    let files = ["1", "3"].map(|threads| {
        let path = dir.path().join(format!("{threads}.gguf"));
        text(&["synth", "--shape", "tiny-moe", "--type", "q4_k_m", "-t", threads, "-o", arg(&path)]);
        std::fs::read(path).expect("the file was written")
    });
    assert!(files[0] == files[1]);
}

#[test]
fn synth_refuses_what_it_cannot_make() {
    let error = refusal(&["synth", "--shape", "28b", "-o", "x.gguf"]);
    assert!(error.contains("`28b` is not one of") && error.contains("27b"), "{error}");
    let error = refusal(&["synth", "--shape", "tiny", "--accept", "1.5", "-o", "x.gguf"]);
    assert!(error.contains("not between 0 and 1"), "{error}");
    let error = refusal(&["synth", "--shape", "tiny", "--type", "q3_x", "-o", "x.gguf"]);
    assert!(error.contains("`q3_x` is not one of"), "{error}");
}

#[test]
fn speed_shows_prompts_rows_drafts_and_several_sequences() {
    let dir = TempDir::new().expect("a temporary folder");
    let model = synth(&dir, "tiny-moe", "q4_k_m", "1");
    let plot = dir.path().join("plot.png");
    let args = [
        "speed",
        "-m",
        arg(&model),
        "-p",
        "8",
        "-n",
        "6",
        "--rows",
        "1,3",
        "-d",
        "2",
        "--parallel",
        "1,2",
        "--depth-ctx",
        "0,40",
        "--cache-types",
        "f16,q8_0:f16",
        "-r",
        "1",
        "-t",
        "1",
        "--no-bandwidth",
    ];
    let v = json(&[&args[..], &["--json", "--plot", arg(&plot)]].concat());
    // 2 contexts x 2 caches x (prompt, generation, 2 widths), and x 2 counts x (plain, drafted).
    let (tests, drafts) = (v["tests"].as_array().expect("tests"), v["speculation"].as_array().expect("drafts"));
    assert_eq!((tests.len(), drafts.len()), (16, 16));
    let names: Vec<&str> = tests[..4].iter().map(|t| t["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["pp8", "tg6", "rows1", "rows3"]);
    assert_eq!((&tests[4]["context"], &tests[12]["cache"]), (&Value::from(40), &Value::from("q8_0:f16")));
    for t in tests {
        assert!(t["median"].as_f64().is_some_and(|rate| rate > 0.0), "{t}");
    }
    // More rows of a mixture read more experts.
    assert!(tests[3]["pass_bytes"].as_f64() > tests[2]["pass_bytes"].as_f64());
    for d in drafts {
        assert_eq!(d["same_tokens"], true, "{d}");
        assert!(d["depth"] == "0" || d["acceptance"] == 1.0, "{d}");
        assert!(d["cycle_ms"]["pass"].as_f64().is_some_and(|ms| ms > 0.0), "{d}");
    }
    assert!(std::fs::read(plot).expect("a picture").starts_with(b"\x89PNG"));
    let csv = text(&[&args[..], &["--csv"]].concat());
    assert_eq!(csv.lines().count(), 33);
    assert!(csv.lines().all(|line| line.split(',').count() == 14), "{csv}");
    for d in drafts {
        let plain = drafts
            .iter()
            .find(|p| p["depth"] == "0" && ["n_sequences", "context", "cache"].iter().all(|k| p[k] == d[k]));
        let rate = |test: &Value| test["median"].as_f64().expect("a rate");
        let ratio = rate(d) / rate(plain.expect("measured beside it"));
        assert!((d["ratio_to_plain"].as_f64().expect("a ratio") - ratio).abs() < 1e-9, "{d}");
    }
    let table = text(&[&args[..5], &["-n", "4", "-r", "1", "-d", "1", "-t", "1", "--no-bandwidth", "-v"]].concat());
    assert!(table.contains("| pp8 |") && table.contains("| to plain |"), "{table}");
    assert!(refusal(&["speed", "--plot", "x.gif"]).contains(".svg or .png"));
}

#[test]
fn speed_without_options_is_the_headline() {
    let dir = TempDir::new().expect("a temporary folder");
    let model = synth(&dir, "tiny-moe", "q4_k_m", "1");
    let table = text(&["speed", "-m", arg(&model), "-p", "8", "-n", "24", "-r", "1", "-t", "1"]);
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines.iter().all(|line| line.chars().count() <= 100), "{table}");
    assert!(lines[1].contains(", 1 thread, 1 round"), "{table}");
    assert_eq!(lines[1].ends_with("DEBUG BUILD: not for figures"), cfg!(debug_assertions), "{table}");
    let heads: Vec<&str> = lines[3].split_whitespace().collect();
    assert_eq!(heads, ["test", "tokens/s", "lowest", "highest", "speed-up", "acceptance"]);
    let names: Vec<&str> = lines[4..7].iter().map(|line| line.split("  ").next().expect("a name")).collect();
    assert_eq!(names, ["prefill, 8 tokens", "decode, 24 tokens", "decode with MTP"]);
    // Figures end where their headings end.
    let end = |line: &str, n: usize| {
        let words: Vec<&str> = line.split_whitespace().rev().collect();
        words[n].as_ptr() as usize - line.as_ptr() as usize + words[n].len()
    };
    assert_eq!(end(lines[3], 0), end(lines[6], 0), "{table}");
    assert_eq!(end(lines[3], 1), end(lines[6], 2), "{table}");
    let rate =
        |line: &str| -> f64 { line[names[0].len()..].split_whitespace().next().expect("a rate").parse().expect("it") };
    let speed_up = lines[6].split_whitespace().find_map(|word| word.strip_suffix('x')).expect("a speed-up");
    let wanted = rate(lines[6]) / rate(lines[5]);
    assert!((speed_up.parse::<f64>().expect("a number") - wanted).abs() < 0.006 + 0.01 * wanted, "{table}");
    assert!(lines[6].ends_with("100.0 %"), "{table}");
}

#[test]
fn estimate_knows_files_and_shapes() {
    let dir = TempDir::new().expect("a temporary folder");
    let model = synth(&dir, "tiny-moe", "q4_k_m", "0.8");
    let more = ["--bandwidth", "30", "--memory", "8", "--json"];
    let of_file = json(&[&["estimate", arg(&model)][..], &more].concat());
    let of_shape = json(&[&["estimate", "tiny-moe", "--type", "q4_k_m"][..], &more].concat());
    for key in ["n_params", "n_bytes", "bytes_per_token", "bytes_per_draft", "position_bytes", "state_bytes", "memory"]
    {
        assert_eq!(of_file[key], of_shape[key], "{key}");
    }
    assert_eq!(of_file["memory"]["fits"], true);
    let large = json(&[&["estimate", "122b-a10b"][..], &more].concat());
    assert_eq!(large["memory"]["fits"], false);
    let table = text(&["estimate", "27b", "--bandwidth", "30", "--memory", "16"]);
    assert!(table.contains("DOES NOT FIT") && table.contains("30.0 GB/s"), "{table}");
    assert!(refusal(&["estimate", "no-such.gguf"]).contains("no shape of that name"));
}

#[test]
fn acceptance_counts_drafts_by_domain_and_depth() {
    let dir = TempDir::new().expect("a temporary folder");
    let model = synth(&dir, "tiny-tied", "q8_0", "1,0,1");
    let prompts = dir.path().join("prompts.txt");
    std::fs::write(&prompts, "{\"prompt\": \"one\", \"domain\": \"a\"}\nplain text\n").expect("a file");
    let v = json(&[
        "acceptance",
        "-m",
        arg(&model),
        "-f",
        arg(&prompts),
        "-n",
        "33",
        "-d",
        "3",
        "--draft-vocab",
        "full,2048",
        "--json",
    ]);
    let all = &v["full"]["together"];
    assert_eq!((&all["n_prompts"], &all["n_tokens"]), (&Value::from(2), &Value::from(64)));
    assert_eq!((&all["acceptance"][0], &all["acceptance"][1]), (&Value::from(1.0), &Value::from(0.0)));
    assert_eq!(v["full"]["domains"]["a"]["n_prompts"], 1);
    // Half of the words of a text are outside the first half of the vocabulary.
    assert!(v["2048"]["together"]["acceptance"][0].as_f64().is_some_and(|share| share < 0.9));
    let table = text(&["acceptance", "-m", arg(&model), "-f", arg(&prompts), "-n", "9", "-d", "2"]);
    assert!(table.contains("| full | together | 2 |"), "{table}");
}

#[test]
fn a_file_has_no_divergence_from_itself_and_some_from_a_coarser_one() {
    let dir = TempDir::new().expect("a temporary folder");
    let (fine, coarse) = (synth(&dir, "tiny", "f16", "0.8"), synth(&dir, "tiny", "q4_0", "0.8"));
    let (words, base) = (dir.path().join("words.txt"), dir.path().join("base.bin"));
    std::fs::write(&words, "the quick brown fox jumps over the lazy dog. ".repeat(8)).expect("a file");
    let saved = json(&[
        "kld",
        "-t",
        "1",
        "-m",
        arg(&fine),
        "-f",
        arg(&words),
        "--save",
        arg(&base),
        "-c",
        "64",
        "--windows",
        "2",
    ]);
    assert_eq!(saved["n_rows"], 64);
    let same = json(&["kld", "-t", "1", "-m", arg(&fine), "--base", arg(&base), "--json"]);
    assert!(same["kld"].as_f64().is_some_and(|kld| kld.abs() < 1e-3), "{same}");
    assert_eq!(same["same_top"], 1.0);
    let other = json(&["kld", "-t", "1", "-m", arg(&coarse), "--base", arg(&base), "--json"]);
    assert!(other["kld"].as_f64() > same["kld"].as_f64(), "{other}");
    let bytes = std::fs::read(&base).expect("the saved file");
    std::fs::write(&base, &bytes[..bytes.len() - 1]).expect("a file");
    assert!(refusal(&["kld", "-m", arg(&fine), "--base", arg(&base)]).contains("cut off?"));
}

#[test]
fn eval_finds_that_drafts_change_no_answer_of_the_embedded_model() {
    let v = json(&["eval", "-t", "1", "--per-kind", "1", "-d", "2,auto", "-n", "48", "--gate", "--json"]);
    let modes = v["modes"].as_array().expect("modes");
    assert_eq!(modes.len(), 3);
    for mode in modes {
        assert_eq!((&mode["n"], &mode["unlike_plain"]), (&Value::from(6), &Value::from(0)), "{mode}");
        assert!(mode["right"].as_u64().is_some_and(|right| right >= 3), "{mode}");
    }
    assert!(modes[1]["accepted"].as_u64() > Some(0));
    let dir = TempDir::new().expect("a temporary folder");
    let file = dir.path().join("tasks.jsonl");
    let capital = "{\"prompt\": \"What is the capital of France?\", \"answer\": \"Paris\", \"match\": \"contains\"}\n";
    let wrong = "{\"prompt\": \"What is the capital of France?\", \"answer\": \"Rome\"}\n";
    std::fs::write(&file, format!("{capital}{wrong}")).expect("a file");
    let v = json(&["eval", "-t", "1", "-f", arg(&file), "-d", "1", "-n", "24", "--json"]);
    assert_eq!(v["modes"][0]["right"], 1, "{v}");
}

#[test]
fn compare_takes_turns_with_a_server_that_it_starts() {
    let dir = TempDir::new().expect("a temporary folder");
    let model = synth(&dir, "tiny", "q8_0", "0.9");
    let server = env!("CARGO_BIN_EXE_nextn-server");
    let v = json(&[
        "compare",
        "-m",
        arg(&model),
        "--server",
        server,
        "-n",
        "40",
        "-r",
        "1",
        "-t",
        "1",
        "-d",
        "2",
        "--json",
    ]);
    assert_eq!((&v["answers"][0]["same"], &v["answers"][1]["same"]), (&Value::from(true), &Value::from(true)), "{v}");
    assert!(v["generation"]["median_ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{v}");
    let error = refusal(&["compare", "-m", arg(&model), "--server", "/bin/false", "-n", "8"]);
    assert!(error.contains("before it was ready"), "{error}");
}

#[test]
fn sanity_writes_a_baseline_and_notices_another_answer() {
    let dir = TempDir::new().expect("a temporary folder");
    let path = dir.path().join("baseline.json");
    let args =
        ["sanity", "--baseline", arg(&path), "-n", "16", "-r", "1", "--tolerance", "99", "--server-args", "-t 1"];
    let first = text(&args);
    assert!(first.contains("healthy") && first.contains("written to"), "{first}");
    assert!(text(&args).contains("sane"));
    let mut baseline: Value = serde_json::from_slice(&std::fs::read(&path).expect("a file")).expect("JSON");
    baseline["answers"][1] = "48 + 37 = 86.".into();
    std::fs::write(&path, baseline.to_string()).expect("a file");
    let error = refusal(&args);
    assert!(error.contains("not sane") && error.contains("48 + 37 = 86."), "{error}");
}

#[test]
fn a_report_has_machine_build_and_results() {
    let dir = TempDir::new().expect("a temporary folder");
    let (model, name) = (synth(&dir, "tiny", "q8_0", "0.9"), dir.path().join("my.report"));
    text(&["report", arg(&model), "-t", "1", "-d", "1", "-r", "1", "-o", arg(&name)]);
    // An ending of ours is no part of the name.
    text(&["report", arg(&model), "-t", "1", "-d", "1", "-r", "1", "-o", arg(&dir.path().join("other.md"))]);
    let written: Vec<_> = ["other.md", "other.json", "other.md.md"].map(|name| dir.path().join(name).exists()).into();
    assert_eq!(written, [true, true, false]);
    let read = |ending: &str| std::fs::read(dir.path().join(format!("my.report.{ending}"))).expect("a file");
    let v: Value = serde_json::from_slice(&read("json")).expect("JSON");
    assert!(v["machine"]["n_cores"].as_u64() > Some(0) && v["build"]["ggml"].is_string());
    assert_eq!(v["results"][0]["speculation"].as_array().map(Vec::len), Some(2));
    assert!(String::from_utf8(read("md")).expect("text").contains("| pp512 |"));
}
