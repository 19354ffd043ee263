//! Calls where no opening announces them: within reasoning, at a function's name, in a message that goes on.

use serde_json::{Map, Value, json};
use session::dialect::{ReplyEvent, ReplyOptions, ToolSchema};

use super::families::{every_cut_with, now, options, said, thought, tool};
use super::support::*;

fn started() -> ReplyOptions {
    ReplyOptions { starts_in_reasoning: true, ..options() }
}

fn call(index: usize, name: &str, arguments: &str) -> Vec<ReplyEvent> {
    vec![
        ReplyEvent::ToolCallStart { index, name: name.to_owned() },
        ReplyEvent::ToolCallArguments { index, delta: arguments.to_owned() },
        ReplyEvent::ToolCallEnd { index },
    ]
}

#[test]
fn a_call_ends_reasoning_that_is_open_if_there_is_such_a_function() {
    for name in ["qwen", "glm", "glm lines", "kimi", "dsml", "minimax", "seed"] {
        let world = world(name);
        let arguments: Map<String, Value> = [("n".to_owned(), json!(1))].into_iter().collect();
        let rendered = world.rendered("", &[("f".to_owned(), arguments)]);
        let whole = format!("hm{rendered}");
        let expected = [vec![thought("hm")], call(0, "f", r#"{"n": 1}"#)].concat();
        assert_eq!(events(&world.dialect, &started(), &[&whole]), expected, "{name}: {whole}");
        every_cut_with(world, &started(), &whole);
        let forced = ReplyOptions { forced: true, ..started() };
        assert_eq!(
            events(&world.dialect, &forced, &[&whole]),
            [thought(&whole)],
            "{name}: the grammar demands another"
        );
        // The tag that was forgotten may come, and the answer.
        let end = world.dialect.reasoning_end().expect("tags");
        let late = format!("{whole}{end}Sunny.");
        let got = events(&world.dialect, &started(), &[&late]);
        assert_eq!(got, [expected, vec![said("Sunny.")]].concat(), "{name}: {late}");
        for mention in [
            whole.replace('f', "unknown_"),
            whole[..whole.find('f').map_or(whole.len(), |at| at)].to_owned() + " would do",
        ] {
            let got = events(&world.dialect, &started(), &[&format!("{mention}{end}Sunny.")]);
            assert_eq!(got, [thought(mention.trim()), said("Sunny.")], "{name}: {mention}");
            every_cut_with(world, &started(), &mention);
        }
    }
}

#[test]
fn where_models_only_quote_calls_in_reasoning_they_stay_there() {
    for (name, quoted) in [
        ("hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>"),
        ("qwen json", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>"),
        ("lfm2", "<|tool_call_start|>[f(n=1)]<|tool_call_end|>"),
        ("mistral", "[TOOL_CALLS]f[ARGS]{}"),
    ] {
        let dialect = &world(name).dialect;
        let Some(end) = dialect.reasoning_end() else { continue };
        let got = events(dialect, &started(), &[&format!("I try {quoted} now{end}Sunny.")]);
        assert_eq!(got, [thought(&format!("I try {quoted} now")), said("Sunny.")], "{name}");
    }
}

#[test]
fn a_call_may_begin_at_its_function_if_there_is_one() {
    let qwen = world("qwen");
    let alone = "Let me see.\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>";
    let expected = [vec![said("Let me see.")], call(0, "f", r#"{"n": 1}"#), call(1, "g", "{}")].concat();
    assert_eq!(events(&qwen.dialect, &options(), &[alone]), expected);
    every_cut_with(qwen, &options(), alone);
    let inside = [vec![thought("hm")], call(0, "g", "{}")].concat();
    assert_eq!(events(&qwen.dialect, &started(), &["hm <function=g>\n</function>"]), inside);
    for text in ["write <function=NAME> first", "<function=f", "<function=\nf>", "<functions>"] {
        assert_eq!(events(&qwen.dialect, &options(), &[text]), [said(text)], "{text}");
        every_cut_with(qwen, &options(), text);
    }
}

#[test]
fn what_goes_on_keeps_its_first_spaces() {
    let qwen = world("qwen");
    let continues = |starts_in_reasoning| ReplyOptions { starts_in_reasoning, continues: true, ..options() };
    assert_eq!(events(&qwen.dialect, &continues(true), &[" so\n</think>\n\nx"]), [thought(" so"), said("x")]);
    assert_eq!(events(&qwen.dialect, &continues(false), &["\n x"]), [said("\n x")]);
    assert_eq!(events(&qwen.dialect, &continues(false), &["<think>x"]), [said("<think>x")]);
}

#[test]
fn messages_are_what_their_headers_say() {
    let harmony = world("harmony");
    let text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>\
        <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"n\": 1}<|call|>";
    let expected = [vec![thought("hm"), said("Let me see.")], call(0, "f", r#"{"n": 1}"#)].concat();
    assert_eq!(events(&harmony.dialect, &options(), &[text]), expected);
    every_cut_with(harmony, &options(), text);
    let unread = ReplyOptions { reasoning: false, tools: false, ..options() };
    let got = events(
        &harmony.dialect,
        &unread,
        &["<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>x"],
    );
    assert_eq!(got, [said("<|channel|>analysis<|message|>hm<|end|>x")]);
}

#[test]
fn a_parameters_type_is_what_all_of_its_schema_leaves() {
    let of = |schema: Value, definitions: Value| {
        let tool = json!({"name": "f", "parameters": {"properties": {"x": schema}, "$defs": definitions}});
        let options = ReplyOptions {
            tools: true,
            tool_schemas: [tool, now()].iter().filter_map(ToolSchema::from_tool).collect(),
            ..ReplyOptions::default()
        };
        let read = |text: &str| {
            let reply =
                format!("<tool_call>\n<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>\n</tool_call>");
            let calls = read(&world("qwen").dialect, &options, &reply).calls;
            serde_json::from_str::<Value>(&calls[0].1).expect("an object")["x"].clone()
        };
        ["7", "true", "null", "[1]"].map(read)
    };
    let text = ["7", "true", "null", "[1]"].map(|text| json!(text));
    let a = json!({"a": {"type": "string"}, "b": {"$ref": "#/$defs/a"}, "n": {"type": ["integer", "null"]}});
    for schema in [
        json!({"$ref": "#/$defs/b"}),
        json!({"allOf": [{"$ref": "#/$defs/a"}, {"description": "x"}]}),
        json!({"allOf": [{"type": ["string", "integer"]}, {"type": ["string", "null"]}]}),
        json!({"oneOf": [{"const": "7"}, {"enum": ["8"]}]}),
        json!({"type": ["string", "integer"], "enum": ["7", "8"]}),
    ] {
        assert_eq!(of(schema.clone(), a.clone()), text, "{schema}");
    }
    for (schema, expected) in [
        (json!({"$ref": "#/$defs/n"}), [json!(7), json!("true"), json!(null), json!("[1]")]),
        (json!({"type": "string", "nullable": true}), [json!("7"), json!("true"), json!(null), json!("[1]")]),
        (
            json!({"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/n"}]}),
            [json!(7), json!(true), json!(null), json!("[1]")],
        ),
        // What leads nowhere, or to itself, may be anything.
        (json!({"$ref": "#/$defs/none"}), [json!(7), json!(true), json!(null), json!([1])]),
        (json!({"anyOf": [{"$ref": "#/properties/x"}]}), [json!(7), json!(true), json!(null), json!([1])]),
    ] {
        assert_eq!(of(schema.clone(), a.clone()), expected, "{schema}");
    }
    let steps: Map<String, Value> = (0..20_000)
        .map(|i| (format!("d{i}"), json!({"anyOf": vec![json!({"$ref": format!("#/$defs/d{}", i + 1)}); 3]})))
        .collect();
    assert_eq!(of(json!({"$ref": "#/$defs/d0"}), Value::Object(steps))[0], json!(7));
    assert!(ToolSchema::from_tool(&tool()).is_some());
}
