//! Schemas, expressions and grammars that mean harm end in an error, soon, and the compiler goes on.

mod support;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use constrain::{Compiler, Error, Kind, Limits, Spec};
use serde_json::{Value, json};
use support::*;
use test_support::{Random, allowed_ids};

/// Builds it and, if that is possible, walks some tokens. Whatever comes of it comes soon, and others are served after it.
fn outlives(name: &str, kind: Kind) -> Result<(), Error> {
    let start = Instant::now();
    let built = compile(kind);
    let result = match &built {
        Ok(grammar) => {
            let mut walk = grammar.start();
            let mut random = Random::new(7);
            for _ in 0..40 {
                let Ok(allowed) = walk.allowed() else { break };
                let ids = allowed_ids(&allowed, &vocab());
                if ids.is_empty() || walk.accept(ids[random.below(ids.len())]).is_err() {
                    break;
                }
            }
            Ok(())
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.len() < 1000 && text.starts_with("the "), "{name}: {text}");
            Err(error.clone())
        }
    };
    // Not a measurement: what ran away would take minutes or all memory.
    assert!(start.elapsed() < Duration::from_secs(60), "{name} took {:?}", start.elapsed());
    assert!(takes(&grammar(Kind::Choice(vec!["yes".into()])), "yes"), "{name}: the compiler is gone");
    result
}

fn chain(n: usize, link: impl Fn(String) -> Value) -> Value {
    let mut definitions: serde_json::Map<_, _> =
        (0..n).map(|i| (format!("d{i}"), link(format!("#/$defs/d{}", i + 1)))).collect();
    definitions.insert(format!("d{n}"), json!({"type": "string"}));
    json!({"$ref": "#/$defs/d0", "$defs": definitions})
}

#[test]
fn long_chains_of_references_are_followed_without_a_stack_that_breaks() {
    let plain = chain(400, |next| json!({"$ref": next}));
    let _ = outlives("references", Kind::JsonSchema(plain));
    let nested = chain(400, |next| json!({"type": "array", "items": {"$ref": next}}));
    assert_eq!(outlives("arrays", Kind::JsonSchema(nested)), Ok(()));
    let both = chain(300, |next| json!({"allOf": [{"$ref": next}, {"type": "string"}]}));
    let _ = outlives("allOf", Kind::JsonSchema(both));
}

#[test]
fn schemas_that_lead_to_themselves() {
    for schema in [
        json!({"$ref": "#"}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        json!({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"], "additionalProperties": false}),
        json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        json!({"allOf": [{"$ref": "#"}, {"type": "object"}]}),
    ] {
        let _ = outlives(&schema.to_string(), Kind::JsonSchema(schema.clone()));
    }
    // A tree is fine: it can end.
    let tree = json!({"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}},
        "additionalProperties": false});
    check_takes(Kind::JsonSchema(tree), "{\"kids\": [{\"kids\": []}, {}]}");
}

fn check_takes(kind: Kind, text: &str) {
    assert!(takes(&grammar(kind), text), "{text}");
}

#[test]
fn wide_and_deep_ones() {
    let deep = (0..60).fold(json!({"type": "string"}), |inner, _| json!({"type": "array", "items": inner}));
    assert_eq!(outlives("deep", Kind::JsonSchema(deep)), Ok(()));
    let deeper = (0..500).fold(json!({"type": "string"}), |inner, _| json!({"type": "array", "items": inner}));
    assert!(matches!(outlives("deeper", Kind::JsonSchema(deeper)), Err(Error::TooDeep { .. })));
    let wide: serde_json::Map<_, _> = (0..1000).map(|i| (format!("property{i}"), json!({"type": "string"}))).collect();
    let _ = outlives("wide", Kind::JsonSchema(json!({"type": "object", "properties": wide})));
    let unions: Vec<_> = (0..300).map(|i| json!({"type": "object", "properties": {"a": {"const": i}}})).collect();
    let _ = outlives("unions", Kind::JsonSchema(json!({"anyOf": unions})));
    let products: Vec<_> = (0..12)
        .map(|i| json!({"anyOf": (0..8).map(|j| json!({"properties": {format!("p{i}_{j}"): {}}})).collect::<Vec<_>>()}))
        .collect();
    let _ = outlives("products", Kind::JsonSchema(json!({"allOf": products})));
    for items in
        [json!({"type": "array", "minItems": 1_000_000_000}), json!({"type": "string", "minLength": 4_000_000_000_u64})]
    {
        let _ = outlives("counts", Kind::JsonSchema(items));
    }
    let _ = outlives("choices", Kind::Choice((0..1000).map(|i| format!("choice number {i}")).collect()));
    assert!(matches!(
        outlives("too many", Kind::Choice((0..5000).map(|i| i.to_string()).collect())),
        Err(Error::TooMany { .. })
    ));
}

#[test]
fn expressions_that_explode() {
    for expression in [
        "(a{1000}){1000}{1000}",
        "(((a{1,100}){1,100}){1,100}){1,100}",
        "(a|a)*b(a|a)*c",
        "(.*a){20}",
        "(?s:.*)[a-z]{500}(?s:.*)[0-9]{500}",
        "(x+x+)+y",
        r"(\w+\s*){50,5000}",
        r"[\p{L}\p{N}]{1,10000}",
    ] {
        let _ = outlives(expression, Kind::Regex(expression.into()));
    }
    let deep = "(".repeat(20_000) + "a" + &")".repeat(20_000);
    let _ = outlives("brackets", Kind::Regex(deep));
    assert!(matches!(outlives("long", Kind::Regex("a".repeat(70_000))), Err(Error::TooLong { .. })));
}

#[test]
fn grammars_that_explode() {
    let doubling: String = (0..40).map(|i| format!("T{i}: T{n} T{n}\n", n = i + 1)).collect();
    let _ = outlives("doubling", Kind::Lark(format!("start: T0\n{doubling}T40: \"a\"\n")));
    let doubling: String = (0..40).map(|i| format!("r{i}: r{n} r{n}\n", n = i + 1)).collect();
    let _ = outlives("doubling rules", Kind::Lark(format!("start: r0\n{doubling}r40: \"a\"\n")));
    for source in [
        "start: start start | \"a\"",
        "start: (\"a\"*)*",
        "start: ((((\"a\"?)*)+)*)+",
        "start: (\"a\" | \"a\" \"b\"? )* \"c\"",
        "start: A\nA: A",
        "start: x\nx: y\ny: x",
    ] {
        let _ = outlives(source, Kind::Lark(source.into()));
    }
    let deep = format!("start: {}\"a\"{}", "(".repeat(20_000), ")".repeat(20_000));
    let _ = outlives("brackets", Kind::Lark(deep));
    let chain: String = (0..4000).map(|i| format!("r{i} ::= \"a\" r{}\n", i + 1)).collect();
    let _ = outlives("chain", Kind::Gbnf(format!("root ::= r0\n{chain}r4000 ::= root?\n")));
    let nullable: String = (0..60).map(|i| format!("r{i} ::= r{n} r{n}\n", n = i + 1)).collect();
    let _ = outlives("nullable", Kind::Gbnf(format!("root ::= r0\n{nullable}r60 ::= \"\"\n")));
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(9000), ")".repeat(9000));
    assert!(matches!(outlives("groups", Kind::Gbnf(deep)), Err(Error::Unusable { .. })));
    for part in ["\"a\"", "root"] {
        let stars = format!("root ::= \"b\" | {part}{}", "*".repeat(60_000));
        assert!(matches!(outlives("stars", Kind::Gbnf(stars)), Err(Error::Unusable { .. })));
    }
}

/// What comes of work that must not go on for ever.
fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(Duration::from_secs(120)).unwrap_or_else(|_| panic!("{what} goes on for ever"))
}

#[test]
fn many_schemas_in_one_grammar_are_refused() {
    let blocks: String = (0..200).map(|i| format!("r{i}: %json {{\"const\": {i}}}\n")).collect();
    let result = in_time("blocks", move || outlives("blocks", Kind::Lark(format!("start: r0\n{blocks}"))));
    assert!(matches!(result, Err(Error::TooMany { parts: "blocks of %json", found: 200, .. })), "{result:?}");
}

/// A grammar that takes many seconds: each of these patterns is compared with each, beside all others.
fn slow(n: usize) -> Spec {
    let patterns: serde_json::Map<_, _> = (0..400).map(|i| (format!("^{n}x{i}y*$"), json!({}))).collect();
    let schema = json!({"type": "object", "patternProperties": patterns});
    Spec::new(Kind::Lark(format!("start: %json {schema}")))
}

#[test]
fn a_build_that_overruns_its_time_is_left_behind_and_others_are_served() {
    let limits = Limits { build: Duration::from_millis(300), max_patterns: usize::MAX, ..Limits::default() };
    let choice = |text: &str| Spec::new(Kind::Choice(vec![text.into()]));
    in_time("a compiler with a slow job", move || {
        let compiler = Compiler::new(vocab(), limits);
        assert!(compiler.compile(&choice("a")).is_ok());
        assert!(matches!(compiler.compile(&slow(0)), Err(Error::TooSlow { what: "Lark grammar", .. })));
        assert!(compiler.compile(&choice("b")).is_ok(), "another is built beside it");
    });
}

#[test]
fn with_too_many_left_behind_the_compiler_is_busy_and_what_is_built_stays() {
    let short = Duration::from_millis(300);
    let limits = Limits { build: short, wait: short, max_patterns: usize::MAX, ..Limits::default() };
    let choice = |text: &str| Spec::new(Kind::Choice(vec![text.into()]));
    in_time("a compiler with slow jobs", move || {
        let compiler = Compiler::new(vocab(), limits);
        assert!(compiler.compile(&choice("a")).is_ok());
        for n in 0..3 {
            assert!(matches!(compiler.compile(&slow(n)), Err(Error::TooSlow { .. })), "{n}");
        }
        assert_eq!(compiler.compile(&choice("b")).map(|_| ()), Err(Error::Busy));
        assert!(compiler.compile(&choice("a")).is_ok());
    });
}
