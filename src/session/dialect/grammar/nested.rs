//! Parameters between tags of their own names, objects and lists as tags within them. Follows the rules by which the reply parser reads
//! them back: a type that can be a text is one. What has no fields or items by its schema is JSON.

use constrain::{Document, Rules, constants, lark};
use serde_json::Value;

use super::super::family::Tagged;
use super::super::texts::Texts;
use super::super::tools::Tool;
use super::names::is_readable;
use super::values::{json, text_bounds};

/// The parameters of tool `i`.
pub(super) fn arguments(
    tags: &Tagged,
    texts: &Texts,
    tool: &Tool,
    i: usize,
    rules: &mut Rules,
) -> Result<String, String> {
    let mut document = Document::new(&tool.parameters);
    let schema = document.resolve(document.root());
    let mut writer = Writer { tags, texts, prefix: format!("tool{i}"), n_rules: 0, document: &mut document, rules };
    writer.fields(schema, 0)
}

/// Writes values; each rule that they need has a number.
struct Writer<'w, 'v> {
    tags: &'w Tagged,
    texts: &'w Texts,
    prefix: String,
    n_rules: usize,
    document: &'w mut Document<'v>,
    rules: &'w mut Rules,
}

impl<'v> Writer<'_, 'v> {
    fn rule(&mut self, prefix: &str, body: &str) -> String {
        let name = format!("{prefix}_{}", self.n_rules);
        self.n_rules += 1;
        self.rules.push(format!("{name}: {body}"));
        name
    }

    /// The fields of an object in their order, those that are not required with or without.
    fn fields(&mut self, schema: &'v Value, depth: usize) -> Result<String, String> {
        const ANYTHING: &Value = &Value::Bool(true);
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        let required: Vec<&str> = required.collect();
        let declared = schema.get("properties").and_then(Value::as_object);
        let mut fields: Vec<(&str, &'v Value)> =
            declared.into_iter().flatten().map(|(name, of)| (name.as_str(), of)).collect();
        let is_declared = |name: &str| declared.is_some_and(|map| map.contains_key(name));
        fields.extend(required.iter().filter(|name| !is_declared(name)).map(|name| (*name, ANYTHING)));
        let mut body = Vec::new();
        for (name, of) in fields {
            let field = self.tagged(name, of, depth)?;
            body.push(if required.contains(&name) { field } else { format!("{field}?") });
        }
        Ok(body.join(" "))
    }

    /// A rule for a value between the tags of `name`.
    fn tagged(&mut self, name: &str, of: &'v Value, depth: usize) -> Result<String, String> {
        if !is_readable(name) || name.starts_with('/') || name.contains(['"', ' ']) {
            return Err(format!("{name:?} cannot be the name of a tag"));
        }
        let close = [self.tags.close, name, ">"].concat();
        let value = self.value(of, &close, depth + 1)?;
        let open = self.texts.lark(&[self.tags.open, name, self.tags.named].concat());
        let prefix = self.prefix.clone();
        Ok(self.rule(&prefix, &format!("{open} ({value})")))
    }

    /// A value and the tag after it.
    fn value(&mut self, schema: &'v Value, close: &str, depth: usize) -> Result<String, String> {
        self.rules.check().map_err(|error| error.to_string())?;
        let schema = self.document.resolve(schema);
        let after = self.texts.lark(close);
        if let Some(constants) = constants(schema) {
            let plain: Vec<String> = constants.iter().filter_map(written).collect();
            if plain.len() < constants.len() || plain.iter().any(|text| text.contains(self.tags.close)) {
                return Err("a value of its list cannot stand between tags".to_owned());
            }
            let (with, rest) = self.texts.split(close);
            let one = |text: &String| format!("{} {}", lark::text(&[text, with].concat()), self.texts.lark(rest));
            return Ok(plain.iter().map(one).collect::<Vec<_>>().join(" | "));
        }
        if self.document.may_be_text(schema) {
            return self.text(schema, close);
        }
        if let (Some(Value::Array(schemas)), true) = (schema.get("anyOf").or(schema.get("oneOf")), depth < MAX_DEPTH) {
            let all: Vec<String> =
                schemas.iter().map(|schema| self.value(schema, close, depth + 1)).collect::<Result<_, _>>()?;
            return Ok(all.join(" | "));
        }
        match (schema.get("type").and_then(Value::as_str), schema.get("items")) {
            (Some("object"), _) if depth < MAX_DEPTH && has_fields(schema) => {
                Ok(format!("{} {after}", self.fields(schema, depth)?))
            }
            (Some("array"), Some(items)) if depth < MAX_DEPTH => {
                let count = |key| schema.get(key).and_then(Value::as_u64);
                let (least, most) = (count("minItems").unwrap_or(0), count("maxItems"));
                let item = self.tagged("item", items, depth)?;
                let most = most.map_or(String::new(), |most| most.to_string());
                Ok(format!("{item}{{{least},{most}}} {after}"))
            }
            _ => Ok(format!("{} {after}", json(schema, self.document, self.rules)?)),
        }
    }

    /// Any text without a mark of tags in it, as far as pattern and length allow.
    fn text(&mut self, schema: &Value, close: &str) -> Result<String, String> {
        let mut parts = vec![lark::regex("(?s:.*)")];
        let (in_terminal, rest) = self.texts.split(close);
        if !in_terminal.is_empty() {
            parts.push(format!(
                "~{}",
                lark::regex(&format!("(?s:.*){}(?s:.*)", escape(self.tags.open.trim_end_matches('<'))))
            ));
        }
        parts.extend(text_bounds(schema)?);
        let ending = if in_terminal.is_empty() { String::new() } else { lark::text(in_terminal) };
        let name = self.rule(&self.prefix.to_uppercase(), &format!("({}) {ending}", parts.join(" & ")));
        Ok(format!("{name} {}", self.texts.lark(rest)))
    }
}

/// A value that is no list and no object, as it stands between tags.
fn written(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(_) | Value::Object(_) => None,
        other => Some(other.to_string()),
    }
}

fn has_fields(schema: &Value) -> bool {
    schema.get("properties").and_then(Value::as_object).is_some_and(|map| !map.is_empty())
}

/// A text as a regular expression. Angles stay: with a backslash they are borders of words.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// Levels of a schema that are followed; what lies deeper is JSON.
const MAX_DEPTH: usize = 8;
