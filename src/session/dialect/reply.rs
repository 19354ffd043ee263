//! Replies as they stream in, taken apart into reasoning, text and tool calls, by the tags of a family.
//! Knows nothing of tokens and of wire formats. How the text is cut into pieces never changes the events, once neighbours of one
//! kind are joined, and no character is looked at more than a bounded number of times.
//!
//! What is not right:
//! - What opens a call and is none, or a call whose name or JSON is cut off or not usable, is text.
//! - A function that no schema names is a call like any other, with its values typed by their looks.
//! - Parameters between tags that are cut off by the end, or by a tag that closes something around them, are closed there; the
//!   arguments are an object.
//! - Other text between the tags of a call comes as text. A parameter named twice is there twice; JSON readers take the last.
//! - A value may hold its own closing tag, if neither a next parameter nor the end of the function follows it.
//! - Tags of tool calls within reasoning are reasoning.

mod body;
mod marked;
mod syntax;
mod tags;
mod value;

use super::family::{Family, Reasoning};
use body::Body;
use syntax::Syntax;
use tags::{Found, Judged};
pub use value::ToolSchema;
use value::Writer;

/// Takes one reply apart.
#[derive(Debug)]
pub struct ReplyParser {
    syntax: Syntax,
    schemas: Vec<ToolSchema>,
    state: State,
    /// Text that may be the beginning of a tag.
    hold: String,
    /// Spaces that are dropped if a tag follows them.
    spaces: String,
    /// Nothing was printed since the reply's start or the last tag.
    fresh: Fresh,
    n_calls: usize,
    events: Vec<ReplyEvent>,
}

/// What a reply may hold.
#[derive(Clone, Debug, Default)]
pub struct ReplyOptions {
    /// The prompt opened the reasoning; counts only with `reasoning`.
    pub starts_in_reasoning: bool,
    /// Recognise the tags of reasoning, the opening one at the reply's start only; otherwise they are text.
    pub reasoning: bool,
    /// Recognise tool calls; otherwise they are text.
    pub tools: bool,
    /// The types of parameters, by function.
    pub tool_schemas: Vec<ToolSchema>,
}

/// A piece of a reply, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyEvent {
    /// More reasoning, without the spaces at its ends.
    Reasoning(String),
    /// More of the text, without the blank lines after reasoning and the spaces before a call.
    Text(String),
    /// A call begins.
    ToolCallStart {
        /// Number of the call in this reply, from 0.
        index: usize,
        /// Name of the function.
        name: String,
    },
    /// More of the arguments' JSON; all pieces of a call together are one object.
    ToolCallArguments {
        /// Number of the call.
        index: usize,
        /// The next piece of JSON text.
        delta: String,
    },
    /// The call is complete.
    ToolCallEnd {
        /// Number of the call.
        index: usize,
    },
}

#[derive(Debug)]
enum State {
    /// Before anything but spaces: reasoning may come.
    Start,
    Reasoning,
    Text,
    /// After what opens a call.
    Opened {
        /// What is text if no call follows.
        opening: String,
        /// The function's name, if it has come and its JSON is to follow.
        name: Option<String>,
    },
    /// In the JSON of a call.
    Json(Body),
    /// Between the tags of a function.
    Function(Writer),
    /// In a parameter's value.
    Value(Writer),
    /// After a call.
    Closing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fresh {
    /// The very start: spaces belong to the text.
    Start,
    /// After a tag: blank lines do not belong to the text.
    AfterTag,
    No,
}

impl ReplyParser {
    /// A parser for one reply of a family's model. `reasoning`: the tags that are recognised, if the options want it.
    pub(super) fn new(family: &'static Family, reasoning: Option<&'static Reasoning>, o: ReplyOptions) -> Self {
        let reasoning = reasoning.filter(|_| o.reasoning);
        let (state, fresh) = match (reasoning, o.starts_in_reasoning) {
            (Some(_), true) => (State::Reasoning, Fresh::AfterTag),
            (Some(_), false) => (State::Start, Fresh::Start),
            (None, _) => (State::Text, Fresh::Start),
        };
        Self {
            syntax: Syntax::new(family, o.tools, reasoning),
            schemas: o.tool_schemas,
            state,
            hold: String::new(),
            spaces: String::new(),
            fresh,
            n_calls: 0,
            events: Vec::new(),
        }
    }

    /// Takes the next piece and gives what is certain by now. Only what may be a tag or the spaces around one is held back.
    pub fn push(&mut self, text: &str) -> Vec<ReplyEvent> {
        let mut rest = text;
        while !rest.is_empty() {
            if self.hold.is_empty() {
                let n = self.plain_prefix(rest);
                if n > 0 {
                    self.plain(&rest[..n]);
                    rest = &rest[n..];
                    continue;
                }
            }
            let n = rest.chars().next().map_or(0, char::len_utf8);
            self.hold.push_str(&rest[..n]);
            rest = &rest[n..];
            self.settle(false);
        }
        std::mem::take(&mut self.events)
    }

    /// The reply is over: gives what was held back and closes an open call.
    pub fn finish(&mut self) -> Vec<ReplyEvent> {
        self.settle(true);
        let is_text = matches!(self.state, State::Start | State::Text | State::Opened { .. } | State::Json(_));
        match std::mem::replace(&mut self.state, State::Text) {
            State::Opened { opening, .. } => self.not_a_call(&opening),
            State::Json(body) => self.not_a_call(&body.into_text()),
            State::Function(writer) => self.end_call(writer),
            State::Value(mut writer) => {
                let closing = writer.end_value();
                self.arguments(&closing);
                self.end_call(writer);
            }
            State::Start | State::Text | State::Reasoning | State::Closing => {}
        }
        if is_text && self.fresh != Fresh::AfterTag {
            let spaces = std::mem::take(&mut self.spaces);
            self.emit_text(&spaces);
        }
        self.spaces.clear();
        std::mem::take(&mut self.events)
    }

    /// How much of the beginning cannot be part of a tag here.
    fn plain_prefix(&self, text: &str) -> usize {
        let end = match &self.state {
            State::Text if self.syntax.has_no_calls() => None,
            State::Text | State::Reasoning if self.fresh == Fresh::No => text.find(&*self.syntax.starts),
            State::Value(writer) if writer.began() => text.find(['<', '\n']),
            _ => return 0,
        };
        end.unwrap_or(text.len())
    }

    /// Deals with `hold` as far as it is decided.
    fn settle(&mut self, end: bool) {
        while !self.hold.is_empty() {
            let between_tags = matches!(self.state, State::Function(_) | State::Closing);
            if end && between_tags && matches!(self.judge(false), Judged::Wait) {
                // The reply was cut within a tag of the call.
                self.hold.clear();
                return;
            }
            match self.judge(end) {
                Judged::Wait => return,
                Judged::Plain(n) => {
                    let rest = self.hold.split_off(n);
                    let text = std::mem::replace(&mut self.hold, rest);
                    self.plain(&text);
                }
                Judged::Tag(n, found) => {
                    let rest = self.hold.split_off(n);
                    let tag = std::mem::replace(&mut self.hold, rest);
                    self.tag(found, &tag);
                }
            }
        }
    }

    fn judge(&self, end: bool) -> Judged {
        let (hold, syntax) = (self.hold.as_str(), &self.syntax);
        match (&self.state, syntax.reasoning, syntax.tagged) {
            (State::Start, ..) => tags::at_start(hold, syntax, end),
            (State::Reasoning, Some(reasoning), _) => {
                let open = (self.fresh != Fresh::No).then_some((reasoning.open, Found::Think));
                tags::any(hold, open.into_iter().chain([(reasoning.close, Found::ThinkEnd)]), end)
            }
            (State::Text, ..) => match tags::in_text(hold, syntax, end) {
                Judged::Plain(n) if self.may_be_bare() => tags::bare(hold, end).unwrap_or(Judged::Plain(n)),
                judged => judged,
            },
            (State::Opened { name, .. }, ..) => tags::opened(hold, syntax, name.is_some(), end),
            (State::Function(_), _, Some(tagged)) => tags::in_function(hold, syntax, tagged, end),
            (State::Value(_), _, Some(tagged)) => tags::in_value(hold, syntax, tagged, end),
            (State::Closing, ..) => tags::closing(hold, syntax, end),
            (State::Json(_) | State::Reasoning | State::Function(_) | State::Value(_), ..) => Judged::Plain(hold.len()),
        }
    }

    /// Nothing was said yet, so JSON may be a call without any tag.
    fn may_be_bare(&self) -> bool {
        self.syntax.bare && self.fresh != Fresh::No
    }

    /// Text that is no tag, in the present state.
    fn plain(&mut self, text: &str) {
        match &mut self.state {
            State::Start | State::Text | State::Reasoning => self.visible(text),
            State::Opened { opening, .. } => {
                let is_space = |c: char| c.is_whitespace() || (self.syntax.lists && c == '[');
                let n_spaces = opening.len() - opening.trim_end().len();
                if text.chars().all(is_space) && n_spaces < tags::MAX_SPACES {
                    opening.push_str(text);
                } else {
                    let opening = std::mem::take(opening);
                    self.state = State::Text;
                    self.not_a_call(&opening);
                    self.again(text);
                }
            }
            State::Json(_) => self.json(text),
            State::Function(_) => self.visible(text),
            State::Value(writer) => {
                let delta = writer.value_text(text);
                self.arguments(&delta);
            }
            State::Closing => {
                if text.chars().all(char::is_whitespace) {
                    self.spaces.push_str(text);
                } else {
                    self.state = State::Text;
                    self.again(text);
                }
            }
        }
    }

    /// Looks at text again in a new state.
    fn again(&mut self, text: &str) {
        self.hold.insert_str(0, text);
    }

    fn tag(&mut self, found: Found, tag: &str) {
        match found {
            Found::Think => {
                self.state = State::Reasoning;
                self.after_tag();
            }
            Found::ThinkEnd => {
                self.state = State::Text;
                self.after_tag();
            }
            Found::Call => {
                self.close_function();
                self.state = State::Opened { opening: tag.to_owned(), name: None };
            }
            Found::Function(name) => match self.syntax.tagged {
                Some(tagged) => {
                    self.after_tag();
                    let schema = self.schemas.iter().find(|schema| schema.name() == name);
                    let writer = Writer::new(schema.cloned(), tagged.own_lines);
                    self.start_call(name);
                    self.state = State::Function(writer);
                }
                None => {
                    let (opening, _) = self.take_opening();
                    self.state = State::Opened { opening: opening + tag, name: Some(name) };
                }
            },
            Found::Json => {
                let is_bare = matches!(self.state, State::Start | State::Text);
                let (opening, name) = self.take_opening();
                self.state = State::Json(Body::new(opening, name, self.syntax.mark, is_bare));
                self.json(tag);
            }
            Found::Parameter(name) => {
                if let State::Function(mut writer) = std::mem::replace(&mut self.state, State::Text) {
                    self.after_tag();
                    let delta = writer.begin_value(&name);
                    self.arguments(&delta);
                    self.state = State::Value(writer);
                }
            }
            Found::ParameterEnd => {
                if let State::Value(mut writer) = std::mem::replace(&mut self.state, State::Text) {
                    let delta = writer.end_value();
                    self.arguments(&delta);
                    self.state = State::Function(writer);
                }
            }
            Found::FunctionEnd => {
                self.close_function();
                self.after_tag();
                self.state = State::Closing;
            }
            Found::CallEnd => {
                self.close_function();
                self.state = State::Text;
                self.after_tag();
            }
            Found::Skip => self.after_tag(),
        }
    }

    fn after_tag(&mut self) {
        self.spaces.clear();
        self.fresh = Fresh::AfterTag;
    }

    fn close_function(&mut self) {
        if let State::Function(writer) = std::mem::replace(&mut self.state, State::Text) {
            self.end_call(writer);
        }
    }

    /// What opened the call that is to come.
    fn take_opening(&mut self) -> (String, Option<String>) {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Opened { opening, name } => (opening, name),
            _ => (String::new(), None),
        }
    }

    /// JSON of a call, up to its last brace.
    fn json(&mut self, text: &str) {
        let State::Json(body) = &mut self.state else { return };
        let Some(end) = body.push(text) else { return };
        let known = |name: &str| self.schemas.is_empty() || self.schemas.iter().any(|schema| schema.name() == name);
        match body.call().filter(|(name, _)| !body.is_bare || known(name)) {
            Some((name, arguments)) => {
                self.after_tag();
                let index = self.start_call(name);
                self.emit_arguments(index, &arguments);
                self.events.push(ReplyEvent::ToolCallEnd { index });
                self.state = State::Closing;
            }
            None => {
                if let State::Json(body) = std::mem::replace(&mut self.state, State::Text) {
                    self.not_a_call(&body.into_text());
                }
            }
        }
        self.again(&text[end..]);
    }

    fn start_call(&mut self, name: String) -> usize {
        let index = self.n_calls;
        self.n_calls += 1;
        self.events.push(ReplyEvent::ToolCallStart { index, name });
        index
    }

    fn arguments(&mut self, delta: &str) {
        self.emit_arguments(self.n_calls - 1, delta);
    }

    fn end_call(&mut self, writer: Writer) {
        let index = self.n_calls - 1;
        self.emit_arguments(index, writer.end());
        self.events.push(ReplyEvent::ToolCallEnd { index });
    }

    /// What looked like a call is text, with the spaces before it.
    fn not_a_call(&mut self, text: &str) {
        self.state = State::Text;
        self.visible(text);
    }

    /// Reasoning or text, with the spaces before it; spaces at its end wait for what follows.
    fn visible(&mut self, text: &str) {
        let in_reasoning = matches!(self.state, State::Reasoning);
        if !in_reasoning && self.syntax.has_no_calls() && self.fresh == Fresh::No {
            // No call can follow, so spaces need not wait.
            let spaces = std::mem::take(&mut self.spaces);
            self.emit_text(&spaces);
            return self.emit_text(text);
        }
        let body = text.trim_end();
        if !body.is_empty() {
            let before = &text[..text.len() - text.trim_start().len()];
            self.spaces.push_str(before);
            let spaces = std::mem::take(&mut self.spaces);
            let kept = match self.fresh {
                Fresh::No => spaces.as_str(),
                Fresh::Start if !in_reasoning => spaces.as_str(),
                // The first line may be indented.
                _ if !in_reasoning => &spaces[spaces.rfind('\n').map_or(0, |at| at + 1)..],
                _ => "",
            };
            self.fresh = Fresh::No;
            if matches!(self.state, State::Start) {
                self.state = State::Text;
            }
            let whole = [kept, body.trim_start()].concat();
            if in_reasoning {
                self.emit_reasoning(&whole);
            } else {
                self.emit_text(&whole);
            }
        }
        self.spaces.push_str(&text[body.len()..]);
    }

    fn emit_reasoning(&mut self, text: &str) {
        match self.events.last_mut() {
            Some(ReplyEvent::Reasoning(last)) => last.push_str(text),
            _ => self.events.push(ReplyEvent::Reasoning(text.to_owned())),
        }
    }

    fn emit_text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.events.last_mut() {
            Some(ReplyEvent::Text(last)) => last.push_str(text),
            _ => self.events.push(ReplyEvent::Text(text.to_owned())),
        }
    }

    fn emit_arguments(&mut self, index: usize, text: &str) {
        if text.is_empty() {
            return;
        }
        match self.events.last_mut() {
            Some(ReplyEvent::ToolCallArguments { index: last, delta }) if *last == index => {
                delta.push_str(text);
            }
            _ => self.events.push(ReplyEvent::ToolCallArguments { index, delta: text.to_owned() }),
        }
    }
}
