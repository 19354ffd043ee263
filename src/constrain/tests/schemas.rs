//! Whatever a schema's grammar lets through is valid by the schema, as another library judges it.

mod support;

use constrain::Kind;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};
use support::*;
use test_support::{Random, write};

/// A schema of the kinds that people write.
fn schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "boolean"})),
        Just(json!({"type": "null"})),
        Just(json!({"type": "number"})),
        (0_usize..4, 0_usize..6)
            .prop_map(|(least, more)| { json!({"type": "string", "minLength": least, "maxLength": least + more}) }),
        Just(json!({"type": "string"})),
        Just(json!({"type": "string", "pattern": "^[a-c]{1,3}-[0-9]+$"})),
        Just(json!({"type": "string", "format": "date"})),
        (-50_i32..50, 0_i32..100)
            .prop_map(|(least, more)| { json!({"type": "integer", "minimum": least, "maximum": least + more}) }),
        (-9_i32..9).prop_map(|least| json!({"type": "number", "minimum": least, "exclusiveMaximum": 20})),
        prop::collection::vec(
            prop_oneof![any::<i16>().prop_map(|n| json!(n)), "[a-z \"]{0,5}".prop_map(|s| json!(s))],
            1..4
        )
        .prop_map(|values| json!({"enum": values})),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            (inner.clone(), 0_usize..3, 0_usize..3).prop_map(|(items, least, more)| {
                json!({"type": "array", "items": items, "minItems": least, "maxItems": least + more})
            }),
            (prop::collection::btree_map("[a-z]{1,6}", inner.clone(), 0..4), any::<u8>(), any::<bool>()).prop_map(
                |(properties, which, more)| {
                    let names = properties.keys().enumerate().filter(|(i, _)| which >> i & 1 == 1);
                    let required: Vec<_> = names.map(|(_, name)| name.clone()).collect();
                    let more = if more { json!({"type": "integer", "minimum": 0, "maximum": 9}) } else { json!(false) };
                    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": more})
                }
            ),
            (inner.clone(), inner).prop_map(|(a, b)| json!({"anyOf": [a, b]})),
        ]
    })
}

#[test]
fn texts_by_a_schema_are_valid() {
    let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let n_texts = std::cell::Cell::new(0);
    let result = runner.run(&(schema(), 1..u64::MAX), |(schema, seed)| {
        let validator = jsonschema::validator_for(&schema).expect("a schema");
        let grammar = grammar(Kind::JsonSchema(schema.clone()));
        let mut random = Random::new(seed);
        for _ in 0..3 {
            // One that does not end in so many tokens proves nothing.
            let Some(text) = write(&grammar, &vocab(), &mut random, 300) else { continue };
            let value: Value = match serde_json::from_str(&text) {
                Ok(value) => value,
                // JSON knows no largest number, this reader does.
                Err(error) if error.to_string().contains("number out of range") => continue,
                Err(error) => panic!("{error} in {text:?} by {schema}"),
            };
            prop_assert!(validator.is_valid(&value), "{text} is not valid by {schema}");
            n_texts.set(n_texts.get() + 1);
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(n_texts.get() > 100, "only {} texts ended", n_texts.get());
}

#[test]
fn any_object_reads_as_json() {
    let grammar = grammar(Kind::JsonObject);
    let mut random = Random::new(20_240_501);
    let mut n_texts = 0;
    for _ in 0..40 {
        let Some(text) = write(&grammar, &vocab(), &mut random, 400) else { continue };
        match serde_json::from_str::<Value>(&text) {
            Ok(value) => assert!(value.is_object(), "{text}"),
            Err(error) => assert!(error.to_string().contains("number out of range"), "{error}: {text}"),
        }
        n_texts += 1;
    }
    assert!(n_texts > 10, "only {n_texts} texts ended");
}
