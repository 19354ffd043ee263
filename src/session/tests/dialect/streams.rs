//! Arguments in JSON and notations near it while they come: told piece by piece, an object in the end whatever came.

use proptest::prelude::*;
use serde_json::Value;
use session::dialect::ReplyEvent;

use super::families::{every_cut, options};
use super::fuzz::reply::check;
use super::support::*;

fn start(name: &str) -> ReplyEvent {
    ReplyEvent::ToolCallStart { index: 0, name: name.to_owned() }
}

fn arguments(delta: &str) -> ReplyEvent {
    ReplyEvent::ToolCallArguments { index: 0, delta: delta.to_owned() }
}

const END: ReplyEvent = ReplyEvent::ToolCallEnd { index: 0 };

#[test]
fn arguments_come_as_they_are_written() {
    let mut parser = world("hermes").dialect.parser(options());
    assert_eq!(parser.push("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"text\""), []);
    assert_eq!(parser.push(": \"a"), [start("f"), arguments("{\"text\": \"a")]);
    assert_eq!(parser.push("b\\"), [arguments("b")]);
    assert_eq!(parser.push("n\", \"n\": 1"), [arguments("\\n\"")]);
    assert_eq!(parser.push("2 }"), [arguments(", \"n\": 12 }")]);
    assert_eq!(parser.push(", \"id\": \"x\"}"), [END]);
    assert_eq!(parser.push("\n</tool_call>"), []);
    assert_eq!(parser.finish(), []);

    let mut parser = world("mistral").dialect.parser(options());
    assert_eq!(parser.push("[TOOL_CALLS]f[ARGS]{"), []);
    assert_eq!(parser.push("\"any\": ["), [start("f"), arguments("{\"any\": [")]);
    assert_eq!(parser.push("tr"), []);
    assert_eq!(parser.push("ue]}"), [arguments("true]}"), END]);
}

/// What a reply of deepseek's gives as arguments, and as text.
fn of(json: &str) -> (Option<String>, String) {
    let opening = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>";
    let world = world("deepseek");
    every_cut(world, &format!("{opening}{json}"));
    let read = read(&world.dialect, &options(), &format!("{opening}{json}"));
    let text = read.text.strip_prefix(opening).unwrap_or(&read.text).to_owned();
    (read.calls.first().map(|call| call.1.clone()), text)
}

#[test]
fn json_is_copied_and_what_is_nearly_json_is_put_right() {
    for json in [
        "{}",
        "{ }",
        r#"{"a": {"b": [1, -2.5e3, "x\"\u00e9\ud83d\ude00\/", true, null, []], "c": {}}}"#,
        "{\n  \"a\" : 1\n}",
    ] {
        assert_eq!(of(json), (Some(json.to_owned()), String::new()), "{json}");
    }
    for (written, right) in [
        ("{\"a\": \"x\ny\tz\"}", r#"{"a": "x\ny\tz"}"#),
        (r#"{"a": "\d \' \u12 \ud800 \udc00!"}"#, r#"{"a": "\\d ' \\u12 \ufffd \ufffd!"}"#),
        ("{\"a\": True, \"b\": None,}", r#"{"a": true, "b": null}"#),
        ("{\"a\": [1, 2,],}", r#"{"a": [1, 2]}"#),
    ] {
        assert_eq!(of(written), (Some(right.to_owned()), String::new()), "{written}");
    }
}

#[test]
fn what_is_cut_off_or_broken_after_a_value_began_is_closed_and_before_it_is_text() {
    for (written, closed, rest) in [
        ("{\"a\": \"x", r#"{"a": "x"}"#, ""),
        ("{\"a\": \"x\\", r#"{"a": "x"}"#, ""),
        ("{\"a\": [1, {\"b\": 12", r#"{"a": [1, {"b": 12}]}"#, ""),
        ("{\"a\": [1, tr", r#"{"a": [1]}"#, ""),
        ("{\"a\": 1, \"b\": ", r#"{"a": 1}"#, ""),
        ("{\"a\": 1, \"b", r#"{"a": 1}"#, ""),
        ("{\"a\": 1 \"b\": 2}", r#"{"a": 1}"#, "\"b\": 2}"),
        ("{\"a\": [1, word]} x", r#"{"a": [1]}"#, "word]} x"),
        ("{\"a\": [1}", r#"{"a": [1]}"#, "}"),
    ] {
        let (got, text) = of(written);
        assert_eq!((got.as_deref(), text.as_str()), (Some(closed), rest), "{written}");
    }
    for written in ["{", "{\"a", "{\"a\": ", "{\"a\" 1}", "{a: 1}", "{\"a\": word}", "{,}"] {
        assert_eq!(of(written), (None, written.to_owned()), "{written}");
    }
    let deep = format!("[TOOL_CALLS]f[ARGS]{{\"a\": {}", "[".repeat(5000));
    let deep = read(&world("mistral").dialect, &options(), &deep);
    let closed: Value = serde_json::from_str(&deep.calls[0].1).expect("an object");
    assert!(closed["a"].is_array() && deep.text.starts_with("[["));
}

#[test]
fn an_object_that_is_not_closed_does_not_hide_what_follows() {
    let hermes = world("hermes");
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1}</tool_call><tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";
    let read = read(&hermes.dialect, &options(), text);
    let calls: Vec<(&str, &str)> = read.calls.iter().map(|(name, json)| (name.as_str(), json.as_str())).collect();
    assert_eq!((calls, read.text.as_str()), (vec![("f", "{\"n\": 1}"), ("g", "{}")], ""));
    every_cut(hermes, text);
}

const SOUP: &[&str] = &[
    "{\"name\": \"f\", \"arguments\": {",
    "[TOOL_CALLS]",
    "f[ARGS]{",
    "<tool_call>",
    "</tool_call>",
    "<|tool_call_start|>[",
    "f(",
    "a=",
    "'",
    "<|tool_call>call:f{",
    "<|\"|>",
    "a:",
    "<|tools_prefix|>[",
    "{\"f\": {",
    "<|channel|>",
    "<|message|>",
    " to=functions.f",
    "<|end|>",
    "<|start|>assistant",
    "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>",
    "<function=f>",
    "<parameter=n>",
    "</think>",
    "<｜DSML｜invoke name=\"f\">",
    "<｜DSML｜parameter name=\"n\" string=\"false\">",
    "\"a\": ",
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    ",",
    ":",
    "=",
    "\"",
    "\\",
    "\\u",
    "d83d",
    "1",
    "-",
    "e",
    "true",
    "None",
    " ",
    "\n",
    "\u{e9}",
    "<",
    "functools[",
    "Action:\n```json",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn soup_of_every_family_is_cut_alike_and_its_arguments_are_objects(
        parts in prop::collection::vec(prop::sample::select(SOUP), 0..30), options in any::<u8>(), cut in any::<u8>(),
    ) {
        let bytes = [&[options | 12, cut], parts.concat().as_bytes()].concat();
        check(&bytes);
    }
}
