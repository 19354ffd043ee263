//! The bytes of text that one rendering may make: every operation that makes some takes them from here.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::json::python_float;

/// Bytes of text that one rendering may make, intermediate texts included.
pub(super) const MAX_TEXT: usize = 128 << 20;

/// Bytes of one list, object or number when it is printed: they may hold each other many times, and printing them is slow.
pub(super) const MAX_VALUE: usize = 16 << 20;

/// The template made more than `MAX_TEXT` bytes.
#[derive(Debug, thiserror::Error)]
#[error("more than {MAX_TEXT} bytes were made")]
pub(super) struct TooMuchText;

/// What is left of `MAX_TEXT` in this rendering.
struct Left(usize);

/// Takes `n` bytes from what the rendering may make.
pub(super) fn charge(state: &mut State<'_, '_>, n: usize) -> Result<(), Error> {
    let left = state.get_or_insert_extension_with(|| Left(MAX_TEXT));
    match left.0.checked_sub(n) {
        Some(rest) => {
            left.0 = rest;
            Ok(())
        }
        None => Err(too_much_text()),
    }
}

pub(super) fn refuse(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail.into())
}

/// The text that the engine would print for `value`, counted.
pub(super) fn text_of(state: &mut State<'_, '_>, value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        charge(state, text.len())?;
        return Ok(text.to_owned());
    }
    let mut text = Counted { text: String::new(), max: left(state).min(MAX_VALUE) };
    let written = match value.kind() {
        ValueKind::Number if !value.is_integer() => {
            let x = f64::try_from(value.clone()).unwrap_or(f64::NAN);
            text.write_str(&python_float(x))
        }
        _ => write!(text, "{value}"),
    };
    written.map_err(|_| too_much_text())?;
    charge(state, text.text.len())?;
    Ok(text.text)
}

/// Bytes that the rendering may still make.
pub(super) fn left(state: &State<'_, '_>) -> usize {
    state.get_extension::<Left>().map_or(MAX_TEXT, |left| left.0)
}

pub(super) fn too_much_text() -> Error {
    refuse("too much text").with_source(TooMuchText)
}

struct Counted {
    text: String,
    max: usize,
}

impl Write for Counted {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        if self.text.len() + s.len() > self.max {
            return Err(std::fmt::Error);
        }
        self.text.push_str(s);
        Ok(())
    }
}
