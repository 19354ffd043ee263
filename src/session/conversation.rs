//! What a front end asks of a model: a conversation, and what shapes the reply to it. Plain data in the field's words; the
//! wire formats and the command line make it.

use std::sync::Arc;

use constrain::Kind;
use serde_json::{Map, Value, json};

/// A conversation, and what the reply to it may hold.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// Messages in the shape of OpenAI's chat completions, in which a part `{"type": "image"}` stands for a picture, and
    /// `{"type": "video"}` for the frames of a video.
    pub messages: Vec<Value>,
    /// Encoded pictures (PNG, JPEG, WebP, GIF), one for each such part, in their order.
    pub pictures: Vec<Arc<[u8]>>,
    /// Videos, one for each part `{"type": "video"}`, in their order.
    pub videos: Vec<Video>,
    /// Tools in the same shape.
    pub tools: Vec<Value>,
    /// Which of the tools may or must be called.
    pub tool_choice: ToolChoice,
    /// Only the tools of these names may be called; `None`: all may.
    pub allowed_tools: Option<Vec<String>>,
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

/// A video as frames at equal distances in time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Video {
    /// Encoded pictures of one size.
    pub frames: Vec<Arc<[u8]>>,
    /// What their owner calls them, for messages; may be empty.
    pub names: Vec<String>,
    /// Of these, so many a second; above 0.
    pub fps: f64,
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
    /// Most tokens of it by its effort, which goes first where the template does not know efforts.
    pub effort_budget: Option<usize>,
    /// How hard to think; `None` leaves it to the template.
    pub effort: Option<Effort>,
    /// It is part of the text.
    pub in_content: bool,
}

/// How hard a model is to think, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// `minimal`.
    Minimal,
    /// `low`.
    Low,
    /// `medium`.
    Medium,
    /// `high`.
    High,
    /// `xhigh`.
    Xhigh,
    /// `max`.
    Max,
}

impl Effort {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Minimal, Self::Low, Self::Medium, Self::High, Self::Xhigh, Self::Max];

    /// Its name, as clients and templates have it.
    pub fn name(self) -> &'static str {
        ["minimal", "low", "medium", "high", "xhigh", "max"][self as usize]
    }

    /// Tokens of thinking, for models whose template knows no efforts; `None` is without limit.
    fn budget(self) -> Option<usize> {
        [Some(256), Some(1024), Some(8192), None, None, None][self as usize]
    }
}

impl Reasoning {
    /// The efforts that clients name, weakest first.
    pub const EFFORTS: &str = "auto, none, minimal, low, medium, high, xhigh or max";

    /// Takes an effort; `auto` leaves all to the model. `None`: there is none of this name.
    pub fn with_effort(&mut self, effort: &str) -> Option<()> {
        match effort {
            "auto" | "default" => {}
            "none" => (self.enable, self.effort) = (Some(false), None),
            name => {
                let effort = Effort::ALL.into_iter().find(|effort| effort.name() == name)?;
                (self.enable, self.effort, self.effort_budget) = (Some(true), Some(effort), effort.budget());
            }
        }
        Some(())
    }

    /// Takes a number of tokens, which goes before that of an effort.
    pub fn with_budget(&mut self, budget: Option<usize>) {
        (self.budget, self.effort_budget) = (budget, None);
    }

    /// Most tokens of it, with a template that knows the effort or does not.
    pub(crate) fn limit(&self, template_knows: bool) -> Option<usize> {
        self.effort_budget.filter(|_| !template_knows).or(self.budget)
    }
}
