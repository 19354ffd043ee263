//! The grammar of Qwen3.5's tool calls: a function's tags around its parameters' tags around values.
//! What it accepts, `text::reply` reads back as the call that was meant.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::{Tool, ToolChoice, Tools, unusable, values};
use crate::document::Document;
use crate::error::Error;
use crate::lark;
use crate::limits::Limits;
use crate::rules::Rules;

/// What opens a call.
pub(crate) const OPENING: &str = "<tool_call>";

/// The calls as a Lark grammar. With a free choice it begins after the first [`OPENING`], else with it.
///
/// Parameters come in the order of the schema; those that are not required may be left out.
pub(crate) fn grammar(tools: &Tools, limits: &Limits) -> Result<String, Error> {
    let (mut names, mut rules) = (Vec::new(), Rules::new(limits));
    for (i, tool) in tools.callable().enumerate() {
        function(tool, i, &mut rules)?;
        names.push(format!("tool{i}"));
    }
    let opening = if tools.choice == ToolChoice::Auto { String::new() } else { format!("{} ", lark::text(OPENING)) };
    let more = if tools.parallel {
        format!(" ({} call){{0,{}}}", lark::text(&format!("\n{OPENING}")), MAX_CALLS - 1)
    } else {
        String::new()
    };
    rules.after([format!("start: {opening}call{more}"), format!("call: {}", names.join(" | "))])
}

/// The rules of one function.
fn function(tool: &Tool, i: usize, rules: &mut Rules) -> Result<(), Error> {
    check_name("tool", &tool.name)?;
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
    let mut body = lark::text(&format!("\n<function={}>\n", tool.name));
    let mut names = Vec::new();
    for (j, (name, of)) in declared.chain(undeclared).enumerate() {
        check_name("parameter", name)?;
        let value = values::value(of, &mut document, &format!("TOOL{i}_{j}"), rules)
            .map_err(|why| unusable(&format!("parameter {name:?} of {:?}: {why}", tool.name)))?;
        rules.push(format!("tool{i}_{j}: {} {value}", lark::text(&format!("<parameter={name}>\n"))));
        body += &format!(" tool{i}_{j}{}", if required.contains(name) { "" } else { "?" });
        names.push(lark::text(name));
        rules.check()?;
    }
    if let Some(of) = schema.get("additionalProperties").filter(|of| **of != Value::Bool(false)) {
        let value = values::value(of, &mut document, &format!("TOOL{i}_MORE"), rules)
            .map_err(|why| unusable(&format!("additional parameters of {:?}: {why}", tool.name)))?;
        let others = if names.is_empty() { String::new() } else { format!(" & ~({})", names.join(" | ")) };
        rules.push(format!("TOOL{i}_NAME: /[A-Za-z_][A-Za-z0-9_]{{0,63}}/{others}"));
        rules.push(format!("tool{i}_more: \"<parameter=\" TOOL{i}_NAME \">\\n\" {value}"));
        body += &format!(" tool{i}_more*");
    }
    rules.push(format!("tool{i}: {body} {}", lark::text("</function>\n</tool_call>")));
    Ok(())
}

/// A name that stands between the brackets of a tag and is read back from there.
fn check_name(what: &str, name: &str) -> Result<(), Error> {
    let readable = !name.is_empty() && name.len() <= 128 && name.trim() == name && !name.contains(['<', '>', '\n']);
    if readable {
        return Ok(());
    }
    let shown: String = name.chars().take(60).collect();
    Err(unusable(&format!("the name of a {what} must have 1 to 128 bytes, no <, > or line break: {shown:?} found")))
}

/// Calls of one answer at most.
const MAX_CALLS: usize = 64;
