//! Tool calls: what the grammar lets through is read back by the reply parser as the call that was meant.

mod support;

use std::sync::Arc;

use constrain::{Error, Kind, Spec, Thinking, Tool, ToolChoice, Tools};
use engine::Grammar;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Map, Value, json};
use support::*;
use text::Special;
use text::reply::{ReplyEvent, ReplyOptions, ReplyParser, ToolSchema};

fn tools(definitions: &[Value], choice: ToolChoice, parallel: bool) -> Kind {
    let tools = definitions.iter().map(|d| Tool::from_json(d).expect("it has a name")).collect();
    Kind::Tools(Tools { tools, choice, parallel })
}

/// Name and arguments.
type Call = (String, Map<String, Value>);

/// The calls and the text of a reply.
fn read(definitions: &[Value], reply: &str) -> (Vec<Call>, String) {
    let tool_schemas = definitions.iter().filter_map(ToolSchema::from_tool).collect();
    let mut parser =
        ReplyParser::new(ReplyOptions { starts_in_reasoning: false, reasoning: true, tools: true, tool_schemas });
    let mut events = parser.push(reply);
    events.extend(parser.finish());
    let (mut calls, mut said) = (Vec::<(String, String)>::new(), String::new());
    for event in events {
        match event {
            ReplyEvent::Text(text) | ReplyEvent::Reasoning(text) => said += &text,
            ReplyEvent::ToolCallStart { name, .. } => calls.push((name, String::new())),
            ReplyEvent::ToolCallArguments { delta, .. } => calls.last_mut().expect("a call").1 += &delta,
            ReplyEvent::ToolCallEnd { .. } => {}
        }
    }
    let parse = |(name, arguments): (String, String)| {
        let map = serde_json::from_str(&arguments).unwrap_or_else(|error| panic!("{error}: {arguments} of {reply}"));
        (name, map)
    };
    (calls.into_iter().map(parse).collect(), said)
}

/// A call as the template writes it.
fn rendered(name: &str, arguments: &Map<String, Value>) -> String {
    let mut text = format!("<tool_call>\n<function={name}>\n");
    for (key, value) in arguments {
        let value = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        text += &format!("<parameter={key}>\n{value}\n</parameter>\n");
    }
    text + "</function>\n</tool_call>"
}

fn weather() -> Value {
    json!({"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["C", "F"]},
            "where": {"$ref": "#/$defs/point"}},
        "required": ["city"], "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}},
            "required": ["x"], "additionalProperties": false}}}}})
}

#[test]
fn a_call_has_the_tags_and_the_types_of_its_tool() {
    let definitions = [weather(), json!({"name": "now"})];
    let grammar = grammar(tools(&definitions, ToolChoice::Required, false));
    let call = |inner: &str| format!("<tool_call>\n<function=get_weather>\n{inner}</function>\n</tool_call>");
    let parameter = |name: &str, value: &str| format!("<parameter={name}>\n{value}\n</parameter>\n");
    let city = parameter("city", "S\u{e3}o Paulo\n\"two\" lines <b>");
    for good in [
        call(&city),
        call(&(city.clone() + &parameter("days", "-3"))),
        call(&(city.clone() + &parameter("unit", "F") + &parameter("where", "{\"x\": 1.5}"))),
        call(&parameter("city", "")),
        "<tool_call>\n<function=now>\n</function>\n</tool_call>".to_owned(),
    ] {
        assert!(takes(&grammar, &good), "{good}");
        let (calls, said) = read(&definitions, &good);
        assert_eq!((calls.len(), said.as_str()), (1, ""), "{good}");
        assert_eq!(read(&definitions, &rendered(&calls[0].0, &calls[0].1)).0, calls, "{good}");
    }
    for bad in [
        call(""),
        call(&parameter("days", "1")),
        call(&(city.clone() + &parameter("days", "one"))),
        call(&(city.clone() + &parameter("days", "1.5"))),
        call(&(city.clone() + &parameter("unit", "K"))),
        call(&(city.clone() + &parameter("where", "{\"y\": 1}"))),
        call(&(city.clone() + &parameter("other", "x"))),
        call(&parameter("city", "a</parameter>\n</function>")),
        call(&city) + "\n" + &call(&city),
        format!("Sure! {}", call(&city)),
        "<tool_call>\n<function=never>\n</function>\n</tool_call>".to_owned(),
        "I do not know".to_owned(),
        String::new(),
    ] {
        assert!(!takes(&grammar, &bad), "{bad}");
    }
}

#[test]
fn references_within_a_parameter_lead_where_they_do_in_the_schema_of_the_tool() {
    let definition = json!({"name": "plant", "parameters": {"type": "object", "required": ["trees", "first"], "properties": {
        "first": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": false},
        "trees": {"type": "array", "items": {"$ref": "#/$defs/a%20tree"}},
        "others": {"type": "array", "items": {"$ref": "#/properties/first"}}},
        "$defs": {"a tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/a tree"}}},
            "additionalProperties": false}, "unused": {"uniqueItems": true}}}});
    let grammar = grammar(tools(&[definition], ToolChoice::Required, false));
    let call = |trees: Value, others: Value| {
        let arguments = json!({"first": {"n": 1}, "trees": trees, "others": others});
        rendered("plant", arguments.as_object().expect("an object")).replace("\":", "\": ").replace(",", ", ")
    };
    for (trees, others, good) in [
        (json!([{"kids": [{"kids": []}, {}]}]), json!([{"n": 2}]), true),
        (json!([]), json!([]), true),
        (json!([{"kids": [7]}]), json!([]), false),
        (json!([]), json!([{"n": 3}]), false),
    ] {
        let text = call(trees, others);
        assert_eq!(takes(&grammar, &text), good, "{text}");
    }
}

#[test]
fn a_named_tool_is_the_only_one_and_several_calls_follow_each_other() {
    let definitions = [weather(), json!({"name": "now", "parameters": {"type": "object", "properties": {}}})];
    let now = rendered("now", &Map::new());
    let paris = rendered("get_weather", json!({"city": "Paris"}).as_object().expect("an object"));
    let named = grammar(tools(&definitions, ToolChoice::Named("now".into()), false));
    assert!(takes(&named, &now) && !takes(&named, &paris));
    let several = grammar(tools(&definitions, ToolChoice::Required, true));
    for reply in [now.clone(), format!("{now}\n{paris}"), format!("{paris}\n{paris}\n{now}")] {
        assert!(takes(&several, &reply), "{reply}");
        assert_eq!(read(&definitions, &reply).0.len(), reply.matches("<tool_call>").count());
    }
}

#[test]
fn a_free_choice_constrains_only_what_follows_the_opening() {
    let definitions = [weather()];
    let paris = rendered("get_weather", json!({"city": "Paris", "days": 2}).as_object().expect("an object"));
    let spec = |thinking| Spec::new(tools(&definitions, ToolChoice::Auto, true)).with_thinking(thinking);
    let free = compiler().compile(&spec(Thinking::Done)).expect("tools");
    let thinks = compiler().compile(&spec(Thinking::Open)).expect("tools");
    let check = |grammar: &Arc<dyn Grammar>, text: &str, good: bool| {
        assert_eq!(takes_tokens(grammar, &vocab().encode(text, Special::Parse)), good, "{text:?}");
    };
    for (text, good) in [
        ("Just an answer.", true),
        ("", true),
        (paris.as_str(), true),
        (&format!("Let me look.\n\n{paris}\n{paris}"), true),
        (&paris.replace("Paris", "Rome"), true),
        (&paris.replace("<parameter=city>", "<parameter=town>"), false),
        (&paris.replace("\n2\n", "\ntwo\n"), false),
        ("<tool_call>\n{\"name\": \"get_weather\"}", false),
        (&format!("{paris} and more"), false),
    ] {
        check(&free, text, good);
        check(&thinks, &format!("hm <tool_call>\n no, that is thinking\n</think>\n\n{text}"), good);
    }
}

#[test]
fn a_list_that_cannot_be_called_is_an_error() {
    let named = |name: &str| json!({"name": name});
    let with = |name: &str, schema: Value| json!({"name": "f", "parameters": {"type": "object", "properties": {name: schema}}});
    for (definitions, choice, words) in [
        (vec![], ToolChoice::Required, "is empty"),
        (vec![named("a")], ToolChoice::Named("b".into()), "no tool is called \"b\""),
        (vec![named("a"), named("a")], ToolChoice::Auto, "two tools are called \"a\""),
        (vec![named("a>b")], ToolChoice::Auto, "the name of a tool"),
        (vec![named("")], ToolChoice::Auto, "the name of a tool"),
        (vec![with("x\ny", json!({}))], ToolChoice::Auto, "the name of a parameter"),
        (vec![with("x", json!({"enum": ["a", "</parameter>"]}))], ToolChoice::Auto, "would end its own tags"),
        (vec![with("x", json!({"type": "array", "uniqueItems": true}))], ToolChoice::Auto, "uniqueItems"),
        (vec![with("x", json!({"type": "string", "pattern": "("}))], ToolChoice::Auto, "cannot be used"),
        (
            vec![with("x", json!({"type": "array", "items": {"$ref": "#/no"}}))],
            ToolChoice::Auto,
            "\"#/no\" leads nowhere",
        ),
    ] {
        let error = compile(tools(&definitions, choice, true)).map(|_| ()).expect_err(words);
        assert!(matches!(error, Error::Unusable { what: "list of tools", .. }), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    }
    assert!(Tool::from_json(&json!({"parameters": {}})).is_err());
    let many: Vec<Value> = (0..2000).map(|i| named(&format!("tool{i}"))).collect();
    assert!(matches!(compile(tools(&many, ToolChoice::Auto, true)).map(|_| ()), Err(Error::TooMany { .. })));
}

fn parameter() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        3 => Just(json!({"type": "string"})),
        1 => Just(json!({"type": "string", "minLength": 1, "maxLength": 8})),
        1 => Just(json!({"type": "string", "pattern": "^[a-z]+[0-9]$"})),
        2 => Just(json!({"type": "integer"})),
        1 => Just(json!({"type": "integer", "minimum": -5, "maximum": 500})),
        1 => Just(json!({"type": "number"})),
        1 => Just(json!({"type": "boolean"})),
        1 => Just(json!({"enum": ["red", "green", "two words"]})),
        1 => Just(json!({"enum": [1, 2, true, null]})),
        1 => Just(json!({"type": ["string", "null"]})),
        1 => Just(json!({"type": ["integer", "null"]})),
    ];
    prop_oneof![
        3 => leaf.clone(),
        1 => leaf.clone().prop_map(|items| json!({"type": "array", "items": items, "maxItems": 3})),
        1 => (leaf.clone(), leaf).prop_map(|(a, b)| {
            json!({"type": "object", "properties": {"a": a, "b": b}, "required": ["a"], "additionalProperties": false})
        }),
    ]
}

#[test]
fn what_is_written_under_the_grammar_reads_back_as_the_same_valid_call() {
    let tool =
        (prop::collection::btree_map("[a-z_]{1,8}", parameter(), 0..4), any::<u8>()).prop_map(|(properties, which)| {
            let names = properties.keys().enumerate().filter(|(i, _)| which >> i & 1 == 1);
            let required: Vec<_> = names.map(|(_, name)| name.clone()).collect();
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
        });
    let config = Config { cases: 50, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let n_calls = std::cell::Cell::new(0);
    let result = runner.run(&(prop::array::uniform2(tool), 1..u64::MAX), |([one, two], seed)| {
        let schemas = [("one", &one), ("two", &two)];
        let definitions =
            schemas.map(|(name, schema)| json!({"type": "function", "function": {"name": name, "parameters": schema}}));
        let grammar = grammar(tools(&definitions, ToolChoice::Required, true));
        let mut random = Random(seed);
        for _ in 0..2 {
            let Some(text) = write(&grammar, &mut random, 400) else { continue };
            let (calls, said) = read(&definitions, &text);
            prop_assert_eq!(said, "", "text beside the calls of {}", text);
            prop_assert_eq!(calls.len(), text.matches("<tool_call>\n<function=").count(), "{}", text);
            for (name, arguments) in &calls {
                let schema = schemas.iter().find(|(known, _)| known == name).expect("a tool that there is").1;
                let validator = jsonschema::validator_for(schema).expect("a schema");
                let value = Value::Object(arguments.clone());
                prop_assert!(validator.is_valid(&value), "{} of {} is not valid by {}", value, text, schema);
                n_calls.set(n_calls.get() + 1);
            }
            // Said again in the template's words, the calls are the same.
            let again: Vec<String> = calls.iter().map(|(name, arguments)| rendered(name, arguments)).collect();
            prop_assert_eq!(read(&definitions, &again.join("\n")).0, calls, "{}", text);
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(n_calls.get() > 30, "only {} calls ended", n_calls.get());
}
