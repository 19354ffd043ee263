//! Parameters between tags: texts as they are, anything else as JSON. Follows the rules by which the reply parser reads them back: a
//! type that can be a text is one.

use std::collections::HashSet;

use constrain::{Document, Error, Rules, constants, lark};
use serde_json::{Map, Value};

use super::super::family::{TYPE, Tagged};
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
        let openings = |named: &str| texts.lark(&[tags.open, name, named].concat());
        rules.push(format!("tool{i}_{j}: {}", writer.alternatives(&value, openings)));
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
        let opening = |named: &str| format!("{} TOOL{i}_NAME {}", texts.lark(tags.open), texts.lark(named));
        rules.push(format!("tool{i}_more: {}", writer.alternatives(&value, opening)));
        body += &format!(" tool{i}_more*");
    }
    Ok(body)
}

/// Values with the tags after them: of a text, of anything else.
#[derive(Default)]
struct Values {
    text: Option<String>,
    other: Option<String>,
}

/// Writes values with the tags after them.
struct Writer<'t> {
    texts: &'t Texts,
    types: (&'t str, &'t [&'t str]),
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
            types: tags.types,
            named: [tags.named, gap, tags.value, line].concat(),
            closing: [line, tags.close, tags.gap].concat(),
            ends,
            opening: tags.own_lines.then_some(tags.open),
        }
    }

    /// Values after what opens them: `opening` of what stands between a parameter's name and its value.
    fn alternatives(&self, values: &Values, opening: impl Fn(&str) -> String) -> String {
        let (text, others) = self.types;
        let one = |word: &str, value: &str| format!("{} {value}", opening(&self.named.replace(TYPE, word)));
        let others = if self.named.contains(TYPE) { others } else { &[""] };
        let texts = values.text.iter().map(|value| one(text, value));
        let all = texts.chain(values.other.iter().flat_map(|value| others.iter().map(move |word| one(word, value))));
        all.collect::<Vec<_>>().join(" | ")
    }

    /// The grammar of a value by `schema`, a part of `document`, with the closing tag. A terminal that it needs is called `name`
    /// and added to `rules`.
    fn value<'v>(
        &self,
        schema: &'v Value,
        document: &mut Document<'v>,
        name: &str,
        rules: &mut Rules,
    ) -> Result<Values, String> {
        let resolved = document.resolve(schema);
        if let Some(constants) = constants(resolved) {
            let (texts, others): (Vec<&Value>, Vec<&Value>) = constants.iter().partition(|value| value.is_string());
            return Ok(Values { text: self.literals(&texts)?, other: self.literals(&others)? });
        }
        let closing = self.texts.lark(&self.closing);
        if document.may_be_text(schema) {
            let (in_terminal, rest) = self.texts.split(&self.closing);
            let text = self.text(resolved)?;
            let ending = if in_terminal.is_empty() { String::new() } else { lark::text(in_terminal) };
            rules.push(format!("{name}: ({text}) {ending}"));
            let text = Some(format!("{name} {}", self.texts.lark(rest)));
            return Ok(Values { text, other: None });
        }
        Ok(Values { text: None, other: Some(format!("{} {closing}", json(resolved, document, rules)?)) })
    }

    /// Any of these values.
    fn literals(&self, values: &[&Value]) -> Result<Option<String>, String> {
        let all: Vec<String> = values.iter().map(|value| self.literal(value)).collect::<Result<_, _>>()?;
        Ok((!all.is_empty()).then(|| format!("({})", all.join(" | "))))
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
        let mut parts = vec![lark::regex("(?s:.*)")];
        // A control token never comes as text.
        let ends = self.ends.iter().filter(|end| !self.texts.split(end).0.is_empty());
        let ends: Vec<String> = ends.map(|end| end.replace('|', r"\|").replace('\n', r"\n")).collect();
        if !ends.is_empty() {
            parts.push(format!("~{}", lark::regex(&format!(r"(?s:.*)({})(?s:.*)", ends.join("|")))));
        }
        parts.extend(self.opening.map(|tag| format!("~{}", lark::regex(&format!("{tag}(?s:.*)")))));
        parts.extend(text_bounds(schema)?);
        Ok(parts.join(" & "))
    }
}
