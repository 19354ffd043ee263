//! What follows the opening of a call while it comes in: arguments alone, or an object that holds a name and arguments. Owns where it
//! stands in that object, and what is text if this is no call.

use super::copy::{Copy, Notation, Step};
use super::value::json_call;

/// The rest of a call.
#[derive(Debug)]
pub(super) struct Body {
    /// What came before it, and it itself until it is a call for certain: text otherwise.
    text: String,
    /// Where it itself begins in `text`.
    begins: usize,
    /// Nothing came before it: the reply is this JSON.
    is_bare: bool,
    phase: Phase,
    /// The function's name, until the start of the call was told.
    name: Option<String>,
    /// What has come of the arguments since it was last taken.
    out: String,
    started: bool,
}

#[derive(Debug)]
enum Phase {
    /// In an object that holds name and arguments.
    Object(Object),
    /// In the arguments, which may lie in such an object.
    Arguments(Copy, Option<Object>),
    /// In the rest of such an object.
    Rest(Object),
}

/// Where an object stands that holds name and arguments.
#[derive(Debug, Default)]
struct Object {
    depth: usize,
    in_text: bool,
    is_escaped: bool,
    /// The text that the object itself holds and that is or was the last.
    last: String,
    /// The key whose value is to come.
    key: String,
}

impl Body {
    /// `name`: the function's, if it has come and these are its arguments.
    pub(super) fn new(opening: String, name: Option<String>, notation: Notation, is_bare: bool) -> Self {
        let phase = match name {
            Some(_) => Phase::Arguments(Copy::new(notation), None),
            None => Phase::Object(Object::default()),
        };
        Self { begins: opening.len(), text: opening, is_bare, phase, name, out: String::new(), started: false }
    }

    /// Takes the next character. `callable`: whether there is such a function.
    pub(super) fn push(&mut self, c: char, callable: impl Fn(&str) -> bool) -> Step {
        if !self.started {
            self.text.push(c);
        }
        match &mut self.phase {
            Phase::Object(object) => {
                let name = object.see_name(c);
                self.name = self.name.take().or(name);
                let is_call = self.name.as_ref().is_some_and(|name| !self.is_bare || callable(name));
                if c == '{' && is_call && object.depth == 1 && object.awaits_arguments() {
                    let mut arguments = Copy::new(Notation::Json);
                    arguments.push(c);
                    self.phase = Phase::Arguments(arguments, Some(std::mem::take(object)));
                    return Step::More;
                }
                object.see(c)
            }
            Phase::Arguments(arguments, object) => {
                let step = arguments.push(c);
                if arguments.began {
                    self.out += &arguments.take();
                }
                match (step, object.take()) {
                    (Step::Ended, Some(object)) => {
                        self.phase = Phase::Rest(object);
                        Step::More
                    }
                    (step, outer) => {
                        *object = outer;
                        step
                    }
                }
            }
            // A brace was forgotten.
            Phase::Rest(object) if !object.in_text && "<[{".contains(c) => Step::Broken(c.to_string()),
            Phase::Rest(object) => object.see(c),
        }
    }

    /// Once, when it is a call for certain: the function's name.
    pub(super) fn start(&mut self) -> Option<String> {
        let name = self.name.take_if(|_| !self.out.is_empty() && !self.started)?;
        self.started = true;
        self.text.clear();
        Some(name)
    }

    /// The start of the call was told.
    pub(super) fn started(&self) -> bool {
        self.started
    }

    /// What has come of the arguments since the last time.
    pub(super) fn take(&mut self) -> String {
        std::mem::take(&mut self.out)
    }

    /// What closes the arguments where they were cut off.
    pub(super) fn close(&mut self) -> String {
        match &mut self.phase {
            Phase::Arguments(arguments, _) => arguments.close(),
            Phase::Object(_) | Phase::Rest(_) => String::new(),
        }
    }

    /// Name and arguments of an object that was read whole, if it is a call. Where it is all of the reply, it must have both.
    pub(super) fn call(&self, callable: impl Fn(&str) -> bool) -> Option<(String, String)> {
        json_call(&self.text[self.begins..], self.is_bare).filter(|(name, _)| !self.is_bare || callable(name))
    }

    /// All that has come, as text.
    pub(super) fn into_text(self) -> String {
        self.text
    }
}

impl Object {
    /// The name, if this character ends it.
    fn see_name(&self, c: char) -> Option<String> {
        let ends = self.depth == 1 && self.in_text && !self.is_escaped && c == '"';
        let is_name = ends && NAMES.contains(&self.key.as_str());
        let name = is_name.then(|| serde_json::from_str::<String>(&format!("\"{}\"", self.last)).ok())??;
        (!name.is_empty()).then_some(name)
    }

    fn awaits_arguments(&self) -> bool {
        !self.in_text && ARGUMENTS.contains(&self.key.as_str())
    }

    fn see(&mut self, c: char) -> Step {
        let own = self.depth == 1;
        match c {
            _ if self.in_text => {
                self.in_text = self.is_escaped || c != '"';
                if own && self.in_text {
                    self.last.push(c);
                }
                self.is_escaped = !self.is_escaped && c == '\\';
            }
            '"' => {
                self.in_text = true;
                if own {
                    self.last.clear();
                }
            }
            '{' | '[' => self.depth += 1,
            '}' | ']' => self.depth = self.depth.saturating_sub(1),
            ':' if own => self.key = std::mem::take(&mut self.last),
            ',' if own => self.key.clear(),
            _ => {}
        }
        if self.depth == 0 { Step::Ended } else { Step::More }
    }
}

const NAMES: [&str; 2] = ["name", "tool_name"];
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];
