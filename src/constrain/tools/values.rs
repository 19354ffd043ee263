//! How an argument's value stands between its tags: a text as it is, anything else as JSON.
//! Follows the rules by which `text::reply` reads it back: a type that can be a text is one.

use serde_json::{Value, json};

use crate::lark;

/// The grammar of a value by `schema`, a part of `root`, with the closing tag. A terminal that it needs is called `name`
/// and added to `rules`.
pub(super) fn value(schema: &Value, root: &Value, name: &str, rules: &mut Vec<String>) -> Result<String, String> {
    let resolved = resolve(schema, root);
    if let Some(constants) = constants(resolved) {
        let texts: Vec<String> = constants.iter().map(literal).collect::<Result<_, _>>()?;
        return Ok(format!("({})", texts.join(" | ")));
    }
    let types = Types::of(schema, root, 0);
    if types.text {
        rules.push(format!("{name}: ({}) {}", text(resolved)?, lark::text(CLOSING)));
        return Ok(name.to_owned());
    }
    let json = match resolved.get("type").and_then(Value::as_str) {
        // Without bounds any number of digits would do, and readers of JSON do not take them all.
        Some("integer") if is_plain(resolved) => lark::regex("-?(0|[1-9][0-9]{0,14})"),
        Some("number") if is_plain(resolved) => {
            lark::regex(r"-?(0|[1-9][0-9]{0,14})(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?")
        }
        _ => lark::json_line(&with_definitions(resolved, root)),
    };
    Ok(format!("{json} {}", lark::text(CLOSING)))
}

/// Follows `$ref` within `root`, as far as it leads somewhere.
pub(super) fn resolve<'v>(schema: &'v Value, root: &'v Value) -> &'v Value {
    let mut schema = schema;
    for _ in 0..MAX_REFS {
        let Some(pointer) = schema.get("$ref").and_then(Value::as_str) else { return schema };
        let target = pointer.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
        let Some(target) = target else { return schema };
        schema = target;
    }
    schema
}

/// The values of `enum` or `const`.
fn constants(schema: &Value) -> Option<Vec<Value>> {
    match (schema.get("enum"), schema.get("const")) {
        (Some(Value::Array(values)), _) if !values.is_empty() => Some(values.clone()),
        (_, Some(value)) => Some(vec![value.clone()]),
        _ => None,
    }
}

/// One value, written out, with the closing tag.
fn literal(value: &Value) -> Result<String, String> {
    let written = match value {
        Value::String(text) => {
            if ENDS.iter().any(|end| format!("\n{text}").contains(end)) {
                return Err(format!("the text {text:?} would end its own tags"));
            }
            text.clone()
        }
        other => other.to_string(),
    };
    Ok(lark::text(&(written + CLOSING)))
}

/// Any text that does not look like the end of a value, as far as pattern and length allow: expressions that must all match.
fn text(schema: &Value) -> Result<String, String> {
    let ends = format!(r"(?s:.*)({})(?s:.*)", ENDS.join("|").replace('\n', r"\n"));
    // The line break before a tag may be the one after the opening tag.
    let mut parts = vec![
        lark::regex("(?s:.*)"),
        format!("~{}", lark::regex(&ends)),
        format!("~{}", lark::regex("<parameter=(?s:.*)")),
    ];
    let is_text = schema.get("type").and_then(Value::as_str) == Some("string");
    if let (true, Some(pattern)) = (is_text, schema.get("pattern").and_then(Value::as_str)) {
        parts.push(lark::regex(&whole(pattern)));
    }
    let length = |key| schema.get(key).and_then(Value::as_u64).filter(|_| is_text);
    match (length("minLength").unwrap_or(0), length("maxLength")) {
        (0, None) => {}
        (least, None) => parts.push(lark::regex(&format!("(?s:.){{{least},}}"))),
        (least, Some(most)) if least <= most => parts.push(lark::regex(&format!("(?s:.){{{least},{most}}}"))),
        (least, Some(most)) => return Err(format!("minLength {least} is more than maxLength {most}")),
    }
    Ok(parts.join(" & "))
}

/// A pattern that may match anywhere, as one that matches the whole text.
pub(crate) fn whole(pattern: &str) -> String {
    let (start, inner) = match pattern.strip_prefix('^') {
        Some(inner) => ("", inner),
        None => ("(?s:.*)", pattern),
    };
    let ends = inner.ends_with('$') && !inner.ends_with(r"\$");
    let (inner, end) = if ends { (&inner[..inner.len() - 1], "") } else { (inner, "(?s:.*)") };
    format!("{start}({inner}){end}")
}

/// The types of a value, as far as it matters how it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Types {
    /// It may be a text, or nothing is known.
    text: bool,
}

impl Types {
    const UNKNOWN: Self = Self { text: true };

    fn of(schema: &Value, root: &Value, depth: usize) -> Self {
        if depth > MAX_REFS {
            return Self::UNKNOWN;
        }
        let schema = resolve(schema, root);
        let any = |schemas: &[Value]| Self { text: schemas.iter().any(|s| Self::of(s, root, depth + 1).text) };
        match schema.get("type") {
            Some(Value::String(name)) => return Self { text: name == "string" },
            Some(Value::Array(names)) => return Self { text: names.iter().any(|name| name == "string") },
            _ => {}
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(schemas)) = schema.get(key) {
                return any(schemas);
            }
        }
        if let Some(Value::Array(schemas)) = schema.get("allOf") {
            return Self { text: schemas.iter().all(|s| Self::of(s, root, depth + 1).text) };
        }
        if let Some(values) = constants(schema) {
            return Self { text: values.iter().any(Value::is_string) };
        }
        Self::UNKNOWN
    }
}

/// True when nothing but the type, and words about it, is said.
fn is_plain(schema: &Value) -> bool {
    const WORDS: [&str; 6] = ["type", "title", "description", "default", "examples", "$comment"];
    schema.as_object().is_some_and(|map| map.keys().all(|key| WORDS.contains(&key.as_str())))
}

/// A part of a schema that can stand alone.
fn with_definitions(schema: &Value, root: &Value) -> Value {
    let mut alone = schema.clone();
    if let Some(map) = alone.as_object_mut() {
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(key) {
                map.entry(key).or_insert_with(|| definitions.clone());
            }
        }
    }
    bound_numbers(&mut alone);
    if alone.is_null() { json!({}) } else { alone }
}

/// Gives numbers without bounds some that every reader of JSON can take: `[-6E+60053]` would be read back as a text.
fn bound_numbers(schema: &mut Value) {
    const BOUNDS: [&str; 6] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const"];
    match schema {
        Value::Object(map) => {
            let kind = map.get("type").and_then(Value::as_str);
            if matches!(kind, Some("number" | "integer")) && !BOUNDS.iter().any(|key| map.contains_key(*key)) {
                map.insert("minimum".into(), json!(-LARGEST));
                map.insert("maximum".into(), json!(LARGEST));
            }
            let values = map.iter_mut().filter(|(key, _)| !matches!(key.as_str(), "enum" | "const" | "default"));
            values.for_each(|(_, value)| bound_numbers(value));
        }
        Value::Array(list) => list.iter_mut().for_each(bound_numbers),
        _ => {}
    }
}

/// What ends every value.
const CLOSING: &str = "\n</parameter>\n";
/// What a text cannot hold: its reader could take it for the end.
const ENDS: &[&str] = &["</parameter", "</function", "\n<parameter="];
/// Numbers within JSON lie between this and its negative, where the schema does not say.
const LARGEST: i64 = 1_000_000_000_000_000;
/// References that are followed.
const MAX_REFS: usize = 16;
