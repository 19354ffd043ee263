//! From a conversation or a bare text to the tokens of a prompt, with the places where later prompts may part from it.

use serde_json::Value;
use text::template::{Chat, ChatTemplate, Prompt};
use text::{TokenId, Vocab};

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
    Encoded { tokens: vocab.encode_prompt(text), ..Encoded::default() }
}

fn encode(vocab: &Vocab, prompt: &Prompt) -> Encoded {
    let lasting = &prompt.borders[..prompt.n_lasting.min(prompt.borders.len())];
    let (tokens, borders) = vocab.encode_with_cuts(&prompt.text, lasting);
    Encoded { tokens, borders, starts_in_reasoning: prompt.starts_in_reasoning }
}
