//! Parameters between tags: texts as they are, anything else as JSON. Follows the rules by which the reply parser reads them back: a
//! type that can be a text is one.

use std::collections::HashSet;

use constrain::{Document, Error, Rules, constants, lark};
use serde_json::{Map, Value};

use super::super::family::Tagged;
use super::super::texts::Texts;
use super::super::tools::{Tool, unusable};
use super::names::{is_readable, unreadable};
use super::values::{json, text_bounds};

/// The parameters of tool `i`.
pub(super) fn arguments(
    tags: &Tagged,
    texts: &Texts,
    tool: &Tool,
    i: usize,
    rules: &mut Rules,
) -> Result<String, Error> {
    let (none, anything) = (Map::new(), Value::Bool(true));
    let mut document = Document::new(&tool.parameters);
    let schema = document.resolve(document.root());
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let names = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let mut required = HashSet::new();
    let mut undeclared = Vec::new();
    for name in names {
        if required.insert(name) && !properties.contains_key(name) {
            undeclared.push((name, &anything));
        }
    }
    let declared = properties.iter().map(|(name, schema)| (name.as_str(), schema));
    let writer = Writer::new(tags, texts);
    let (mut body, mut names) = (String::new(), Vec::new());
    for (j, (name, of)) in declared.chain(undeclared).enumerate() {
        if !is_readable(name) {
            return Err(unreadable("parameter", name));
        }
        let value = writer
            .value(of, &mut document, &format!("TOOL{i}_{j}"), rules)
            .map_err(|why| unusable(&format!("parameter {name:?} of {:?}: {why}", tool.name)))?;
        let opening = texts.lark(&[tags.open, name, &writer.named].concat());
        rules.push(format!("tool{i}_{j}: {opening} {value}"));
        body += &format!(" tool{i}_{j}{}", if required.contains(name) { "" } else { "?" });
        names.push(lark::text(name));
        rules.check()?;
    }
    if let Some(of) = schema.get("additionalProperties").filter(|of| **of != Value::Bool(false)) {
        let value = writer
            .value(of, &mut document, &format!("TOOL{i}_MORE"), rules)
            .map_err(|why| unusable(&format!("additional parameters of {:?}: {why}", tool.name)))?;
        let others = if names.is_empty() { String::new() } else { format!(" & ~({})", names.join(" | ")) };
        rules.push(format!("TOOL{i}_NAME: /[A-Za-z_][A-Za-z0-9_]{{0,63}}/{others}"));
        let (open, named) = (texts.lark(tags.open), texts.lark(&writer.named));
        rules.push(format!("tool{i}_more: {open} TOOL{i}_NAME {named} {value}"));
        body += &format!(" tool{i}_more*");
    }
    Ok(body)
}

/// Writes values with the tags after them.
struct Writer<'t> {
    texts: &'t Texts,
    /// From the end of a parameter's name to its value.
    named: String,
    /// From the value to the next tag.
    closing: String,
    /// What a text cannot hold: its reader could take it for the end.
    ends: Vec<String>,
    /// What it cannot begin with.
    opening: Option<&'t str>,
}

impl<'t> Writer<'t> {
    fn new(tags: &'t Tagged, texts: &'t Texts) -> Self {
        let line = if tags.own_lines { "\n" } else { "" };
        let gap = if tags.value.is_empty() { "" } else { tags.gap };
        let cut = |tag: &str| tag.trim_end_matches('>').to_owned();
        let mut ends: Vec<String> = [tags.close].into_iter().chain(tags.end).map(cut).collect();
        // The line break before a tag may be the one after the opening tag.
        ends.extend(tags.own_lines.then(|| format!("\n{}", tags.open)));
        Self {
            texts,
            named: [tags.named, gap, tags.value, line].concat(),
            closing: [line, tags.close, tags.gap].concat(),
            ends,
            opening: tags.own_lines.then_some(tags.open),
        }
    }

    /// The grammar of a value by `schema`, a part of `document`, with the closing tag. A terminal that it needs is called `name`
    /// and added to `rules`.
    fn value<'v>(
        &self,
        schema: &'v Value,
        document: &mut Document<'v>,
        name: &str,
        rules: &mut Rules,
    ) -> Result<String, String> {
        let resolved = document.resolve(schema);
        if let Some(constants) = constants(resolved) {
            let literals: Vec<String> = constants.iter().map(|value| self.literal(value)).collect::<Result<_, _>>()?;
            return Ok(format!("({})", literals.join(" | ")));
        }
        let closing = self.texts.lark(&self.closing);
        if document.may_be_text(schema) {
            let (in_terminal, rest) = self.texts.split(&self.closing);
            let text = self.text(resolved)?;
            let ending = if in_terminal.is_empty() { String::new() } else { lark::text(in_terminal) };
            rules.push(format!("{name}: ({text}) {ending}"));
            return Ok(format!("{name} {}", self.texts.lark(rest)));
        }
        Ok(format!("{} {closing}", json(resolved, document, rules)?))
    }

    /// One value, written out, with the closing tag.
    fn literal(&self, value: &Value) -> Result<String, String> {
        let written = match value {
            Value::String(text) => {
                if self.ends.iter().any(|end| format!("\n{text}").contains(end)) {
                    return Err(format!("the text {text:?} would end its own tags"));
                }
                text.clone()
            }
            other => other.to_string(),
        };
        let (with, rest) = self.texts.split(&self.closing);
        Ok(format!("{} {}", lark::text(&(written + with)), self.texts.lark(rest)))
    }

    /// Any text that does not look like the end of a value, as far as pattern and length allow: expressions that must all match.
    fn text(&self, schema: &Value) -> Result<String, String> {
        let ends = format!(r"(?s:.*)({})(?s:.*)", self.ends.join("|").replace('\n', r"\n"));
        let mut parts = vec![lark::regex("(?s:.*)"), format!("~{}", lark::regex(&ends))];
        parts.extend(self.opening.map(|tag| format!("~{}", lark::regex(&format!("{tag}(?s:.*)")))));
        parts.extend(text_bounds(schema)?);
        Ok(parts.join(" & "))
    }
}
