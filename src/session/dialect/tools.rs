//! Tools and which of them a reply must call. Owns reading definitions as clients write them.

use constrain::{Error, Limits};
use serde_json::{Value, json};

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

/// Which calls a reply must hold.
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
    /// Several calls may come in one reply.
    pub parallel: bool,
    /// Only the tools of these names may be called; `None`: all may.
    pub allowed: Option<Vec<String>>,
}

impl Tools {
    /// The tools that calls may name.
    pub(super) fn callable(&self) -> impl Iterator<Item = &Tool> {
        let allowed = |tool: &&Tool| self.allowed.as_ref().is_none_or(|names| names.contains(&tool.name));
        self.tools.iter().filter(allowed).filter(|tool| match &self.choice {
            ToolChoice::Named(name) => *name == tool.name,
            ToolChoice::Auto | ToolChoice::Required => true,
        })
    }

    /// Checks sizes, and that what is named is there.
    pub(super) fn check(&self, limits: &Limits) -> Result<(), Error> {
        limits.items("list of tools", "tools", self.tools.len())?;
        let mut n_bytes = 0;
        for tool in &self.tools {
            n_bytes += tool.name.len() + limits.schema("list of tools", &tool.parameters)?;
            limits.bytes("list of tools", n_bytes)?;
        }
        let named = |name: &&String| self.tools.iter().any(|tool| tool.name == **name);
        if let Some(name) = self.allowed.iter().flatten().find(|name| !named(name)) {
            return Err(unusable(&format!("no tool is called {name:?}")));
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

/// An error of the list.
pub(super) fn unusable(why: &str) -> Error {
    Error::Unusable { what: "list of tools", why: why.to_owned() }
}
