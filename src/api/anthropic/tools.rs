//! Anthropic's tools as functions. Those that Anthropic types but the client runs have published parameters; those that a server
//! brings are left out.

use serde_json::{Value, json};

use super::types::InputTool;
use crate::error::{ApiError, shortened};

/// The tools that can be called, in the shape of chat completions, and what was left out, for people.
///
/// # Errors
/// 400 for a tool without a name.
pub(super) fn tools(tools: &[InputTool]) -> Result<(Vec<Value>, Vec<String>), ApiError> {
    let (mut functions, mut left_out) = (Vec::new(), Vec::new());
    for (i, tool) in tools.iter().enumerate() {
        match parameters(tool) {
            Some(_) if tool.name.is_empty() => {
                return Err(ApiError::field("tools", format!("tools[{i}].name: a text is expected")));
            }
            Some((parameters, description)) => {
                let mut function = json!({ "name": tool.name });
                if let Some(description) = tool.description.as_deref().or(description) {
                    function["description"] = json!(description);
                }
                function["parameters"] = parameters;
                functions.push(json!({ "type": "function", "function": function }));
            }
            None => {
                let kind = shortened(tool.kind.as_deref().unwrap_or_default());
                tracing::info!(i, %kind, "a tool is left out: it is one that a server brings, and this one brings none");
                left_out.push(format!("tools[{i}]: `{kind}` is left out: this server brings no tools of its own"));
            }
        }
    }
    Ok((functions, left_out))
}

/// The JSON schema of a tool's arguments, and what it is for where the request need not say so; `None`: the client cannot run it.
fn parameters(tool: &InputTool) -> Option<(Value, Option<&'static str>)> {
    let kind = tool.kind.as_deref().unwrap_or("custom");
    // The rest of a type is its date.
    let family = kind.trim_end_matches(|c: char| c.is_ascii_digit());
    match family {
        "custom" => {
            let schema = tool.input_schema.clone();
            Some((schema.unwrap_or_else(|| json!({ "type": "object", "properties": {} })), None))
        }
        "bash_" => Some((bash(), Some("Runs a command in a shell that stays open between calls."))),
        "text_editor_" => Some((editor(false), Some("Views, creates and edits text files."))),
        "memory_" => {
            Some((editor(true), Some("Keeps notes in files under /memories from one conversation to the next.")))
        }
        _ => None,
    }
}

fn bash() -> Value {
    json!({
        "type": "object",
        "properties": {
            "command": { "type": "string", "description": "The command to run; needed unless `restart` is true." },
            "restart": { "type": "boolean", "description": "True starts the shell anew." },
        },
    })
}

/// A view names a path only, the other commands what they write; memory can delete and rename too.
fn editor(memory: bool) -> Value {
    let mut commands = vec!["view", "create", "str_replace", "insert"];
    let text = |description: &str| json!({ "type": "string", "description": description });
    let range = json!({
        "type": "array", "items": { "type": "integer" },
        "description": "For `view` of a file: first and last line, from 1; -1 is the last.",
    });
    let line =
        json!({ "type": "integer", "description": "For `insert`: the line after which to insert; 0 is the start." });
    let mut properties = json!({
        "path": text("The file or folder."),
        "view_range": range,
        "file_text": text("For `create`: the content of the file."),
        "old_str": text("For `str_replace`: the text to replace, which must occur once."),
        "new_str": text("For `str_replace`: the text in its place."),
        "insert_line": line,
    });
    if memory {
        commands.extend(["delete", "rename"]);
        properties["insert_text"] = text("For `insert`: the text.");
        properties["old_path"] = text("For `rename`: the file or folder.");
        properties["new_path"] = text("For `rename`: its new name.");
    } else {
        properties["new_str"] = text("For `str_replace`: the text in its place; for `insert`: the text.");
    }
    properties["command"] = json!({ "type": "string", "enum": commands, "description": "What to do." });
    let required = if memory { json!(["command"]) } else { json!(["command", "path"]) };
    json!({ "type": "object", "properties": properties, "required": required })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_tools_of_the_client_become_functions_and_those_of_a_server_are_left_out() {
        let given = json!([
            {"type": "bash_20250124", "name": "bash"},
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 10000},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
            {"type": "mcp_toolset", "mcp_server_name": "x"},
            {"name": "weather", "description": "d", "input_schema": {"type": "object"}},
        ]);
        let given: Vec<InputTool> = serde_json::from_value(given).unwrap();
        let (functions, left_out) = tools(&given).unwrap();
        let names: Vec<&str> = functions.iter().filter_map(|tool| tool["function"]["name"].as_str()).collect();
        assert_eq!(names, ["bash", "str_replace_based_edit_tool", "weather"]);
        assert_eq!(functions[1]["function"]["parameters"]["required"], json!(["command", "path"]));
        assert_eq!(left_out.len(), 2, "{left_out:?}");
        assert!(left_out[0].contains("web_search_20250305"), "{left_out:?}");
        let nameless: Vec<InputTool> = serde_json::from_value(json!([{"input_schema": {}}])).unwrap();
        assert!(tools(&nameless).is_err());
    }
}
