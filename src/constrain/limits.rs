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
    /// Bytes of the grammar that a list of tools becomes: a definition that many parameters refer to is in it many times.
    pub max_grammar_bytes: usize,
    /// Patterns under the `patternProperties` of a schema, together: each is compared with each.
    pub max_patterns: usize,
    /// Blocks of `%json` in one Lark grammar: each is a schema of its own.
    pub max_blocks: usize,
    /// Time to wait until a grammar can be built: longer than `build`, so that those behind one that overruns get their turn.
    pub wait: Duration,
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
            max_grammar_bytes: 1 << 20,
            max_patterns: 64,
            max_blocks: 64,
            wait: Duration::from_secs(15),
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

    /// Checks the key of a grammar that is still to be written: it is compared and kept.
    pub(crate) fn written(&self, what: &'static str, key: &str) -> Result<(), Error> {
        let (found, max) = (key.len(), self.max_grammar_bytes);
        if found > max { Err(Error::TooLong { what, found, max }) } else { Ok(()) }
    }

    /// Checks a number of bytes.
    ///
    /// # Errors
    /// [`Error::TooLong`].
    pub fn bytes(&self, what: &'static str, found: usize) -> Result<(), Error> {
        let max = self.max_bytes;
        if found > max { Err(Error::TooLong { what, found, max }) } else { Ok(()) }
    }

    /// Checks a number of tools or choices.
    ///
    /// # Errors
    /// [`Error::TooMany`].
    pub fn items(&self, what: &'static str, parts: &'static str, found: usize) -> Result<(), Error> {
        at_most(what, parts, found, self.max_items)
    }

    /// Checks the size of a Lark grammar, the number of schemas in it, and each of these. What follows a `%json` and is no
    /// JSON is left to whoever reads the grammar: it may stand in a text or a comment.
    pub(crate) fn lark(&self, what: &'static str, source: &str) -> Result<(), Error> {
        self.text(what, source)?;
        let blocks = || source.match_indices("%json");
        at_most(what, "blocks of %json", blocks().count(), self.max_blocks)?;
        for (at, word) in blocks() {
            // To the end of the source: the word may stand in the schema, too.
            let rest = &source[at + word.len()..];
            if let Some(Ok(schema)) = serde_json::Deserializer::from_str(rest).into_iter::<Value>().next() {
                self.schema(what, &schema)?;
            }
        }
        Ok(())
    }

    /// Checks size, depth and the numbers of definitions and patterns of a schema; gives about how many bytes it has.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::TooDeep`] and [`Error::TooMany`].
    pub fn schema(&self, what: &'static str, schema: &Value) -> Result<usize, Error> {
        let mut todo = vec![(schema, 0)];
        let (mut n_bytes, mut n_definitions, mut n_patterns) = (0, 0, 0);
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
                        let n = inner.as_object().map_or(0, serde_json::Map::len);
                        match key.as_str() {
                            "$defs" | "definitions" => n_definitions += n,
                            "patternProperties" => n_patterns += n,
                            _ => {}
                        }
                        todo.push((inner, depth + 1));
                    }
                }
                Value::Array(list) => todo.extend(list.iter().map(|inner| (inner, depth + 1))),
                _ => {}
            }
        }
        at_most(what, "definitions", n_definitions, self.max_definitions)?;
        at_most(what, "patterns of properties", n_patterns, self.max_patterns)?;
        Ok(n_bytes)
    }
}

fn at_most(what: &'static str, parts: &'static str, found: usize, max: usize) -> Result<(), Error> {
    if found > max { Err(Error::TooMany { what, parts, found, max }) } else { Ok(()) }
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
        let patterns: serde_json::Map<_, _> = (0..65).map(|i| (format!("^{i}$"), json!({}))).collect();
        let patterns = json!({"items": {"patternProperties": patterns}});
        assert!(matches!(check(&patterns), Err(Error::TooMany { found: 65, max: 64, .. })));
    }

    #[test]
    fn a_schema_within_a_grammar_is_measured_like_any_other() {
        let lark = |source: &str| Limits::default().lark("Lark grammar", source);
        let patterns = |n| -> Value {
            let patterns: serde_json::Map<_, _> = (0..n).map(|i| (format!("^{i}$"), json!({}))).collect();
            json!({"patternProperties": patterns})
        };
        let (few, many) = (patterns(64), patterns(65));
        assert_eq!(lark(&format!("start: a\na: %json {few}\nb: %json{few}\n")), Ok(()));
        let refused = Err(Error::TooMany { what: "Lark grammar", parts: "patterns of properties", found: 65, max: 64 });
        assert_eq!(lark(&format!("start: %json {many}")), refused);
        assert_eq!(lark(&format!("start: %json\n{few} | x\nx: \"(\" %json {many} \")\"")), refused);
        let spelt = many.to_string().replace("patternP", r"pattern\u0050");
        assert_eq!(lark(&format!("start: %json {spelt}")), refused, "the same key, spelt otherwise");
        let deep = (0..100).fold(json!({}), |inner, _| json!({"items": inner}));
        assert_eq!(lark(&format!("start: %json {deep}")), Err(Error::TooDeep { what: "Lark grammar", max: 64 }));
        let titled = many.to_string().replacen('{', "{\"title\": \"%json\", ", 1);
        assert_eq!(lark(&format!("start: %json {titled}")), refused, "the word within the schema");
        assert_eq!(lark("// %json {, as it should be\nstart: \"%json\""), Ok(()), "no schema");
    }
}
