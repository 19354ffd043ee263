//! What a chat template is told beside the messages: whether and how hard to think, whether thinking of earlier turns stays, and the
//! day. Owns the names that templates have for these; a variable that a request gives itself goes before all of them.

use serde_json::{Map, Value, json};
use text::template::{Chat, today};

use crate::conversation::{Conversation, Effort};
use crate::open::LoadedModel;

impl LoadedModel {
    /// The variables of the template for this conversation.
    pub(crate) fn variables(&self, conversation: &Conversation) -> Map<String, Value> {
        let mut variables = conversation.kwargs.clone();
        let mut tell = |name: &str, value: Value| {
            variables.entry(name).or_insert(value);
        };
        if let Some(keep) = conversation.kwargs.get(PRESERVE_THINKING).and_then(Value::as_bool) {
            CLEARS.iter().for_each(|name| tell(name, json!(!keep)));
        }
        if let Some(effort) = conversation.reasoning.effort.and_then(|effort| self.told_effort(effort)) {
            EFFORTS.iter().for_each(|name| tell(name, json!(effort.name())));
        }
        if self.shows(FIREFUNCTION) {
            tell("functions", json!(serde_json::to_string_pretty(&conversation.tools).unwrap_or_default()));
        }
        for (name, form) in DAYS.into_iter().filter(|(name, _)| self.shows(name)) {
            today(form).into_iter().for_each(|day| tell(name, json!(day)));
        }
        variables
    }

    /// Whether the template knows efforts.
    pub(crate) fn knows_efforts(&self) -> bool {
        EFFORTS.iter().any(|name| self.shows(name))
    }

    /// The effort that the template is told for this one: itself, or the next that it takes, stronger ones first. `None`: it knows none.
    fn told_effort(&self, effort: Effort) -> Option<Effort> {
        let template = self.template.as_ref().filter(|_| self.knows_efforts())?;
        let takes = |effort: &Effort| {
            let kwargs = EFFORTS.iter().map(|name| ((*name).to_owned(), json!(effort.name()))).collect();
            let messages = vec![json!({ "role": "user", "content": "x" })];
            let chat =
                Chat { messages, add_generation_prompt: true, enable_thinking: Some(true), kwargs, ..Chat::default() };
            template.render(&chat).is_ok()
        };
        let stronger = Effort::ALL.into_iter().filter(|other| *other >= effort);
        let weaker = Effort::ALL.into_iter().rev().filter(|other| *other < effort);
        stronger.chain(weaker).find(takes)
    }
}

/// The variable that keeps the thinking of earlier turns in the prompt.
pub const PRESERVE_THINKING: &str = "preserve_thinking";
/// Other templates' names for its contrary.
const CLEARS: [&str; 3] = ["clear_thinking", "truncate_history_thinking", "drop_thinking"];
const EFFORTS: [&str; 2] = ["reasoning_effort", "reasoning_strength"];
/// What calls begin with in Firefunction's template, which wants the tools as a text.
const FIREFUNCTION: &str = "functools[";
/// Today as strftime has it: in Llama's templates, which have a day of their own for want of it, and in Firefunction's, which has none.
const DAYS: [(&str, &str); 2] = [("date_string", "%d %b %Y"), ("datetime", "%b %d %Y")];
