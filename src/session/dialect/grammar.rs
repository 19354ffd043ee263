//! The grammar of tool calls, from the form that a template shows. What it accepts, the reply parser of the family reads back as the
//! call that was meant.

mod marked;
mod tagged;
mod values;

use constrain::{Document, Error, Limits, Rules};
use serde_json::Value;

use super::family::{Arguments, Form, ID};
use super::texts::Texts;
use super::tools::{Tool, ToolChoice, Tools, unusable};

/// The calls as a Lark grammar. With a free choice it begins after the opening of the first call, else with it.
///
/// Arguments come in the order of the schema; those that are not required may be left out.
pub(super) fn grammar(form: &Form, texts: &Texts, tools: &Tools, limits: &Limits) -> Result<String, Error> {
    let (mut names, mut rules) = (Vec::new(), Rules::new(limits));
    for (i, tool) in tools.callable().enumerate() {
        check_name("tool", &tool.name, form)?;
        let body = function(form, texts, tool, i, &mut rules)?;
        let before = [form.before, &name_in(form, &tool.name), form.after].concat();
        rules.push(format!("tool{i}: {} {body} {}", texts.lark(&before), texts.lark(form.end)));
        rules.check()?;
        names.push(format!("tool{i}"));
    }
    let opening = if tools.choice == ToolChoice::Auto { "" } else { form.opening };
    let more = match form.between.filter(|_| tools.parallel) {
        Some(between) => format!("({} call){{0,{}}}", texts.lark(between), MAX_CALLS - 1),
        None => String::new(),
    };
    let opening = texts.lark(&[opening, form.first].concat());
    let start = format!("start: {opening} call {more} {}", texts.lark(form.closing));
    rules.after([start, format!("call: {}", names.join(" | "))])
}

/// The arguments of one function.
fn function(form: &Form, texts: &Texts, tool: &Tool, i: usize, rules: &mut Rules) -> Result<String, Error> {
    let of_tool = |why| unusable(&format!("the arguments of {:?}: {why}", tool.name));
    match &form.arguments {
        Arguments::Tagged(tags) => tagged::arguments(tags, texts, tool, i, rules),
        Arguments::Marked(mark) => marked::arguments(mark, texts, tool, i, rules).map_err(of_tool),
        Arguments::Object | Arguments::Json => {
            let schema = Document::new(&tool.parameters).object(rules.max_bytes()).map_err(of_tool)?;
            Ok(rules.json(schema))
        }
    }
}

/// A name as it stands in a call.
fn name_in(form: &Form, name: &str) -> String {
    match form.arguments {
        Arguments::Object => {
            let quoted = Value::from(name).to_string();
            quoted[1..quoted.len() - 1].to_owned()
        }
        _ => name.to_owned(),
    }
}

/// A name that can be read back from between the texts around it.
fn check_name(what: &str, name: &str, form: &Form) -> Result<(), Error> {
    let cuts = form.after.trim().split(ID).next().filter(|cut| !cut.is_empty());
    let is_cut = !matches!(form.arguments, Arguments::Object) && cuts.is_some_and(|cut| name.contains(cut));
    // A name that begins its call must not look like text.
    let is_text = form.before.is_empty() && name.contains(char::is_whitespace);
    if is_readable(name) && !is_cut && !is_text {
        return Ok(());
    }
    Err(unreadable(what, name))
}

fn is_readable(name: &str) -> bool {
    !name.is_empty() && name.len() <= 128 && name.trim() == name && !name.contains(['<', '>', '\n', ID])
}

fn unreadable(what: &str, name: &str) -> Error {
    let shown: String = name.chars().take(60).collect();
    unusable(&format!("the name of a {what} must have 1 to 128 bytes, no <, > or line break: {shown:?} found"))
}

/// Calls of one reply at most.
const MAX_CALLS: usize = 64;
