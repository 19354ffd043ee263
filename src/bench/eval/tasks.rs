//! Questions with known answers: generated from a seed, or of a user's file.
//! Owns how an answer is judged. The kinds are those that the embedded model was made for.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::synth::random::Random;

/// One question.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) kind: String,
    pub(super) question: String,
    pub(super) tools: Vec<Value>,
    pub(super) expected: Expected,
}

/// What counts as right.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expected {
    /// The answer is this text, spaces at its ends left out.
    Exactly(String),
    /// The answer holds this text.
    Holds(String),
    /// The last number of the answer.
    LastNumber(i64),
    /// These words, in this order, and no others of them.
    InOrder(Vec<String>),
    /// A JSON value that is equal to this one.
    Json(Value),
    /// A call of this tool with these arguments.
    Call(String, Value),
}

/// An answer, taken apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reply {
    pub(super) text: String,
    pub(super) calls: Vec<(String, String)>,
}

impl Expected {
    pub(super) fn is(&self, reply: &Reply) -> bool {
        let text = reply.text.trim();
        match self {
            Expected::Exactly(wanted) => text == wanted.trim(),
            Expected::Holds(wanted) => text.contains(wanted.as_str()),
            Expected::LastNumber(wanted) => last_number(text) == Some(*wanted),
            Expected::InOrder(words) => {
                let of_them = |word: &&str| words.iter().any(|w| w == word);
                let found: Vec<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '-').filter(of_them).collect();
                // The answer may list them once more, behind an explanation: the last mention counts.
                found.len() >= words.len() && found[found.len() - words.len()..] == words[..]
            }
            Expected::Json(wanted) => {
                let braces = text.find('{').zip(text.rfind('}')).filter(|(a, b)| a < b);
                let value = braces.and_then(|(a, b)| serde_json::from_str::<Value>(&text[a..=b]).ok());
                value.as_ref() == Some(wanted)
            }
            Expected::Call(name, arguments) => reply.calls.iter().any(|(called, given)| {
                called == name && serde_json::from_str::<Value>(given).ok().as_ref() == Some(arguments)
            }),
        }
    }
}

fn last_number(text: &str) -> Option<i64> {
    let digits = |c: char| c.is_ascii_digit();
    let end = text.rfind(digits)? + 1;
    let start = text[..end].rfind(|c: char| !digits(c)).map_or(0, |i| i + 1);
    let minus = text[..start].ends_with('-') && !text[..start - 1].ends_with(|c: char| c.is_ascii_digit());
    text[start..end].parse::<i64>().ok().map(|n| if minus { -n } else { n })
}

/// `n` questions of each kind.
pub(super) fn generated(n: usize, seed: u64) -> Vec<Task> {
    let mut rng = Random::stream(seed, 7);
    let kinds: [fn(&mut Random) -> Task; 6] = [addition, subtraction, sorting, capital, extraction, call];
    kinds.iter().flat_map(|make| (0..n).map(|_| make(&mut rng)).collect::<Vec<_>>()).collect()
}

fn task(kind: &str, question: String, expected: Expected) -> Task {
    Task { kind: kind.into(), question, tools: Vec::new(), expected }
}

fn pick<'a, T: ?Sized>(rng: &mut Random, of: &[&'a T]) -> &'a T {
    of[rng.below(of.len())]
}

fn addition(rng: &mut Random) -> Task {
    let (a, b) = (10 + rng.below(90), 10 + rng.below(90));
    task("addition", format!("What is {a} + {b}?"), Expected::LastNumber((a + b) as i64))
}

fn subtraction(rng: &mut Random) -> Task {
    let (a, b) = (10 + rng.below(90), 10 + rng.below(90));
    let (a, b) = (a.max(b), a.min(b));
    task("subtraction", format!("What is {a} - {b}?"), Expected::LastNumber((a - b) as i64))
}

fn sorting(rng: &mut Random) -> Task {
    let mut numbers: Vec<usize> = (10..100).collect();
    rng.shuffle(&mut numbers);
    numbers.truncate(4);
    let list = |numbers: &[usize]| numbers.iter().map(usize::to_string).collect::<Vec<_>>();
    let question = format!("Sort these numbers from smallest to largest: {}", list(&numbers).join(", "));
    numbers.sort_unstable();
    task("sorting", question, Expected::InOrder(list(&numbers)))
}

const CAPITALS: &[(&str, &str)] = &[
    ("France", "Paris"),
    ("Germany", "Berlin"),
    ("Spain", "Madrid"),
    ("Italy", "Rome"),
    ("Portugal", "Lisbon"),
    ("Austria", "Vienna"),
    ("Belgium", "Brussels"),
    ("Norway", "Oslo"),
    ("Sweden", "Stockholm"),
    ("Finland", "Helsinki"),
    ("Poland", "Warsaw"),
    ("Greece", "Athens"),
    ("Japan", "Tokyo"),
    ("Egypt", "Cairo"),
    ("Peru", "Lima"),
    ("Kenya", "Nairobi"),
];

fn capital(rng: &mut Random) -> Task {
    let (country, city) = CAPITALS[rng.below(CAPITALS.len())];
    task("capitals", format!("What is the capital of {country}?"), Expected::Holds(city.into()))
}

fn person(rng: &mut Random) -> (String, usize, &'static str) {
    let first = pick(rng, &["Mia", "Anna", "Tom", "Clara", "Ben", "Lucy"]);
    let last = pick(rng, &["Brown", "Smith", "Miller", "Wilson", "Taylor"]);
    (format!("{first} {last}"), 20 + rng.below(60), pick(rng, &["Oslo", "Paris", "Rome", "Vienna", "Lisbon", "Berlin"]))
}

fn extraction(rng: &mut Random) -> Task {
    let (name, age, city) = person(rng);
    let question = format!(
        "Extract the fields name, age, city as JSON from this text: {name} is {age} years old and lives in {city}."
    );
    task("json", question, Expected::Json(json!({ "name": name, "age": age, "city": city })))
}

fn call(rng: &mut Random) -> Task {
    let city = pick(rng, &["Oslo", "Paris", "Rome", "Vienna", "Lisbon", "Berlin", "Madrid", "Tokyo"]);
    let tool = json!({
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather for a city.",
            "parameters": {
                "type": "object",
                "properties": { "city": { "type": "string", "description": "The name of the city" } },
                "required": ["city"],
            },
        },
    });
    let expected = Expected::Call("get_weather".into(), json!({ "city": city }));
    Task { tools: vec![tool], ..task("tools", format!("What is the weather in {city}?"), expected) }
}

/// A line of a user's file.
#[derive(Debug, Deserialize)]
struct Line {
    prompt: String,
    answer: Value,
    #[serde(default)]
    kind: Option<String>,
    /// How to judge: exact (the default), contains, number, json, call.
    #[serde(default, rename = "match")]
    by: Option<String>,
    #[serde(default)]
    tools: Vec<Value>,
}

/// Questions of a JSONL file.
///
/// # Errors
/// A line that is no question.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Task>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut tasks = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let at = || format!("{}, line {}", path.display(), i + 1);
        let line: Line = serde_json::from_str(line).with_context(at)?;
        let text = || line.answer.as_str().map(str::to_owned).with_context(|| format!("{}: answer is no text", at()));
        let expected = match line.by.as_deref().unwrap_or("exact") {
            "exact" => Expected::Exactly(text()?),
            "contains" => Expected::Holds(text()?),
            "number" => Expected::LastNumber(
                whole(&line.answer).with_context(|| format!("{}: answer {} is no whole number", at(), line.answer))?,
            ),
            "json" => Expected::Json(line.answer.clone()),
            "call" => {
                let (name, arguments) = (line.answer["name"].as_str(), line.answer.get("arguments"));
                let (name, arguments) = name.zip(arguments).with_context(|| format!("{}: answer is no call", at()))?;
                Expected::Call(name.to_owned(), arguments.clone())
            }
            other => bail!("{}: match `{other}` is not one of exact, contains, number, json, call", at()),
        };
        let kind = line.kind.unwrap_or_else(|| "file".into());
        tasks.push(Task { kind, question: line.prompt, tools: line.tools, expected });
    }
    ensure!(!tasks.is_empty(), "{}: no questions", path.display());
    Ok(tasks)
}

/// A whole number, or a text that is one.
fn whole(answer: &Value) -> Option<i64> {
    answer.as_i64().or_else(|| answer.as_str()?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(text: &str) -> Reply {
        Reply { text: text.into(), calls: Vec::new() }
    }

    #[test]
    fn right_and_wrong_answers_are_told_apart() {
        assert!(Expected::LastNumber(85).is(&says("48 + 37 = 85.")));
        assert!(!Expected::LastNumber(85).is(&says("48 + 37 = 850.")));
        assert!(Expected::LastNumber(-5).is(&says("It is -5.")));
        assert!(Expected::LastNumber(5).is(&says("10-5")));
        let order = Expected::InOrder(vec!["12".into(), "30".into()]);
        assert!(order.is(&says("12, 30")) && order.is(&says("From 30 and 12: 12, 30.")));
        assert!(!order.is(&says("30, 12")) && !order.is(&says("12")));
        let object = Expected::Json(json!({ "age": 34 }));
        assert!(object.is(&says("Here: {\"age\": 34}")) && !object.is(&says("{\"age\": \"34\"}")));
        let call = Expected::Call("f".into(), json!({ "a": 1 }));
        let reply = Reply { text: String::new(), calls: vec![("f".into(), "{\"a\": 1}".into())] };
        assert!(call.is(&reply) && !call.is(&says("f")));
    }

    #[test]
    fn a_file_may_write_numbers_as_text_and_says_which_line_is_wrong() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let questions = |answer: &str| {
            let first = r#"{"prompt": "2 + 3?", "answer": 5, "match": "number"}"#;
            let second = format!(r#"{{"prompt": "2 + 4?", "answer": {answer}, "match": "number"}}"#);
            std::fs::write(file.path(), format!("{first}\n{second}\n")).unwrap();
            read(file.path())
        };
        let tasks = questions(r#"" 6""#).unwrap();
        assert!(tasks[0].expected.is(&says("5")) && tasks[1].expected.is(&says("It is 6.")));
        let error = questions(r#""six""#).err().unwrap().to_string();
        assert!(error.contains("line 2") && error.contains("six"), "{error}");
    }

    #[test]
    fn a_file_may_ask_for_calls_of_its_tools() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = json!({
            "prompt": "What is the weather in Rome?", "match": "call", "tools": [{ "type": "function" }],
            "answer": { "name": "get_weather", "arguments": { "city": "Rome" } },
        });
        std::fs::write(file.path(), line.to_string()).unwrap();
        let tasks = read(file.path()).unwrap();
        let calls = |city: &str| vec![("get_weather".to_owned(), format!("{{\"city\": \"{city}\"}}"))];
        let reply = |city| Reply { text: String::new(), calls: calls(city) };
        assert_eq!(tasks[0].tools.len(), 1);
        assert!(tasks[0].expected.is(&reply("Rome")) && !tasks[0].expected.is(&reply("Oslo")));
        std::fs::write(file.path(), r#"{"prompt": "x", "match": "call", "answer": "Rome"}"#).unwrap();
        assert!(read(file.path()).err().unwrap().to_string().contains("no call"));
    }

    #[test]
    fn the_same_seed_asks_the_same() {
        let questions = |seed| generated(3, seed).into_iter().map(|t| t.question).collect::<Vec<_>>();
        assert_eq!(questions(1), questions(1));
        assert_ne!(questions(1), questions(2));
        assert_eq!(questions(1).len(), 18);
    }
}
