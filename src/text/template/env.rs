//! The environment in which templates run: what Python's Jinja and `transformers` offer, under limits.
//! Everything that can make much out of little is here in a form that is counted; the rest of the engine's filters
//! give at most a small multiple of what they take, and are counted afterwards.
//!
//! Bounded: steps, bytes of text and items of lists made (so memory, to a small multiple of `MAX_TEXT`), levels of lists in lists.
//! Not bounded: the time to compare, sort or hash lists that hold each other many times.

use std::time::SystemTime;

use minijinja::filters;
use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, Output, State};
use minijinja_contrib::pycompat;

use super::budget::{MAX_VALUE, charge, left, refuse, text_of, too_much_text};
use super::json::{Layout, dumps};
use super::{guard, ops};

/// What `raise_exception` was called with.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub String);

/// Instructions of the template engine per rendering.
pub(super) const MAX_STEPS: u64 = 5_000_000;

/// An environment without templates.
pub(super) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_syntax(guard::rewritten_syntax());
    env.set_fuel(Some(MAX_STEPS));
    env.set_debug(false);
    env.set_formatter(emit);
    env.set_unknown_method_callback(method);
    env.remove_global("debug");
    ops::add_to(&mut env);
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        let message = message.to_string();
        Err(refuse(message.clone()).with_source(Raised(message)))
    });
    env.add_function("strftime_now", |format: &str| {
        let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        super::clock::strftime(format, seconds).map_err(refuse)
    });
    env.add_filter("tojson", tojson);
    env.add_filter("trim", |state: &mut State<'_, '_>, value: Value, chars: Option<String>| {
        let text = text_of(state, &value)?;
        Ok::<_, Error>(strip(&text, chars.as_deref(), true, true).to_owned())
    });
    env.add_filter("string", |state: &mut State<'_, '_>, value: Value| match value.kind() {
        ValueKind::String => Ok(value),
        _ => text_of(state, &value).map(Value::from),
    });
    env.add_filter("replace", replace);
    env.add_filter("join", join);
    env.add_filter("indent", indent);
    env.remove_filter("pprint");
    add_counted(&mut env);
    env
}

fn add_counted(env: &mut Environment<'static>) {
    for (name, original) in [
        ("lower", Value::from_function(filters::lower)),
        ("upper", Value::from_function(filters::upper)),
        ("title", Value::from_function(filters::title)),
        ("capitalize", Value::from_function(filters::capitalize)),
        ("escape", Value::from_function(filters::escape)),
        ("e", Value::from_function(filters::escape)),
        ("dictsort", Value::from_function(filters::dictsort)),
        ("items", Value::from_function(filters::items)),
        ("reverse", Value::from_function(filters::reverse)),
        ("split", Value::from_function(filters::split)),
        ("lines", Value::from_function(filters::lines)),
        ("sort", Value::from_function(filters::sort)),
        ("list", Value::from_function(filters::list)),
        ("batch", Value::from_function(filters::batch)),
        ("slice", Value::from_function(filters::slice)),
        ("sum", Value::from_function(filters::sum)),
        ("select", Value::from_function(filters::select)),
        ("reject", Value::from_function(filters::reject)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("map", Value::from_function(filters::map)),
        ("groupby", Value::from_function(filters::groupby)),
        ("unique", Value::from_function(filters::unique)),
        ("chain", Value::from_function(filters::chain)),
        ("zip", Value::from_function(filters::zip)),
        ("format", Value::from_function(filters::format)),
    ] {
        let counted = move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            match name {
                "batch" | "slice" => ops::small_numbers(&args[1.min(args.len())..])?,
                "sum" => numbers_only(&args)?,
                "format" => check_format(state, &args)?,
                _ => {}
            }
            let value = original.call(state, &args)?;
            charge(state, ops::size(&value))?;
            Ok::<_, Error>(value)
        };
        env.add_filter(name, counted);
    }
}

/// Prints `value` into the output or into a capture, counted either way.
fn emit(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => {
            charge(state, text.len())?;
            out.write_str(text).map_err(Error::from)
        }
        None if value.is_undefined() => Ok(()),
        None => {
            let text = text_of(state, value)?;
            out.write_str(&text).map_err(Error::from)
        }
    }
}

/// Methods of Python's `str`, `dict` and `list`.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        let result = pycompat::unknown_method_callback(state, value, name, args)?;
        charge(state, ops::size(&result))?;
        return Ok(result);
    };
    let chars = args.first().and_then(Value::as_str);
    let result = match name {
        "strip" => Value::from(strip(text, chars, true, true)),
        "lstrip" => Value::from(strip(text, chars, true, false)),
        "rstrip" => Value::from(strip(text, chars, false, true)),
        "split" if args.is_empty() => {
            let words = text.split(is_space).filter(|word| !word.is_empty());
            words.map(Value::from).collect()
        }
        "title" if args.is_empty() => Value::from(title(text)),
        "removeprefix" => Value::from(chars.and_then(|c| text.strip_prefix(c)).unwrap_or(text)),
        "removesuffix" => Value::from(chars.and_then(|c| text.strip_suffix(c)).unwrap_or(text)),
        "join" => {
            let list = args.first().cloned().unwrap_or_default();
            return join(state, list, Some(value.clone()), None, Kwargs::from_iter::<[(String, Value); 0]>([]));
        }
        "replace" => {
            if let [from, to, ..] = args {
                check_replace(state, text, from, to)?;
            }
            pycompat::unknown_method_callback(state, value, name, args)?
        }
        "format" => {
            let all: Vec<Value> = std::iter::once(value).chain(args).cloned().collect();
            check_format(state, &all)?;
            pycompat::unknown_method_callback(state, value, name, args)?
        }
        _ => pycompat::unknown_method_callback(state, value, name, args)?,
    };
    charge(state, ops::size(&result))?;
    Ok(result)
}

fn tojson(state: &mut State<'_, '_>, value: Value, indent: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let by_name = kwargs.get::<Option<Value>>("indent")?;
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    // Names of Python's options that change nothing here: the text is never escaped, and the separators are Python's own.
    kwargs.get::<Option<Value>>("ensure_ascii")?;
    kwargs.assert_all_used()?;
    let indent = match indent.or(by_name) {
        None => None,
        Some(value) if value.is_none() => None,
        Some(value) => Some(usize::try_from(value)?),
    };
    if indent.is_some_and(|n| n > MAX_INDENT) {
        return Err(refuse(format!("tojson: an indent of at most {MAX_INDENT}")));
    }
    let json = dumps(&value, Layout { indent, sort_keys }, left(state).min(MAX_VALUE))?;
    let json = json.ok_or_else(too_much_text)?;
    charge(state, json.len())?;
    Ok(Value::from_safe_string(json))
}

fn replace(
    state: &mut State<'_, '_>,
    value: Value,
    from: Value,
    to: Value,
    count: Option<usize>,
) -> Result<String, Error> {
    let text = text_of(state, &value)?;
    let (from, to) = (text_of(state, &from)?, text_of(state, &to)?);
    check_replace(state, &text, &Value::from(&*from), &Value::from(&*to))?;
    let replaced = match count {
        Some(n) => text.replacen(&from, &to, n),
        None => text.replace(&from, &to),
    };
    charge(state, replaced.len())?;
    Ok(replaced)
}

fn check_replace(state: &State<'_, '_>, text: &str, from: &Value, to: &Value) -> Result<(), Error> {
    let (Some(from), Some(to)) = (from.as_str(), to.as_str()) else {
        return Ok(());
    };
    let n = text.matches(from).count();
    match n.saturating_mul(to.len()) > left(state) {
        true => Err(too_much_text()),
        false => Ok(()),
    }
}

fn join(
    state: &mut State<'_, '_>,
    list: Value,
    joiner: Option<Value>,
    attribute: Option<String>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let joiner = match joiner.or(kwargs.get::<Option<Value>>("d")?) {
        Some(joiner) => text_of(state, &joiner)?,
        None => String::new(),
    };
    let attribute = attribute.or(kwargs.get::<Option<String>>("attribute")?);
    kwargs.assert_all_used()?;
    let mut joined = String::new();
    for (i, item) in list.try_iter()?.checked().enumerate() {
        let item = match &attribute {
            Some(name) => item?.get_attr(name)?,
            None => item?,
        };
        if i > 0 {
            charge(state, joiner.len())?;
            joined.push_str(&joiner);
        }
        joined.push_str(&text_of(state, &item)?);
    }
    Ok(Value::from(joined))
}

fn indent(state: &mut State<'_, '_>, value: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let n_lines = value.as_str().map_or(0, |text| text.matches('\n').count() + 1);
    let (positional, kwargs) = minijinja::value::from_args::<(&[Value], Kwargs)>(&args)?;
    let width = match positional.first() {
        Some(width) => Some(width.clone()),
        None => kwargs.get::<Option<Value>>("width")?,
    };
    let width = width.map_or(Ok(4), usize::try_from)?;
    if n_lines.saturating_mul(width) > left(state) {
        return Err(too_much_text());
    }
    let original = Value::from_function(filters::indent);
    let all: Vec<Value> = std::iter::once(value).chain(args).collect();
    let indented = original.call(state, &all)?;
    charge(state, ops::size(&indented))?;
    Ok(indented)
}

/// Widths and repeated arguments can make a long text from a short one, so both are looked at before formatting.
fn check_format(state: &mut State<'_, '_>, args: &[Value]) -> Result<(), Error> {
    let format = args.first().and_then(Value::as_str).unwrap_or_default();
    let mut run = 0;
    for c in format.chars() {
        run = if c.is_ascii_digit() { run + 1 } else { 0 };
        if run > 3 {
            return Err(refuse("format: widths have at most 3 digits"));
        }
    }
    if format.contains('*') {
        return Err(refuse("format: a width has to stand in the format itself"));
    }
    let mut longest = 0;
    for arg in args.iter().skip(1) {
        if arg.is_kwargs() {
            for key in arg.try_iter()?.checked() {
                let value = arg.get_item(&key?)?;
                longest = longest.max(text_of(state, &value)?.len());
            }
        } else {
            longest = longest.max(text_of(state, arg)?.len());
        }
    }
    let n_places = format.matches(['%', '{']).count();
    match n_places.saturating_mul(longest + 1000) > left(state) {
        true => Err(too_much_text()),
        false => Ok(()),
    }
}

fn numbers_only(args: &[Value]) -> Result<(), Error> {
    if let Some(list) = args.first() {
        for item in list.try_iter()?.checked() {
            if item?.kind() != ValueKind::Number {
                return Err(refuse("sum: only numbers are added; use join for texts"));
            }
        }
    }
    Ok(())
}

/// Python's `str.title`: a letter after anything but a letter is a capital.
fn title(text: &str) -> String {
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

/// Python's spaces: those of Unicode and four separators among the control characters.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Python's `str.strip`, at one end or both.
fn strip<'t>(text: &'t str, chars: Option<&str>, start: bool, end: bool) -> &'t str {
    let out = |c: char| match chars {
        Some(chars) => chars.contains(c),
        None => is_space(c),
    };
    let text = if start { text.trim_start_matches(out) } else { text };
    if end { text.trim_end_matches(out) } else { text }
}

const MAX_INDENT: usize = 64;
