//! Replies as they stream in, taken apart into reasoning, text and tool calls, by the tags of a family.
//! Knows nothing of tokens and of wire formats. How the text is cut into pieces never changes the events, once neighbours of one
//! kind are joined, and no character is looked at more than a bounded number of times.
//!
//! What is not right:
//! - What opens a call and is none, or a call that is cut off or not usable before the first value of its arguments has begun, is text.
//! - Arguments that are cut off later, or go on as nothing that is JSON, are closed where they stand, and what is left is text: the
//!   start of a call is told when its first value begins, and whatever was told of arguments is an object in the end.
//! - A function that no schema names is a call like any other, with its values typed by their looks.
//! - Parameters between tags that are cut off by the end, or by a tag that closes something around them, are closed there; the
//!   arguments are an object.
//! - Other text between the tags of a call comes as text. A parameter named twice is there twice; JSON readers take the last.
//! - A value may hold its own closing tag, if neither a next parameter nor the end of the function follows it.
//! - Tags of tool calls within reasoning are reasoning, but for families whose calls end it: a whole opening does, up to the name of
//!   a function that there is.

mod body;
mod copy;
mod event;
mod output;
mod syntax;
mod tags;
mod value;

use super::family::{Family, Reasoning};
use body::Body;
use copy::Step;
pub use event::ReplyEvent;
use output::{Fresh, Output};
use syntax::Syntax;
use tags::{Found, Judged, Message};
pub use value::ToolSchema;
use value::Writer;

/// Takes one reply apart.
#[derive(Debug)]
pub struct ReplyParser {
    syntax: Syntax,
    schemas: Vec<ToolSchema>,
    /// What begins as text has no calls: then this is what is looked for.
    of_text: Option<Syntax>,
    state: State,
    /// Text that may be the beginning of a tag.
    hold: String,
    /// The end of the message is text.
    keeps_end: bool,
    /// A call ended the reasoning, whose tag may come late.
    unclosed: bool,
    out: Output,
}

/// What a reply may hold.
#[derive(Clone, Debug, Default)]
pub struct ReplyOptions {
    /// The prompt opened the reasoning; counts only with `reasoning`.
    pub starts_in_reasoning: bool,
    /// The prompt ends within what is said or thought, so spaces that come first belong to it.
    pub continues: bool,
    /// Recognise the tags of reasoning, the opening one at the reply's start only; otherwise they are text.
    pub reasoning: bool,
    /// Recognise tool calls; otherwise they are text.
    pub tools: bool,
    /// A grammar demands calls after the reasoning, so none within it is one.
    pub forced: bool,
    /// A grammar demands calls or a text, not one in the other: what begins as text has no calls in it.
    pub either: bool,
    /// The types of parameters, by function.
    pub tool_schemas: Vec<ToolSchema>,
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
    /// In a message that is for something that is not here.
    Dropped,
}

impl ReplyParser {
    /// A parser for one reply of a family's model. `reasoning`: the tags that are recognised, if the options want it.
    pub(super) fn new(family: &'static Family, reasoning: Option<&'static Reasoning>, o: ReplyOptions) -> Self {
        let reasoning = reasoning.filter(|_| o.reasoning);
        let (state, fresh) = match (reasoning, o.starts_in_reasoning) {
            (Some(_), true) if o.continues => (State::Reasoning, Fresh::No),
            (Some(_), true) => (State::Reasoning, Fresh::AfterTag),
            (_, _) if o.continues => (State::Text, Fresh::No),
            (None, _) if family.messages.is_none() => (State::Text, Fresh::Start),
            (_, _) => (State::Start, Fresh::Start),
        };
        let mut syntax = Syntax::new(family, o.tools, reasoning);
        syntax.end_reasoning &= !o.forced;
        Self {
            syntax,
            schemas: o.tool_schemas,
            of_text: (o.tools && o.either).then(|| Syntax::new(family, false, reasoning)),
            state,
            hold: String::new(),
            keeps_end: false,
            unclosed: false,
            out: Output::new(fresh),
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
        self.out.take()
    }

    /// The reply is over: gives what was held back and closes an open call.
    pub fn finish(&mut self) -> Vec<ReplyEvent> {
        self.settle(true);
        let is_text = match &self.state {
            State::Start | State::Text | State::Opened { .. } => true,
            State::Json(body) => !body.started(),
            _ => false,
        };
        match std::mem::replace(&mut self.state, State::Text) {
            State::Opened { opening, .. } => self.not_a_call(&opening),
            State::Json(body) if body.started() => self.end_body(body),
            State::Json(body) => self.not_a_call(&body.into_text()),
            State::Function(writer) => self.end_function(&writer),
            State::Value(mut writer) => {
                let closing = writer.end_value();
                self.out.arguments(&closing);
                self.end_function(&writer);
            }
            State::Start | State::Text | State::Reasoning | State::Closing | State::Dropped => {}
        }
        if is_text && self.out.fresh != Fresh::AfterTag {
            let spaces = std::mem::take(&mut self.out.spaces);
            self.out.emit_text(&spaces);
        }
        self.out.spaces.clear();
        self.out.take()
    }

    /// How much of the beginning cannot be part of a tag here.
    fn plain_prefix(&self, text: &str) -> usize {
        let end = match &self.state {
            State::Text if self.syntax.is_plain() => None,
            State::Text | State::Reasoning if self.out.fresh == Fresh::No => text.find(&*self.syntax.starts),
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
        let known = |name: &str| known(&self.schemas, name);
        let late =
            matches!(self.state, State::Text | State::Closing) && self.unclosed && self.out.fresh == Fresh::AfterTag;
        if let Some(tags) = syntax.reasoning.filter(|_| late) {
            let judged = tags::any(hold, [(tags.close, Found::ThinkEnd)].into_iter(), end);
            if !matches!(judged, Judged::Plain(_)) {
                return judged;
            }
        }
        match (&self.state, syntax.tagged) {
            (State::Start, _) => tags::at_start(hold, syntax, &known, end),
            (State::Reasoning, _) => tags::in_reasoning(hold, syntax, self.out.fresh != Fresh::No, &known, end),
            (State::Text, _) => match tags::in_text(hold, syntax, &known, end) {
                Judged::Plain(n) if self.may_be_bare() => tags::bare(hold, end).unwrap_or(Judged::Plain(n)),
                judged => judged,
            },
            (State::Opened { name, .. }, _) => tags::opened(hold, syntax, name.is_some(), end),
            (State::Function(_), Some(tagged)) => tags::in_function(hold, syntax, tagged, end),
            (State::Value(_), Some(tagged)) => tags::in_value(hold, syntax, tagged, end),
            (State::Closing, _) => tags::closing(hold, syntax, end),
            (State::Dropped, _) => tags::dropped(hold, syntax, end),
            (State::Json(_) | State::Function(_) | State::Value(_), _) => Judged::Plain(hold.len()),
        }
    }

    /// Nothing was said yet, so JSON may be a call without any tag.
    fn may_be_bare(&self) -> bool {
        self.syntax.bare && self.out.fresh != Fresh::No
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
                self.out.arguments(&delta);
            }
            State::Dropped => {}
            State::Closing => {
                if text.chars().all(char::is_whitespace) {
                    self.out.spaces.push_str(text);
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
        self.unclosed |= matches!((&self.state, &found), (State::Reasoning, Found::Call | Found::Function(_)));
        match found {
            Found::Think => {
                self.state = State::Reasoning;
                self.out.after_tag();
            }
            Found::ThinkEnd => {
                self.unclosed = false;
                self.state = self.outside();
                self.out.after_tag();
            }
            Found::Call => {
                self.close_function();
                self.state = State::Opened { opening: tag.to_owned(), name: None };
            }
            Found::Function(name) => match self.syntax.tagged {
                Some(tagged) => {
                    self.out.after_tag();
                    let schema = self.schemas.iter().find(|schema| schema.name() == name);
                    let writer = Writer::new(schema.cloned(), tagged.own_lines);
                    self.out.start_call(name);
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
                self.state = State::Json(Body::new(opening, name, self.syntax.notation, is_bare));
                self.json(tag);
            }
            Found::Parameter(name, is_text) => {
                if let State::Function(mut writer) = std::mem::replace(&mut self.state, State::Text) {
                    self.out.after_tag();
                    let delta = writer.begin_value(&name, is_text);
                    self.out.arguments(&delta);
                    self.state = State::Value(writer);
                }
            }
            Found::ParameterEnd => {
                if let State::Value(mut writer) = std::mem::replace(&mut self.state, State::Text) {
                    let delta = writer.end_value();
                    self.out.arguments(&delta);
                    self.state = State::Function(writer);
                }
            }
            Found::FunctionEnd => {
                self.close_function();
                self.out.after_tag();
                self.state = State::Closing;
            }
            Found::CallEnd => {
                self.close_function();
                self.state = self.outside();
                self.out.after_tag();
            }
            Found::Skip => self.out.after_tag(),
            Found::Message(message) => self.message(message, tag),
            Found::MessageEnd if self.keeps_end => {
                self.visible(tag);
                self.keeps_end = false;
                self.state = State::Start;
            }
            Found::MessageEnd => {
                self.out.after_tag();
                self.state = State::Start;
            }
        }
    }

    /// What comes where nothing is open.
    fn outside(&self) -> State {
        if self.syntax.messages.is_some() { State::Start } else { State::Text }
    }

    /// After the header of a message.
    fn message(&mut self, message: Message, header: &str) {
        let is_read = match &message {
            Message::Reasoning => self.syntax.reasoning.is_some(),
            Message::Call(_) => !self.syntax.headers.is_empty(),
            Message::Text | Message::Other => true,
        };
        if !is_read {
            self.state = State::Text;
            self.keeps_end = true;
            return self.visible(header);
        }
        self.state = match message {
            // The call itself says its name again.
            Message::Call(_) if self.syntax.tagged.is_some() => State::Closing,
            Message::Call(name) => State::Opened { opening: header.to_owned(), name: Some(name) },
            Message::Reasoning => State::Reasoning,
            Message::Text => State::Text,
            Message::Other => State::Dropped,
        };
        if !matches!(self.state, State::Opened { .. }) {
            self.out.after_tag();
        }
    }

    fn close_function(&mut self) {
        if let State::Function(writer) = std::mem::replace(&mut self.state, State::Text) {
            self.end_function(&writer);
        }
    }

    fn end_function(&mut self, writer: &Writer) {
        self.out.arguments(writer.end());
        self.out.end_call();
    }

    /// What opened the call that is to come.
    fn take_opening(&mut self) -> (String, Option<String>) {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Opened { opening, name } => (opening, name),
            _ => (String::new(), None),
        }
    }

    /// Arguments of a call, or the object that holds them, up to its end.
    fn json(&mut self, text: &str) {
        let State::Json(mut body) = std::mem::replace(&mut self.state, State::Text) else { return };
        for (at, c) in text.char_indices() {
            let step = body.push(c, |name| known(&self.schemas, name));
            if let Some(name) = body.start() {
                self.out.after_tag();
                self.out.start_call(name);
            }
            if body.started() {
                self.out.arguments(&body.take());
            }
            let rest = &text[at + c.len_utf8()..];
            match step {
                Step::More => continue,
                Step::Broken(unread) if body.started() => {
                    self.end_body(body);
                    self.again(&(unread + rest));
                }
                Step::Ended if body.started() => {
                    self.end_body(body);
                    self.again(rest);
                }
                Step::Ended | Step::Broken(_) => {
                    self.object(body);
                    self.again(rest);
                }
            }
            return;
        }
        self.state = State::Json(body);
    }

    /// The end of a call whose start was told.
    fn end_body(&mut self, mut body: Body) {
        self.out.arguments(&body.close());
        self.out.end_call();
        self.state = State::Closing;
    }

    /// An object that was read whole: a call, or text.
    fn object(&mut self, body: Body) {
        let Some((name, arguments)) = body.call(|name| known(&self.schemas, name)) else {
            return self.not_a_call(&body.into_text());
        };
        self.out.after_tag();
        self.out.start_call(name);
        self.out.arguments(&arguments);
        self.out.end_call();
        self.state = State::Closing;
    }

    /// What looked like a call is text, with the spaces before it.
    fn not_a_call(&mut self, text: &str) {
        self.state = State::Text;
        self.visible(text);
    }

    /// Reasoning or text.
    fn visible(&mut self, text: &str) {
        let in_reasoning = matches!(self.state, State::Reasoning);
        let said = self.out.say(text, in_reasoning, self.syntax.is_plain());
        if said && matches!(self.state, State::Start) {
            self.state = State::Text;
        }
        if said
            && !in_reasoning
            && let Some(of_text) = self.of_text.take()
        {
            self.syntax = of_text;
        }
    }
}

/// Whether the request has this function; one that has no schemas may have any.
fn known(schemas: &[ToolSchema], name: &str) -> bool {
    schemas.is_empty() || schemas.iter().any(|schema| schema.name() == name)
}
