//! Arguments of a tool call: values that stand as text between tags, written as the JSON of their types.
//! A text is streamed as it comes. Any other value waits for its end: JSON of a type that the schema allows is copied as it stands,
//! the rest is a text, which is what the schema's owner can best complain about. Without a type, whatever reads as JSON other than a
//! text is that: templates write a text as it is, so only its looks are left.

use std::collections::HashMap;

use constrain::{Document, constants};
use serde_json::Value;

/// The types of one tool's parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolSchema {
    name: String,
    parameters: Vec<(String, Types)>,
}

impl ToolSchema {
    /// From a tool in OpenAI's shape: `{"type": "function", "function": {"name": .., "parameters": SCHEMA}}`, or its inner object.
    /// None when it has no name. References are followed within the schema.
    pub fn from_tool(tool: &Value) -> Option<Self> {
        let function = tool.get("function").unwrap_or(tool);
        let name = function.get("name")?.as_str()?.to_owned();
        let parameters = function.get("parameters").or(function.get("input_schema"));
        let Some(root) = parameters else { return Some(Self { name, parameters: Vec::new() }) };
        let mut kinds = Kinds { document: Document::new(root), known: HashMap::new() };
        let properties = kinds.document.resolve(root).get("properties").and_then(Value::as_object);
        let of = |(name, schema): (&String, _)| (name.clone(), kinds.of(schema, 0));
        Some(Self { name, parameters: properties.into_iter().flatten().map(of).collect() })
    }

    /// The function's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Writes the arguments of one call.
#[derive(Debug)]
pub(super) struct Writer {
    schema: ToolSchema,
    own_lines: bool,
    n_values: usize,
    types: Types,
    /// The value is being streamed as a text.
    streams: bool,
    began: bool,
    text: String,
}

impl Writer {
    /// `own_lines`: values stand on lines of their own.
    pub(super) fn new(schema: Option<ToolSchema>, own_lines: bool) -> Self {
        Self {
            own_lines,
            schema: schema.unwrap_or_default(),
            n_values: 0,
            types: Types::ANY,
            streams: false,
            began: false,
            text: String::new(),
        }
    }

    /// The line break after the opening tag is behind us.
    pub(super) fn began(&self) -> bool {
        self.began
    }

    /// `is_text`: what the call itself says of the value's type.
    pub(super) fn begin_value(&mut self, name: &str, is_text: Option<bool>) -> String {
        let types = self.schema.parameters.iter().find(|(n, _)| n == name);
        self.types = match is_text {
            Some(true) => Types::STRING,
            _ => types.map_or(Types::ANY, |(_, types)| *types),
        };
        self.streams = self.types == Types::STRING;
        self.began = false;
        self.text.clear();
        let comma = if self.n_values == 0 { "{" } else { ", " };
        self.n_values += 1;
        let quote = if self.streams { "\"" } else { "" };
        format!("{comma}\"{}\": {quote}", escaped(name))
    }

    pub(super) fn value_text(&mut self, text: &str) -> String {
        let text = match std::mem::replace(&mut self.began, true) {
            false if self.own_lines => text.strip_prefix('\n').unwrap_or(text),
            _ => text,
        };
        if self.streams {
            return escaped(text);
        }
        self.text.push_str(text);
        String::new()
    }

    pub(super) fn end_value(&mut self) -> String {
        if self.streams {
            return "\"".to_owned();
        }
        let text = std::mem::take(&mut self.text);
        json_of(&text, self.types).unwrap_or_else(|| format!("\"{}\"", escaped(&text)))
    }

    pub(super) fn end(&self) -> &'static str {
        if self.n_values == 0 { "{}" } else { "}" }
    }
}

/// Name and arguments of a call in JSON; None when it is none. With `whole` both must be there.
pub(super) fn json_call(json: &str, whole: bool) -> Option<(String, String)> {
    let call: Value = serde_json::from_str(json).ok()?;
    let name = call.get("name").or(call.get("tool_name"))?.as_str().filter(|name| !name.is_empty())?;
    let arguments = match call.get("arguments").or(call.get("parameters")) {
        None if whole => return None,
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::Object(map)) => serde_json::to_string(map).ok()?,
        Some(Value::String(text)) => {
            let parsed: Value = serde_json::from_str(text).ok()?;
            parsed.is_object().then(|| text.clone())?
        }
        Some(_) => return None,
    };
    Some((name.to_owned(), arguments))
}

/// `text` as JSON of one of the types, except as a text.
fn json_of(text: &str, types: Types) -> Option<String> {
    let text = text.trim();
    // Python's words, which templates print for values of these types.
    let word = match text {
        "True" | "TRUE" => "true",
        "False" | "FALSE" => "false",
        "None" => "null",
        other => other,
    };
    if word != text {
        // Without a known type the word may well be a text.
        let kind = if word == "null" { Types::NULL } else { Types::BOOLEAN };
        return (types != Types::ANY && types.has(kind)).then(|| word.to_owned());
    }
    let value: Value = serde_json::from_str(text).ok()?;
    let kind = match &value {
        Value::Null => Types::NULL,
        Value::Bool(_) => Types::BOOLEAN,
        Value::Number(n) if n.is_f64() && !types.has(Types::NUMBER) => {
            // 3.0 for an integer is 3.
            let x = n.as_f64().filter(|x| x.fract() == 0.0 && x.abs() < 9e15)?;
            return types.has(Types::INTEGER).then(|| format!("{x:.0}"));
        }
        Value::Number(n) if n.is_f64() => Types::NUMBER,
        Value::Number(_) if types.has(Types::INTEGER) => Types::INTEGER,
        Value::Number(_) => Types::NUMBER,
        Value::Array(_) => Types::ARRAY,
        Value::Object(_) => Types::OBJECT,
        Value::String(_) => return None,
    };
    types.has(kind).then(|| text.to_owned())
}

/// The inside of a JSON string.
pub(super) fn escaped(text: &str) -> String {
    let quoted = Value::String(text.to_owned()).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// A set of JSON types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Types(u8);

impl Types {
    const STRING: Self = Self(1);
    const INTEGER: Self = Self(2);
    const NUMBER: Self = Self(4);
    const BOOLEAN: Self = Self(8);
    const ARRAY: Self = Self(16);
    const OBJECT: Self = Self(32);
    const NULL: Self = Self(64);
    const ANY: Self = Self(127);

    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Any of these; nothing is known where there are none.
    fn union(types: impl Iterator<Item = Self>) -> Self {
        match types.fold(0, |all, t| all | t.0) {
            0 => Self::ANY,
            all => Self(all),
        }
    }

    fn both(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    fn of_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::Bool(_) => Self::BOOLEAN,
            Value::Number(n) if n.is_f64() => Self::NUMBER,
            Value::Number(_) => Self::INTEGER,
            Value::String(_) => Self::STRING,
            Value::Array(_) => Self::ARRAY,
            Value::Object(_) => Self::OBJECT,
        }
    }

    fn named(name: &str) -> Self {
        match name {
            "string" => Self::STRING,
            "integer" => Self::INTEGER,
            "number" => Self(Self::NUMBER.0 | Self::INTEGER.0),
            "boolean" => Self::BOOLEAN,
            "array" => Self::ARRAY,
            "object" => Self::OBJECT,
            "null" => Self::NULL,
            _ => Self::ANY,
        }
    }
}

/// The types of the parts of a schema, each found once.
struct Kinds<'v> {
    document: Document<'v>,
    known: HashMap<*const Value, Types>,
}

impl<'v> Kinds<'v> {
    /// What all that the schema says leaves possible. A part that depends on itself, or lies too deep, may be anything.
    fn of(&mut self, schema: &'v Value, depth: usize) -> Types {
        let schema = self.document.resolve(schema);
        let place = std::ptr::from_ref(schema);
        if let Some(&known) = self.known.get(&place) {
            return known;
        }
        if depth > MAX_DEPTH {
            return Types::ANY;
        }
        self.known.insert(place, Types::ANY);
        let types = match self.all_of(schema, depth) {
            Types(0) => Types::ANY,
            types => types,
        };
        self.known.insert(place, types);
        types
    }

    fn all_of(&mut self, schema: &'v Value, depth: usize) -> Types {
        let mut types = match schema.get("type") {
            Some(Value::String(name)) => Types::named(name),
            Some(Value::Array(names)) => Types::union(names.iter().filter_map(Value::as_str).map(Types::named)),
            _ => Types::ANY,
        };
        if schema.get("nullable") == Some(&Value::Bool(true)) && types != Types::ANY {
            types = Types(types.0 | Types::NULL.0);
        }
        if let Some(values) = constants(schema) {
            types = types.both(Types::union(values.iter().map(Types::of_value)));
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(schemas)) = schema.get(key) {
                types = types.both(Types::union(schemas.iter().map(|schema| self.of(schema, depth + 1))));
            }
        }
        for schema in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            types = types.both(self.of(schema, depth + 1));
        }
        types
    }
}

/// Parts of a schema within each other that are looked at.
const MAX_DEPTH: usize = 32;
