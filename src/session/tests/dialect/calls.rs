//! Tool calls: what the grammar lets through is read back by the parser of the family as the call that was meant, and so is what its
//! template writes.

use constrain::{Error, Kind, Limits};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Map, Value, json};
use session::dialect::{ReplyOptions, Thinking, Tool, ToolChoice, ToolSchema, Tools};

use test_support::Random;

use super::support::*;

fn qwen() -> &'static World {
    world("qwen")
}

/// A call as Qwen's template writes it.
fn rendered(name: &str, arguments: &Map<String, Value>) -> String {
    qwen().rendered("", &[(name.to_owned(), arguments.clone())]).trim_start().to_owned()
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
    let grammar = qwen().required(&definitions, false);
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
        assert!(qwen().takes(&grammar, &good), "{good}");
        let (calls, said) = qwen().read(&definitions, &good);
        assert_eq!((calls.len(), said.as_str()), (1, ""), "{good}");
        assert_eq!(qwen().read(&definitions, &rendered(&calls[0].0, &calls[0].1)).0, calls, "{good}");
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
        assert!(!qwen().takes(&grammar, &bad), "{bad}");
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
    let grammar = qwen().required(&[definition], false);
    let call = |trees: Value, others: Value| {
        let arguments = json!({"first": {"n": 1}, "trees": trees, "others": others});
        rendered("plant", arguments.as_object().expect("an object"))
    };
    for (trees, others, good) in [
        (json!([{"kids": [{"kids": []}, {}]}]), json!([{"n": 2}]), true),
        (json!([]), json!([]), true),
        (json!([{"kids": [7]}]), json!([]), false),
        (json!([]), json!([{"n": 3}]), false),
    ] {
        let text = call(trees, others);
        assert_eq!(qwen().takes(&grammar, &text), good, "{text}");
    }
}

#[test]
fn a_named_tool_is_the_only_one_and_several_calls_follow_each_other() {
    let definitions = [weather(), json!({"name": "now", "parameters": {"type": "object", "properties": {}}})];
    let now = rendered("now", &Map::new());
    let paris = rendered("get_weather", json!({"city": "Paris"}).as_object().expect("an object"));
    let named = qwen().grammar(&definitions, ToolChoice::Named("now".into()), false, Thinking::Done);
    let named = named.expect("tools").expect("a form");
    assert!(qwen().takes(&named, &now) && !qwen().takes(&named, &paris));
    let several = qwen().required(&definitions, true);
    for reply in [now.clone(), format!("{now}\n{paris}"), format!("{paris}\n{paris}\n{now}")] {
        assert!(qwen().takes(&several, &reply), "{reply}");
        assert_eq!(qwen().read(&definitions, &reply).0.len(), reply.matches("<tool_call>").count());
    }
}

#[test]
fn a_free_choice_constrains_only_what_follows_the_opening() {
    let definitions = [weather()];
    let paris = rendered("get_weather", json!({"city": "Paris", "days": 2}).as_object().expect("an object"));
    let auto =
        |thinking| qwen().grammar(&definitions, ToolChoice::Auto, true, thinking).expect("tools").expect("a form");
    let (free, thinks) = (auto(Thinking::Done), auto(Thinking::Open));
    let check = |grammar: &std::sync::Arc<dyn engine::Grammar>, text: &str, good: bool| {
        assert_eq!(qwen().takes(grammar, text), good, "{text:?}");
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
        let error = qwen().grammar(&definitions, choice, true, Thinking::Done).map(|_| ()).expect_err(words);
        assert!(matches!(error, Error::Unusable { what: "list of tools", .. }), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    }
    assert!(Tool::from_json(&json!({"parameters": {}})).is_err());
    let many: Vec<Value> = (0..2000).map(|i| named(&format!("tool{i}"))).collect();
    assert!(matches!(
        qwen().grammar(&many, ToolChoice::Auto, true, Thinking::Done).map(|_| ()),
        Err(Error::TooMany { .. })
    ));
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

/// The calls with every number as a value: JSON has several ways to write one, and some builds keep the way.
fn numbers(calls: Vec<(String, Map<String, Value>)>) -> Vec<(String, Value)> {
    fn plain(value: Value) -> Value {
        match value {
            // Negative zero is zero.
            Value::Number(n) => json!(n.as_f64().map(|x| x + 0.0)),
            Value::Array(items) => items.into_iter().map(plain).collect(),
            Value::Object(map) => map.into_iter().map(|(key, value)| (key, plain(value))).collect(),
            value => value,
        }
    }
    calls.into_iter().map(|(name, arguments)| (name, plain(Value::Object(arguments)))).collect()
}

#[test]
fn what_is_written_under_a_grammar_reads_back_as_the_same_valid_call() {
    for world in worlds() {
        let tool = (prop::collection::btree_map("[a-z_]{1,8}", parameter(), 0..4), any::<u8>()).prop_map(
            |(properties, which)| {
                let names = properties.keys().enumerate().filter(|(i, _)| which >> i & 1 == 1);
                let required: Vec<_> = names.map(|(_, name)| name.clone()).collect();
                json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
            },
        );
        let cases = if world.name == "qwen" { 50 } else { 25 };
        let config = Config { cases, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
        let n_calls = std::cell::Cell::new(0);
        let result = runner.run(&(prop::array::uniform2(tool), 1..u64::MAX), |([one, two], seed)| {
            let schemas = [("one", &one), ("two", &two)];
            let definitions = schemas
                .map(|(name, schema)| json!({"type": "function", "function": {"name": name, "parameters": schema}}));
            let grammar = world.required(&definitions, true);
            let mut random = Random::new(seed);
            for _ in 0..2 {
                let Some(text) = world.write(&grammar, &mut random, 600) else { continue };
                let (calls, said) = world.read(&definitions, &text);
                prop_assert_eq!(said, "", "{}: text beside the calls of {}", world.name, text);
                prop_assert!(!calls.is_empty(), "{}: {}", world.name, text);
                for (name, arguments) in &calls {
                    let schema = schemas.iter().find(|(known, _)| known == name).expect("a tool that there is").1;
                    let validator = jsonschema::validator_for(schema).expect("a schema");
                    let value = Value::Object(arguments.clone());
                    prop_assert!(
                        validator.is_valid(&value),
                        "{}: {} of {} is not valid by {}",
                        world.name,
                        value,
                        text,
                        schema
                    );
                    n_calls.set(n_calls.get() + 1);
                }
                // Said again in the template's words, the calls are the same.
                let again = world.rendered("Well.", &calls);
                // Where calls come in no text.
                if !matches!(world.name, "llama3" | "harmony") {
                    let (read, said) = world.read(&definitions, &again);
                    prop_assert_eq!(said, "Well.", "{}: {}", world.name, again);
                    prop_assert_eq!(numbers(read), numbers(calls), "{}: {}", world.name, again);
                }
            }
            Ok(())
        });
        result.unwrap_or_else(|error| panic!("{error}"));
        assert!(n_calls.get() > cases / 2, "{}: only {} calls ended", world.name, n_calls.get());
    }
}

#[test]
fn a_call_that_the_template_writes_is_one_that_the_grammar_takes() {
    let definitions = [weather(), json!({"name": "now"})];
    let arguments = |value: Value| value.as_object().cloned().expect("an object");
    for world in worlds() {
        let several = world.required(&definitions, true);
        let paris =
            ("get_weather".to_owned(), arguments(json!({"city": "S\u{e3}o \"P\"\n{", "days": -3, "unit": "F"})));
        let now = ("now".to_owned(), Map::new());
        for calls in [vec![paris.clone()], vec![now.clone()], vec![now.clone(), paris.clone(), now.clone()]] {
            if world.one_call() && calls.len() > 1 {
                continue;
            }
            let text = world.rendered("", &calls);
            assert!(world.takes(&several, text.trim_start()), "{}: {text}", world.name);
            assert_eq!(world.read(&definitions, &text), (calls, String::new()), "{}: {text}", world.name);
        }
        for bad in [json!({"days": 1}), json!({"city": 1}), json!({"city": "x", "unit": "K"})] {
            let is_text =
                matches!(world.name, "qwen" | "glm" | "glm lines" | "minimax" | "seed" | "minicpm") && bad["city"] == 1;
            let text = world.rendered("", &[("get_weather".to_owned(), arguments(bad))]);
            assert_eq!(world.takes(&several, text.trim_start()), is_text, "{}: {text}", world.name);
        }
    }
}

#[test]
fn with_a_free_choice_the_opening_decides_in_every_family() {
    let definitions = [weather()];
    for world in worlds() {
        let auto = |thinking| world.grammar(&definitions, ToolChoice::Auto, true, thinking).expect("tools");
        let Some(free) = auto(Thinking::Done) else {
            // Their calls have no opening, or one of several tokens.
            let unopened = ["llama3", "functionary", "minicpm", "harmony", "kimi3"];
            assert!(unopened.contains(&world.name), "the calls of {} have an opening", world.name);
            continue;
        };
        let arguments = json!({"city": "Paris"}).as_object().cloned().expect("an object");
        let good = world.rendered("Well.", &[("get_weather".to_owned(), arguments)]);
        let bad = good.replace("get_weather", "get_whether");
        assert!(world.takes(&free, "Just text, [x] <y> {z}.") && world.takes(&free, ""), "{}", world.name);
        assert!(world.takes(&free, &good) && !world.takes(&free, &bad), "{}: {good}", world.name);
        let Some(end) = world.dialect.reasoning_end() else { continue };
        let thinks = auto(Thinking::Open).expect("as before");
        assert!(world.takes(&thinks, &format!("hm {bad}{end}{good}")), "{}", world.name);
        assert!(!world.takes(&thinks, &format!("hm {end}{bad}")), "{}", world.name);
    }
}

#[test]
fn with_a_form_beside_tools_a_reply_is_calls_or_a_text_of_the_form_in_every_family() {
    let definitions = [weather()];
    let form = || {
        let schema = json!({"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"],
            "additionalProperties": false});
        Kind::JsonSchema(schema)
    };
    let arguments = json!({"city": "Paris"}).as_object().cloned().expect("an object");
    for world in worlds() {
        let Some(grammar) = world.calls_or(&definitions, form(), Thinking::Done) else {
            // Their calls are JSON without anything before it.
            assert!(!matches!(world.name, "qwen" | "kimi3" | "harmony"), "{}", world.name);
            continue;
        };
        let call = world.rendered("", &[("get_weather".to_owned(), arguments.clone())]).trim_start().to_owned();
        let text = "{\"answer\": \"Sunny.\"}";
        for good in [call.as_str(), text] {
            assert!(world.takes(&grammar, good), "{}: {good}", world.name);
        }
        for bad in
            ["", "Sunny.", "{\"reply\": 1}", &call.replace("get_weather", "get_whether"), &format!("{text}{call}")]
        {
            assert!(!world.takes(&grammar, bad), "{}: {bad}", world.name);
        }
        let Some(end) = world.dialect.reasoning_end() else { continue };
        // Thinking that ends with several control tokens, or is a message of its own, has tests of its own.
        if world.name != "qwen" {
            continue;
        }
        let thinks = world.calls_or(&definitions, form(), Thinking::Open).expect("as before");
        for good in [&call, text] {
            assert!(world.takes(&thinks, &format!("hm {text} hm{end}{good}")), "{}: {good}", world.name);
        }
        assert!(!world.takes(&thinks, &format!("hm{end}Sunny.")), "{}", world.name);
    }
}

#[test]
fn a_text_of_a_form_may_quote_a_call() {
    let call = rendered("get_weather", json!({"city": "Paris"}).as_object().expect("an object"));
    let text = json!({"answer": call}).to_string();
    let options = |either| ReplyOptions {
        reasoning: true,
        tools: true,
        either,
        tool_schemas: ToolSchema::from_tool(&weather()).into_iter().collect(),
        ..ReplyOptions::default()
    };
    for thought in ["", "<think>\nhm\n</think>\n\n"] {
        let quoted = read(&qwen().dialect, &options(true), &format!("{thought}{text}"));
        assert_eq!((quoted.text.as_str(), quoted.calls.len()), (text.as_str(), 0));
        let called = read(&qwen().dialect, &options(true), &format!("{thought}{call}"));
        assert_eq!((called.text.as_str(), called.calls.len()), ("", 1));
    }
    assert_eq!(read(&qwen().dialect, &options(false), &text).calls.len(), 1, "a free text has calls anywhere");
}

#[test]
fn of_all_tools_only_those_that_are_allowed_are_called() {
    let definitions = [weather(), json!({"name": "now", "parameters": {"type": "object", "properties": {}}})];
    let (now, paris) = (
        rendered("now", &Map::new()),
        rendered("get_weather", json!({"city": "Paris"}).as_object().expect("an object")),
    );
    let spec = |choice: ToolChoice, allowed: &[&str]| {
        let tools = definitions.iter().map(|tool| Tool::from_json(tool).expect("a tool")).collect();
        let allowed = Some(allowed.iter().map(|name| (*name).to_owned()).collect());
        let tools = Tools { tools, choice, parallel: true, allowed };
        qwen().dialect.tool_spec(tools, None, Thinking::Done, &Limits::default())
    };
    for (choice, text) in [(ToolChoice::Required, ""), (ToolChoice::Auto, "Well. ")] {
        let grammar = qwen().compile(&spec(choice, &["now"]).expect("tools").expect("a form")).expect("a grammar");
        assert!(qwen().takes(&grammar, &format!("{text}{now}")) && !qwen().takes(&grammar, &format!("{text}{paris}")));
    }
    for allowed in [&["then"][..], &[]] {
        assert!(spec(ToolChoice::Required, allowed).is_err(), "{allowed:?}");
    }
}
