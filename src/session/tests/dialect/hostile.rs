//! Tools that mean harm end in an error, soon, whatever the form of their calls.

use std::sync::mpsc;
use std::time::Duration;

use constrain::Error;
use serde_json::{Value, json};
use session::dialect::{Thinking, ToolChoice};

use test_support::Random;

use super::support::*;

/// Builds the grammar of its calls and, if that is possible, walks some tokens.
fn outlives(world: &World, definition: &Value) -> Result<(), Error> {
    let grammar = world.grammar(std::slice::from_ref(definition), ToolChoice::Required, true, Thinking::Done)?;
    world.write(&grammar.expect("a form of calls"), &mut Random::new(7), 40);
    Ok(())
}

fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(Duration::from_secs(120)).unwrap_or_else(|_| panic!("{what} goes on for ever"))
}

#[test]
fn definitions_that_lead_to_themselves_in_many_ways_are_looked_at_once() {
    for key in ["allOf", "anyOf", "oneOf"] {
        let many = vec![json!({"$ref": "#/$defs/a"}); 8];
        let bomb = json!({"name": "f", "parameters": {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}},
            "$defs": {"a": {key: many}}}});
        let steps: serde_json::Map<_, _> = (0..40)
            .map(|i| (format!("d{i}"), json!({key: vec![json!({"$ref": format!("#/$defs/d{}", i + 1)}); 3]})))
            .chain([("d40".to_owned(), json!({"type": "object"}))])
            .collect();
        let ladder = json!({"name": "g", "parameters": {"type": "object",
            "properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": steps}});
        for (world, definition) in worlds().iter().flat_map(|world| [(world, bomb.clone()), (world, ladder.clone())]) {
            in_time(&format!("{} {definition}", world.name), move || {
                let _ = outlives(world, &definition);
            });
        }
    }
}

#[test]
fn a_definition_that_many_parameters_need_is_in_the_grammar_once() {
    let wide: serde_json::Map<_, _> = (0..300).map(|i| (format!("property{i}"), json!({"type": "integer"}))).collect();
    let names = (0..500).map(|i| format!("p{i}"));
    let properties: serde_json::Map<_, _> = names.map(|name| (name, json!({"$ref": "#/$defs/wide"}))).collect();
    let parameters = json!({"type": "object", "properties": properties,
        "$defs": {"wide": {"type": "object", "properties": wide.clone()}, "other": {"type": "object", "properties": wide}}});
    let definition = json!({"name": "f", "parameters": parameters});
    assert_eq!(in_time("many", move || outlives(world("qwen"), &definition)), Ok(()));
}

#[test]
fn a_grammar_of_tools_that_grows_too_long_is_refused() {
    let wide: serde_json::Map<_, _> = (0..1000).map(|i| (format!("property{i}"), json!({"type": "integer"}))).collect();
    // Every parameter needs a copy of its own, since each differs.
    let of = |i: usize| json!({"type": "array", "minItems": i, "items": {"$ref": "#/$defs/wide"}});
    let properties: serde_json::Map<_, _> = (0..300).map(|i| (format!("p{i}"), of(i))).collect();
    let parameters = json!({"type": "object", "properties": properties,
        "$defs": {"wide": {"type": "object", "properties": wide}}});
    let definition = json!({"name": "f", "parameters": parameters});
    let result = in_time("many", move || outlives(world("qwen"), &definition));
    assert!(matches!(result, Err(Error::TooLong { what: "grammar of the tools", .. })), "{result:?}");
}
