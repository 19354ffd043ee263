//! What a front end asks of a model: a conversation, and what shapes the reply to it. Plain data in the field's words; the
//! wire formats and the command line make it.

use constrain::Kind;
use serde_json::{Map, Value, json};

/// A conversation, and what the reply to it may hold.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// Messages in the shape of OpenAI's chat completions.
    pub messages: Vec<Value>,
    /// Tools in the same shape.
    pub tools: Vec<Value>,
    /// Which of the tools may or must be called.
    pub tool_choice: ToolChoice,
    /// One tool call at most.
    pub one_call: bool,
    /// Take tool calls apart from the text even where no tools are offered.
    pub reads_calls: bool,
    /// What the reply must be made of.
    pub form: Option<Form>,
    /// Whether and how long to reason first.
    pub reasoning: Reasoning,
    /// More variables for the template.
    pub kwargs: Map<String, Value>,
    /// A last message of the assistant is continued, not closed.
    pub continue_last: bool,
}

impl Conversation {
    /// A conversation of one message of the user.
    pub fn of(message: &str) -> Self {
        Self { messages: vec![json!({ "role": "user", "content": message })], ..Self::default() }
    }
}

/// What a reply must be made of, with the name of the field or flag that asked for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    /// The form.
    pub kind: Kind,
    /// Who asked.
    pub field: &'static str,
}

/// Which tools may be called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// None.
    None,
    /// The model decides.
    #[default]
    Auto,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// What becomes of reasoning.
#[derive(Clone, Debug, Default)]
pub struct Reasoning {
    /// `None` leaves it to the template.
    pub enable: Option<bool>,
    /// Most tokens of it; `None` is without limit.
    pub budget: Option<usize>,
    /// It is part of the text.
    pub in_content: bool,
}

impl Reasoning {
    /// The efforts that clients name, weakest first.
    pub const EFFORTS: &str = "none, minimal, low, medium, high, xhigh or max";

    /// Takes an effort; `None`: there is none of this name.
    pub fn with_effort(&mut self, effort: &str) -> Option<()> {
        let (enable, budget) = match effort {
            "none" => (false, None),
            "minimal" => (true, Some(256)),
            "low" => (true, Some(1024)),
            "medium" => (true, Some(8192)),
            "high" | "xhigh" | "max" => (true, None),
            _ => return None,
        };
        self.enable = Some(enable);
        self.budget = budget.or(self.budget);
        Some(())
    }
}

/// The text of a message's content, its parts joined.
pub fn text_of(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => parts.iter().filter_map(|part| part.get("text")?.as_str()).collect(),
        _ => String::new(),
    }
}
