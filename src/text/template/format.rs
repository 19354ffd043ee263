//! Texts with places for values: Python's `%` and `str.format`, by the engine's formatter, under limits.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, State};

use super::budget::{charge, left, refuse, text_of, too_much_text};
use super::markup::{escaped, like};

/// `template` with `args` in its places, counted.
///
/// # Errors
/// Places without a value, forms that a value has not, and what would be too long.
pub(super) fn formatted(
    state: &mut State<'_, '_>,
    style: FormatStyle,
    template: &Value,
    args: &[Value],
) -> Result<Value, Error> {
    let text = template.as_str().ok_or_else(|| refuse("format: a text expected"))?;
    check(state, style, text, args)?;
    let mut values = Vec::with_capacity(args.len());
    for arg in args {
        values.push(match arg.kind() {
            ValueKind::String if template.is_safe() => Value::from(escaped(state, arg)?),
            // A name in the template may look into a map.
            ValueKind::Map if arg.is_kwargs() || text.contains("%(") => arg.clone(),
            ValueKind::Seq | ValueKind::Iterable | ValueKind::None
                if style == FormatStyle::Printf || !text.contains('[') =>
            {
                Value::from(text_of(state, arg)?)
            }
            _ => arg.clone(),
        });
    }
    let made = format(style, text, &values)?;
    charge(state, made.len())?;
    Ok(like(template, made))
}

/// Widths and repeated arguments can make a long text from a short one, so both are looked at before formatting.
fn check(state: &mut State<'_, '_>, style: FormatStyle, text: &str, args: &[Value]) -> Result<(), Error> {
    let mut run = 0;
    for c in text.chars() {
        run = if c.is_ascii_digit() { run + 1 } else { 0 };
        if run > 3 {
            return Err(refuse("format: widths have at most 3 digits"));
        }
    }
    let width_elsewhere = match style {
        FormatStyle::Printf => text.contains('*'),
        FormatStyle::StrFormat => text.contains(":{"),
    };
    if width_elsewhere {
        return Err(refuse("format: a width has to stand in the format itself"));
    }
    let mut longest = 0;
    for arg in args {
        if arg.is_kwargs() {
            for key in arg.try_iter()?.checked() {
                let value = arg.get_item(&key?)?;
                longest = longest.max(text_of(state, &value)?.len());
            }
        } else {
            longest = longest.max(text_of(state, arg)?.len());
        }
    }
    let n_places = text.matches(['%', '{']).count();
    match n_places.saturating_mul(longest + 1000) > left(state) {
        true => Err(too_much_text()),
        false => Ok(()),
    }
}
