//! What a reply parser looks for, worked out once from a family's description.

use super::copy::Notation;
use crate::dialect::family::{Arguments, Calls, Family, Form, ID, Messages, NUMBER, Reasoning, Tagged};

/// What is looked for.
#[derive(Clone, Debug)]
pub(super) struct Syntax {
    /// The tags of reasoning, if they are recognised.
    pub(super) reasoning: Option<&'static Reasoning>,
    /// What makes a call of what follows.
    pub(super) openings: Vec<&'static str>,
    /// What stands around the names of functions.
    pub(super) headers: Vec<Header>,
    /// Parameters between tags.
    pub(super) tagged: Option<&'static Tagged>,
    /// What may follow the end of a value.
    pub(super) after_value: Vec<&'static str>,
    /// JSON with a name in it is a call.
    pub(super) objects: bool,
    /// Calls come in a list.
    pub(super) lists: bool,
    /// An object after a call is the next one.
    pub(super) rows: bool,
    /// A reply that is nothing but JSON may be a call.
    pub(super) bare: bool,
    /// How arguments stand that are not between tags.
    pub(super) notation: Notation,
    /// A call may begin with its function's header.
    pub(super) unopened: bool,
    /// A call ends reasoning that is open.
    pub(super) end_reasoning: bool,
    /// Replies are messages with headers.
    pub(super) messages: Option<&'static Messages>,
    /// Texts that say nothing.
    pub(super) marks: Vec<&'static str>,
    pub(super) skips: &'static [&'static str],
    pub(super) ends: &'static [&'static str],
    /// The first characters of all that may come within text.
    pub(super) starts: Vec<char>,
}

/// What stands around a function's name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) open: &'static str,
    /// Begins an id after the name.
    pub(super) id: Option<&'static str>,
    /// Empty: the name ends where a tag of parameters or the end of the call begins.
    pub(super) close: &'static str,
}

impl Syntax {
    /// With `tools` calls are recognised, with `reasoning` these tags.
    pub(super) fn new(family: &'static Family, tools: bool, reasoning: Option<&'static Reasoning>) -> Self {
        const NONE: Calls =
            Calls { forms: &[], openings: &[], unopened: false, end_reasoning: false, skips: &[], ends: &[] };
        const NO_CALLS: &Calls = &NONE;
        let calls = family.calls.as_ref().filter(|_| tools).unwrap_or(NO_CALLS);
        let forms = calls.forms;
        let openings: Vec<&str> = calls.all_openings().collect();
        let tagged = forms.iter().find_map(|form| match &form.arguments {
            Arguments::Tagged(tagged) => Some(tagged),
            _ => None,
        });
        let after_value = match tagged {
            Some(t) => {
                [t.open].into_iter().chain(t.end).chain(calls.ends.iter().copied()).chain(openings.iter().copied())
            }
            None => return Self::untagged(family, calls, openings, reasoning),
        };
        Self {
            after_value: after_value.collect(),
            tagged,
            ..Self::untagged(family, calls, openings.clone(), reasoning)
        }
    }

    fn untagged(
        family: &'static Family,
        calls: &'static Calls,
        openings: Vec<&'static str>,
        reasoning: Option<&'static Reasoning>,
    ) -> Self {
        let forms = calls.forms;
        let bare = forms.iter().any(|form| form.opening.is_empty() && matches!(form.arguments, Arguments::Object));
        let headers: Vec<Header> = forms.iter().filter_map(Header::of).collect();
        let messages = family.messages.as_ref();
        // Tags of reasoning that are not read stay.
        let Reasoning { open, close, .. } = family.reasoning;
        let is_mark = |mark: &&str| reasoning.is_some() || !(mark.contains(close) || open.contains(mark));
        let marks: Vec<&str> = family.marks.iter().copied().filter(is_mark).collect();
        let mut tags: Vec<&str> = openings.iter().chain(&marks).copied().collect();
        tags.extend(reasoning.map(|tags| tags.close));
        tags.extend(messages.iter().flat_map(|m| m.ends.iter().copied().chain([m.start])));
        tags.extend(headers.iter().filter(|_| calls.unopened).map(|header| header.open));
        let mut starts: Vec<char> = tags.iter().filter_map(|tag| tag.chars().next()).collect();
        starts.sort_unstable();
        starts.dedup();
        Self {
            reasoning,
            headers,
            tagged: None,
            after_value: Vec::new(),
            objects: forms.iter().any(|form| matches!(form.arguments, Arguments::Object)),
            lists: forms.iter().any(|form| form.first.trim() == "["),
            rows: forms.iter().any(|form| {
                let follows = form.between.is_some_and(|between| matches!(between.trim(), "" | ","));
                matches!(form.arguments, Arguments::Object) && (follows || bare)
            }),
            bare,
            notation: forms.iter().fold(Notation::Json, |notation, form| match form.arguments {
                Arguments::Marked(mark) => Notation::Marked(mark),
                Arguments::Keywords => Notation::Keywords,
                _ => notation,
            }),
            unopened: calls.unopened,
            end_reasoning: calls.end_reasoning,
            messages,
            marks,
            skips: calls.skips,
            ends: calls.ends,
            starts,
            openings,
        }
    }

    /// Nothing is looked for within text.
    pub(super) fn is_plain(&self) -> bool {
        self.openings.is_empty() && self.marks.is_empty() && self.messages.is_none() && !self.unopened
    }
}

impl Header {
    fn of(form: &Form) -> Option<Self> {
        let (open, after) = (form.before.trim_start(), form.after.trim_end());
        let (id, close) = match after.split_once([ID, NUMBER]) {
            Some((id, close)) => (Some(id), close),
            None => (None, after),
        };
        (!matches!(form.arguments, Arguments::Object)).then_some(Self { open, id, close })
    }
}
