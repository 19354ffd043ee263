//! `nextn-cli` with answers in a given form: schemas and grammars, and what is wrong with them.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// One answer of the embedded model, greedy, on one thread.
fn cli(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nextn-cli"));
    command.args(["--temp", "0", "-t", "1", "-n", "120", "--no-stats", "-c", "512"]).args(args);
    command.stdin(Stdio::null());
    for name in ["NEXTN_MODEL", "NEXTN_LOG", "NO_COLOR", "XDG_STATE_HOME"] {
        command.env_remove(name);
    }
    command.output().expect("the binary runs")
}

fn answer(args: &[&str]) -> String {
    let output = cli(args);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn refused(args: &[&str]) -> String {
    let output = cli(args);
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(output.stdout.is_empty() && err.lines().count() == 1, "{err}");
    err
}

const SCHEMA: &str = r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 20},
    "age": {"type": "integer", "minimum": 0, "maximum": 150}}, "required": ["name", "age"], "additionalProperties": false}"#;

#[test]
fn a_schema_shapes_the_answer_and_leaves_thinking_free() {
    let question = "My name is Clara and I am 31 years old.";
    for think in ["off", "on"] {
        let text = answer(&["-p", question, "--think", think, "-j", SCHEMA, "--json"]);
        let whole: Value = serde_json::from_str(&text).expect("one JSON object");
        assert_eq!(whole["finish_reason"], "stop", "{whole}");
        assert_eq!(whole["reasoning"].as_str().is_some_and(|r| !r.is_empty()), think == "on", "{whole}");
        let value: Value = serde_json::from_str(whole["text"].as_str().expect("a text")).expect("JSON in the answer");
        let map = value.as_object().expect("an object");
        assert!(map.len() == 2 && map["name"].is_string() && map["age"].is_u64(), "{value}");
    }
    let plain = answer(&["-p", question, "--think", "off"]);
    assert!(serde_json::from_str::<Value>(&plain).is_err(), "without a schema it talks: {plain}");
}

#[test]
fn schemas_and_grammars_come_from_files_too() {
    let file = |text: &str| {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(text.as_bytes()).expect("room");
        file
    };
    let schema = file(r#"{"enum": ["red", "green"]}"#);
    let path = schema.path().to_str().expect("a path");
    let text = answer(&["-p", "Who are you?", "--think", "off", "--json-schema-file", path]);
    assert!(["\"red\"\n", "\"green\"\n"].contains(&text.as_str()), "{text:?}");
    let grammar = file("root ::= \"It is \" [0-9]{1,3} \".\"\n");
    let path = grammar.path().to_str().expect("a path");
    let text = answer(&["-p", "What is 412 - 187?", "--think", "off", "--grammar-file", path]);
    assert_eq!(text, "It is 225.\n");
}

#[test]
fn grammars_hold_for_bare_texts_and_in_both_notations() {
    for grammar in ["root ::= (\"yes\" | \"no\") \"!\"", "%llguidance {}\nstart: (\"yes\" | \"no\") \"!\""] {
        let text = answer(&["-p", "Is the sea blue?", "--raw", "--grammar", grammar]);
        assert!(text == "yes!\n" || text == "no!\n", "{text:?}");
    }
}

#[test]
fn what_cannot_be_used_is_said_before_an_answer() {
    assert!(refused(&["-p", "x", "-j", "{"]).contains("--json-schema: JSON is expected"));
    assert!(refused(&["-p", "x", "-j", r#"{"type": "banana"}"#]).contains("the JSON schema cannot be used"));
    assert!(refused(&["-p", "x", "--grammar", "root ::= other"]).contains("`other` is used and not defined"));
    assert!(refused(&["-p", "x", "--grammar-file", "/no/such/file"]).contains("/no/such/file"));
    let output = cli(&["-p", "x", "-j", "{}", "--grammar", "root ::= \"x\""]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be used with"));
}
