//! Texts to learn from: conversations in OpenAI's form, a line each, or plain text. Owns what of them counts.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, anyhow, bail, ensure};
use serde_json::Value;
use session::{ALWAYS, Conversation, LoadedModel};
use text::{Special, TokenId};

/// Tokens, and which of them a head is to guess.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// All of them.
    pub tokens: Vec<TokenId>,
    /// For each token whether it counts: what an assistant wrote, or all of a plain text.
    pub counted: Vec<bool>,
    /// Positions of tokens in whose place a drafted one was refused, ascending; known of replies of a server only.
    pub refused: Vec<usize>,
    /// Texts of one number have a beginning in common: they are learned from together, or held out together.
    pub group: usize,
}

impl Text {
    /// A prompt that does not count and a reply that does.
    pub fn of_reply(prompt: &[TokenId], reply: &[TokenId]) -> Self {
        let mut counted = vec![false; prompt.len()];
        counted.resize(prompt.len() + reply.len(), true);
        Self { tokens: [prompt, reply].concat(), counted, ..Self::default() }
    }

    /// The first `n` tokens.
    pub fn cut(mut self, n: usize) -> Self {
        self.tokens.truncate(n);
        self.counted.truncate(n);
        self.refused.retain(|at| *at < n);
        self
    }

    /// Tokens that count.
    pub fn n_counted(&self) -> usize {
        self.counted.iter().filter(|counted| **counted).count()
    }
}

/// Longer lines are no conversation.
const MAX_LINE: u64 = 16 << 20;

/// A plain text is read up to here.
const MAX_TEXT: u64 = 1 << 30;

/// The texts of a file, of at most `n_ctx` tokens each, and how many were longer: of a `.jsonl` file a line is a conversation,
/// any other is plain text, which is parted.
///
/// # Errors
/// A file that cannot be read or holds nothing; a line that is no conversation. The message names the line.
pub fn read(path: &Path, model: &LoadedModel, n_ctx: usize) -> anyhow::Result<(Vec<Text>, usize)> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("{shown}: cannot be opened"))?;
    ensure!(!file.metadata()?.is_dir(), "{shown}: a folder, a file expected");
    let is_lines = path.extension().is_some_and(|ext| ext.eq_ignore_ascii_case("jsonl"));
    let mut n_cut = 0;
    let texts: Vec<Text> = if is_lines {
        let mut texts = Vec::new();
        for_lines(BufReader::new(file), |n, line| {
            let of_line = conversation(line).and_then(|said| of_conversation(model, &said));
            let of_line = of_line.map_err(|e| anyhow!("{shown}, line {n}: {e:#}"))?;
            texts.extend(of_line.into_iter().map(|text| Text { group: n, ..text }));
            Ok(())
        })
        .map_err(|e| if e.to_string().starts_with("line") { anyhow!("{shown}, {e}") } else { e })?;
        n_cut = texts.iter().filter(|text: &&Text| text.tokens.len() > n_ctx).count();
        texts.into_iter().map(|text| text.cut(n_ctx)).collect()
    } else {
        let mut bytes = Vec::new();
        file.take(MAX_TEXT + 1).read_to_end(&mut bytes).with_context(|| format!("{shown}: cannot be read"))?;
        ensure!(bytes.len() as u64 <= MAX_TEXT, "{shown}: more than {MAX_TEXT} bytes of text; split it");
        let text = String::from_utf8(bytes).map_err(|e| {
            anyhow!("{shown}: not UTF-8 from byte {} on; text or a .jsonl file expected", e.utf8_error().valid_up_to())
        })?;
        plain(model, &text, n_ctx)
    };
    let is_there = texts.iter().any(|text| text.n_counted() > 0);
    ensure!(is_there || n_cut == 0, "{shown}: no reply begins within --context {n_ctx}: raise it");
    ensure!(is_there, "{shown}: nothing to learn from in it");
    Ok((texts, n_cut))
}

/// Calls `each` with every line that is not blank, and its number from 1.
///
/// # Errors
/// A line that is too long or no UTF-8; those of `each`.
pub fn for_lines(
    mut lines: impl BufRead,
    mut each: impl FnMut(usize, &str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut line = Vec::new();
    for n in 1.. {
        line.clear();
        if lines.by_ref().take(MAX_LINE + 1).read_until(b'\n', &mut line).context("cannot be read")? == 0 {
            break;
        }
        ensure!(
            line.len() as u64 <= MAX_LINE,
            "line {n}: longer than {MAX_LINE} bytes, a conversation in each line expected"
        );
        let Ok(line) = std::str::from_utf8(&line) else { bail!("line {n}: not UTF-8") };
        if !line.trim().is_empty() {
            each(n, line.trim())?;
        }
    }
    Ok(())
}

/// `{"messages": [..], "tools": [..]}`, or the messages alone.
pub fn conversation(line: &str) -> anyhow::Result<Conversation> {
    let value: Value = serde_json::from_str(line).context("no JSON")?;
    let list = |value: &Value, name: &str| match value {
        Value::Array(list) => Ok(list.clone()),
        _ => Err(anyhow!("`{name}` must be a list")),
    };
    let (messages, tools) = match &value {
        Value::Array(messages) => (messages.clone(), Vec::new()),
        Value::Object(fields) => {
            let messages = fields.get("messages").ok_or_else(|| anyhow!("`messages` is missing"))?;
            let tools = fields.get("tools").map(|tools| list(tools, "tools")).transpose()?;
            (list(messages, "messages")?, tools.unwrap_or_default())
        }
        _ => bail!("an object with `messages` expected"),
    };
    ensure!(!messages.is_empty(), "`messages` is empty");
    Ok(Conversation { messages, tools, ..Conversation::default() })
}

/// A text for each message of the assistant: all before it, and the message with the token that ends it.
fn of_conversation(model: &LoadedModel, said: &Conversation) -> anyhow::Result<Vec<Text>> {
    let mut texts = Vec::new();
    for i in 0..said.messages.len() {
        if said.messages[i].get("role").and_then(Value::as_str) != Some("assistant") {
            continue;
        }
        let up_to = |n: usize, continue_last: bool| {
            let messages = said.messages[..n].to_vec();
            let part = Conversation { messages, continue_last, ..said.clone() };
            Ok::<_, anyhow::Error>(model.render(part, ALWAYS)?.tokens)
        };
        let whole = up_to(i + 1, true)?;
        let prompt = if i == 0 { Vec::new() } else { up_to(i, false)? };
        // Where a template writes the reply otherwise than the prompt for it, what differs is the reply.
        let n_prompt = prompt.iter().zip(&whole).take_while(|(a, b)| a == b).count();
        let mut text = Text::of_reply(&whole[..n_prompt], &whole[n_prompt..]);
        if let Some(end) = model.vocab().eot().or(model.vocab().eos()) {
            text.tokens.push(end);
            text.counted.push(true);
        }
        texts.push(text);
    }
    ensure!(!texts.is_empty(), "no message of the assistant");
    Ok(texts)
}

/// A plain text in pieces of `n_ctx` tokens, all of which count.
fn plain(model: &LoadedModel, text: &str, n_ctx: usize) -> Vec<Text> {
    let tokens = model.vocab().encode(text, Special::Plain);
    let pieces = tokens.chunks(n_ctx).filter(|piece| piece.len() > 2);
    let text = |(group, piece): (usize, &[TokenId])| Text { group, ..Text::of_reply(&piece[..1], &piece[1..]) };
    pieces.enumerate().map(text).collect()
}
