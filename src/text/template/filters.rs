//! Filters and tests that Python's Jinja has otherwise than the template engine, or that can make much out of little: each gives what
//! Jinja's own gives, counted. The rest of the engine's filters give at most a small multiple of what they take, and are counted
//! afterwards.

use minijinja::filters;
use minijinja::formatting::FormatStyle;
use minijinja::value::{Kwargs, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State};

use super::budget::{MAX_VALUE, charge, left, refuse, text_of, too_much_text};
use super::format::formatted;
use super::json::{Layout, dumps};
use super::markup::{escaped, same};
use super::{ops, texts};

pub(super) fn add_to(env: &mut Environment<'static>) {
    env.add_filter("tojson", tojson);
    env.add_filter("trim", |state: &mut State<'_, '_>, value: Value, args: Rest<ValueOrKwargs>| {
        let [chars] = options(args, ["chars"])?;
        let text = text_of(state, &value)?;
        let text = texts::strip(&text, chars.as_ref().and_then(Value::as_str), true, true).to_owned();
        Ok::<_, Error>(same(&value, Value::from(text)))
    });
    env.add_filter("string", |state: &mut State<'_, '_>, value: Value| match value.kind() {
        ValueKind::String => Ok(value),
        _ => text_of(state, &value).map(Value::from),
    });
    env.add_filter("replace", replace);
    env.add_filter("join", join);
    env.add_filter("indent", indent);
    env.add_filter("format", |state: &mut State<'_, '_>, template: Value, args: Rest<ValueOrKwargs>| {
        formatted(state, FormatStyle::Printf, &template, &args.into_values())
    });
    for name in ["escape", "e"] {
        env.add_filter(name, |state: &mut State<'_, '_>, value: Value| match value.is_safe() {
            true => Ok(value),
            false => made_safe(state, &value),
        });
    }
    env.add_filter("forceescape", |state: &mut State<'_, '_>, value: Value| {
        let plain = Value::from(text_of(state, &value)?);
        made_safe(state, &plain)
    });
    for name in ["length", "count"] {
        env.add_filter(name, |value: Value| match value.is_undefined() {
            true => Ok(0),
            false => filters::length(&value),
        });
    }
    env.add_filter("first", |value: Value| if value.is_undefined() { Ok(value) } else { filters::first(&value) });
    env.add_filter("int", |state: &mut State<'_, '_>, value: Value, args: Rest<ValueOrKwargs>| {
        let [default, base] = options(args, ["default", "base"])?;
        let default = default.or_else(|| Some(Value::from(0)));
        to_number(state, &Value::from_function(filters::int), value, [default, base])
    });
    env.add_filter("float", |state: &mut State<'_, '_>, value: Value, args: Rest<ValueOrKwargs>| {
        let [default] = options(args, ["default"])?;
        let default = default.or_else(|| Some(Value::from(0.0)));
        to_number(state, &Value::from_function(filters::float), value, [default, None])
    });
    for name in ["default", "d"] {
        env.add_filter(name, default);
    }
    env.add_filter("sum", sum);
    env.add_filter("dictsort", dictsort);
    env.remove_filter("pprint");
    add_counted(env);
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    env.add_test("sequence", |value: &Value| {
        value.is_undefined() || matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
}

/// Filters of the engine whose results are counted.
fn add_counted(env: &mut Environment<'static>) {
    for (name, original) in [
        ("lower", Value::from_function(filters::lower)),
        ("upper", Value::from_function(filters::upper)),
        ("title", Value::from_function(filters::title)),
        ("capitalize", Value::from_function(filters::capitalize)),
        ("items", Value::from_function(filters::items)),
        ("reverse", Value::from_function(filters::reverse)),
        ("split", Value::from_function(filters::split)),
        ("lines", Value::from_function(filters::lines)),
        ("sort", Value::from_function(filters::sort)),
        ("list", Value::from_function(filters::list)),
        ("batch", Value::from_function(filters::batch)),
        ("slice", Value::from_function(filters::slice)),
        ("select", Value::from_function(filters::select)),
        ("reject", Value::from_function(filters::reject)),
        ("selectattr", Value::from_function(filters::selectattr)),
        ("rejectattr", Value::from_function(filters::rejectattr)),
        ("map", Value::from_function(filters::map)),
        ("groupby", Value::from_function(filters::groupby)),
        ("unique", Value::from_function(filters::unique)),
        ("chain", Value::from_function(filters::chain)),
        ("zip", Value::from_function(filters::zip)),
    ] {
        let counted = move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            match name {
                "batch" | "slice" => ops::small_numbers(&args[1.min(args.len())..])?,
                "items" if args.first().is_some_and(Value::is_undefined) => {
                    return Ok(Value::from_iter::<[Value; 0]>([]));
                }
                _ => {}
            }
            let value = original.call(state, &args)?;
            charge(state, ops::size(&value))?;
            Ok::<_, Error>(args.first().map_or(value.clone(), |of| same(of, value)))
        };
        env.add_filter(name, counted);
    }
}

/// Arguments that are given by place or by name, in the order of `names`.
fn options<const N: usize>(args: Rest<ValueOrKwargs>, names: [&str; N]) -> Result<[Option<Value>; N], Error> {
    let mut args = args.into_values();
    let kwargs = args.pop_if(|last| last.is_kwargs());
    if args.len() > N {
        return Err(refuse(format!("{} arguments where at most {N} are expected", args.len())));
    }
    let mut args = args.into_iter();
    let mut options = [const { None }; N].map(|_: Option<Value>| args.next());
    for key in kwargs.iter().flat_map(Value::try_iter).flatten() {
        let place = names.iter().position(|name| key.as_str() == Some(name));
        let place = place.ok_or_else(|| refuse(format!("no argument has the name {key}")))?;
        options[place] = kwargs.as_ref().and_then(|kwargs| kwargs.get_item(&key).ok());
    }
    Ok(options)
}

fn is_true(option: Option<Value>) -> bool {
    option.is_some_and(|value| value.is_true())
}

fn not_none(option: Option<Value>) -> Option<Value> {
    option.filter(|value| !value.is_none() && !value.is_undefined())
}

fn made_safe(state: &mut State<'_, '_>, value: &Value) -> Result<Value, Error> {
    let text = escaped(state, value)?;
    charge(state, text.len())?;
    Ok(Value::from_safe_string(text))
}

/// As in Python, white space around the digits does not matter, and what is no number is the default.
fn to_number(
    state: &mut State<'_, '_>,
    original: &Value,
    value: Value,
    options: [Option<Value>; 2],
) -> Result<Value, Error> {
    let [default, base] = options;
    let value = match value.as_str() {
        Some(text) => Value::from(texts::strip(text, None, true, true)),
        None => value,
    };
    match value.kind() {
        ValueKind::Undefined => Err(refuse("an undefined value is no number")),
        ValueKind::String | ValueKind::Number | ValueKind::Bool => {
            let base = base.map(|base| [("base", base)]).into_iter().flatten();
            let args = [value, Value::from(Kwargs::from_iter(base))];
            Ok(original.call(state, &args).ok().or(default).unwrap_or_default())
        }
        // The engine's own refuses lists and objects.
        _ => Ok(default.unwrap_or_default()),
    }
}

fn default(value: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [other, lax] = options(args, ["default_value", "boolean"])?;
    let takes_other = value.is_undefined() || (is_true(lax) && !value.is_true());
    Ok(if takes_other { other.unwrap_or_else(|| Value::from("")) } else { value })
}

fn dictsort(state: &mut State<'_, '_>, value: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let names = ["case_sensitive", "by", "reverse"];
    let named = names.into_iter().zip(options(args, names)?).filter_map(|(name, value)| Some((name, value?)));
    let sorted =
        Value::from_function(filters::dictsort).call(state, &[value, Value::from(Kwargs::from_iter(named))])?;
    charge(state, ops::size(&sorted))?;
    Ok(sorted)
}

fn sum(state: &mut State<'_, '_>, list: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [attribute, start] = options(args, ["attribute", "start"])?;
    let attribute = not_none(attribute);
    let mut sum = start.unwrap_or_else(|| Value::from(0));
    if sum.as_str().is_some() {
        return Err(refuse("sum: texts are not added; use join"));
    }
    for item in list.try_iter()?.checked() {
        let item = item?;
        let item = match &attribute {
            Some(path) => part(&item, path)?,
            None => item,
        };
        sum = ops::add(state, sum, item)?;
    }
    Ok(sum)
}

/// What `path` names in `value`: keys and indices with dots between them.
fn part(value: &Value, path: &Value) -> Result<Value, Error> {
    let Some(path) = path.as_str() else { return value.get_item(path) };
    let mut value = value.clone();
    for step in path.split('.') {
        value = match step.parse::<usize>() {
            Ok(index) => value.get_item_by_index(index)?,
            Err(_) => value.get_attr(step)?,
        };
    }
    Ok(value)
}

fn tojson(state: &mut State<'_, '_>, value: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [ascii, indent, separators, sort_keys] = options(args, ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let mut layout = Layout { ascii: is_true(ascii), sort_keys: is_true(sort_keys), ..Layout::default() };
    if let Some(indent) = not_none(indent) {
        layout.indent = Some(spaces(&indent)?);
        layout.between = ",".to_owned();
    }
    if let Some(separators) = not_none(separators) {
        let texts: Vec<Value> = separators.try_iter()?.checked().take(3).collect::<Result<_, _>>()?;
        let [Some(between), Some(after_key)] = [0, 1].map(|i| texts.get(i).and_then(Value::as_str)) else {
            return Err(refuse("tojson: two texts expected as separators"));
        };
        if texts.len() > 2 || between.len() + after_key.len() > MAX_INDENT {
            return Err(refuse(format!("tojson: separators of at most {MAX_INDENT} bytes")));
        }
        (layout.between, layout.after_key) = (between.to_owned(), after_key.to_owned());
    }
    let json = dumps(&value, layout, left(state).min(MAX_VALUE))?;
    let json = json.ok_or_else(too_much_text)?;
    charge(state, json.len())?;
    Ok(Value::from(json))
}

/// An indent that is given as a text, or as a number of spaces.
fn spaces(indent: &Value) -> Result<String, Error> {
    let text = match (indent.as_str(), indent.kind()) {
        (Some(text), _) => text.to_owned(),
        (None, ValueKind::Bool) => " ".repeat(usize::from(indent.is_true())),
        _ => " ".repeat(usize::try_from(i64::try_from(indent.clone())?.min(MAX_INDENT as i64 + 1)).unwrap_or(0)),
    };
    match text.len() > MAX_INDENT {
        true => Err(refuse(format!("an indent of at most {MAX_INDENT} bytes"))),
        false => Ok(text),
    }
}

fn replace(
    state: &mut State<'_, '_>,
    value: Value,
    from: Value,
    to: Value,
    count: Option<i64>,
) -> Result<Value, Error> {
    let text = text_of(state, &value)?;
    let (from, to) = (text_of(state, &from)?, text_of(state, &to)?);
    texts::replaced(state, &text, &from, &to, count).map(Value::from)
}

fn join(state: &mut State<'_, '_>, list: Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let [joiner, attribute] = options(args, ["d", "attribute"])?;
    let joiner = match joiner {
        Some(joiner) => text_of(state, &joiner)?,
        None => String::new(),
    };
    let attribute = not_none(attribute);
    let mut joined = String::new();
    for (i, item) in list.try_iter()?.checked().enumerate() {
        let item = match &attribute {
            Some(path) => part(&item?, path)?,
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
    let Some(text) = value.as_str() else {
        return Err(refuse(format!("indent: a text expected, {} found", value.kind())));
    };
    let [width, first, blank] = options(args, ["width", "first", "blank"])?;
    let (width, first, blank) = (width.unwrap_or_else(|| Value::from(4)), is_true(first), is_true(blank));
    let indent = match width.as_str() {
        Some(text) => text.to_owned(),
        None => {
            ops::small_numbers(std::slice::from_ref(&width))?;
            " ".repeat(usize::try_from(i64::try_from(width)?).unwrap_or(0))
        }
    };
    // So that a last line that is empty counts.
    let text = format!("{text}\n");
    let n_lines = texts::lines(&text, false).count();
    if n_lines.saturating_mul(indent.len() + 1).saturating_add(text.len()) > left(state) {
        return Err(too_much_text());
    }
    let mut indented = String::new();
    for (i, line) in texts::lines(&text, false).enumerate() {
        if i > 0 {
            indented.push('\n');
        }
        if (i == 0 && first) || (i > 0 && (blank || !line.is_empty())) {
            indented.push_str(&indent);
        }
        indented.push_str(line);
    }
    charge(state, indented.len())?;
    Ok(same(&value, Value::from(indented)))
}

const MAX_INDENT: usize = 64;
