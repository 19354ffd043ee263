//! The operators `+`, `~`, `*` and `%` and slices, as functions that count what they make: the rewritten template calls them.
//! Knows Python's rules for them; knows nothing of syntax.

use minijinja::formatting::FormatStyle;
use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Environment, Error, State};

use super::budget::{charge, refuse, text_of};
use super::format::formatted;
use super::markup::{escaped, like};

/// Names that the rewriter calls. A template that defines them itself only changes its own operators: within the definition they are
/// rewritten too, so no uncounted operator can be reached.
pub(super) const ADD: &str = "__add";
pub(super) const CONCAT: &str = "__concat";
pub(super) const MUL: &str = "__mul";
pub(super) const REM: &str = "__rem";
pub(super) const SLICE: &str = "__slice";
/// Counts a value that is assigned, and how many brackets in each other made it.
pub(super) const NEST: &str = "__nest";

pub(super) fn add_to(env: &mut Environment<'static>) {
    env.add_function(ADD, add);
    env.add_function(CONCAT, concat);
    env.add_function(MUL, mul);
    env.add_function(REM, rem);
    env.add_function(SLICE, slice);
    env.add_function(NEST, nest);
}

/// Roughly the bytes that a value takes by itself, not counting what lies in its items.
pub(super) fn size(value: &Value) -> usize {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => text.len(),
        (None, ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) => {
            value.len().unwrap_or(0) * ITEM_BYTES + ITEM_BYTES
        }
        _ => 0,
    }
}

/// Refuses numbers that say how much is to be made.
pub(super) fn small_numbers(args: &[Value]) -> Result<(), Error> {
    for arg in args {
        if arg.kind() == ValueKind::Number && f64::try_from(arg.clone()).is_ok_and(|n| n > MAX_COUNT as f64) {
            return Err(refuse(format!("a count of at most {MAX_COUNT}")));
        }
    }
    Ok(())
}

/// The sum of two numbers, texts or lists.
pub(super) fn add(state: &mut State<'_, '_>, a: Value, b: Value) -> Result<Value, Error> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        if a.is_safe() || b.is_safe() {
            let text = escaped(state, &a)? + &escaped(state, &b)?;
            charge(state, text.len())?;
            return Ok(Value::from_safe_string(text));
        }
        charge(state, x.len() + y.len())?;
        return Ok(Value::from([x, y].concat()));
    }
    let list = |v: &Value| matches!(v.kind(), ValueKind::Seq | ValueKind::Iterable);
    if list(&a) && list(&b) {
        if a.is_tuple() != b.is_tuple() {
            return Err(refuse("`+` between a list and a tuple"));
        }
        charge(state, size(&a) + size(&b))?;
        let mut items = Vec::new();
        for item in a.try_iter()?.checked().chain(b.try_iter()?.checked()) {
            items.push(item?);
        }
        return Ok(listed(&a, items));
    }
    number(&a, &b, "+", i128::checked_add, |x, y| x + y)
}

/// A list, or a tuple if `of` is one.
fn listed(of: &Value, items: Vec<Value>) -> Value {
    if of.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) }
}

fn concat(state: &mut State<'_, '_>, a: Value, b: Value) -> Result<Value, Error> {
    let mut text = text_of(state, &a)?;
    text.push_str(&text_of(state, &b)?);
    Ok(Value::from(text))
}

fn mul(state: &mut State<'_, '_>, a: Value, b: Value) -> Result<Value, Error> {
    let (repeated, n) = match (a.kind(), b.kind()) {
        (ValueKind::String | ValueKind::Seq, ValueKind::Number | ValueKind::Bool) => (&a, &b),
        (ValueKind::Number | ValueKind::Bool, ValueKind::String | ValueKind::Seq) => (&b, &a),
        _ => return number(&a, &b, "*", i128::checked_mul, |x, y| x * y),
    };
    // As in Python: less than once is nothing.
    let n = match n.kind() {
        ValueKind::Bool => i64::from(n.is_true()),
        _ if !n.is_integer() => return Err(refuse("a text or list is repeated a whole number of times")),
        _ => i64::try_from(n.clone())?.max(0),
    };
    let n = usize::try_from(n).expect("it is not negative");
    charge(state, size(repeated).saturating_mul(n))?;
    match repeated.as_str() {
        Some(text) => Ok(like(repeated, text.repeat(n))),
        None => {
            let items: Vec<Value> = repeated.try_iter()?.collect();
            Ok(listed(repeated, std::iter::repeat_n(items, n).flatten().collect()))
        }
    }
}

/// What is left of a division, or a text with values in its places.
fn rem(state: &mut State<'_, '_>, a: Value, b: Value) -> Result<Value, Error> {
    if a.as_str().is_some() {
        let args: Vec<Value> = if b.is_tuple() { b.try_iter()?.collect() } else { vec![b] };
        return formatted(state, FormatStyle::Printf, &a, &args);
    }
    if matches!(b.kind(), ValueKind::Number | ValueKind::Bool) && f64::try_from(b.clone()).is_ok_and(|b| b == 0.0) {
        return Err(refuse("`%` by zero"));
    }
    // The sign is that of the divisor.
    let integers = |x: i128, y: i128| {
        let rest = x.checked_rem(y)?;
        if rest != 0 && (rest < 0) != (y < 0) { rest.checked_add(y) } else { Some(rest) }
    };
    let floats = |x: f64, y: f64| {
        let rest = x % y;
        if rest != 0.0 && (rest < 0.0) != (y < 0.0) { rest + y } else { rest }
    };
    number(&a, &b, "%", integers, floats)
}

/// Levels of lists in lists that assignments of this rendering may still make.
struct LevelsLeft(usize);

/// Dropping or printing a value takes stack for each of its levels, so their number is limited.
fn nest(state: &mut State<'_, '_>, value: Value, n_levels: usize) -> Result<Value, Error> {
    let holds_others = |kind| matches!(kind, ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::Plain);
    let nested = match value.kind() {
        ValueKind::Seq => value.try_iter()?.any(|item| holds_others(item.kind())),
        kind => holds_others(kind),
    };
    if nested {
        let left = state.get_or_insert_extension_with(|| LevelsLeft(MAX_LEVELS));
        left.0 = left
            .0
            .checked_sub(n_levels)
            .ok_or_else(|| refuse(format!("more than {MAX_LEVELS} assignments of lists in lists")))?;
    }
    Ok(value)
}

/// `value[start:stop:step]` as in Python, which counts characters. The engine's own panics on `[][::-1]`.
fn slice(
    state: &mut State<'_, '_>,
    value: Value,
    start: Option<i64>,
    stop: Option<i64>,
    step: Option<i64>,
) -> Result<Value, Error> {
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(refuse("a slice's step is not 0"));
    }
    match (value.as_str(), value.kind()) {
        (Some(text), _) => {
            let chars: Vec<char> = text.chars().collect();
            let picked = picks(chars.len(), start, stop, step).map(|i| chars[i]);
            let picked: String = picked.collect();
            charge(state, picked.len())?;
            Ok(like(&value, picked))
        }
        (None, ValueKind::Seq | ValueKind::Iterable) => {
            let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
            let picked = picks(items.len(), start, stop, step).map(|i| items[i].clone()).collect();
            let picked = listed(&value, picked);
            charge(state, size(&picked))?;
            Ok(picked)
        }
        (None, ValueKind::Undefined) => Err(refuse("an undefined value has no slices")),
        // As every other item that a value has not.
        (None, _) => Ok(Value::UNDEFINED),
    }
}

/// The indices that a slice of `n` items takes.
fn picks(n: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> impl Iterator<Item = usize> {
    let n = n as i64;
    // Python clips to one place before the first item when it walks backwards.
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let clip = |at: i64| match at {
        at if at < 0 => at.saturating_add(n).max(low),
        at => at.min(high),
    };
    let (first, end) = if step > 0 { (low, high) } else { (high, low) };
    let (mut at, end) = (start.map_or(first, clip), stop.map_or(end, clip));
    std::iter::from_fn(move || {
        let inside = if step > 0 { at < end } else { at > end };
        let here = at;
        at = at.saturating_add(step);
        inside.then_some(here as usize)
    })
}

fn number(
    a: &Value,
    b: &Value,
    op: &str,
    integers: fn(i128, i128) -> Option<i128>,
    floats: fn(f64, f64) -> f64,
) -> Result<Value, Error> {
    let is_number = |v: &Value| matches!(v.kind(), ValueKind::Number | ValueKind::Bool);
    if !is_number(a) || !is_number(b) {
        let (a, b) = (a.kind(), b.kind());
        return Err(refuse(format!("`{op}` between {a} and {b}")));
    }
    let as_float = |v: &Value| match v.kind() {
        ValueKind::Bool => Ok(f64::from(u8::from(v.is_true()))),
        _ => f64::try_from(v.clone()),
    };
    let as_integer = |v: &Value| match v.kind() {
        ValueKind::Bool => Some(i128::from(v.is_true())),
        _ if v.is_integer() => i128::try_from(v.clone()).ok(),
        _ => None,
    };
    match (as_integer(a), as_integer(b)) {
        (Some(x), Some(y)) => {
            let n = integers(x, y).ok_or_else(|| refuse(format!("{x} {op} {y} is too large")))?;
            Ok(i64::try_from(n).map_or_else(|_| Value::from(n), Value::from))
        }
        _ => Ok(Value::from(floats(as_float(a)?, as_float(b)?))),
    }
}

/// `template::STACK` has room for values of so many levels.
const MAX_LEVELS: usize = 50_000;
const ITEM_BYTES: usize = 32;
const MAX_COUNT: u32 = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_take_what_python_takes() {
        // (n, start, stop, step) and list(range(n))[start:stop:step] by Python 3.
        type Case = (usize, Option<i64>, Option<i64>, i64, &'static [usize]);
        let cases: [Case; 12] = [
            (0, None, None, -1, &[]),
            (3, None, None, -1, &[2, 1, 0]),
            (3, Some(1), None, 1, &[1, 2]),
            (3, Some(-2), None, 1, &[1, 2]),
            (3, Some(-9), Some(9), 1, &[0, 1, 2]),
            (5, Some(4), Some(0), -2, &[4, 2]),
            (5, Some(-1), Some(-9), -2, &[4, 2, 0]),
            (5, None, Some(-1), 2, &[0, 2]),
            (5, Some(9), None, -1, &[4, 3, 2, 1, 0]),
            (5, Some(3), Some(1), 1, &[]),
            (5, Some(-9), None, -1, &[]),
            (2, None, None, i64::MAX, &[0]),
        ];
        for (n, start, stop, step, expected) in cases {
            let got: Vec<usize> = picks(n, start, stop, step).collect();
            assert_eq!(got, expected, "range({n})[{start:?}:{stop:?}:{step}]");
        }
    }
}
