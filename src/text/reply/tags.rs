//! Which tag a held piece of text is, is not, or may yet become. Pure functions over short texts: nothing is held longer than a tag
//! with a name and a few spaces, so looking at the whole piece again for each character stays linear.

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
    /// The brace that opens a call in JSON.
    Json,
    Parameter(String),
    ParameterEnd,
    FunctionEnd,
    CallEnd,
}

pub(super) const THINK: &str = "<think>";
pub(super) const THINK_END: &str = "</think>";
pub(super) const CALL: &str = "<tool_call>";
const CALL_END: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
const AFTER_VALUE: &[&str] = &[PARAMETER, FUNCTION_END, CALL_END, CALL];
/// Spaces between tags that belong together.
pub(super) const MAX_SPACES: usize = 64;
const MAX_NAME: usize = 128;

/// One of these tags, or text.
pub(super) fn any(hold: &str, tags: &[(&str, Found)], end: bool) -> Judged {
    for (tag, found) in tags {
        if hold.starts_with(tag) {
            return Judged::Tag(tag.len(), found.clone());
        }
    }
    match !end && tags.iter().any(|(tag, _)| tag.starts_with(hold)) {
        true => Judged::Wait,
        false => plain(hold),
    }
}

/// After `<tool_call>`: a function or JSON.
pub(super) fn opened(hold: &str, end: bool) -> Judged {
    if hold.starts_with('{') {
        return Judged::Tag(1, Found::Json);
    }
    named(hold, FUNCTION, end, Found::Function).unwrap_or_else(|| plain(hold))
}

/// Between the tags of a function.
pub(super) fn in_function(hold: &str, end: bool) -> Judged {
    let tags = [(FUNCTION_END, Found::FunctionEnd), (CALL_END, Found::CallEnd), (CALL, Found::Call)];
    either(any(hold, &tags, end), named(hold, PARAMETER, end, Found::Parameter))
}

/// After a function.
pub(super) fn closing(hold: &str, end: bool) -> Judged {
    let tags = [(CALL_END, Found::CallEnd), (CALL, Found::Call)];
    either(any(hold, &tags, end), named(hold, FUNCTION, end, Found::Function))
}

/// Plain text only if neither can become a tag.
fn either(a: Judged, b: Option<Judged>) -> Judged {
    match (a, b) {
        (Judged::Plain(_), Some(b)) => b,
        (a, _) => a,
    }
}

/// In a value: the end of it, with the line break before.
pub(super) fn in_value(hold: &str, end: bool) -> Judged {
    let tag = hold.strip_prefix('\n').unwrap_or(hold);
    let line_break = hold.len() - tag.len();
    if tag.is_empty() {
        return if end { plain(hold) } else { Judged::Wait };
    }
    // A parameter that opens on a new line: the closing tag was forgotten.
    if line_break > 0 && tag.starts_with(PARAMETER) {
        return Judged::Tag(line_break, Found::ParameterEnd);
    }
    if let Some(after) = tag.strip_prefix(PARAMETER_END) {
        let n = line_break + PARAMETER_END.len();
        return match follows(after, AFTER_VALUE, end) {
            Follows::Yes => Judged::Tag(n, Found::ParameterEnd),
            // Cut off in what follows.
            Follows::No if end && AFTER_VALUE.iter().any(|t| t.starts_with(after.trim_start())) => {
                Judged::Tag(n, Found::ParameterEnd)
            }
            Follows::No => plain(hold),
            Follows::Wait => Judged::Wait,
        };
    }
    if let Some(after) = tag.strip_prefix(FUNCTION_END) {
        return match follows(after, &[CALL_END], end) {
            Follows::Yes => Judged::Tag(line_break, Found::ParameterEnd),
            Follows::No => plain(hold),
            Follows::Wait => Judged::Wait,
        };
    }
    let begins = |whole: &str| whole.starts_with(tag);
    let may_be = begins(PARAMETER_END) || begins(FUNCTION_END) || (line_break > 0 && begins(PARAMETER));
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

/// A tag with a name in it, like `<function=NAME>`; None when it cannot be one.
fn named(hold: &str, open: &str, end: bool, found: fn(String) -> Found) -> Option<Judged> {
    let Some(name) = hold.strip_prefix(open) else {
        return (open.starts_with(hold) && !end).then_some(Judged::Wait);
    };
    if let Some(n) = name.find('>') {
        let trimmed = name[..n].trim();
        let usable = !trimmed.is_empty() && !trimmed.contains(['<', '\n']);
        return usable.then(|| Judged::Tag(open.len() + n + 1, found(trimmed.to_owned())));
    }
    let may_be = name.len() <= MAX_NAME && !name.contains(['<', '\n']);
    (may_be && !end).then_some(Judged::Wait)
}

/// The first character is text.
fn plain(hold: &str) -> Judged {
    Judged::Plain(hold.chars().next().map_or(0, char::len_utf8))
}
