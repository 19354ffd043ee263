//! What a model family's text is made of, as data. A family is one [`Family`] in a file of its own; the reply parser and the grammar
//! of tool calls are made from it by shared code. Owns the types only.

/// A model family.
#[derive(Debug)]
pub struct Family {
    /// Its name in logs.
    pub name: &'static str,
    /// A template is of this family if it has all texts of one of these lists.
    pub signs: &'static [&'static [&'static str]],
    /// Where no template is of any family, a vocabulary with all of these tokens is of this one. Empty: none is.
    pub tokens: &'static [&'static str],
    /// The tags of its reasoning.
    pub reasoning: Reasoning,
    /// Texts around what is said that say nothing: they are left out.
    pub marks: &'static [&'static str],
    /// Its replies are messages with headers.
    pub messages: Option<Messages>,
    /// Its tool calls; `None`: it has none.
    pub calls: Option<Calls>,
}

/// A family whose texts have none of what is left out here.
pub const BASE: Family =
    Family { name: "plain", signs: &[], tokens: &[], reasoning: THINK, marks: &[], messages: None, calls: None };

/// The tags around reasoning.
#[derive(Debug)]
pub struct Reasoning {
    /// Opens it.
    pub open: &'static str,
    /// The token that `open` begins with.
    pub token: &'static str,
    /// Closes it.
    pub close: &'static str,
    /// A template shows these tags if it has this text, beside one that has `close`.
    pub shown_by: &'static str,
    /// The white space before and after `close` as templates write it.
    pub around: [&'static str; 2],
}

/// `<think>`, which most families share.
pub const THINK: Reasoning =
    Reasoning { open: "<think>", token: "<think>", close: "</think>", shown_by: "</think>", around: ["\n", "\n\n"] };

/// Replies as messages, each `[start] HEADER body TEXT end`. A header may name a channel and who the message is for.
#[derive(Debug)]
pub struct Messages {
    /// Begins a message after the first.
    pub start: &'static str,
    /// Before the name of a channel; empty: headers name none.
    pub channel: &'static str,
    /// Before the name of a recipient.
    pub recipient: &'static str,
    /// Between the header and its text.
    pub body: &'static str,
    /// End a message.
    pub ends: &'static [&'static str],
    /// The channel, or else the recipient, of reasoning.
    pub reasoning: &'static str,
    /// The recipient of what is said, where one is named.
    pub user: &'static str,
    /// Before the name of a function that is called, whose arguments or call follow.
    pub functions: &'static str,
}

/// The tool calls of a family: the forms that its models write, all of which are read, and what may stand around them.
#[derive(Debug)]
pub struct Calls {
    /// The forms; the first that a template shows is the one that a grammar makes.
    pub forms: &'static [Form],
    /// What may open calls beside the forms' own openings.
    pub openings: &'static [&'static str],
    /// A call may also begin with what stands before the function's name, which must be one that the request has.
    pub unopened: bool,
    /// A call within reasoning that was not closed ends it.
    pub end_reasoning: bool,
    /// What may stand after a call without meaning anything.
    pub skips: &'static [&'static str],
    /// What ends a call, or all of them: text follows.
    pub ends: &'static [&'static str],
}

/// One way to write calls. A reply's calls are `opening first CALL (between CALL)* closing`, where a CALL is
/// `before NAME after ARGUMENTS end`. White space is as templates write it; readers take any.
#[derive(Debug)]
pub struct Form {
    /// A template shows this form if it has all of these texts.
    pub shown_by: &'static [&'static str],
    /// What makes a call of what follows. Empty: a reply that is nothing but calls.
    pub opening: &'static str,
    /// Before the first call.
    pub first: &'static str,
    /// Before a function's name.
    pub before: &'static str,
    /// Between a function's name and its arguments. [`ID`] stands for a call's id, [`NUMBER`] for its number.
    pub after: &'static str,
    /// The arguments.
    pub arguments: Arguments,
    /// After the arguments.
    pub end: &'static str,
    /// Between two calls; `None`: a reply has one call at most.
    pub between: Option<&'static str>,
    /// After the last call.
    pub closing: &'static str,
}

/// Stands for the id of a call in a text of a [`Form`]: nine letters and digits.
pub const ID: char = '\0';

/// Stands for the number of a call in a text of a [`Form`].
pub const NUMBER: char = '\u{1}';

/// Stands for the word of a value's type in [`Tagged::named`].
pub const TYPE: char = '\u{2}';

/// How the arguments of a call are written.
#[derive(Debug)]
pub enum Arguments {
    /// As JSON that lies with the name in one JSON object.
    Object,
    /// As a JSON object after the name.
    Json,
    /// Each between tags, texts as they are.
    Tagged(Tagged),
    /// As in JSON, with keys that stand bare and this mark around texts, which are not escaped.
    Marked(&'static str),
    /// As Python's keyword arguments, with Python's or JSON's values.
    Keywords,
}

/// Parameters between tags: `open NAME named gap value VALUE close gap`.
#[derive(Debug)]
pub struct Tagged {
    /// Before a parameter's name.
    pub open: &'static str,
    /// After it. [`TYPE`] stands for a word of `types`.
    pub named: &'static str,
    /// The word for a text, and those for other values.
    pub types: (&'static str, &'static [&'static str]),
    /// Before its value, where that has a tag of its own.
    pub value: &'static str,
    /// After its value.
    pub close: &'static str,
    /// Ends a function, where calls have a tag of their own around it.
    pub end: Option<&'static str>,
    /// White space between tags.
    pub gap: &'static str,
    /// A value stands on lines of its own.
    pub own_lines: bool,
}

impl Form {
    /// Whether a template with this source shows it.
    pub fn is_shown_by(&self, template: &str) -> bool {
        self.shown_by.iter().all(|text| template.contains(text))
    }
}

impl Calls {
    /// What makes a call of what follows, each once.
    pub fn all_openings(&self) -> impl Iterator<Item = &'static str> {
        let forms = self.forms.iter().enumerate();
        let own = forms.filter(|(i, form)| !self.forms[..*i].iter().any(|other| other.opening == form.opening));
        own.map(|(_, form)| form.opening).filter(|opening| !opening.is_empty()).chain(self.openings.iter().copied())
    }
}
