//! Anthropic's request as a conversation in the shape that templates know.

use serde_json::{Map, Value, json};

use super::notes::{text_of, without_header};
use super::tools::tools;
use super::types::{Content, InputMessage, InputToolChoice, MessagesRequest};
use crate::content::Content as Contents;
use crate::error::{ApiError, shortened};
use crate::form;
use crate::params::range;
use session::{Conversation, Reasoning, ToolChoice};

/// The conversation and all that shapes its prompt, and what of the request was left out. A model that does not see (`sees`) is
/// told of images.
///
/// # Errors
/// 400 with the field that cannot be taken.
pub(super) fn chat_input(
    body: MessagesRequest,
    defaults: &Reasoning,
    sees: bool,
) -> Result<(Conversation, Vec<String>), ApiError> {
    let mut messages = Vec::new();
    if let Some(system) = &body.system {
        let text = match system {
            Content::Text(text) => without_header(text).to_owned(),
            Content::Blocks(blocks) => {
                let texts = texts(blocks, "system")?;
                let texts: Vec<&str> = texts.iter().map(|text| without_header(text)).collect();
                texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n")
            }
        };
        if !text.is_empty() {
            messages.push(json!({ "role": "system", "content": text }));
        }
    }
    if body.messages.is_empty() {
        return Err(ApiError::field("messages", "messages: at least one message is expected"));
    }
    for (i, message) in body.messages.iter().enumerate() {
        turn(i, message, sees, &mut messages)?;
    }
    let (tool_choice, one_call) = tool_choice(body.tool_choice.as_ref())?;
    let config = body.output_config.unwrap_or_default();
    let mut reasoning = defaults.clone();
    // Thinking is a block of its own here, and clients that did not ask for it do not expect one.
    reasoning.in_content = false;
    match body.thinking.as_ref().map(|t| (t.kind.as_str(), t.budget_tokens)) {
        None | Some(("disabled", _)) => reasoning.enable = Some(false),
        Some(("enabled" | "adaptive", budget)) => {
            reasoning.enable = Some(true);
            if let Some(effort) = &config.effort {
                form::effort(&mut reasoning, "output_config.effort", effort)?;
            }
            if let Some(n) = budget {
                reasoning.with_budget(Some(range("thinking.budget_tokens", n, 1, i64::MAX)? as usize));
            }
        }
        Some((kind, _)) => {
            let message = format!("thinking.type: enabled, adaptive or disabled expected, `{}` found", shortened(kind));
            return Err(ApiError::field("thinking", message));
        }
    }
    let kwargs = match keeps_thinking(body.context_management.as_ref()) {
        true => Map::from_iter([(session::PRESERVE_THINKING.to_owned(), Value::Bool(true))]),
        false => Map::new(),
    };
    let (tools, left_out) = tools(body.tools.as_deref().unwrap_or_default())?;
    let conversation = Conversation {
        messages,
        tools,
        tool_choice,
        one_call,
        form: form::format_of("output_config.format", config.format.as_ref())?,
        reasoning,
        kwargs,
        reads_calls: false,
        continue_last: true,
        ..Conversation::default()
    };
    Ok((conversation, left_out))
}

/// Whether the thinking of all earlier turns is to stay.
fn keeps_thinking(management: Option<&Value>) -> bool {
    let edits = management.and_then(|management| management.get("edits")?.as_array());
    edits.into_iter().flatten().any(|edit| {
        let kind = edit.get("type").and_then(Value::as_str).unwrap_or_default();
        let keep = edit.get("keep");
        let is_all = keep.is_some_and(|keep| keep == "all" || keep.get("type").is_some_and(|kind| kind == "all"));
        kind.starts_with("clear_thinking_") && is_all
    })
}

/// One turn as one message or several: results of tools are messages of their own.
fn turn(i: usize, message: &InputMessage, sees: bool, to: &mut Vec<Value>) -> Result<(), ApiError> {
    let role = message.role.as_str();
    if !matches!(role, "user" | "assistant" | "system") {
        let found = shortened(role);
        let message = format!("messages[{i}].role: user or assistant expected, `{found}` found");
        return Err(ApiError::field("messages", message));
    }
    let blocks = match &message.content {
        Content::Text(text) => {
            to.push(json!({ "role": role, "content": text }));
            return Ok(());
        }
        Content::Blocks(blocks) => blocks,
    };
    let (mut said, mut reasoning, mut calls) = (Contents::default(), String::new(), Vec::new());
    let n_before = to.len();
    for (k, block) in blocks.iter().enumerate() {
        let at = format!("messages[{i}].content[{k}]");
        let field = |name: &str| {
            let value = block.get(name).and_then(Value::as_str);
            value.ok_or_else(|| ApiError::field("messages", format!("{at}.{name}: a text is expected")))
        };
        match (block.get("type").and_then(Value::as_str).unwrap_or_default(), role) {
            ("text", _) => said.text(field("text")?),
            ("image", "user") if sees => image(block, &at)?.add_to(&mut said),
            ("thinking", "assistant") => reasoning += field("thinking")?,
            ("redacted_thinking", "assistant") => {}
            ("tool_use", "assistant") => {
                let input = block.get("input").filter(|input| input.is_object()).cloned();
                let input =
                    input.ok_or_else(|| ApiError::field("messages", format!("{at}.input: an object expected")))?;
                let function = json!({ "name": field("name")?, "arguments": input });
                calls.push(json!({ "id": field("id")?, "type": "function", "function": function }));
            }
            ("tool_result", "user") => {
                if !said.is_empty() {
                    to.push(json!({ "role": "user", "content": std::mem::take(&mut said).into_value() }));
                }
                let content = result(block.get("content"), &format!("{at}.content"), sees)?;
                to.push(json!({ "role": "tool", "tool_call_id": field("tool_use_id")?, "content": content }));
            }
            ("tool_use" | "thinking" | "tool_result", _) => {
                let kind = block.get("type").and_then(Value::as_str).unwrap_or_default();
                let message = format!("{at}: a message of the role {role} has no blocks of type {kind}");
                return Err(ApiError::field("messages", message));
            }
            _ => said.text(&text_of(block).ok_or_else(|| typeless(&at))?),
        }
    }
    let is_only_results = to.len() > n_before && said.is_empty();
    if is_only_results {
        return Ok(());
    }
    let mut message = json!({ "role": role, "content": said.into_value() });
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    to.push(message);
    Ok(())
}

/// What a tool gave.
fn result(content: Option<&Value>, at: &str, sees: bool) -> Result<Value, ApiError> {
    let parts = match content {
        None | Some(Value::Null) => return Ok("".into()),
        Some(Value::String(text)) => return Ok(text.as_str().into()),
        Some(Value::Array(parts)) => parts,
        Some(_) => return Err(ApiError::field("messages", format!("{at}: a text or blocks expected"))),
    };
    let mut contents = Contents::default();
    for (k, block) in parts.iter().enumerate() {
        match block.get("type").and_then(Value::as_str) {
            Some("image") if sees => image(block, &format!("{at}[{k}]"))?.add_to(&mut contents),
            _ => contents.line(&text_of(block).ok_or_else(|| typeless(at))?),
        }
    }
    Ok(contents.into_value())
}

/// Where a block has its image.
enum Image<'a> {
    Base64(&'a str),
    Url(&'a str),
}

impl Image<'_> {
    fn add_to(self, contents: &mut Contents) {
        match self {
            Image::Base64(encoded) => contents.image_of_base64(encoded),
            Image::Url(url) => contents.image(url),
        }
    }
}

fn image<'a>(block: &'a Value, at: &str) -> Result<Image<'a>, ApiError> {
    let source = |name: &str| block.get("source").and_then(|source| source.get(name)?.as_str());
    match (source("type"), source("data"), source("url")) {
        (Some("base64"), Some(data), _) => Ok(Image::Base64(data)),
        (Some("url"), _, Some(url)) => Ok(Image::Url(url)),
        _ => {
            let message =
                format!("{at}.source: an object of type base64 with `data`, or of type url with `url`, expected");
            Err(ApiError::field("messages", message))
        }
    }
}

/// The texts of blocks that are nothing else.
fn texts(blocks: &[Value], name: &str) -> Result<Vec<String>, ApiError> {
    let one = |block: &Value| {
        let is_text = block.get("type").and_then(Value::as_str) == Some("text");
        block.get("text").and_then(Value::as_str).filter(|_| is_text).map(str::to_owned)
    };
    let all: Option<Vec<String>> = blocks.iter().map(one).collect();
    let param = name.split(['.', '[']).next().unwrap_or(name);
    all.ok_or_else(|| {
        ApiError::field(param, format!("{name}: blocks of type text expected: this server takes text only"))
    })
}

fn typeless(at: &str) -> ApiError {
    ApiError::field("messages", format!("{at}: a block with a type is expected"))
}

/// The choice, and whether one call is the most.
fn tool_choice(choice: Option<&InputToolChoice>) -> Result<(ToolChoice, bool), ApiError> {
    let Some(choice) = choice else { return Ok((ToolChoice::Auto, false)) };
    let wrong = |what: &str| ApiError::field("tool_choice", format!("tool_choice{what}"));
    let which = match (choice.kind.as_str(), &choice.name) {
        ("auto", _) => ToolChoice::Auto,
        ("any", _) => ToolChoice::Required,
        ("none", _) => ToolChoice::None,
        ("tool", Some(name)) => ToolChoice::Named(name.clone()),
        ("tool", None) => return Err(wrong(".name: the name of a tool is expected")),
        _ => return Err(wrong(".type: auto, any, tool or none expected")),
    };
    Ok((which, choice.disable_parallel_tool_use.unwrap_or(false)))
}
