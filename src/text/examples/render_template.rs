//! Renders conversations as a program of ours does: `render_template < cases.jsonl > texts.jsonl`, one JSON object a line.
//!
//! A case has `template` (the source) or `template_file`, `messages`, and if wanted `tools`, `add_generation_prompt`,
//! `enable_thinking`, `chat_template_kwargs` (more variables), `special_tokens` (`{"bos_token": "<s>", ..}`) and `tool_use` (the source
//! that takes the place of the template when there are tools). A result has `text` with its message boundaries, or `error`.

use std::io::{BufRead, Write};

use serde::Deserialize;
use serde_json::{Map, Value, json};
use text::template::{Chat, ChatTemplate};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    template: Option<String>,
    template_file: Option<std::path::PathBuf>,
    tool_use: Option<String>,
    #[serde(default)]
    special_tokens: Map<String, Value>,
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    #[serde(default)]
    add_generation_prompt: bool,
    enable_thinking: Option<bool>,
    #[serde(default)]
    chat_template_kwargs: Map<String, Value>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout().lock();
    let mut last = None;
    for (i, line) in std::io::stdin().lock().lines().enumerate() {
        let case: Case = serde_json::from_str(&line?).map_err(|error| format!("line {}: {error}", i + 1))?;
        let result = match rendered(case, &mut last) {
            Ok(result) => result,
            Err(error) => json!({ "error": error.to_string() }),
        };
        writeln!(out, "{result}")?;
    }
    Ok(())
}

/// The template of the case before, under its source and tokens: cases of one template usually follow each other.
type Last = Option<((String, Option<String>, Map<String, Value>), ChatTemplate)>;

fn rendered(case: Case, last: &mut Last) -> Result<Value, Box<dyn std::error::Error>> {
    let source = match (case.template, case.template_file) {
        (Some(source), None) => source,
        (None, Some(path)) => std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?,
        _ => return Err("either `template` or `template_file` expected".into()),
    };
    let key = (source, case.tool_use, case.special_tokens);
    if last.as_ref().is_none_or(|(before, _)| *before != key) {
        *last = None;
        let (source, tool_use, tokens) = &key;
        let mut template = ChatTemplate::new(source)?;
        if let Some(tool_use) = tool_use {
            template = template.with_tool_use(tool_use)?;
        }
        let tokens = tokens.iter().filter_map(|(name, text)| Some((name.clone(), text.as_str()?.to_owned())));
        *last = Some((key.clone(), template.with_special_tokens(tokens)));
    }
    let Some((_, template)) = last else { return Err("no template".into()) };
    let prompt = template.render(&Chat {
        messages: case.messages,
        tools: case.tools.unwrap_or_default(),
        add_generation_prompt: case.add_generation_prompt,
        enable_thinking: case.enable_thinking,
        kwargs: case.chat_template_kwargs,
    })?;
    Ok(json!({
        "text": prompt.text,
        "boundaries": prompt.boundaries,
        "n_lasting": prompt.n_lasting,
        "reply_at": prompt.reply_at,
    }))
}
