//! Arguments as Python's keyword arguments with values of JSON, in the order of the schema.

use std::collections::HashSet;

use constrain::{Document, Rules, lark};
use serde_json::Value;

use super::super::tools::Tool;
use super::values::{json, sequence};

/// The arguments of tool `i`, without the brackets around them.
pub(super) fn arguments(tool: &Tool, i: usize, rules: &mut Rules) -> Result<String, String> {
    let anything = Value::Bool(true);
    let document = Document::new(&tool.parameters);
    let schema = document.resolve(document.root());
    let names = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let required: Vec<&str> = names.collect();
    let properties = schema.get("properties").and_then(Value::as_object);
    if let Some(name) = required.iter().find(|name| !properties.is_some_and(|all| all.contains_key(**name))) {
        return Err(format!("{name:?} is required and not among the properties"));
    }
    let mut fields = Vec::new();
    for (j, (name, of)) in properties.into_iter().flatten().enumerate() {
        let is_word = name.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_alphanumeric() || c == '_');
        if !is_word {
            return Err(format!("{name:?} cannot be the name of a keyword argument"));
        }
        let of = document.resolve(of);
        let value = json(if leads_to_itself(&document, of) { &anything } else { of }, &document, rules)?;
        rules.push(format!("tool{i}_{j}: {} {value}", lark::text(&format!("{name}="))));
        fields.push((format!("tool{i}_{j}"), required.contains(&name.as_str())));
        rules.check().map_err(|error| error.to_string())?;
    }
    let mut n = 0;
    Ok(sequence(&fields, "\", \"", |body| {
        let name = format!("tool{i}_s{n}");
        n += 1;
        rules.push(format!("{name}: {body}"));
        name
    }))
}

/// Whether the alternatives of this schema lead to one place twice: there may be no value where one is the schema itself.
fn leads_to_itself(document: &Document<'_>, schema: &Value) -> bool {
    let (mut seen, mut to_do) = (HashSet::from([std::ptr::from_ref(schema)]), vec![schema]);
    while let Some(next) = to_do.pop() {
        let lists = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|key| next.get(key)?.as_array());
        for part in lists.flatten() {
            let part = document.resolve(part);
            if !seen.insert(std::ptr::from_ref(part)) || part.get("$ref").is_some() {
                return true;
            }
            to_do.push(part);
        }
    }
    false
}
