//! `nextn-server` as a program: it starts without options, answers, and ends well when told to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

#[path = "support/server.rs"]
mod support;

use support::{start, start_unheard};

fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn it_serves_the_model_inside_and_ends_on_sigterm_in_the_middle_of_a_stream() {
    let server = start(&["--shutdown-timeout", "0"]);
    let health = server.say("GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    assert!(health.starts_with("HTTP/1.1 200") && health.contains("\"ok\""), "{health}");
    let question =
        r#"{"messages":[{"role":"user","content":"What is 20 + 15?"}],"temperature":0,"reasoning_effort":"none"}"#;
    let answer = server.say(&post("/v1/chat/completions", question));
    assert!(answer.contains("20 + 15 = 35."), "{answer}");

    let mut stream = TcpStream::connect(&server.address).expect("it listens");
    let endless = r#"{"prompt":"Once upon","stream":true,"ignore_eos":true}"#;
    stream.write_all(post("/v1/completions", endless).as_bytes()).expect("it reads");
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(reader.read_line(&mut line).expect("a stream") > 0, "it ended before the first event");
    }
    server.signal(Signal::TERM);
    let mut rest = String::new();
    reader.read_to_string(&mut rest).expect("a stream to its end");
    assert!(rest.contains("server_shutdown") && rest.contains("data: [DONE]"), "{rest}");
    assert_eq!(server.end().code(), Some(0));
}

#[test]
fn it_answers_when_its_log_cannot_be_written() {
    let server = start_unheard(&["-v"]);
    for _ in 0..2 {
        let answer = server.say(&post("/completion", r#"{"prompt":"Once upon","n_predict":3}"#));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    server.signal(Signal::TERM);
    assert_eq!(server.end().code(), Some(0));
}

#[test]
fn speculation_changes_figures_and_no_text() {
    let server = start(&[]);
    let ask = |n_max: u32| {
        let body = format!(
            r#"{{"prompt":"Once upon a time","n_predict":48,"temperature":0,"cache_prompt":false,"speculative.n_max":{n_max}}}"#
        );
        let answer = server.say(&post("/completion", &body));
        let json = answer.split_once("\r\n\r\n").expect("a body").1;
        serde_json::from_str::<serde_json::Value>(json).expect("JSON")
    };
    let (with, without) = (ask(3), ask(0));
    assert_eq!(with["content"], without["content"]);
    assert_eq!(without["timings"]["draft_n"], 0);
    server.signal(Signal::INT);
    assert_eq!(server.end().code(), Some(0));
}

/// The value of a metric, by its name with its labels.
fn metric(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0, |value| value.parse().unwrap_or_else(|_| panic!("{name}: {value}")))
}

#[test]
fn metrics_count_what_was_generated_cancelled_answers_too() {
    let server = start(&["--spec", "nextn", "--draft-max", "2"]);
    let figures = || server.say("GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let answer = |body: &str| {
        let answer = server.say(&post("/completion", body));
        serde_json::from_str::<serde_json::Value>(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON")
    };
    let body = r#"{"prompt":"Once upon a time","n_predict":40,"temperature":0,"cache_prompt":false}"#;
    let timings = [answer(body), answer(body)].map(|answer| answer["timings"].clone());
    let sum = |field: &str| timings.iter().map(|t| t[field].as_u64().expect("a number")).sum::<u64>();
    let first = figures();
    assert!(sum("draft_n_accepted") > 0, "{timings:?}");
    for (name, expected) in [
        ("llamacpp:prompt_tokens_total", sum("prompt_n")),
        ("llamacpp:tokens_predicted_total", 80),
        ("llamacpp:spec_decode_num_draft_tokens_total", sum("draft_n")),
        ("llamacpp:spec_decode_num_accepted_tokens_total", sum("draft_n_accepted")),
        ("nextn:time_to_first_token_seconds_count", 2),
        ("nextn:inter_token_seconds_count", 78),
        ("nextn:requests_total{reason=\"length\"}", 2),
        ("llamacpp:requests_processing", 0),
        ("nextn:sequences", 1),
    ] {
        assert_eq!(metric(&first, name), expected, "{name}\n{first}");
    }
    let by_depth = |text: &str, which: &str| {
        let name = |i| format!("{which}_tokens_per_pos_total{{position=\"{i}\"}}");
        [0, 1].map(|i| metric(text, &name(i)))
    };
    let check = |text: &str| {
        let drafted = by_depth(text, "nextn:spec_decode_num_draft");
        let kept = by_depth(text, "llamacpp:spec_decode_num_accepted");
        assert_eq!(drafted[0], metric(text, "llamacpp:spec_decode_num_drafts_total"), "{text}");
        assert_eq!(drafted.iter().sum::<u64>(), metric(text, "llamacpp:spec_decode_num_draft_tokens_total"));
        assert_eq!(kept.iter().sum::<u64>(), metric(text, "llamacpp:spec_decode_num_accepted_tokens_total"));
        assert!(kept[0] >= kept[1] && kept[0] <= drafted[0], "{text}");
    };
    check(&first);

    let mut stream = TcpStream::connect(&server.address).expect("it listens");
    let endless = r#"{"prompt":"Once upon","stream":true,"ignore_eos":true,"temperature":0}"#;
    stream.write_all(post("/v1/completions", endless).as_bytes()).expect("it reads");
    let mut reader = BufReader::new(stream);
    let mut n_events = 0;
    while n_events < 20 {
        let mut line = String::new();
        assert!(reader.read_line(&mut line).expect("a stream") > 0, "it ended before 20 events");
        n_events += usize::from(line.starts_with("data: "));
    }
    drop(reader);
    let waited = Instant::now();
    let last = loop {
        let text = figures();
        if metric(&text, "nextn:requests_total{reason=\"cancelled\"}") == 1 {
            break text;
        }
        assert!(waited.elapsed() < Duration::from_secs(30), "it goes on for nobody: {text}");
    };
    check(&last);
    let more = |name: &str| metric(&last, name) - metric(&first, name);
    assert!(more("llamacpp:tokens_predicted_total") >= 20);
    assert!(more("llamacpp:spec_decode_num_draft_tokens_total") > 0, "{last}");
}

#[test]
fn a_stream_tells_which_tokens_were_drafted() {
    let server = start(&[]);
    let question = r#"{"messages":[{"role":"user","content":"What is 20 + 15?"}],"temperature":0,"stream":true,
        "reasoning_effort":"none","return_drafts":true,"speculative.n_max":3}"#;
    let stream = server.say(&post("/v1/chat/completions", question));
    let events: Vec<serde_json::Value> =
        stream.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    let (mut drafted, mut accepted, mut deepest, mut seen) = (0, 0, 0, None);
    for drafts in events.iter().map(|event| &event["drafts"]).filter(|drafts| !drafts.is_null()) {
        let n = |name: &str| drafts[name].as_u64().expect(name);
        if seen.replace(n("cycle")) != Some(n("cycle")) {
            (drafted, accepted) = (drafted + n("n_drafted"), accepted + n("n_accepted"));
        }
        let depths = drafts["parts"].as_array().expect("parts").iter().map(|part| part["depth"].as_u64());
        deepest = depths.fold(deepest, |deepest, depth| deepest.max(depth.expect("a depth")));
        assert!(deepest <= 3 && n("n_accepted") <= n("n_drafted"), "{drafts}");
    }
    let timings = &events.last().expect("events")["timings"];
    assert_eq!((timings["draft_n"].as_u64(), timings["draft_n_accepted"].as_u64()), (Some(drafted), Some(accepted)));
    assert!(accepted > 0 && deepest > 0, "{timings}");
    server.signal(Signal::INT);
    assert_eq!(server.end().code(), Some(0));
}

#[test]
fn options_that_cannot_be_are_told() {
    let run = |options: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_nextn-server")).args(options).output().expect("it is built");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(run(&["--no-such"]).0, Some(2));
    let (code, words) = run(&["--config", "no/such/file.toml"]);
    assert!(code == Some(2) && words.contains("no/such/file.toml"), "{code:?} {words}");
    let (code, words) = run(&["--ssl-cert-file", "no.pem", "--ssl-key-file", "no.pem"]);
    assert!(code == Some(2) && words.contains("no.pem"), "{code:?} {words}");
    for (options, word) in [(["-m", "no/such.gguf"], "no/such.gguf"), (["-dev", "cuda77"], "cuda77")] {
        let (code, words) = run(&[&["--port", "0"], &options[..]].concat());
        assert!(code == Some(3) && words.contains(word), "{code:?} {words}");
        assert_eq!(words.lines().filter(|line| line.contains(word)).count(), 1, "it is said once: {words}");
        assert!(!words.contains("listening on"), "nothing can be had of it: {words}");
    }
    assert_eq!(run(&["--help"]).0, Some(0));
}
