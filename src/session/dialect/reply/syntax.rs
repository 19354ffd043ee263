//! What a reply parser looks for, worked out once from a family's description.

use crate::dialect::family::{Arguments, Calls, Family, Form, ID, Reasoning, Tagged};

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
    /// A reply that is nothing but JSON may be a call.
    pub(super) bare: bool,
    /// The mark around texts in arguments.
    pub(super) mark: Option<&'static str>,
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
        const NONE: Calls = Calls { forms: &[], openings: &[], skips: &[], ends: &[] };
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
            None => return Self::untagged(calls, openings, reasoning),
        };
        Self { after_value: after_value.collect(), tagged, ..Self::untagged(calls, openings.clone(), reasoning) }
    }

    fn untagged(calls: &'static Calls, openings: Vec<&'static str>, reasoning: Option<&'static Reasoning>) -> Self {
        let forms = calls.forms;
        let bare = forms.iter().any(|form| form.opening.is_empty());
        let mut starts: Vec<char> = openings.iter().filter_map(|tag| tag.chars().next()).collect();
        starts.extend(reasoning.and_then(|tags| tags.close.chars().next()));
        starts.dedup();
        Self {
            reasoning,
            headers: forms.iter().filter_map(Header::of).collect(),
            tagged: None,
            after_value: Vec::new(),
            objects: forms.iter().any(|form| matches!(form.arguments, Arguments::Object)),
            lists: forms.iter().any(|form| form.first == "["),
            bare,
            mark: forms.iter().find_map(|form| match form.arguments {
                Arguments::Marked(mark) => Some(mark),
                _ => None,
            }),
            skips: calls.skips,
            ends: calls.ends,
            starts,
            openings,
        }
    }

    /// No call is looked for.
    pub(super) fn has_no_calls(&self) -> bool {
        self.openings.is_empty()
    }
}

impl Header {
    fn of(form: &Form) -> Option<Self> {
        let (open, after) = (form.before.trim_start(), form.after.trim_end());
        let (id, close) = match after.split_once(ID) {
            Some((id, close)) => (Some(id), close),
            None => (None, after),
        };
        (!matches!(form.arguments, Arguments::Object)).then_some(Self { open, id, close })
    }
}
