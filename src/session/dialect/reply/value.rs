//! Arguments of a tool call: values that stand as text between tags, written as the JSON of their types.
//! A text is streamed as it comes. Any other value waits for its end: JSON of a type that the schema allows is copied as it stands,
//! the rest is a text, which is what the schema's owner can best complain about. Without a type, whatever reads as JSON other than a
//! text is that: templates write a text as it is, so only its looks are left.

use std::sync::Arc;

use serde_json::Value;

use super::nested;
use super::types::{Kinds, Types, escaped, json_of};
use crate::dialect::family::Tagged;

/// The types of one tool's parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolSchema {
    name: String,
    parameters: Vec<(String, Types)>,
    /// The schema of them all.
    root: Arc<Value>,
}

impl ToolSchema {
    /// From a tool in OpenAI's shape: `{"type": "function", "function": {"name": .., "parameters": SCHEMA}}`, or its inner object.
    /// None when it has no name. References are followed within the schema.
    pub fn from_tool(tool: &Value) -> Option<Self> {
        let function = tool.get("function").unwrap_or(tool);
        let name = function.get("name")?.as_str()?.to_owned();
        let parameters = function.get("parameters").or(function.get("input_schema"));
        let Some(root) = parameters else { return Some(Self { name, ..Self::default() }) };
        let mut kinds = Kinds::new(root);
        let properties = kinds.document.resolve(root).get("properties").and_then(Value::as_object);
        let of = |(name, schema): (&String, _)| (name.clone(), kinds.of(schema, 0));
        let parameters = properties.into_iter().flatten().map(of).collect();
        Some(Self { name, parameters, root: Arc::new(root.clone()) })
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
    tags: &'static Tagged,
    /// Values that are no texts are tags within each other.
    nests: bool,
    /// The parameter whose value comes.
    name: String,
    /// How many tags of its own name are open within it.
    depth: usize,
    n_values: usize,
    types: Types,
    /// The value is being streamed as a text.
    streams: bool,
    began: bool,
    text: String,
}

impl Writer {
    /// `nests`: values that are no texts are tags within each other.
    pub(super) fn new(schema: Option<ToolSchema>, tags: &'static Tagged, nests: bool) -> Self {
        Self {
            tags,
            nests,
            name: String::new(),
            depth: 0,
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
        (self.name, self.depth) = (name.to_owned(), 0);
        let comma = if self.n_values == 0 { "{" } else { ", " };
        self.n_values += 1;
        let quote = if self.streams { "\"" } else { "" };
        format!("{comma}\"{}\": {quote}", escaped(name))
    }

    pub(super) fn value_text(&mut self, text: &str) -> String {
        let text = match std::mem::replace(&mut self.began, true) {
            false if self.tags.own_lines => text.strip_prefix('\n').unwrap_or(text),
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
        if self.nests {
            return nested::json(&text, self.tags, &self.schema.root, &self.name);
        }
        json_of(&text, self.types).unwrap_or_else(|| format!("\"{}\"", escaped(&text)))
    }

    /// The parameter whose value comes, and whether its own tag would end it.
    pub(super) fn parameter(&self) -> (&str, bool) {
        (&self.name, self.depth == 0)
    }

    /// A tag of the parameter's own name within its value.
    pub(super) fn inner_tag(&mut self, tag: &str) -> String {
        self.depth = if tag.starts_with(self.tags.close) { self.depth.saturating_sub(1) } else { self.depth + 1 };
        self.value_text(tag)
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
