//! The JSON types that a schema leaves possible for a value, and texts as JSON of such types.

use std::collections::HashMap;

use constrain::{Document, constants};
use serde_json::Value;

/// `text` as JSON of one of the types, except as a text.
pub(super) fn json_of(text: &str, types: Types) -> Option<String> {
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
pub(super) struct Types(u8);

impl Types {
    pub(super) const STRING: Self = Self(1);
    pub(super) const INTEGER: Self = Self(2);
    pub(super) const NUMBER: Self = Self(4);
    pub(super) const BOOLEAN: Self = Self(8);
    pub(super) const ARRAY: Self = Self(16);
    pub(super) const OBJECT: Self = Self(32);
    pub(super) const NULL: Self = Self(64);
    pub(super) const ANY: Self = Self(127);

    pub(super) fn has(self, other: Self) -> bool {
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
pub(super) struct Kinds<'v> {
    pub(super) document: Document<'v>,
    known: HashMap<*const Value, Types>,
}

impl<'v> Kinds<'v> {
    /// Of a document with this root.
    pub(super) fn new(root: &'v Value) -> Self {
        Self { document: Document::new(root), known: HashMap::new() }
    }

    /// What all that the schema says leaves possible. A part that depends on itself, or lies too deep, may be anything.
    pub(super) fn of(&mut self, schema: &'v Value, depth: usize) -> Types {
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
