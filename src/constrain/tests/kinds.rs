//! Every form of constraint, by texts that it takes and texts that it does not.

mod support;

use constrain::{Error, Kind};
use serde_json::json;
use support::*;
use test_support::{allowed_ids, may_end, takes_tokens};
use text::Special;

fn check(kind: Kind, good: &[&str], bad: &[&str]) {
    let shown = format!("{kind:?}");
    let grammar = grammar(kind);
    for text in good {
        assert!(takes(&grammar, text), "{shown} does not take {text:?}");
    }
    for text in bad {
        assert!(!takes(&grammar, text), "{shown} takes {text:?}");
    }
}

#[test]
fn an_object_is_any_json_object() {
    let good =
        ["{}", "{\"a\": 1}", "{\"a\": [1, 2.5e3, {\"b\": null}], \"c\": \"\\u00e9 \u{e9}\"}", "{\n  \"a\": true\n}"];
    let bad = ["", "[]", "{", "{\"a\"}", "{\"a\": 1,}", "{} {}", "hello", "{\"a\": 01}", "{'a': 1}", "{}\n\n\n\n\n\n"];
    check(Kind::JsonObject, &good, &bad);
}

#[test]
fn a_schema_is_followed() {
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}, "tag": {"enum": ["a", "b"]}},
        "required": ["name", "age"],
        "additionalProperties": false
    });
    let good = ["{\"name\": \"Ann\", \"age\": 3}", "{\"name\":\"\",\"age\":0,\"tag\":\"b\"}"];
    let bad = [
        "{\"name\": \"Ann\"}",
        "{\"name\": \"Ann\", \"age\": -1}",
        "{\"name\": \"Ann\", \"age\": 1, \"x\": 1}",
        "{\"name\": \"Ann\", \"age\": 1, \"tag\": \"c\"}",
        "{}",
    ];
    check(Kind::JsonSchema(schema), &good, &bad);
    check(Kind::JsonSchema(json!(true)), &["1", "[]", "\"x\""], &["x"]);
}

#[test]
fn a_keyword_that_is_not_supported_is_an_error_and_not_passed_over() {
    for schema in [
        json!({"type": "array", "uniqueItems": true}),
        json!({"type": "string", "format": "no such format"}),
        json!({"not": {"type": "string"}}),
        json!({"type": "banana"}),
        json!({"$ref": "http://example.com/schema.json"}),
        json!({"$ref": "#/$defs/missing"}),
        json!(false),
        json!({"enum": []}),
        json!({"type": "string", "minLength": 3, "maxLength": 1}),
        json!({"type": "integer", "minimum": 5, "maximum": 4}),
    ] {
        let error = compile(Kind::JsonSchema(schema.clone())).map(|_| ()).expect_err(&schema.to_string());
        let text = error.to_string();
        assert!(matches!(error, Error::Unusable { .. } | Error::Nothing { .. }), "{schema}: {error:?}");
        assert!(text.starts_with("the JSON schema ") && !text.contains("<state>") && !text.contains('\n'), "{text}");
    }
}

#[test]
fn one_of_several_forms_is_followed_whole() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false});
    let forms = || {
        vec![
            Kind::Lark("start: \"<call>\" WORD \"</call>\"\nWORD: /[a-z]+/".into()),
            Kind::JsonSchema(schema.clone()),
            Kind::Gbnf("root ::= \"yes\" | \"no\"".into()),
            Kind::Regex("[0-9]{3}".into()),
        ]
    };
    let good = ["<call>abc</call>", "{\"n\": 7}", "yes", "no", "123"];
    let bad =
        ["", "<call>abc</call>yes", "{\"m\": 7}", "yesno", "12", "{\"n\": 7}<call>a</call>", "<call></call>", "abc"];
    check(Kind::OneOf(forms()), &good, &bad);
    for kinds in [vec![], vec![Kind::OneOf(forms())], [forms(), vec![Kind::Regex("(".into())]].concat()] {
        assert!(compile(Kind::OneOf(kinds.clone())).is_err(), "{kinds:?}");
    }
}

#[test]
fn an_expression_matches_the_whole_answer() {
    check(Kind::Regex(r"\d{3}-[a-z]+".into()), &["123-abc", "000-x"], &["", "123-", "123-abcD", "x123-abc", "12-a"]);
    check(Kind::Regex(r"^(yes|no)$".into()), &["yes", "no"], &["yess", "no!", ""]);
    check(Kind::Regex(r"costs \$".into()), &["costs $"], &["costs "]);
    check(Kind::Regex("a/b\nc".into()), &["a/b\nc"], &["a/b"]);
    for expression in ["(", "a{5,2}", r"(a)\1", "(?=a)b", "[z-a]"] {
        let error = compile(Kind::Regex(expression.into())).map(|_| ()).expect_err(expression);
        assert!(matches!(error, Error::Unusable { what: "regular expression", .. }), "{expression}: {error:?}");
    }
}

#[test]
fn a_choice_is_one_of_the_texts_as_they_stand() {
    let texts = ["yes", "no", "no, never", "a \"quoted\" \\ line\nand more", "[a-z]+"].map(str::to_owned).to_vec();
    let good: Vec<&str> = texts.iter().map(String::as_str).collect();
    check(Kind::Choice(texts.clone()), &good, &["", "yes ", "nope", "abc", "no, "]);
    // Where nothing can follow the answer is complete; where something can it is not.
    let grammar = grammar(Kind::Choice(texts.clone()));
    for (text, complete) in [("yes", true), ("no", false), ("no, never", true)] {
        let mut walk = grammar.start();
        vocab().encode(text, Special::Plain).into_iter().for_each(|token| walk.accept(token).expect("a choice"));
        assert_eq!((walk.is_complete(), may_end(&mut *walk, &vocab())), (complete, true), "{text}");
    }
    assert_eq!(compile(Kind::Choice(vec![])).map(|_| ()), Err(Error::Nothing { what: "list of choices" }));
}

#[test]
fn lark_is_taken_as_llguidance_has_it() {
    let source = "start: item (\",\" item)*\nitem: WORD | \"(\" start \")\"\nWORD: /[a-z]+/\n";
    check(Kind::Lark(source.into()), &["a", "a,b", "(a,(b)),c"], &["", "a,", "(a", "A"]);
    for source in ["", "start: missing", "start: \"a", "nonsense", "start: start"] {
        let error = compile(Kind::Lark(source.into())).map(|_| ()).expect_err(source);
        assert!(error.to_string().starts_with("the Lark grammar "), "{error}");
    }
}

#[test]
fn thinking_is_free_and_the_answer_is_not() {
    let spec = after(Thinking::Open, Kind::Regex("[0-9]+".into()));
    let grammar = compiler().compile(&spec).expect("an expression");
    for (text, good) in [
        ("so 2 + 2 <b>makes</b> 4\n</think>\n\n4", true),
        ("</think>4", true),
        ("</think>\n\n\n\n\n\n\n\n\n\n4", false),
        ("a</think>\n\nfour", false),
        ("no end", false),
        ("a</think></think>4", false),
    ] {
        // With the tag as one token, and spelled out in pieces.
        let tokens = vocab().encode(text, Special::Parse);
        let pieces: Vec<_> = text.chars().flat_map(|c| vocab().encode(&c.to_string(), Special::Plain)).collect();
        assert!(tokens.len() < pieces.len());
        for tokens in [&tokens, &pieces] {
            assert_eq!(takes_tokens(&grammar, &vocab(), tokens), good, "{text:?} as {tokens:?}");
        }
    }
    // An answer must come after it.
    let mut walk = grammar.start();
    let allowed = walk.allowed().expect("free text");
    assert!(vocab().eog().iter().all(|&id| !allowed.has(id)));
    assert_eq!(allowed_ids(&allowed, &vocab()).len(), vocab().len() - vocab().eog().len());
}

#[test]
fn thinking_may_be_left_out_where_it_is_only_possible() {
    let spec = after(Thinking::Possible, Kind::Choice(vec!["yes".into(), "no".into()]));
    let grammar = compiler().compile(&spec).expect("choices");
    for (text, good) in [("yes", true), ("<think>\nwell\n</think>\n\nno", true), ("well", false), ("\nyes", false)] {
        assert_eq!(takes_tokens(&grammar, &vocab(), &vocab().encode(text, Special::Parse)), good, "{text:?}");
    }
}

#[test]
fn a_token_that_ends_thinking_and_begins_a_wrong_answer_is_not_allowed() {
    let spec = after(Thinking::Open, Kind::Regex("[0-9]+".into()));
    let grammar = compiler().compile(&spec).expect("an expression");
    let mut walk = grammar.start();
    for c in "a</think".chars() {
        vocab().encode(&c.to_string(), Special::Plain).into_iter().for_each(|id| walk.accept(id).expect("free text"));
    }
    let allowed: Vec<_> = allowed_ids(&walk.allowed().expect("a mask"), &vocab());
    let text = |id: &text::TokenId| String::from_utf8_lossy(vocab().bytes(*id).unwrap_or_default()).into_owned();
    let ends: Vec<String> = allowed.iter().map(text).filter(|text| text.starts_with('>')).collect();
    assert!(ends.iter().any(|text| text == ">"), "{ends:?}");
    assert!(ends.iter().all(|text| text[1..].trim_start().chars().all(|c| c.is_ascii_digit())), "{ends:?}");
    let all = (0..vocab().len() as u32).map(text::TokenId).filter(|id| text(id).starts_with('>')).count();
    assert!(all > ends.len(), "the vocabulary has tokens that go on after the tag: {all}");
}

#[test]
fn an_answer_may_think_until_its_form_begins_and_not_again() {
    let kind = Kind::Regex("(?s:.)*".into());
    for (thinking, text, expected) in [
        (Thinking::Open, "hm</think>\n\n<think>", [true, true]),
        (Thinking::Possible, "<think>hm</think>\n\n<think>", [true, true]),
        (Thinking::Possible, "x<think>", [true, false]),
        (Thinking::Done, "<think>x", [false, false]),
    ] {
        let grammar = compiler().compile(&after(thinking, kind.clone())).expect("an expression");
        let mut walk = grammar.start();
        assert_eq!(walk.may_think(), expected[0], "{thinking:?}");
        for (i, token) in vocab().encode(text, Special::Parse).into_iter().enumerate() {
            walk.accept(token).expect("any text");
            if i == 0 {
                assert_eq!(walk.may_think(), expected[1], "{thinking:?} after the first token of {text:?}");
            }
        }
        assert!(!walk.may_think(), "{thinking:?} at the end of {text:?}");
    }
}
