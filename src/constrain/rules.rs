//! The rules of a grammar of tool calls while they are written. Owns their number of bytes: a schema that several parameters
//! have is written once, and what grows too long is given up.

use std::collections::HashMap;

use crate::error::Error;
use crate::limits::Limits;

/// Rules in Lark, one a line.
#[derive(Debug)]
pub struct Rules {
    lines: Vec<String>,
    n_bytes: usize,
    max_bytes: usize,
    /// The rules of schemas that have been written.
    schemas: HashMap<String, String>,
}

impl Rules {
    /// None yet.
    pub fn new(limits: &Limits) -> Self {
        Self { lines: Vec::new(), n_bytes: 0, max_bytes: limits.max_grammar_bytes, schemas: HashMap::new() }
    }

    /// Bytes that they may have.
    pub fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Adds a rule.
    pub fn push(&mut self, line: String) {
        self.n_bytes += line.len() + 1;
        // What is too long is not kept: it is told at the end, or at the next check.
        if self.n_bytes <= self.max_bytes {
            self.lines.push(line);
        }
    }

    /// The rule of a schema, given as `%json`.
    pub fn json(&mut self, schema: String) -> String {
        if let Some(name) = self.schemas.get(&schema) {
            return name.clone();
        }
        let name = format!("json{}", self.schemas.len());
        self.push(format!("{name}: {schema}"));
        self.schemas.insert(schema, name.clone());
        name
    }

    /// Whether it is still short enough.
    ///
    /// # Errors
    /// [`Error::TooLong`].
    pub fn check(&self) -> Result<(), Error> {
        let (found, max) = (self.n_bytes, self.max_bytes);
        if found > max { Err(Error::TooLong { what: "grammar of the tools", found, max }) } else { Ok(()) }
    }

    /// All rules, after these.
    ///
    /// # Errors
    /// As [`Rules::check`].
    pub fn after(mut self, head: [String; 2]) -> Result<String, Error> {
        head.into_iter().for_each(|line| self.push(line));
        self.check()?;
        Ok(self.lines.join("\n"))
    }
}
