//! GBNF, by texts that a grammar takes and texts that it does not, and by what is wrong with it.

mod support;

use constrain::{Error, Kind};
use support::*;

fn check(source: &str, good: &[&str], bad: &[&str]) {
    let grammar = grammar(Kind::Gbnf(source.into()));
    for text in good {
        assert!(takes(&grammar, text), "{source}\ndoes not take {text:?}");
    }
    for text in bad {
        assert!(!takes(&grammar, text), "{source}\ntakes {text:?}");
    }
}

#[test]
fn regular_grammars_are_exact() {
    check("root ::= \"yes\" | \"no\"", &["yes", "no"], &["", "maybe", "yesno"]);
    // A lexer that always took the longest match would not find the last letter.
    check("root ::= [a-z]* \"z\"", &["z", "abcz", "zz"], &["", "abc", "Z"]);
    check(
        "root ::= word (\", \" word){0,2} .\nword ::= [^, .\\n]+ # a comment\n",
        &["a.", "one, two, three!"],
        &["a", "a, b, c, d."],
    );
    check(
        "root ::= \"\\\"\\x41\\u00e9\\n\" [\\]\\-x-z]{2}",
        &["\"A\u{e9}\n]-", "\"A\u{e9}\nxz"],
        &["\"A\u{e9}\naz", "\"A"],
    );
    check("root ::= a\na ::= \"x\" a | \"y\"", &["y", "xxy"], &["x", "yx"]);
    check("root ::= \"(\" ws \")\"\nws ::= ([ \\t\\n] ws)?", &["()", "(  \n)"], &["( x)"]);
    check("root ::= (\n  \"a\"\n  | \"b\"\n)+\n", &["abba"], &["", "c"]);
    check("root ::= [^x]? \"\" \"q\"", &["q", "aq"], &["xq"]);
}

const JSON: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"#;

#[test]
fn json_as_a_grammar_of_rules_that_lead_to_themselves() {
    let good = ["{}", "{\"a\": [1, 2.5e3, {\"b\": null}], \"c\": \"x \\\" \\u00e9\"}", "{\n  \"a\": true\n}"];
    check(JSON, &good, &["", "[]", "{\"a\"}", "{\"a\": 1,}", "{} x", "{'a': 1}"]);
    check(
        "root ::= expr\nexpr ::= term ([-+*/] term)*\nterm ::= [0-9]+ | \"(\" expr \")\"",
        &["1", "(1+2)*30"],
        &["1+", "(1"],
    );
    // Left recursion, which llama.cpp refuses.
    check(
        "root ::= list\nlist ::= list \",\" item | item\nitem ::= [a-z] | \"[\" list \"]\"",
        &["a", "a,[b,c]"],
        &["a,", ",a"],
    );
}

#[test]
fn tokens_of_the_vocabulary_can_be_named() {
    let grammar = grammar(Kind::Gbnf("root ::= \"a\" <[8185]> \"b\" | <|vision_start|>".into()));
    let mut walk = grammar.start();
    let a = vocab().id("a").expect("a letter");
    walk.accept(a).expect("it begins so");
    assert!(walk.accept(text::TokenId(8185)).is_ok(), "a token by its number");
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    for (source, words) in [
        ("", "`root`"),
        ("a ::= \"x\"", "`root`"),
        ("root ::= \"x\"\nroot ::= \"y\"", "line 2: rule `root` is defined twice"),
        ("root ::= other", "rule `other` is used and not defined"),
        ("root ::= \"x", "no end"),
        ("root ::= [a-", "no end"),
        ("root ::= [z-a]", "is empty"),
        ("root ::= \"a\"\nx := \"b\"", "line 2: ::= is expected after `x`"),
        ("root ::= (\"a\"", ") is expected"),
        ("root ::= \"a\"{3,1}", "less than the first"),
        ("root ::= \"a\"{99999999999}", "a count from 0"),
        ("root ::= \"\\q\"", "not a known escape"),
        ("root ::= \"\\xZZ\"", "hex digits"),
        ("root ::= *", "the end of rule `root` is expected"),
        ("root ::= !<x> \"a\"", "not supported"),
    ] {
        let error = compile(Kind::Gbnf(source.into())).map(|_| ()).expect_err(source);
        assert!(matches!(error, Error::Unusable { what: "GBNF grammar", .. }), "{source:?}: {error:?}");
        assert!(error.to_string().contains(words), "{source:?}: {error}");
    }
    for source in ["root ::= root", "root ::= a | root\na ::= root"] {
        let error = compile(Kind::Gbnf(source.into())).map(|_| ()).expect_err(source);
        assert_eq!(error, Error::Nothing { what: "GBNF grammar" }, "{source:?}");
    }
}
