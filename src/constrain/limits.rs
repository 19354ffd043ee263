//! How much of a request is taken, and how long may be spent on it. Checks size and depth without recursion.

use std::time::Duration;

use serde_json::Value;

use crate::error::Error;

/// Bounds on what comes from outside.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a schema, an expression, a grammar, all choices, or the definitions of all tools.
    pub max_bytes: usize,
    /// Levels of a schema.
    pub max_depth: usize,
    /// Entries under the `$defs` and `definitions` of a schema, together.
    pub max_definitions: usize,
    /// Tools of one request, and choices.
    pub max_items: usize,
    /// Time to build one grammar.
    pub build: Duration,
    /// Time for one mask. Beyond it the answer ends.
    pub mask: Duration,
    /// Lexer states that one answer may make; each takes one or two kB.
    pub max_lexer_states: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_bytes: 64 << 10,
            max_depth: 64,
            max_definitions: 500,
            max_items: 1024,
            build: Duration::from_secs(10),
            mask: Duration::from_secs(1),
            max_lexer_states: 50_000,
        }
    }
}

impl Limits {
    /// Checks the size of a text.
    pub(crate) fn text(&self, what: &'static str, text: &str) -> Result<(), Error> {
        self.bytes(what, text.len())
    }

    pub(crate) fn bytes(&self, what: &'static str, found: usize) -> Result<(), Error> {
        let max = self.max_bytes;
        if found > max { Err(Error::TooLong { what, found, max }) } else { Ok(()) }
    }

    pub(crate) fn items(&self, what: &'static str, parts: &'static str, found: usize) -> Result<(), Error> {
        let max = self.max_items;
        if found > max { Err(Error::TooMany { what, parts, found, max }) } else { Ok(()) }
    }

    /// Checks size, depth and number of definitions of a schema; gives about how many bytes it has.
    pub(crate) fn schema(&self, what: &'static str, schema: &Value) -> Result<usize, Error> {
        let mut todo = vec![(schema, 0)];
        let (mut n_bytes, mut n_definitions) = (0, 0);
        while let Some((value, depth)) = todo.pop() {
            if depth > self.max_depth {
                return Err(Error::TooDeep { what, max: self.max_depth });
            }
            n_bytes += match value {
                Value::String(text) => text.len() + 3,
                Value::Object(map) => map.keys().map(|key| key.len() + 4).sum(),
                Value::Array(list) => list.len() + 2,
                Value::Null | Value::Bool(_) | Value::Number(_) => 4,
            };
            self.bytes(what, n_bytes)?;
            match value {
                Value::Object(map) => {
                    for (key, inner) in map {
                        if matches!(key.as_str(), "$defs" | "definitions") {
                            n_definitions += inner.as_object().map_or(0, serde_json::Map::len);
                        }
                        todo.push((inner, depth + 1));
                    }
                }
                Value::Array(list) => todo.extend(list.iter().map(|inner| (inner, depth + 1))),
                _ => {}
            }
        }
        if n_definitions > self.max_definitions {
            let (found, max) = (n_definitions, self.max_definitions);
            return Err(Error::TooMany { what, parts: "definitions", found, max });
        }
        Ok(n_bytes)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: &Value) -> Result<usize, Error> {
        Limits::default().schema("schema", schema)
    }

    #[test]
    fn a_schema_is_measured_before_it_is_read() {
        assert!(check(&json!({"type": "object", "properties": {"a": {"type": "string"}}})).is_ok());
        let deep = (0..100).fold(json!({}), |inner, _| json!({"items": inner}));
        assert_eq!(check(&deep), Err(Error::TooDeep { what: "schema", max: 64 }));
        let long = json!({"enum": ["x".repeat(70_000)]});
        assert!(matches!(check(&long), Err(Error::TooLong { max: 65_536, .. })));
        let wide: Value = (0..40_000).map(|i| json!(i)).collect();
        assert!(matches!(check(&wide), Err(Error::TooLong { .. })));
        let many: serde_json::Map<_, _> = (0..501).map(|i| (format!("d{i}"), json!({}))).collect();
        let many = json!({"$defs": many});
        assert!(matches!(check(&many), Err(Error::TooMany { found: 501, max: 500, .. })));
    }
}
