//! A value that stands as tags within each other, as JSON: fields of objects are tags of their names, items of lists are `item`.
//! What a schema can have as a text is one, whatever it looks like.

use serde_json::Value;

use super::types::{Kinds, Types, escaped, json_of};
use crate::dialect::family::Tagged;

/// The value of the parameter `name` of a function whose parameters have the schema `root`.
pub(super) fn json(text: &str, tags: &'static Tagged, root: &Value, name: &str) -> String {
    let mut reader = Reader { tags, kinds: Kinds::new(root) };
    let schema = reader.field(root, name);
    reader.value(text, schema, 0)
}

struct Reader<'v> {
    tags: &'static Tagged,
    kinds: Kinds<'v>,
}

impl<'v> Reader<'v> {
    fn value(&mut self, text: &str, schema: Option<&'v Value>, depth: usize) -> String {
        let types = schema.map_or(Types::ANY, |schema| self.kinds.of(schema, 0));
        let may_nest = (types == Types::ANY || !types.has(Types::STRING)) && depth < MAX_DEPTH;
        if let Some(children) = self.children(text.trim()).filter(|_| may_nest) {
            let are_items = children.iter().all(|(name, _)| *name == ITEM);
            if children.is_empty() {
                match types {
                    Types::ARRAY => return "[]".to_owned(),
                    Types::OBJECT => return "{}".to_owned(),
                    _ => {}
                }
            } else if are_items && types.has(Types::ARRAY) {
                let of = schema.and_then(|schema| self.part(schema, 0, &|schema| schema.get("items")));
                let items: Vec<String> = children.iter().map(|(_, inner)| self.value(inner, of, depth + 1)).collect();
                return format!("[{}]", items.join(", "));
            } else if types.has(Types::OBJECT) {
                let fields = children.iter().map(|(name, inner)| {
                    let of = schema.and_then(|schema| self.field(schema, name));
                    format!("\"{}\": {}", escaped(name), self.value(inner, of, depth + 1))
                });
                return format!("{{{}}}", fields.collect::<Vec<_>>().join(", "));
            }
        }
        json_of(text, types).unwrap_or_else(|| format!("\"{}\"", escaped(text)))
    }

    /// What a schema says of one of its fields.
    fn field(&self, schema: &'v Value, name: &str) -> Option<&'v Value> {
        let property = |schema: &'v Value| schema.get("properties")?.get(name);
        self.part(schema, 0, &property).or_else(|| self.part(schema, 0, &|schema| schema.get("additionalProperties")))
    }

    /// The first part of this kind that a schema, or one of those that it is made of, has.
    fn part(&self, schema: &'v Value, depth: usize, of: &impl Fn(&'v Value) -> Option<&'v Value>) -> Option<&'v Value> {
        let schema = self.kinds.document.resolve(schema);
        let parts = || ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|key| schema.get(key)?.as_array()).flatten();
        of(schema).or_else(|| match depth < MAX_PARTS {
            true => parts().find_map(|part| self.part(part, depth + 1, of)),
            false => None,
        })
    }

    /// Name and inside of each tag; `None` where anything else stands between them.
    fn children<'t>(&self, text: &'t str) -> Option<Vec<(&'t str, &'t str)>> {
        let (mut found, mut rest) = (Vec::new(), text.trim_start());
        while !rest.is_empty() {
            let (name, inside) = rest.strip_prefix(self.tags.open)?.split_once('>')?;
            if name.is_empty() || name.starts_with('/') || name.contains(['<', '"', '\n']) {
                return None;
            }
            let at = self.end_of(name, inside)?;
            found.push((name, &inside[..at]));
            rest = inside[at + self.tags.close.len() + name.len() + 1..].trim_start();
        }
        Some(found)
    }

    /// Where the tag that closes `name` begins.
    fn end_of(&self, name: &str, text: &str) -> Option<usize> {
        let (open, close) = ([self.tags.open, name, ">"].concat(), [self.tags.close, name, ">"].concat());
        let (mut at, mut n_open) = (0, 0_usize);
        loop {
            let next = at + text[at..].find(&close)?;
            n_open += text[at..next].matches(&open).count();
            if n_open == 0 {
                return Some(next);
            }
            n_open -= 1;
            at = next + close.len();
        }
    }
}

/// The name of the items of lists.
const ITEM: &str = "item";
/// Tags within each other that are read; deeper ones are text.
const MAX_DEPTH: usize = 32;
/// Schemas made of others that are looked into.
const MAX_PARTS: usize = 4;
