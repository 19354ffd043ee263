//! Tokens of a text, and the prompt of a conversation.

use std::path::Path;

use anyhow::{Context, bail};
use model::LoadOptions;
use serde::Deserialize;
use serde_json::{Map, Value};
use text::Special;
use text::template::Chat;

use super::setup::say;
use program::source;

pub(super) fn tokenize(model: Option<&Path>, file: &Path) -> anyhow::Result<()> {
    let model = session::open_weights(&source(model), &LoadOptions::default())?;
    let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
    let text = String::from_utf8(bytes).with_context(|| format!("{}: is not UTF-8", file.display()))?;
    let ids: Vec<u32> = model.vocab().encode(&text, Special::Parse).iter().map(|id| id.0).collect();
    say(serde_json::to_string(&ids)?)
}

/// A conversation as people write it down for `render`.
#[derive(Deserialize)]
struct ChatFile {
    messages: Vec<Value>,
    #[serde(default)]
    tools: Option<Vec<Value>>,
    #[serde(default = "yes")]
    add_generation_prompt: bool,
    #[serde(default)]
    enable_thinking: Option<bool>,
    #[serde(flatten)]
    kwargs: Map<String, Value>,
}

fn yes() -> bool {
    true
}

pub(super) fn render(model: Option<&Path>, file: &Path) -> anyhow::Result<()> {
    let model = session::open_weights(&source(model), &LoadOptions::default())?;
    let bytes = std::fs::read(file).with_context(|| file.display().to_string())?;
    let chat: ChatFile = serde_json::from_slice(&bytes).with_context(|| file.display().to_string())?;
    let Some(template) = session::template_of(&model)? else { bail!("the model has no chat template") };
    let prompt = template.render(&Chat {
        messages: chat.messages,
        tools: chat.tools.unwrap_or_default(),
        add_generation_prompt: chat.add_generation_prompt,
        enable_thinking: chat.enable_thinking,
        kwargs: chat.kwargs,
    })?;
    say(Value::String(prompt.text))
}
