//! From a conversation or a bare text to the tokens of a prompt, with the places where later prompts may part from it.

use serde_json::Value;
use text::template::{Chat, ChatTemplate, Prompt};
use text::{Special, TokenId, Vocab};

use super::exit::{Exit, OrExit, Outcome};

/// The tokens of a prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Encoded {
    /// All of them.
    pub tokens: Vec<TokenId>,
    /// Token offsets up to which the next turn's prompt stays the same, ascending.
    pub borders: Vec<usize>,
    /// The answer begins as thinking.
    pub starts_in_reasoning: bool,
}

/// The prompt that asks for the next message of a conversation. `thinking: None` leaves it to the template.
///
/// # Errors
/// A template that refuses the conversation, with [`Exit::Prompt`].
pub fn chat(template: &ChatTemplate, vocab: &Vocab, messages: Vec<Value>, thinking: Option<bool>) -> Outcome<Encoded> {
    let chat = Chat { messages, add_generation_prompt: true, enable_thinking: thinking, ..Chat::default() };
    let prompt = template.render(&chat).or_exit(Exit::Prompt)?;
    Ok(encode(vocab, &prompt))
}

/// The prompt that continues `text`. Special tokens are written as their text.
pub fn raw(vocab: &Vocab, text: &str) -> Encoded {
    let bos = vocab.bos().filter(|_| vocab.add_bos());
    let tokens = bos.into_iter().chain(vocab.encode(text, Special::Parse)).collect();
    Encoded { tokens, ..Encoded::default() }
}

/// Borders lie beside special tokens, so encoding part by part gives the tokens of the whole; where a template makes
/// that untrue there are no borders.
fn encode(vocab: &Vocab, prompt: &Prompt) -> Encoded {
    let tokens = vocab.encode(&prompt.text, Special::Parse);
    let mut parts = Vec::with_capacity(tokens.len());
    let mut borders = Vec::new();
    let mut from = 0;
    for &to in prompt.borders.iter().take(prompt.n_lasting) {
        parts.extend(vocab.encode(&prompt.text[from..to], Special::Parse));
        borders.push(parts.len());
        from = to;
    }
    parts.extend(vocab.encode(&prompt.text[from..], Special::Parse));
    borders.dedup();
    borders.retain(|&border| border > 0);
    if parts != tokens {
        tracing::debug!("the prompt's parts and the whole differ in tokens: no message borders");
        borders.clear();
    }
    Encoded { tokens, borders, starts_in_reasoning: prompt.starts_in_reasoning }
}
