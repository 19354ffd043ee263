//! What a template renders, and what comes of it.

use serde_json::Map;

/// What is rendered: messages in the shape of OpenAI's chat completions, and the options of the template.
#[derive(Clone, Debug, Default)]
pub struct Chat {
    /// Objects with `role`, `content` (a string, null or a list of parts), `reasoning_content` (or `reasoning`), and `tool_calls`
    /// whose `function.arguments` are an object or a string of JSON.
    pub messages: Vec<serde_json::Value>,
    /// Tool descriptions, handed to the template as they are; none: the template sees `tools` as none.
    pub tools: Vec<serde_json::Value>,
    /// Ends the prompt with the opening of the assistant's reply.
    pub add_generation_prompt: bool,
    /// None leaves the template's variable undefined.
    pub enable_thinking: Option<bool>,
    /// More variables for the template; the fields above win over entries of the same name.
    pub kwargs: Map<String, serde_json::Value>,
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The whole prompt.
    pub text: String,
    /// Byte offsets in `text`, ascending, at character borders, without 0. Up to each of them the next turn's prompt repeats `text`
    /// byte for byte, if the client sends the same messages back: a state saved there can be used again.
    pub boundaries: Vec<usize>,
    /// So many of the first `boundaries` hold whatever comes next. The others hold only while the next turn goes on with tool calls and
    /// results: a new user message makes templates drop the thinking of the turn before it.
    pub n_lasting: usize,
    /// So many bytes of `text` the next turn repeats when it brings an answer without its thinking and a new question: at least the
    /// last lasting boundary, and the part of the reply's opening that does not depend on thinking.
    pub repeated: usize,
    /// Where the messages end in `text` and the opening of the reply begins, if that could be told.
    pub reply_at: Option<usize>,
}
