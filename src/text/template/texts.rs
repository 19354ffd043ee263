//! What Python's `str` can do: plain functions over texts, which methods and filters share.

use minijinja::{Error, State};

use super::budget::{charge, left, too_much_text};

/// Python's spaces: those of Unicode and four separators among the control characters.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Decimal digits of any script.
pub(super) fn is_decimal(c: char) -> bool {
    use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};
    c.general_category() == GeneralCategory::DecimalNumber
}

/// Decimal digits, and those above or below a line.
pub(super) fn is_digit(c: char) -> bool {
    is_decimal(c)
        || matches!(c, '\u{b2}' | '\u{b3}' | '\u{b9}' | '\u{2070}' | '\u{2074}'..='\u{2079}' | '\u{2080}'..='\u{2089}')
}

/// Python's `str.strip`, at one end or both.
pub(super) fn strip<'t>(text: &'t str, chars: Option<&str>, start: bool, end: bool) -> &'t str {
    let out = |c: char| match chars {
        Some(chars) => chars.contains(c),
        None => is_space(c),
    };
    let text = if start { text.trim_start_matches(out) } else { text };
    if end { text.trim_end_matches(out) } else { text }
}

/// `text.split(None, max)` or `text.rsplit(None, max)`: the words, and the rest behind or before `max` of them.
pub(super) fn words(text: &str, max: Option<usize>, from_end: bool) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = strip(text, None, !from_end, from_end);
    while !rest.is_empty() {
        if max.is_some_and(|max| words.len() >= max) {
            words.push(rest);
            break;
        }
        let at = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
        let (word, other) = match at {
            None => (rest, ""),
            Some(at) if from_end => (rest[at..].trim_start_matches(is_space), &rest[..at]),
            Some(at) => rest.split_at(at),
        };
        words.push(word);
        rest = strip(other, None, !from_end, from_end);
    }
    if from_end {
        words.reverse();
    }
    words
}

/// The lines of `text` without their ends, or with them: Python's `str.splitlines`.
pub(super) fn lines(text: &str, keep_ends: bool) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let whole = rest;
        let (at, end) = match whole.char_indices().find(|&(_, c)| is_line_end(c)) {
            None if whole.is_empty() => return None,
            None => (whole.len(), whole.len()),
            Some((at, '\r')) if whole[at + 1..].starts_with('\n') => (at, at + 2),
            Some((at, c)) => (at, at + c.len_utf8()),
        };
        rest = &whole[end..];
        Some(&whole[..if keep_ends { end } else { at }])
    })
}

fn is_line_end(c: char) -> bool {
    matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Python's `str.title`: a letter after anything but a letter is a capital.
pub(super) fn title(text: &str) -> String {
    let mut titled = String::with_capacity(text.len());
    let mut after_letter = false;
    for c in text.chars() {
        match after_letter {
            true => titled.extend(c.to_lowercase()),
            false => titled.extend(c.to_uppercase()),
        }
        after_letter = c.is_lowercase() || c.is_uppercase();
    }
    titled
}

/// Small letters for capitals, and capitals for small ones.
pub(super) fn swapped(text: &str) -> String {
    let mut swapped = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_uppercase() {
            true => swapped.extend(c.to_lowercase()),
            false => swapped.extend(c.to_uppercase()),
        }
    }
    swapped
}

/// `text[start:end]` with the number of characters before it; `None` where Python finds nothing, not even an empty text.
pub(super) fn window(text: &str, start: Option<i64>, end: Option<i64>) -> Option<(usize, &str)> {
    if start.is_none() && end.is_none() {
        return Some((0, text));
    }
    let n = text.chars().count();
    let clip = |at: i64| match usize::try_from(at) {
        Ok(at) => at,
        Err(_) => n.saturating_sub(usize::try_from(at.unsigned_abs()).unwrap_or(usize::MAX)),
    };
    let (start, end) = (start.map_or(0, clip), end.map_or(n, clip).min(n));
    if start > end {
        return None;
    }
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    Some((start, &text[byte(start)..byte(end)]))
}

/// `text.replace(from, to, count)`, counted.
pub(super) fn replaced(
    state: &mut State<'_, '_>,
    text: &str,
    from: &str,
    to: &str,
    count: Option<i64>,
) -> Result<String, Error> {
    let n = text.matches(from).count();
    if n.saturating_mul(to.len()) > left(state) {
        return Err(too_much_text());
    }
    let replaced = match count.and_then(|n| usize::try_from(n).ok()) {
        Some(n) => text.replacen(from, to, n),
        None => text.replace(from, to),
    };
    charge(state, replaced.len())?;
    Ok(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_where_python_ends_them() {
        let text = "a\rb\u{b}\u{2028}c\r\n\nd";
        assert_eq!(lines(text, false).collect::<Vec<_>>(), ["a", "b", "", "c", "", "d"]);
        assert_eq!(lines(text, true).collect::<String>(), text);
        assert_eq!(lines("a\n", false).collect::<Vec<_>>(), ["a"]);
        assert_eq!(lines("", false).count(), 0);
    }

    #[test]
    fn words_are_split_from_either_end() {
        assert_eq!(words(" a b  c ", None, false), ["a", "b", "c"]);
        assert_eq!(words(" a b  c ", Some(1), false), ["a", "b  c "]);
        assert_eq!(words(" a b  c ", Some(1), true), [" a b", "c"]);
        assert_eq!(words(" a b ", Some(0), false), ["a b "]);
        assert!(words(" \n", None, true).is_empty());
    }

    #[test]
    fn windows_are_those_of_python() {
        assert_eq!(window("h\u{e9}llo", Some(1), Some(-1)), Some((1, "\u{e9}ll")));
        assert_eq!(window("abc", Some(3), None), Some((3, "")));
        assert_eq!(window("abc", Some(4), None), None);
        assert_eq!(window("abc", Some(-9), Some(i64::MIN)), Some((0, "")));
        assert_eq!(window("abc", Some(2), Some(1)), None);
    }
}
