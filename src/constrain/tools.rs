//! Tools and which of them an answer must call. Owns reading definitions as clients write them.

mod format;
mod values;

use serde_json::{Value, json};

use crate::error::Error;
use crate::limits::Limits;

pub(crate) use format::{OPENING, grammar};

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// The schema of its arguments, an object.
    pub parameters: Value,
}

impl Tool {
    /// From a definition as OpenAI's API has it (`{"type": "function", "function": {..}}`, or its inner object), or
    /// Anthropic's (`{"name": .., "input_schema": ..}`).
    ///
    /// # Errors
    /// A definition without a name.
    pub fn from_json(definition: &Value) -> Result<Self, Error> {
        let function = definition.get("function").unwrap_or(definition);
        let name = function.get("name").and_then(Value::as_str).ok_or_else(|| unusable("a tool has no name"))?;
        let parameters = function.get("parameters").or(function.get("input_schema"));
        let parameters = parameters.filter(|p| !p.is_null()).cloned().unwrap_or_else(|| json!({}));
        Ok(Self { name: name.to_owned(), parameters })
    }
}

/// Which calls an answer must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolChoice {
    /// Text, then calls if the model wants to make some.
    Auto,
    /// At least one call, and no text.
    Required,
    /// Exactly this function, and no text.
    Named(String),
}

/// Tools and how they are to be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Tools {
    /// All that may be called.
    pub tools: Vec<Tool>,
    /// Which must be.
    pub choice: ToolChoice,
    /// Several calls may come in one answer.
    pub parallel: bool,
}

impl Tools {
    /// The tools that calls may name.
    pub(crate) fn callable(&self) -> impl Iterator<Item = &Tool> {
        self.tools.iter().filter(|tool| match &self.choice {
            ToolChoice::Named(name) => *name == tool.name,
            ToolChoice::Auto | ToolChoice::Required => true,
        })
    }

    /// Checks sizes, and that what is named is there.
    pub(crate) fn check(&self, limits: &Limits) -> Result<(), Error> {
        limits.items("list of tools", "tools", self.tools.len())?;
        let mut n_bytes = 0;
        for tool in &self.tools {
            n_bytes += tool.name.len() + limits.schema("list of tools", &tool.parameters)?;
            limits.bytes("list of tools", n_bytes)?;
        }
        if self.callable().next().is_none() {
            return Err(match &self.choice {
                ToolChoice::Named(name) => unusable(&format!("no tool is called {name:?}")),
                ToolChoice::Auto | ToolChoice::Required => unusable("it is empty"),
            });
        }
        for (i, tool) in self.tools.iter().enumerate() {
            if self.tools[..i].iter().any(|other| other.name == tool.name) {
                return Err(unusable(&format!("two tools are called {:?}", tool.name)));
            }
        }
        Ok(())
    }
}

fn unusable(why: &str) -> Error {
    Error::Unusable { what: "list of tools", why: why.to_owned() }
}
