//! Which tag a held piece of text is, is not, or may yet become. Pure functions over short texts: nothing is held longer than a tag
//! with a name and a few spaces, so looking at the whole piece again for each character stays linear.

use super::syntax::{Header, Syntax};
use crate::dialect::family::{Messages, TYPE, Tagged};

/// Whether a function is one that the request has.
pub(super) type Known<'k> = &'k dyn Fn(&str) -> bool;

/// What is known about the text that is held.
#[derive(Debug)]
pub(super) enum Judged {
    /// More text decides.
    Wait,
    /// The first bytes are no tag.
    Plain(usize),
    /// The first bytes are this tag.
    Tag(usize, Found),
}

/// A tag.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Think,
    ThinkEnd,
    Call,
    Function(String),
    /// The bracket that opens a call's arguments, or the object that holds them.
    Json,
    /// A parameter's name, and whether its value is a text if the call says so.
    Parameter(String, Option<bool>),
    ParameterEnd,
    FunctionEnd,
    CallEnd,
    /// Something that says nothing.
    Skip,
    /// The header of a message.
    Message(Message),
    /// The end of a message, or the beginning of the next.
    MessageEnd,
}

/// What a message holds.
#[derive(Clone, Debug)]
pub(super) enum Message {
    Reasoning,
    Text,
    /// Arguments of this function.
    Call(String),
    /// It is for something that is not here.
    Other,
}

/// Spaces between tags that belong together.
pub(super) const MAX_SPACES: usize = 64;
const MAX_NAME: usize = 128;
/// Bytes of a message's header.
const MAX_HEADER: usize = 256;
/// The first keys of a reply that is a call and nothing else.
const FIRST_KEYS: [&str; 2] = ["\"name\"", "\"type\""];

/// One of these tags, the longest, or text.
pub(super) fn any<'t>(hold: &str, tags: impl Iterator<Item = (&'t str, Found)>, end: bool) -> Judged {
    let (mut may_be, mut longest) = (false, None);
    for (tag, found) in tags {
        if hold.starts_with(tag) {
            longest = longest.filter(|(n, _)| *n >= tag.len()).or(Some((tag.len(), found)));
        } else {
            may_be |= tag.starts_with(hold);
        }
    }
    match longest {
        _ if may_be && !end => Judged::Wait,
        Some((n, found)) => Judged::Tag(n, found),
        None => plain(hold),
    }
}

/// Within text: the opening of a call, or what says nothing.
pub(super) fn in_text(hold: &str, syntax: &Syntax, known: Known<'_>, end: bool) -> Judged {
    let ends =
        syntax.messages.iter().flat_map(|m| m.ends.iter().chain([&m.start])).map(|tag| (*tag, Found::MessageEnd));
    let tag = any(hold, outside(syntax).chain(ends), end);
    either(tag, unopened(hold, syntax, known, end))
}

/// Before any text: reasoning, the opening of a call, or a call that is all of the reply.
pub(super) fn at_start(hold: &str, syntax: &Syntax, known: Known<'_>, end: bool) -> Judged {
    let think = syntax.reasoning.map(|tags| (tags.open, Found::Think));
    let tag = any(hold, think.into_iter().chain(outside(syntax)), end);
    let call = if syntax.bare { bare(hold, end) } else { unopened(hold, syntax, known, end) };
    either(either(tag, call), syntax.messages.and_then(|messages| header_of_message(hold, messages, end)))
}

fn outside(syntax: &Syntax) -> impl Iterator<Item = (&'static str, Found)> {
    // Where replies are messages, calls come in messages of their own.
    let openings = if syntax.messages.is_some() { &[][..] } else { &syntax.openings };
    let calls = openings.iter().map(|tag| (*tag, Found::Call));
    calls.chain(syntax.marks.iter().map(|tag| (*tag, Found::Skip)))
}

/// In reasoning: its end, or a call that ends it. Only a whole opening does, up to the name of a function that there is.
pub(super) fn in_reasoning(hold: &str, syntax: &Syntax, fresh: bool, known: Known<'_>, end: bool) -> Judged {
    let Some(tags) = syntax.reasoning else { return plain(hold) };
    let open = fresh.then_some((tags.open, Found::Think));
    let tag = any(hold, open.into_iter().chain([(tags.close, Found::ThinkEnd)]), end);
    let call = syntax.end_reasoning.then(|| whole_opening(hold, syntax, known, end)).flatten();
    either(tag, call)
}

fn whole_opening(hold: &str, syntax: &Syntax, known: Known<'_>, end: bool) -> Option<Judged> {
    let mut wait = false;
    for opening in &syntax.openings {
        let Some(rest) = hold.strip_prefix(opening) else {
            wait |= opening.starts_with(hold);
            continue;
        };
        let header = rest.trim_start();
        if rest.len() - header.len() > MAX_SPACES {
            continue;
        }
        match known_header(header, syntax, known, end) {
            _ if header.is_empty() => wait = true,
            Some(Judged::Tag(..)) => return Some(Judged::Tag(opening.len(), Found::Call)),
            Some(_) => wait = true,
            None => {}
        }
    }
    let call = unopened(hold, syntax, known, end);
    call.or((wait && !end).then_some(Judged::Wait))
}

/// A call without what opens calls.
fn unopened(hold: &str, syntax: &Syntax, known: Known<'_>, end: bool) -> Option<Judged> {
    if syntax.unopened { known_header(hold, syntax, known, end) } else { None }
}

/// A function's name with what stands around it, if there is such a function, and the bracket of its arguments, if they have one.
fn known_header(hold: &str, syntax: &Syntax, known: Known<'_>, end: bool) -> Option<Judged> {
    let judged = function(hold, syntax, end)?;
    let Judged::Tag(n, Found::Function(name)) = &judged else { return Some(judged) };
    if !known(name) {
        return None;
    }
    let after = hold[*n..].trim_start();
    match syntax.tagged {
        None if after.is_empty() && !end && hold.len() - n <= MAX_SPACES => Some(Judged::Wait),
        None if !after.starts_with(['{', '(']) => None,
        _ => Some(judged),
    }
}

/// The header of a message.
fn header_of_message(hold: &str, messages: &Messages, end: bool) -> Option<Judged> {
    let rest = hold.strip_prefix(messages.start).unwrap_or(hold);
    let mut begins = [messages.channel, messages.recipient].into_iter().filter(|tag| !tag.is_empty());
    let header = rest.trim_start();
    let may_begin = rest.len() - header.len() <= MAX_SPACES && begins.clone().any(|tag| tag.trim().starts_with(header))
        || messages.start.starts_with(hold);
    if !begins.any(|tag| header.starts_with(tag.trim())) {
        return (may_begin && !end).then_some(Judged::Wait);
    }
    let Some(at) = header.find(messages.body) else {
        return (header.len() <= MAX_HEADER && !header.contains('\n') && !end).then_some(Judged::Wait);
    };
    let n = hold.len() - header.len() + at + messages.body.len();
    Some(Judged::Tag(n, Found::Message(message(&header[..at], messages))))
}

/// What a header says of its message.
fn message(header: &str, messages: &Messages) -> Message {
    let word = |after: &str| {
        let rest = header.rsplit_once(after.trim()).filter(|_| !after.is_empty()).map_or("", |(_, rest)| rest);
        rest.split(['<', ' ', '\n']).next().unwrap_or_default().to_owned()
    };
    let (channel, recipient) = (word(messages.channel), word(messages.recipient));
    let is_ours = ["", "assistant", messages.user].contains(&recipient.as_str());
    let whose = if messages.channel.is_empty() { &recipient } else { &channel };
    match recipient.strip_prefix(messages.functions) {
        _ if whose == messages.reasoning && (is_ours || messages.channel.is_empty()) => Message::Reasoning,
        _ if is_ours => Message::Text,
        Some(name) if !name.is_empty() => Message::Call(name.to_owned()),
        _ => Message::Other,
    }
}

/// Where a reply may be nothing but a call, text may still begin with a brace.
pub(super) fn bare(hold: &str, end: bool) -> Option<Judged> {
    let rest = hold.strip_prefix('{')?.trim_start();
    if FIRST_KEYS.iter().any(|key| rest.starts_with(key)) {
        return Some(Judged::Tag(hold.len(), Found::Json));
    }
    let may_be = hold.len() <= MAX_SPACES && FIRST_KEYS.iter().any(|key| key.starts_with(rest));
    (may_be && !end).then_some(Judged::Wait)
}

/// After the opening of a call: a function or JSON. With `named` the function's name has come, and its JSON is to follow.
pub(super) fn opened(hold: &str, syntax: &Syntax, named: bool, end: bool) -> Judged {
    match hold.chars().next() {
        Some('{') if named || syntax.objects => return Judged::Tag(1, Found::Json),
        Some('(') if named => return Judged::Tag(1, Found::Json),
        Some('[') if syntax.lists => return plain(hold),
        Some(c) if named || c.is_whitespace() => return plain(hold),
        _ => {}
    }
    function(hold, syntax, end).unwrap_or_else(|| plain(hold))
}

/// Between the tags of a function.
pub(super) fn in_function(hold: &str, syntax: &Syntax, tagged: &Tagged, end: bool) -> Judged {
    let tags = tagged.end.iter().map(|tag| (*tag, Found::FunctionEnd)).chain(after_call(syntax));
    either(any(hold, tags, end), parameter(hold, tagged, end))
}

/// After a function.
pub(super) fn closing(hold: &str, syntax: &Syntax, end: bool) -> Judged {
    if hold.starts_with('{') && syntax.rows {
        return Judged::Tag(1, Found::Json);
    }
    let skips = syntax.skips.iter().chain(&syntax.marks).map(|tag| (*tag, Found::Skip));
    let next = syntax.messages.map(|messages| (messages.start, Found::MessageEnd));
    let tags = after_call(syntax).chain(skips).chain(next);
    either(any(hold, tags, end), function(hold, syntax, end))
}

/// In a message that nobody reads: its end.
pub(super) fn dropped(hold: &str, syntax: &Syntax, end: bool) -> Judged {
    let ends =
        syntax.messages.iter().flat_map(|m| m.ends.iter().chain([&m.start])).map(|tag| (*tag, Found::MessageEnd));
    any(hold, ends, end)
}

fn after_call(syntax: &Syntax) -> impl Iterator<Item = (&'static str, Found)> {
    let ends = syntax.ends.iter().map(|tag| (*tag, Found::CallEnd));
    ends.chain(syntax.openings.iter().map(|tag| (*tag, Found::Call)))
}

/// Plain text only if neither can become a tag.
fn either(a: Judged, b: Option<Judged>) -> Judged {
    match (a, b) {
        (Judged::Plain(_), Some(b)) => b,
        (a, _) => a,
    }
}

/// In a value: the end of it, with the line break before.
pub(super) fn in_value(hold: &str, syntax: &Syntax, tagged: &Tagged, end: bool) -> Judged {
    let tag = if tagged.own_lines { hold.strip_prefix('\n').unwrap_or(hold) } else { hold };
    let line_break = hold.len() - tag.len();
    if tag.is_empty() {
        return if end { plain(hold) } else { Judged::Wait };
    }
    // A parameter that opens on a new line: the closing tag was forgotten.
    if line_break > 0 && tag.starts_with(tagged.open) {
        return Judged::Tag(line_break, Found::ParameterEnd);
    }
    if let Some(after) = tag.strip_prefix(tagged.close) {
        let n = line_break + tagged.close.len();
        return match follows(after, &syntax.after_value, end) {
            Follows::Yes => Judged::Tag(n, Found::ParameterEnd),
            // Cut off in what follows.
            Follows::No if end && syntax.after_value.iter().any(|t| t.starts_with(after.trim_start())) => {
                Judged::Tag(n, Found::ParameterEnd)
            }
            Follows::No => plain(hold),
            Follows::Wait => Judged::Wait,
        };
    }
    if let Some(after) = tagged.end.and_then(|function_end| tag.strip_prefix(function_end)) {
        return match follows(after, syntax.ends, end) {
            Follows::Yes => Judged::Tag(line_break, Found::ParameterEnd),
            Follows::No => plain(hold),
            Follows::Wait => Judged::Wait,
        };
    }
    let begins = |whole: &str| whole.starts_with(tag);
    let may_be = begins(tagged.close) || tagged.end.is_some_and(begins) || (line_break > 0 && begins(tagged.open));
    match may_be && !end {
        true => Judged::Wait,
        false => plain(hold),
    }
}

enum Follows {
    Yes,
    No,
    Wait,
}

/// Whether one of the tags comes after some spaces.
fn follows(text: &str, tags: &[&str], end: bool) -> Follows {
    let tag = text.trim_start();
    if tags.iter().any(|whole| tag.starts_with(whole)) {
        return Follows::Yes;
    }
    let may_be = text.len() - tag.len() <= MAX_SPACES && tags.iter().any(|t| t.starts_with(tag));
    match may_be && !end {
        true => Follows::Wait,
        false => Follows::No,
    }
}

/// A function's name with what stands around it; None when it cannot be one.
fn function(hold: &str, syntax: &Syntax, end: bool) -> Option<Judged> {
    syntax.headers.iter().find_map(|header| match header.close {
        "" => before_tag(hold, syntax, end),
        _ => header_of(hold, header, end),
    })
}

fn header_of(hold: &str, header: &Header, end: bool) -> Option<Judged> {
    // Words of a text are no name.
    let is_text = |name: &str| header.open.is_empty() && name.contains(char::is_whitespace);
    let (n, name) = match named(hold, header.open, header.close, end)? {
        Named::Wait => return (!is_text(hold)).then_some(Judged::Wait),
        Named::Name(n, name) => (n, name),
    };
    let name = header.id.and_then(|id| name.split(id).next()).unwrap_or(name);
    // The bracket is the first of the arguments.
    let n = if matches!(header.close, "{" | "(") { n - 1 } else { n };
    (!is_text(name)).then(|| Judged::Tag(n, Found::Function(name.to_owned())))
}

/// A name that ends where a tag of a call begins.
fn before_tag(hold: &str, syntax: &Syntax, end: bool) -> Option<Judged> {
    let (name, tag) = hold.split_at(hold.find('<').unwrap_or(hold.len()));
    let trimmed = name.trim();
    if trimmed.is_empty() || trimmed.contains(char::is_whitespace) || name.len() > MAX_NAME {
        return None;
    }
    let mut tags = syntax.tagged.iter().map(|tagged| tagged.open).chain(syntax.ends.iter().copied());
    if tags.clone().any(|whole| tag.starts_with(whole)) {
        return Some(Judged::Tag(name.len(), Found::Function(trimmed.to_owned())));
    }
    (!end && tags.any(|whole| whole.starts_with(tag))).then_some(Judged::Wait)
}

/// A parameter's name with the tags before its value; None when it cannot be one.
fn parameter(hold: &str, tagged: &Tagged, end: bool) -> Option<Judged> {
    let (before, after) = tagged.named.split_once(TYPE).unwrap_or((tagged.named, ""));
    let (mut n, name) = match named(hold, tagged.open, before, end)? {
        Named::Wait => return Some(Judged::Wait),
        Named::Name(n, name) => (n, name),
    };
    let mut is_text = None;
    if !after.is_empty() {
        let words = || [tagged.types.0].into_iter().chain(tagged.types.1.iter().copied());
        let word = &hold[n..];
        let Some(found) = words().find(|w| word.strip_prefix(w).is_some_and(|rest| rest.starts_with(after))) else {
            let may_be = words().any(|w| [w, after].concat().starts_with(word));
            return (may_be && !end).then_some(Judged::Wait);
        };
        is_text = Some(found == tagged.types.0);
        n += found.len() + after.len();
    }
    let found = |n| Judged::Tag(n, Found::Parameter(name.to_owned(), is_text));
    if tagged.value.is_empty() {
        return Some(found(n));
    }
    let spaces = hold[n..].len() - hold[n..].trim_start().len();
    match follows(&hold[n..], &[tagged.value], end) {
        Follows::Yes => Some(found(n + spaces + tagged.value.len())),
        Follows::Wait => Some(Judged::Wait),
        Follows::No => None,
    }
}

enum Named<'h> {
    Wait,
    /// The length of it all, and the name in it.
    Name(usize, &'h str),
}

/// A name between two texts; None when it cannot be one.
fn named<'h>(hold: &'h str, open: &str, close: &str, end: bool) -> Option<Named<'h>> {
    let Some(name) = hold.strip_prefix(open) else {
        return (open.starts_with(hold) && !end).then_some(Named::Wait);
    };
    let unusable = ['<', '\n'];
    if let Some(n) = name.find(close) {
        let trimmed = name[..n].trim();
        let usable = !trimmed.is_empty() && !trimmed.contains(unusable);
        return usable.then_some(Named::Name(open.len() + n + close.len(), trimmed));
    }
    // Its end may be the beginning of what closes it.
    let closes = |&n: &usize| close.is_char_boundary(n) && name.ends_with(&close[..n]);
    let n_closing = (1..close.len()).rev().find(closes).unwrap_or(0);
    let may_be = name.len() <= MAX_NAME && !name[..name.len() - n_closing].contains(unusable);
    (may_be && !end).then_some(Named::Wait)
}

/// The first character is text.
fn plain(hold: &str) -> Judged {
    Judged::Plain(hold.chars().next().map_or(0, char::len_utf8))
}
