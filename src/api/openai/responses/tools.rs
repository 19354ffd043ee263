//! The tools of a request as functions for a template, and the way back from the name that a model calls.
//! Owns the names: a namespace's functions carry its name before their own. Tools that a server would have to bring are left out.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::error::{ApiError, shortened};

/// The tools that can be called.
#[derive(Clone, Debug, Default)]
pub(super) struct ToolMap {
    /// In the shape of chat completions.
    pub(super) functions: Vec<Value>,
    /// What was left out, for people.
    pub(super) left_out: Vec<String>,
    origins: HashMap<String, Origin>,
}

/// Where a function comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A tool of type `function`, in a namespace or in none.
    Function {
        /// Name of the namespace.
        namespace: Option<String>,
        /// Name within it.
        name: String,
    },
    /// A tool of type `custom`: its input is one text.
    Custom,
}

impl ToolMap {
    /// Reads `tools`.
    ///
    /// # Errors
    /// 400 for a tool without a name, and for two of the same name.
    pub(super) fn of(tools: &[Value]) -> Result<Self, ApiError> {
        let mut map = Self::default();
        for (i, tool) in tools.iter().enumerate() {
            let at = format!("tools[{i}]");
            match kind_of(tool) {
                "function" => map.function(&at, None, tool)?,
                "custom" => map.custom(&at, tool)?,
                "namespace" => {
                    let namespace = name_of(&at, tool)?;
                    for (k, inner) in tool.get("tools").and_then(Value::as_array).into_iter().flatten().enumerate() {
                        match kind_of(inner) {
                            "function" => map.function(&format!("{at}.tools[{k}]"), Some(namespace), inner)?,
                            kind => map.leave_out(&format!("{at}.tools[{k}]"), kind),
                        }
                    }
                }
                "" => return Err(ApiError::field("tools", format!("{at}.type: a text is expected"))),
                kind => map.leave_out(&at, kind),
            }
        }
        Ok(map)
    }

    /// Where the function of this name comes from; one that nobody offered is a function of that name.
    pub(super) fn origin(&self, called: &str) -> Origin {
        let unknown = || Origin::Function { namespace: None, name: called.to_owned() };
        self.origins.get(called).cloned().unwrap_or_else(unknown)
    }

    /// The name by which a model calls the tool of this name, in this namespace or, where that is not told, in the only one that has
    /// it. One that nobody offered keeps its name.
    pub(super) fn called(&self, namespace: Option<&str>, name: &str) -> String {
        if namespace.is_some() || self.origins.contains_key(name) {
            return called(namespace, name);
        }
        let mut within = self.origins.iter().filter_map(|(called, origin)| match origin {
            Origin::Function { name: inner, .. } if inner == name => Some(called),
            _ => None,
        });
        match (within.next(), within.next()) {
            (Some(only), None) => only.clone(),
            _ => name.to_owned(),
        }
    }

    fn function(&mut self, at: &str, namespace: Option<&str>, tool: &Value) -> Result<(), ApiError> {
        let name = name_of(at, tool)?;
        let called = called(namespace, name);
        let mut function = tool.clone();
        if let Some(fields) = function.as_object_mut() {
            fields.retain(|name, value| name != "type" && !value.is_null());
            fields.insert("name".into(), json!(called));
        }
        let origin = Origin::Function { namespace: namespace.map(str::to_owned), name: name.to_owned() };
        self.add(at, called, origin, function)
    }

    /// A tool whose input is a text, as a function with that text as its only parameter.
    fn custom(&mut self, at: &str, tool: &Value) -> Result<(), ApiError> {
        let name = name_of(at, tool)?;
        let mut description = tool.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
        let format = tool.get("format").unwrap_or(&Value::Null);
        if let Some(definition) = format.get("definition").and_then(Value::as_str) {
            let syntax = format.get("syntax").and_then(Value::as_str).unwrap_or("lark");
            description += &format!("\n\nThe input has the form of this {syntax} grammar:\n{definition}");
        }
        let input = json!({ "type": "string", "description": "The whole input of the tool." });
        let function = json!({
            "name": name,
            "description": description.trim_start(),
            "parameters": { "type": "object", "properties": { INPUT: input }, "required": [INPUT] },
        });
        self.add(at, name.to_owned(), Origin::Custom, function)
    }

    fn add(&mut self, at: &str, called: String, origin: Origin, function: Value) -> Result<(), ApiError> {
        if self.origins.contains_key(&called) {
            let message = format!("{at}: there is a tool of the name `{}` already", shortened(&called));
            return Err(ApiError::field("tools", message));
        }
        self.origins.insert(called, origin);
        self.functions.push(json!({ "type": "function", "function": function }));
        Ok(())
    }

    fn leave_out(&mut self, at: &str, kind: &str) {
        let kind = shortened(kind);
        tracing::info!(at, %kind, "a tool is left out: it is one that a server brings, and this one brings none");
        self.left_out.push(format!("{at}: `{kind}` is left out: this server brings no tools of its own"));
    }
}

/// The name by which a model calls a function.
pub(super) fn called(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        None => name.to_owned(),
        Some(space) if space.ends_with('_') => format!("{space}{name}"),
        Some(space) => format!("{space}__{name}"),
    }
}

/// The arguments of a custom tool's call.
pub(super) fn custom_arguments(input: &str) -> String {
    json!({ INPUT: input }).to_string()
}

/// The input of a custom tool, from the arguments of its call; what is no such object is the input itself.
pub(super) fn custom_input(arguments: &str) -> String {
    let value = serde_json::from_str::<Value>(arguments).ok();
    let input = value.as_ref().and_then(|value| value.get(INPUT)).and_then(Value::as_str);
    input.unwrap_or(arguments).to_owned()
}

fn kind_of(tool: &Value) -> &str {
    tool.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn name_of<'t>(at: &str, tool: &'t Value) -> Result<&'t str, ApiError> {
    let name = tool.get("name").and_then(Value::as_str).filter(|name| !name.is_empty());
    name.ok_or_else(|| ApiError::field("tools", format!("{at}.name: a text is expected")))
}

/// The parameter of a custom tool.
const INPUT: &str = "input";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespaces_functions_carry_its_name_and_find_back_to_it() {
        let search = json!({"type": "function", "name": "search", "parameters": {"type": "object"}, "strict": null});
        let tools = [
            json!({"type": "namespace", "name": "mcp__web__", "tools": [search]}),
            json!({"type": "namespace", "name": "files", "tools": [search, {"type": "mcp"}]}),
            search.clone(),
            json!({"type": "web_search"}),
        ];
        let map = ToolMap::of(&tools).unwrap();
        let names: Vec<&str> = map.functions.iter().filter_map(|tool| tool["function"]["name"].as_str()).collect();
        assert_eq!(names, ["mcp__web__search", "files__search", "search"]);
        assert_eq!(map.functions[0]["function"].get("strict"), None);
        let within = |namespace: &str| Origin::Function { namespace: Some(namespace.into()), name: "search".into() };
        assert_eq!(map.origin("mcp__web__search"), within("mcp__web__"));
        assert_eq!(map.origin("files__search"), within("files"));
        assert_eq!(map.origin("other"), Origin::Function { namespace: None, name: "other".into() });
        assert_eq!(map.left_out.len(), 2, "{:?}", map.left_out);
        assert_eq!(map.called(None, "search"), "search", "one without a namespace goes first");
        assert_eq!(map.called(Some("files"), "search"), "files__search");
        assert_eq!(ToolMap::of(&tools[..1]).unwrap().called(None, "search"), "mcp__web__search");
        assert_eq!(ToolMap::of(&tools[..2]).unwrap().called(None, "search"), "search", "two have it");
    }

    #[test]
    fn a_custom_tool_is_a_function_of_one_text() {
        let format = json!({"type": "grammar", "syntax": "lark", "definition": "start: /.+/s"});
        let tool = json!({"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": format});
        let map = ToolMap::of(&[tool]).unwrap();
        let function = &map.functions[0]["function"];
        assert_eq!(function["parameters"]["required"], json!(["input"]));
        assert!(function["description"].as_str().unwrap().ends_with("start: /.+/s"));
        assert_eq!(map.origin("apply_patch"), Origin::Custom);
        assert_eq!(custom_input(&custom_arguments("a \"b\"\n")), "a \"b\"\n");
        assert_eq!(custom_input("not JSON"), "not JSON");
    }

    #[test]
    fn a_tool_without_a_name_or_with_another_ones_is_refused() {
        for tools in [
            json!([{"type": "function"}]),
            json!([{"name": "f"}]),
            json!([{"type": "namespace", "tools": []}]),
            json!([{"type": "function", "name": "f"}, {"type": "custom", "name": "f"}]),
        ] {
            let error = ToolMap::of(tools.as_array().unwrap()).unwrap_err();
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("tools")), "{tools}");
        }
    }
}
