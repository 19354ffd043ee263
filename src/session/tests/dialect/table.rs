//! One table of replies for every form of calls: the same situations for all of them, and where a family's words say otherwise.

use serde_json::{Map, Value, json};
use session::dialect::{ReplyEvent, ReplyOptions};

use super::families::options;
use super::support::*;

/// What a reply is taken apart into, in one line: `hm|` is thought, words are said, `f{..}` is a call, ` + ` stands between them.
fn shown(world: &World, options: &ReplyOptions, reply: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    for event in events(&world.dialect, options, &[reply]) {
        match event {
            ReplyEvent::Reasoning(text) => parts.push(format!("{text}|")),
            ReplyEvent::Text(text) => parts.push(text),
            ReplyEvent::ToolCallStart { name, .. } => parts.push(name),
            ReplyEvent::ToolCallArguments { delta, .. } => parts.last_mut().expect("a start").push_str(&delta),
            ReplyEvent::ToolCallEnd { .. } => {}
        }
    }
    let whole = parts.join(" + ");
    let letters: Vec<String> = reply.chars().map(String::from).collect();
    let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
    let in_letters = events(&world.dialect, options, &letters);
    assert_eq!(in_letters, events(&world.dialect, options, &[reply]), "{}: {reply} by letters", world.name);
    whole
}

fn call(name: &str, arguments: Value) -> Call {
    (name.to_owned(), arguments.as_object().cloned().unwrap_or_else(Map::new))
}

/// A situation: how the prompt leaves the reply, the reply, and what it is taken apart into.
type Row = (&'static str, ReplyOptions, String, String);

/// What every form of calls makes of its own words.
fn rows(world: &World) -> Vec<Row> {
    let f = || call("f", json!({ "n": 1 }));
    let (one, two) = (world.rendered("", &[f()]), world.rendered("", &[f(), call("g", json!({}))]));
    let (forced, either) = (ReplyOptions { forced: true, ..options() }, ReplyOptions { either: true, ..options() });
    let is = |text: &str| text.to_owned();
    let beside = match world.name {
        // A message has one channel.
        "harmony" => format!("<|channel|>final<|message|>Well.<|end|><|start|>assistant{one}"),
        _ => world.rendered("Well.", &[f()]),
    };
    let of_beside = match world.name {
        // Without an opening a call is the whole reply.
        "llama3" => beside.clone(),
        _ => is("Well. + f{\"n\": 1}"),
    };
    let mut rows: Vec<Row> = vec![
        ("text", options(), is("Sunny."), is("Sunny.")),
        ("nothing", options(), String::new(), String::new()),
        ("a call", options(), one.clone(), is("f{\"n\": 1}")),
        ("a call that the grammar demands", forced, one.clone(), is("f{\"n\": 1}")),
        ("a call where a form may come too", either.clone(), one.clone(), is("f{\"n\": 1}")),
        ("a form where a call may come too", either, is("{\"n\": 1}"), is("{\"n\": 1}")),
        ("two calls", options(), two, is("f{\"n\": 1} + g{}")),
        ("a call beside text", options(), beside, of_beside),
    ];
    let Some(end) = world.dialect.reasoning_end() else { return rows };
    let started = ReplyOptions { starts_in_reasoning: true, ..options() };
    let in_content = ReplyOptions { reasoning: false, ..started.clone() };
    let then_call = match world.name {
        "harmony" => format!("hm<|end|><|start|>assistant{one}"),
        _ => format!("hm{end}{one}"),
    };
    let of_call_in_thinking = match ENDS_THINKING.contains(&world.name) {
        true => is("hm| + f{\"n\": 1}"),
        false => format!("hm{one}|"),
    };
    // What marks messages and not their kind is no text.
    let as_text = match world.name {
        "harmony" => is("hmSunny."),
        "kimi3" => is("hm<|close|>think<|sep|>Sunny."),
        _ => format!("hm{end}Sunny."),
    };
    rows.extend([
        ("thinking that stays open", started.clone(), is("hm"), is("hm|")),
        ("thinking and text", started.clone(), format!("hm{end}Sunny."), is("hm| + Sunny.")),
        ("thinking and a call", started.clone(), then_call, is("hm| + f{\"n\": 1}")),
        ("a call in open thinking", started, format!("hm{one}"), of_call_in_thinking),
        ("thinking as part of the text", in_content, format!("hm{end}Sunny."), as_text),
    ]);
    rows
}

/// Models of these families call without closing their thinking; others quote calls there.
const ENDS_THINKING: [&str; 9] = ["qwen", "glm lines", "glm", "dsml", "dsml calls", "kimi", "kimi3", "minimax", "seed"];

#[test]
fn every_form_of_calls_means_the_same_in_the_same_situation() {
    for world in worlds() {
        for (situation, options, reply, expected) in rows(world) {
            // Notations near JSON are told without spaces.
            let got = shown(world, &options, &reply).replace("{\"n\":1}", "{\"n\": 1}");
            assert_eq!(got, expected, "{}: {situation}: {reply}", world.name);
        }
    }
}

#[test]
fn a_call_that_is_cut_anywhere_has_an_object_for_arguments_or_is_text() {
    for world in worlds() {
        let whole = world.rendered("", &[call("f", json!({ "text": "a\"}\n", "n": 12 }))]);
        for (at, _) in whole.char_indices() {
            let part = &whole[..at];
            let read = read(&world.dialect, &options(), part);
            assert!(read.calls.len() <= 1, "{}: {part}", world.name);
            for (name, arguments) in read.calls {
                assert_eq!(name, "f", "{}: {part}", world.name);
                let object = serde_json::from_str::<Map<String, Value>>(&arguments);
                assert!(object.is_ok(), "{}: {part}: {arguments}", world.name);
            }
        }
    }
}
