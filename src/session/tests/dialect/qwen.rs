//! Qwen's replies: what they are taken apart into, and that the cuts of the stream do not matter.

use proptest::prelude::*;
use serde_json::{Value, json};
use session::dialect::{ReplyEvent, ReplyOptions, ToolSchema};

use super::support::{events, world};

#[test]
fn reasoning_ends_at_its_tag_and_the_answer_follows() {
    let started = |text| parse(&thinking(true), text);
    assert_eq!(started("hm, <b>\n</think>\n\nSunny."), [reasoning("hm, <b>"), answer("Sunny.")]);
    assert_eq!(started("\n hm\n\nso \n</think>\n\n  indented\n"), [reasoning("hm\n\nso"), answer("  indented\n")]);
    assert_eq!(started("<think>\nagain</think>x"), [reasoning("again"), answer("x")]);
    assert_eq!(started("a </thin b < c"), [reasoning("a </thin b < c")]);
    assert_eq!(started("cut </thi"), [reasoning("cut </thi")]);
    assert_eq!(started("x</think>a </think> <think> b"), [reasoning("x"), answer("a </think> <think> b")]);
    assert_eq!(started("\n</think>\n\n"), []);
    assert_eq!(
        started("<tool_call>{\"name\": \"f\"}</tool_call>"),
        [reasoning("<tool_call>{\"name\": \"f\"}</tool_call>")]
    );

    let open = |text| parse(&thinking(false), text);
    assert_eq!(open("<think>\nhm\n</think>\n\nSunny."), [reasoning("hm"), answer("Sunny.")]);
    assert_eq!(open("\n<think>hm</think>Sunny."), [reasoning("hm"), answer("Sunny.")]);
    assert_eq!(open(" Sunny </think> <think> "), [answer(" Sunny </think> <think> ")]);
    assert_eq!(open("<thi"), [answer("<thi")]);
    assert_eq!(open("  \n"), [answer("  \n")]);

    let plain = ReplyOptions::default();
    let text = " <think>a</think>\n<tool_call>\n";
    assert_eq!(parse(&plain, text), [answer(text)]);
}

#[test]
fn calls_in_tags_become_typed_json() {
    let text = "Let me see.\n\n<tool_call>\n<function=f>\n<parameter=text>\nint main() {\n  return \"<\" & 'x';\n}\n\n</parameter>\n\
        <parameter=n>\n7\n</parameter>\n<parameter=x>\n-1.5\n</parameter>\n<parameter=on>\nTrue\n</parameter>\n\
        <parameter=list>\n[1, \"a\"]\n</parameter>\n<parameter=map>\n{\"k\": null}\n</parameter>\n<parameter=maybe>\nNone\n</parameter>\n\
        </function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>";
    let (events, calls) = calls(&tools(), text);
    assert_eq!(events[0], answer("Let me see."));
    assert_eq!(events[1], ReplyEvent::ToolCallStart { index: 0, name: "f".into() });
    assert_eq!(
        calls,
        [
            (
                "f".into(),
                json!({"text": "int main() {\n  return \"<\" & 'x';\n}\n", "n": 7, "x": -1.5, "on": true, "list": [1, "a"],
            "map": {"k": null}, "maybe": null})
            ),
            ("g".into(), json!({})),
        ]
    );
    assert!(!events.iter().skip(1).any(|e| matches!(e, ReplyEvent::Text(_) | ReplyEvent::Reasoning(_))), "{events:?}");
}

#[test]
fn a_call_may_be_the_first_thing_said_where_thinking_may_be_too() {
    let options = ReplyOptions { reasoning: true, ..tools() };
    for before in ["", "\n", "<think>\nhm\n</think>\n\n"] {
        let (events, calls) = calls(&options, &format!("{before}<tool_call>\n<function=g>\n</function>\n</tool_call>"));
        assert_eq!(calls, [("g".into(), json!({}))], "{before:?}");
        assert!(!events.iter().any(|e| matches!(e, ReplyEvent::Text(_))), "{events:?}");
    }
}

#[test]
fn values_follow_the_schema_and_without_one_their_looks() {
    let value = |function: &str, parameter: &str, text: &str| {
        let text = format!(
            "<tool_call>\n<function={function}>\n<parameter={parameter}>\n{text}\n</parameter>\n</function>\n</tool_call>"
        );
        let (_, calls) = calls(&tools(), &text);
        assert_eq!(calls.len(), 1, "{text}");
        calls[0].1[parameter].clone()
    };
    for (parameter, text, expected) in [
        ("text", "7", json!("7")),
        ("text", "\"quoted\"", json!("\"quoted\"")),
        ("text", "", json!("")),
        ("text", "\n\n", json!("\n\n")),
        ("text", " \u{e9}\u{1F600}\u{1}\t\\ ", json!(" \u{e9}\u{1F600}\u{1}\t\\ ")),
        ("text", "a </parameter> b", json!("a </parameter> b")),
        ("text", "</parameter>", json!("</parameter>")),
        (
            "text",
            "x\n</parameter>\ny </function> <tool_call> </tool_call> </think>",
            json!("x\n</parameter>\ny </function> <tool_call> </tool_call> </think>"),
        ),
        ("n", " 7 ", json!(7)),
        ("n", "7.0", json!(7)),
        ("n", "7.5", json!("7.5")),
        ("n", "many", json!("many")),
        ("x", "7", json!(7)),
        ("on", "false", json!(false)),
        ("on", "yes", json!("yes")),
        ("list", "{}", json!("{}")),
        ("map", "[]", json!("[]")),
        ("maybe", "null", json!(null)),
        ("maybe", "text", json!("text")),
        ("any", "7", json!(7)),
        ("any", "[1, 2]", json!([1, 2])),
        ("any", "true", json!(true)),
        ("any", "True", json!("True")),
        ("any", "\"x\"", json!("\"x\"")),
        ("any", "x: 1", json!("x: 1")),
        ("choice", "1", json!("1")),
    ] {
        assert_eq!(value("f", parameter, text), expected, "{parameter} = {text:?}");
    }
    assert_eq!(value("unknown", "text", "7"), json!(7));
}

#[test]
fn calls_in_json_are_calls() {
    let text = "x\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"text\": \"}</tool_call>\\\"{\", \"n\": [1]}}\n</tool_call>\n\
        <tool_call>{\"name\": \"g\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>\n<tool_call>\n{\"name\": \"h\"}\n</tool_call>";
    let (events, calls) = calls(&tools(), text);
    assert_eq!(events[0], answer("x"));
    assert_eq!(
        calls,
        [
            ("f".into(), json!({"text": "}</tool_call>\"{", "n": [1]})),
            ("g".into(), json!({"a": 1})),
            ("h".into(), json!({})),
        ]
    );
    for text in [
        "<tool_call>\n{\"name\": \"f\", \"arguments\": [1]}\n</tool_call>",
        "a <tool_call>{\"arguments\": {}}</tool_call> b",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ",
        "<tool_call>{not json}",
    ] {
        assert_eq!(parse(&tools(), text), [answer(text)]);
    }
}

#[test]
fn broken_calls_end_as_json_or_stay_text() {
    for text in [
        "<tool_call>",
        "<tool_call> plain",
        "a <tool_call>\n<function=",
        "<tool_call>\n<function=f",
        "<tool_call><tool_cal",
        "<tool_call>\n<function=a\nb>",
        "<tool_call>\n\n <functio n>",
        "a < b <tool_cal",
        "<tool_call></tool_call>",
        "\n </tool_call>",
        "<function=other><parameter=a>1</parameter></function>",
        "a <function=f",
    ] {
        assert_eq!(parse(&tools(), text), [answer(text)], "{text}");
    }
    for (text, expected) in [
        ("<tool_call><function=f>", json!({})),
        ("<tool_call><function=f>\n<parame", json!({})),
        ("<tool_call><function=f><parameter=text>", json!({"text": ""})),
        ("<tool_call><function=f><parameter=text>\nab", json!({"text": "ab"})),
        ("<tool_call><function=f><parameter=n>\n12", json!({"n": 12})),
        ("<tool_call><function=f><parameter=text>\nab\n</para", json!({"text": "ab\n</para"})),
        ("<tool_call><function=f><parameter=text>\nab\n</parameter>", json!({"text": "ab"})),
        ("<tool_call><function=f><parameter=text>\nab\n</parameter>\n</func", json!({"text": "ab"})),
        ("<tool_call><function=f><parameter=text>\nab\n</parameter>\n</tool_call>", json!({"text": "ab"})),
        ("<tool_call><function=f><parameter=text>\nab\n</function>\n</tool_call>", json!({"text": "ab"})),
        (
            "<tool_call><function=f><parameter=text>\nab\n<parameter=n>\n1</parameter>\n</function>",
            json!({"text": "ab", "n": 1}),
        ),
    ] {
        let (events, calls) = calls(&tools(), text);
        assert_eq!(calls, [("f".to_owned(), expected)], "{text}");
        assert!(!events.iter().any(|e| matches!(e, ReplyEvent::Text(_))), "{text}: {events:?}");
    }
    let twice = "<tool_call><function=f><parameter=n>1</parameter><tool_call><function=g></function><function=h></function></tool_call> after";
    let (events, calls) = self::calls(&tools(), twice);
    assert_eq!(calls, [("f".into(), json!({"n": 1})), ("g".into(), json!({})), ("h".into(), json!({}))]);
    assert_eq!(events.last(), Some(&answer(" after")));
    let between = "<tool_call><function=f>\nso be it\n<parameter=n>1</parameter>\n</function></tool_call>";
    assert!(parse(&tools(), between).contains(&answer("so be it")));
}

#[test]
fn nothing_waits_longer_than_a_tag_could() {
    let mut parser = world("qwen").dialect.parser(tools());
    assert_eq!(parser.push("a <"), [answer("a")]);
    assert_eq!(parser.push("tool"), []);
    assert_eq!(parser.push("s"), [answer(" <tools")]);
    assert_eq!(parser.push("<tool_call>\n<function=f>\n"), [ReplyEvent::ToolCallStart { index: 0, name: "f".into() }]);
    assert_eq!(parser.push("<parameter=text>\nsome"), [arguments("{\"text\": \"some")]);
    assert_eq!(parser.push(" more\n"), [arguments(" more")]);
    assert_eq!(parser.push("</p>"), [arguments("\\n</p>")]);
    assert_eq!(parser.push("\n</parameter>\n<"), []);
    assert_eq!(parser.push("/f"), []);
    let rest = parser.push("unction>");
    assert_eq!(rest, [arguments("\"}"), ReplyEvent::ToolCallEnd { index: 0 }]);
    assert_eq!(parser.finish(), []);
}

#[test]
fn every_cut_gives_the_same_events() {
    for text in [
        "<think>\nhm </th\n</think>\n\na <b\n\n<tool_call>\n<function=f>\n<parameter=text>\n\nx\n</p\n</parameter>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>\n end",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"}\"}}</tool_call>\n<tool_call>\n<functio>",
        "\n\n<tool_call> <tool_call><function=f>junk y<parameter=a></parameter></parameter></function></tool_call>\u{e9}\u{1F600}\n",
    ] {
        for options in [thinking(true), thinking(false), tools(), ReplyOptions::default()] {
            let whole = parse(&options, text);
            let cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            for &a in &cuts {
                for &b in cuts.iter().filter(|&&b| b >= a) {
                    let got = parse_pieces(&options, &[&text[..a], &text[a..b], &text[b..]]);
                    assert_eq!(got, whole, "{text:?} cut at {a} and {b}");
                }
            }
            let chars: Vec<String> = text.chars().map(String::from).collect();
            let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
            assert_eq!(parse_pieces(&options, &chars), whole);
        }
    }
}

#[test]
fn time_grows_with_the_length_of_the_text_only() {
    let soups = [
        "<",
        "\n",
        "</parameter>\n",
        "<parameter=",
        "<tool_call>",
        "</parameter>                    ",
        "{",
        "\"\\",
        "</function> ",
    ];
    for opening in [
        "",
        "<tool_call>",
        "<tool_call><function=f>",
        "<tool_call><function=f><parameter=text>",
        "<tool_call><function=f><parameter=n>",
        "<tool_call>{",
    ] {
        for soup in soups {
            let text = opening.to_owned() + &soup.repeat(400_000 / soup.len());
            let begin = std::time::Instant::now();
            check(&tools(), &parse(&tools(), &text));
            // Linear is far below a second; looking at everything again for each character would be minutes.
            assert!(begin.elapsed().as_secs() < 20, "{opening}{soup}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn tag_soup_is_never_lost_nor_cut_dependent(
        parts in prop::collection::vec(prop::sample::select(SOUP), 0..40),
        cuts in prop::collection::vec(0_usize..400, 0..12),
        which in 0_usize..4,
    ) {
        let text = parts.concat();
        let options = [thinking(true), thinking(false), tools(), ReplyOptions::default()][which].clone();
        let whole = parse(&options, &text);
        check(&options, &whole);
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|&at| text.is_char_boundary(at)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&str> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
        prop_assert_eq!(parse_pieces(&options, &pieces), whole);
    }

    #[test]
    fn any_text_without_tags_comes_back(text in "[a-z <>/\n]{0,80}") {
        prop_assume!(!text.contains("<tool_call>") && !text.trim_start().starts_with("<think>"));
        let got = parse(&thinking(false), &text);
        prop_assert_eq!(got, if text.is_empty() { vec![] } else { vec![answer(&text)] });
    }

    #[test]
    fn calls_written_as_templates_do_come_back(
        content in "[a-z<]{0,12}",
        calls in prop::collection::vec(prop::collection::vec(("[a-z]{1,5}", value()), 0..4), 1..4),
    ) {
        let mut text = content.clone();
        let mut expected = Vec::new();
        let mut properties = serde_json::Map::new();
        for (i, parameters) in calls.iter().enumerate() {
            text += if i > 0 { "\n" } else if content.is_empty() { "" } else { "\n\n" };
            text += "<tool_call>\n<function=f>\n";
            let mut map = serde_json::Map::new();
            for (j, (name, value)) in parameters.iter().enumerate() {
                let name = format!("{name}{i}{j}");
                let written = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                text += &format!("<parameter={name}>\n{written}\n</parameter>\n");
                properties.insert(name.clone(), json!({"type": kind(value)}));
                map.insert(name, value.clone());
            }
            text += "</function>\n</tool_call>";
            expected.push(("f".to_owned(), Value::Object(map)));
        }
        let schema = ToolSchema::from_tool(&json!({"function": {"name": "f", "parameters": {"properties": properties}}}));
        let options = ReplyOptions { tools: true, tool_schemas: schema.into_iter().collect(), ..ReplyOptions::default() };
        let (events, got) = self::calls(&options, &text);
        prop_assert_eq!(got, expected);
        if !content.is_empty() {
            prop_assert_eq!(&events[0], &answer(&content));
        }
    }
}

const SOUP: &[&str] = &[
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<function=f>",
    "<function=",
    "</function>",
    "<parameter=text>",
    "<parameter=n>",
    "</parameter>",
    "<",
    ">",
    "\n",
    "\n\n",
    " ",
    "a",
    "7",
    "{",
    "}",
    "\"",
    "\\",
    "{\"name\": \"f\", \"arguments\": {}}",
    "<tool",
    "</par",
    "\u{e9}",
];

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        "[a-z<>/\\\\\" \n{}0-9]{0,20}".prop_map(Value::from),
        Just("x\n</parameter>\ny".into()),
        any::<i64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(json!(null)),
        Just(json!([1, "<&>", {"a": []}])),
        Just(json!({"k": "\n</parameter>", "l": 0.5})),
    ]
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn parse(options: &ReplyOptions, text: &str) -> Vec<ReplyEvent> {
    parse_pieces(options, &[text])
}

fn parse_pieces(options: &ReplyOptions, pieces: &[&str]) -> Vec<ReplyEvent> {
    events(&world("qwen").dialect, options, pieces)
}

fn calls(options: &ReplyOptions, text: &str) -> (Vec<ReplyEvent>, Vec<(String, Value)>) {
    let events = parse(options, text);
    let calls = check(options, &events);
    (events, calls)
}

/// The calls of the events; panics unless each begins, ends and has an object in between.
fn check(options: &ReplyOptions, events: &[ReplyEvent]) -> Vec<(String, Value)> {
    let mut calls: Vec<(String, Value)> = Vec::new();
    let mut open: Option<(String, String)> = None;
    for event in events {
        match event {
            ReplyEvent::ToolCallStart { index, name } => {
                assert!(options.tools && open.is_none() && *index == calls.len());
                open = Some((name.clone(), String::new()));
            }
            ReplyEvent::ToolCallArguments { index, delta } => {
                assert_eq!(*index, calls.len());
                open.as_mut().unwrap().1.push_str(delta);
            }
            ReplyEvent::ToolCallEnd { .. } => {
                let (name, json) = open.take().unwrap();
                let arguments: Value =
                    serde_json::from_str(&json).unwrap_or_else(|e| panic!("{e}: {}", &json[..json.len().min(300)]));
                assert!(arguments.is_object());
                calls.push((name, arguments));
            }
            ReplyEvent::Reasoning(text) => assert!(options.reasoning && !text.is_empty()),
            ReplyEvent::Text(text) => assert!(!text.is_empty()),
        }
    }
    assert!(open.is_none());
    calls
}

fn thinking(starts_in_reasoning: bool) -> ReplyOptions {
    ReplyOptions { starts_in_reasoning, reasoning: true, ..tools() }
}

fn tools() -> ReplyOptions {
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "text": {"type": "string"}, "n": {"type": "integer"}, "x": {"type": "number"}, "on": {"type": "boolean"}, "list": {"type": "array"},
        "map": {"type": "object"}, "maybe": {"type": ["string", "null"]}, "any": {}, "choice": {"enum": ["1", "2"]}}}}});
    ReplyOptions {
        tools: true,
        tool_schemas: ToolSchema::from_tool(&tool).into_iter().collect(),
        ..ReplyOptions::default()
    }
}

fn reasoning(text: &str) -> ReplyEvent {
    ReplyEvent::Reasoning(text.to_owned())
}

fn answer(text: &str) -> ReplyEvent {
    ReplyEvent::Text(text.to_owned())
}

fn arguments(delta: &str) -> ReplyEvent {
    ReplyEvent::ToolCallArguments { index: 0, delta: delta.to_owned() }
}
