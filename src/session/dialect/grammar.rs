//! The grammar of tool calls, from the form that a template shows. What it accepts, the reply parser of the family reads back as the
//! call that was meant.

mod keywords;
mod marked;
mod names;
mod tagged;
mod values;

use constrain::{Document, Error, Limits, Rules};

use super::family::{Arguments, Form};
use super::texts::Texts;
use super::tools::{Tool, ToolChoice, Tools, unusable};
use names::{check_name, name_in};

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
        Arguments::Keywords => keywords::arguments(tool, i, rules).map_err(of_tool),
        Arguments::Marked(mark) => marked::arguments(mark, texts, tool, i, rules).map_err(of_tool),
        Arguments::Object | Arguments::Json => {
            let schema = Document::new(&tool.parameters).object(rules.max_bytes()).map_err(of_tool)?;
            Ok(rules.json(schema))
        }
    }
}

/// Calls of one reply at most.
const MAX_CALLS: usize = 64;
