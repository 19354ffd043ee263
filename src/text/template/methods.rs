//! Methods of Python's `str`, `dict` and `list`, for values of templates.
//! What is not here is left to the engine's own; what either gives is counted.

use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, State};
use minijinja_contrib::pycompat;

use super::budget::{charge, refuse};
use super::format::formatted;
use super::markup::{escaped, same};
use super::ops::{size, small_numbers};
use super::texts;

/// Calls `value.name(args)`.
pub(super) fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let result = match value.as_str() {
        Some(text) => same(value, of_text(state, value, text, name, args)?),
        None => of_other(state, value, name, args)?,
    };
    charge(state, size(&result))?;
    Ok(result)
}

fn of_other(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.kind(), name) {
        (ValueKind::Map | ValueKind::Seq, "copy") => {
            let () = from_args(args)?;
            Ok(value.clone())
        }
        (ValueKind::Seq, "index") => {
            let (wanted,): (&Value,) = from_args(args)?;
            for (i, item) in value.try_iter()?.checked().enumerate() {
                if item? == *wanted {
                    return Ok(Value::from(i));
                }
            }
            Err(refuse("index: the list does not hold this value"))
        }
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn of_text(state: &mut State<'_, '_>, value: &Value, text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            Ok(Value::from(texts::strip(text, chars, name != "rstrip", name != "lstrip")))
        }
        "removeprefix" | "removesuffix" => {
            let (part,): (&str,) = from_args(args)?;
            let rest = if name == "removeprefix" { text.strip_prefix(part) } else { text.strip_suffix(part) };
            Ok(Value::from(rest.unwrap_or(text)))
        }
        "split" | "rsplit" => split(text, name == "rsplit", args),
        "splitlines" => {
            let (keep_ends, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
            let keep_ends = keep_ends.or(kwargs.get("keepends")?).unwrap_or(false);
            Ok(texts::lines(text, keep_ends).map(Value::from).collect())
        }
        "partition" | "rpartition" => {
            let (sep,): (&str,) = from_args(args)?;
            if sep.is_empty() {
                return Err(refuse(format!("{name}: an empty separator")));
            }
            let at = if name == "partition" { text.split_once(sep) } else { text.rsplit_once(sep) };
            let parts = match at {
                Some((before, after)) => [before, sep, after],
                None if name == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Ok(Value::from(Tuple::from(parts.map(Value::from).to_vec())))
        }
        "startswith" | "endswith" => ends(text, name == "startswith", args),
        "find" | "rfind" | "index" | "rindex" | "count" => find(text, name, args),
        "ljust" | "rjust" | "center" | "zfill" => padded(state, text, name, args),
        "title" | "swapcase" => {
            let () = from_args(args)?;
            Ok(Value::from(if name == "title" { texts::title(text) } else { texts::swapped(text) }))
        }
        "isdigit" | "isdecimal" => {
            let () = from_args(args)?;
            let of_kind = if name == "isdigit" { texts::is_digit } else { texts::is_decimal };
            Ok(Value::from(!text.is_empty() && text.chars().all(of_kind)))
        }
        "isspace" => {
            let () = from_args(args)?;
            Ok(Value::from(!text.is_empty() && text.chars().all(texts::is_space)))
        }
        "join" => {
            let (list,): (Value,) = from_args(args)?;
            joined(state, &list, value)
        }
        "replace" => {
            let (from, to, count): (Value, Value, Option<i64>) = from_args(args)?;
            let (Some(from), Some(_)) = (from.as_str(), to.as_str()) else {
                return Err(refuse("replace: two texts expected"));
            };
            let to = if value.is_safe() { escaped(state, &to)? } else { to.as_str().unwrap_or_default().to_owned() };
            texts::replaced(state, text, from, &to, count).map(Value::from)
        }
        "format" => formatted(state, FormatStyle::StrFormat, value, args),
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}

fn joined(state: &mut State<'_, '_>, list: &Value, joiner: &Value) -> Result<Value, Error> {
    let between = joiner.as_str().unwrap_or_default();
    let mut joined = String::new();
    for (i, item) in list.try_iter()?.checked().enumerate() {
        if i > 0 {
            charge(state, between.len())?;
            joined.push_str(between);
        }
        let item = item?;
        let item = if joiner.is_safe() { escaped(state, &item)? } else { super::budget::text_of(state, &item)? };
        joined.push_str(&item);
    }
    Ok(Value::from(joined))
}

fn split(text: &str, from_end: bool, args: &[Value]) -> Result<Value, Error> {
    let (sep, n, kwargs): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let sep = sep.or(kwargs.get("sep")?).filter(|sep| !sep.is_none());
    let n = n.or(kwargs.get("maxsplit")?).and_then(|n| usize::try_from(n).ok());
    kwargs.assert_all_used()?;
    let parts = match &sep {
        None => texts::words(text, n, from_end),
        Some(sep) => match sep.as_str() {
            None => return Err(refuse(format!("split: a text expected, {} found", sep.kind()))),
            Some("") => return Err(refuse("split: an empty separator")),
            Some(sep) if from_end => {
                let mut parts: Vec<&str> = text.rsplitn(n.map_or(usize::MAX, |n| n.saturating_add(1)), sep).collect();
                parts.reverse();
                parts
            }
            Some(sep) => text.splitn(n.map_or(usize::MAX, |n| n.saturating_add(1)), sep).collect(),
        },
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn ends(text: &str, at_start: bool, args: &[Value]) -> Result<Value, Error> {
    let (wanted, start, end): (Value, Option<i64>, Option<i64>) = from_args(args)?;
    let Some((_, text)) = texts::window(text, start, end) else { return Ok(Value::from(false)) };
    let has = |part: &str| if at_start { text.starts_with(part) } else { text.ends_with(part) };
    match wanted.as_str() {
        Some(part) => return Ok(Value::from(has(part))),
        None if !wanted.is_tuple() => {
            return Err(refuse(format!("a text or a tuple of texts expected, {} found", wanted.kind())));
        }
        None => {}
    }
    for part in wanted.try_iter()?.checked() {
        let part = part?;
        if has(part.as_str().ok_or_else(|| refuse("a tuple of texts expected"))?) {
            return Ok(Value::from(true));
        }
    }
    Ok(Value::from(false))
}

/// Positions count characters.
fn find(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (wanted, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let window = texts::window(text, start, end);
    if name == "count" {
        return Ok(Value::from(window.map_or(0, |(_, text)| text.matches(wanted).count())));
    }
    let found = window.and_then(|(before, text)| {
        let at = if name.starts_with('r') { text.rfind(wanted) } else { text.find(wanted) };
        at.map(|at| before + text[..at].chars().count())
    });
    match found {
        Some(at) => Ok(Value::from(at)),
        None if name.ends_with("index") => Err(refuse(format!("{name}: the text does not hold this part"))),
        None => Ok(Value::from(-1)),
    }
}

fn padded(state: &mut State<'_, '_>, text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    small_numbers(&[Value::from(width)])?;
    let mut fill = fill.unwrap_or(" ").chars();
    let (Some(fill), None) = (fill.next(), fill.next()) else {
        return Err(refuse(format!("{name}: one character expected to fill with")));
    };
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(text.chars().count());
    charge(state, missing * fill.len_utf8())?;
    let pad = |n: usize, c: char| String::from_iter(std::iter::repeat_n(c, n));
    Ok(Value::from(match name {
        "ljust" => text.to_owned() + &pad(missing, fill),
        "rjust" => pad(missing, fill) + text,
        "zfill" => {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            sign.to_owned() + &pad(missing, '0') + digits
        }
        // Python leans to the left where the rest is odd, unless the width is.
        _ => {
            let width = usize::try_from(width).unwrap_or(0);
            let before = missing / 2 + (missing & width & 1);
            pad(before, fill) + text + &pad(missing - before, fill)
        }
    }))
}
