//! The schema of a tool's arguments as a document: what its references lead to, and which of its parts may be a text.
//! Owns what was found out about them, so that each part is looked at once, however many ways lead there.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::lark;

/// The schema of a tool's arguments.
#[derive(Debug)]
pub struct Document<'v> {
    root: &'v Value,
    /// Whether a part may be a text, by its place in memory: the document is borrowed, so none moves.
    texts: HashMap<*const Value, bool>,
}

impl<'v> Document<'v> {
    /// The document with this root.
    pub fn new(root: &'v Value) -> Self {
        Self { root, texts: HashMap::new() }
    }

    /// The whole of it.
    pub fn root(&self) -> &'v Value {
        self.root
    }

    /// Follows `$ref` within the document, as far as it leads somewhere.
    pub fn resolve(&self, schema: &'v Value) -> &'v Value {
        let mut schema = schema;
        for _ in 0..MAX_REFS {
            let Some(reference) = schema.get("$ref").and_then(Value::as_str) else { return schema };
            let Some(target) = self.target(reference) else { return schema };
            schema = target;
        }
        schema
    }

    /// What a reference within the document names.
    fn target(&self, reference: &str) -> Option<&'v Value> {
        let pointer = reference.strip_prefix('#')?;
        self.root.pointer(pointer).or_else(|| self.root.pointer(&unescaped(pointer)?))
    }

    /// Whether a value by this schema may be a text. Where nothing is known it may, and so it may where a schema depends on
    /// itself.
    pub fn may_be_text(&mut self, schema: &'v Value) -> bool {
        let schema = self.resolve(schema);
        let place = std::ptr::from_ref(schema);
        if let Some(&known) = self.texts.get(&place) {
            return known;
        }
        // What comes back here before it is known.
        self.texts.insert(place, true);
        let found = self.finds_text(schema);
        self.texts.insert(place, found);
        found
    }

    fn finds_text(&mut self, schema: &'v Value) -> bool {
        match schema.get("type") {
            Some(Value::String(name)) => return name == "string",
            Some(Value::Array(names)) => return names.iter().any(|name| name == "string"),
            _ => {}
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(Value::Array(schemas)) = schema.get(key) {
                return schemas.iter().any(|schema| self.may_be_text(schema));
            }
        }
        if let Some(Value::Array(schemas)) = schema.get("allOf") {
            return schemas.iter().all(|schema| self.may_be_text(schema));
        }
        constants(schema).is_none_or(|values| values.iter().any(Value::is_string))
    }

    /// A part of the document that stands alone, as `%json` on one line: definitions that it needs, and no others, are in its
    /// `$defs`. Numbers without bounds get some.
    ///
    /// # Errors
    /// In words: a reference that leads nowhere, and more than `max` bytes.
    pub fn alone(&self, schema: &'v Value, max: usize) -> Result<String, String> {
        Ok(lark::json_line(&self.with_definitions(schema, max)?))
    }

    /// The document as the schema of an object, whether it says so or not.
    ///
    /// # Errors
    /// As [`Document::alone`].
    pub fn object(&self, max: usize) -> Result<String, String> {
        let mut whole = self.with_definitions(self.resolve(self.root), max)?;
        if let Some(map) = whole.as_object_mut() {
            map.entry("type").or_insert_with(|| "object".into());
        }
        Ok(lark::json_line(&whole))
    }

    fn with_definitions(&self, schema: &'v Value, max: usize) -> Result<Value, String> {
        let mut names = Names::default();
        let mut whole = match self.part(schema, &mut names)? {
            Value::Null | Value::Bool(true) => json!({}),
            whole => whole,
        };
        let mut definitions = Map::new();
        let mut n_bytes = 0;
        while let Some((name, target)) = names.to_do.pop() {
            let definition = self.part(target, &mut names)?;
            n_bytes += definition.to_string().len();
            if n_bytes > max {
                return Err(format!("it needs definitions of more than {max} bytes"));
            }
            definitions.insert(name, definition);
        }
        if let (Some(map), false) = (whole.as_object_mut(), definitions.is_empty()) {
            map.insert("$defs".into(), Value::Object(definitions));
        }
        Ok(whole)
    }

    /// A copy of a schema in which references have the names of their definitions.
    fn part(&self, schema: &Value, names: &mut Names<'v>) -> Result<Value, String> {
        let map = match schema {
            Value::Object(map) => map,
            Value::Array(list) => {
                return list.iter().map(|schema| self.part(schema, names)).collect::<Result<_, _>>().map(Value::Array);
            }
            other => return Ok(other.clone()),
        };
        let mut copy = Map::new();
        for (key, value) in map {
            let value = match (key.as_str(), value) {
                // What is needed of them comes under other names, and an address of its own would hide it.
                ("$defs" | "definitions" | "$id", _) => continue,
                ("enum" | "const" | "default" | "examples", _) => value.clone(),
                ("properties" | "patternProperties", Value::Object(schemas)) => {
                    let copies = schemas.iter().map(|(name, schema)| Ok((name.clone(), self.part(schema, names)?)));
                    Value::Object(copies.collect::<Result<_, String>>()?)
                }
                ("$ref", Value::String(reference)) => {
                    let target = self.target(reference).ok_or_else(|| format!("{reference:?} leads nowhere"))?;
                    names.of(target).into()
                }
                (_, value) => self.part(value, names)?,
            };
            copy.insert(key.clone(), value);
        }
        bound_number(&mut copy);
        Ok(Value::Object(copy))
    }
}

/// The names of definitions, by what they define.
#[derive(Default)]
struct Names<'v> {
    numbers: HashMap<*const Value, usize>,
    to_do: Vec<(String, &'v Value)>,
}

impl<'v> Names<'v> {
    /// A reference to `target`.
    fn of(&mut self, target: &'v Value) -> String {
        let n = self.numbers.len();
        let number = *self.numbers.entry(std::ptr::from_ref(target)).or_insert(n);
        if number == n {
            self.to_do.push((format!("d{number}"), target));
        }
        format!("#/$defs/d{number}")
    }
}

/// The values of `enum` or `const`.
pub fn constants(schema: &Value) -> Option<&[Value]> {
    match (schema.get("enum"), schema.get("const")) {
        (Some(Value::Array(values)), _) if !values.is_empty() => Some(values),
        (_, Some(value)) => Some(std::slice::from_ref(value)),
        _ => None,
    }
}

/// Gives numbers without bounds some that every reader of JSON can take: `[-6E+60053]` would be read back as a text.
fn bound_number(schema: &mut Map<String, Value>) {
    const BOUNDS: [&str; 6] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "enum", "const"];
    let kind = schema.get("type").and_then(Value::as_str);
    if matches!(kind, Some("number" | "integer")) && !BOUNDS.iter().any(|key| schema.contains_key(*key)) {
        schema.insert("minimum".into(), json!(-LARGEST));
        schema.insert("maximum".into(), json!(LARGEST));
    }
}

/// A pointer as it was before it became a part of an address: `%20` is a space.
fn unescaped(pointer: &str) -> Option<String> {
    let mut parts = pointer.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (hex, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(hex, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

/// Numbers within JSON lie between this and its negative, where the schema does not say.
const LARGEST: i64 = 1_000_000_000_000_000;
/// References that are followed one after another.
const MAX_REFS: usize = 16;
