//! Arguments with a mark around their texts and keys that stand bare, as Gemma writes them, in the order of their keys.

use constrain::{Document, Rules, constants, lark};
use serde_json::Value;

use super::super::texts::Texts;
use super::super::tools::Tool;
use super::values::{NUMBER, json, sequence, text_bounds};

/// The arguments of tool `i`, without the braces around them.
pub(super) fn arguments(mark: &str, texts: &Texts, tool: &Tool, i: usize, rules: &mut Rules) -> Result<String, String> {
    let mut document = Document::new(&tool.parameters);
    let schema = document.resolve(document.root());
    let mut writer = Writer { mark, texts, prefix: format!("tool{i}"), n_rules: 0, document: &mut document, rules };
    writer.fields(schema, 0)
}

/// Writes values; each rule that they need has a number.
struct Writer<'w, 'v> {
    mark: &'w str,
    texts: &'w Texts,
    prefix: String,
    n_rules: usize,
    document: &'w mut Document<'v>,
    rules: &'w mut Rules,
}

impl<'v> Writer<'_, 'v> {
    fn rule(&mut self, body: &str) -> String {
        let name = format!("{}_{}", self.prefix, self.n_rules);
        self.n_rules += 1;
        self.rules.push(format!("{name}: {body}"));
        name
    }

    /// The fields of an object, those that are not required with or without, a comma between any two.
    fn fields(&mut self, schema: &'v Value, depth: usize) -> Result<String, String> {
        let required: Vec<&str> =
            schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        let mut properties: Vec<(&str, &'v Value)> = Vec::new();
        for (name, of) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            properties.push((name, of));
        }
        for name in &required {
            if !properties.iter().any(|(known, _)| known == name) {
                return Err(format!("{name:?} is required and not among the properties"));
            }
        }
        properties.sort_by_key(|(name, _)| name.to_lowercase());
        let mut fields = Vec::new();
        for (name, of) in properties {
            let (key, value) = (self.key(name), self.value(of, depth + 1)?);
            fields.push((self.rule(&format!("{key} {value}")), required.contains(&name)));
        }
        Ok(sequence(&fields, "\",\"", |body| self.rule(body)))
    }

    fn key(&self, name: &str) -> String {
        let is_bare = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if is_bare { lark::text(&format!("{name}:")) } else { format!("{} \":\"", self.literal(name)) }
    }

    fn literal(&self, text: &str) -> String {
        self.texts.lark(&[self.mark, text, self.mark].concat())
    }

    /// A value by a schema.
    fn value(&mut self, schema: &'v Value, depth: usize) -> Result<String, String> {
        self.rules.check().map_err(|error| error.to_string())?;
        let schema = self.document.resolve(schema);
        if depth > MAX_DEPTH {
            return Ok(self.any());
        }
        if let Some(constants) = constants(schema) {
            return self.constants(constants);
        }
        if let Some(Value::Array(schemas)) = schema.get("anyOf").or(schema.get("oneOf")) {
            return self.one_of(schemas.iter(), |writer, schema| writer.value(schema, depth + 1));
        }
        match schema.get("type") {
            Some(Value::String(name)) => self.of_type(name, schema, depth),
            Some(Value::Array(names)) => {
                self.one_of(names.iter().filter_map(Value::as_str), |writer, name| writer.of_type(name, schema, depth))
            }
            _ => Ok(self.any()),
        }
    }

    fn one_of<T>(
        &mut self,
        of: impl Iterator<Item = T>,
        mut one: impl FnMut(&mut Self, T) -> Result<String, String>,
    ) -> Result<String, String> {
        let all: Vec<String> = of.map(|of| one(self, of)).collect::<Result<_, _>>()?;
        Ok(if all.is_empty() { self.any() } else { format!("({})", all.join(" | ")) })
    }

    fn constants(&mut self, values: &[Value]) -> Result<String, String> {
        self.one_of(values.iter(), |writer, value| match value {
            Value::String(text) if text.contains(writer.mark) => {
                Err(format!("the text {text:?} would end its own marks"))
            }
            Value::String(text) => Ok(writer.literal(text)),
            Value::Array(_) | Value::Object(_) => Ok(writer.any()),
            other => Ok(lark::text(&other.to_string())),
        })
    }

    fn of_type(&mut self, name: &str, schema: &'v Value, depth: usize) -> Result<String, String> {
        match name {
            "string" => self.text(schema),
            "integer" | "number" => {
                let mut alone = schema.clone();
                alone["type"] = name.into();
                json_number(&alone, self.rules)
            }
            "boolean" => Ok("(\"true\" | \"false\")".into()),
            "null" => Ok("\"null\"".into()),
            "array" => {
                let count = |key| schema.get(key).and_then(Value::as_u64);
                let item = match schema.get("items") {
                    Some(items) => self.value(items, depth + 1)?,
                    None => self.any(),
                };
                let item = self.rule(&item);
                let least = count("minItems").unwrap_or(0).saturating_sub(1);
                let most = count("maxItems").map_or(String::new(), |most| most.saturating_sub(1).to_string());
                let items = format!("{item} (\",\" {item}){{{least},{most}}}");
                Ok(match (count("minItems"), count("maxItems")) {
                    (_, Some(0)) => "\"[\" \"]\"".into(),
                    (Some(1..), _) => format!("\"[\" {items} \"]\""),
                    _ => format!("\"[\" ({items})? \"]\""),
                })
            }
            "object" if schema.get("properties").is_some() => {
                Ok(format!("\"{{\" {} \"}}\"", self.fields(schema, depth)?))
            }
            _ => Ok(self.any()),
        }
    }

    /// A text between marks.
    fn text(&mut self, schema: &Value) -> Result<String, String> {
        let mut parts = vec![lark::regex("(?s:.*)")];
        parts.extend(text_bounds(schema)?);
        Ok(self.marked(parts))
    }

    fn marked(&mut self, mut parts: Vec<String>) -> String {
        let name = format!("{}_{}", self.prefix.to_uppercase(), self.n_rules);
        self.n_rules += 1;
        let (in_terminal, rest) = self.texts.split(self.mark);
        if !in_terminal.is_empty() {
            let mark = self.mark.replace('|', r"\|");
            parts.push(format!("~{}", lark::regex(&format!("(?s:.*){mark}(?s:.*)"))));
        }
        let closing = if in_terminal.is_empty() { String::new() } else { lark::text(in_terminal) };
        self.rules.push(format!("{name}: ({}) {closing}", parts.join(" & ")));
        format!("{} {name} {}", self.texts.lark(self.mark), self.texts.lark(rest))
    }

    /// Any value.
    fn any(&mut self) -> String {
        let text = self.marked(vec![lark::regex("(?s:.*)")]);
        let name = format!("{}_{}", self.prefix, self.n_rules);
        self.n_rules += 1;
        let number = lark::regex(NUMBER);
        let key = lark::regex("[A-Za-z_][A-Za-z0-9_]{0,63}");
        let list = format!("\"[\" ({name} (\",\" {name})*)? \"]\"");
        let object = format!("\"{{\" ({key} \":\" {name} (\",\" {key} \":\" {name})*)? \"}}\"");
        self.rules.push(format!("{name}: {text} | {number} | \"true\" | \"false\" | \"null\" | {list} | {object}"));
        name
    }
}

fn json_number(schema: &Value, rules: &mut Rules) -> Result<String, String> {
    json(schema, &Document::new(schema), rules)
}

/// Levels of a schema that are followed; what lies deeper may be any value.
const MAX_DEPTH: usize = 8;
