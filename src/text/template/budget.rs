//! The bytes of text that one rendering may make: every operation that makes some takes them from here.

use minijinja::value::Value;
use minijinja::{Error, ErrorKind, State};

use super::repr::python_str;

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

/// The text that Python would print for `value`, counted.
pub(super) fn text_of(state: &mut State<'_, '_>, value: &Value) -> Result<String, Error> {
    let max = if value.as_str().is_some() { left(state) } else { left(state).min(MAX_VALUE) };
    let text = python_str(value, max)?.ok_or_else(too_much_text)?;
    charge(state, text.len())?;
    Ok(text)
}

/// Bytes that the rendering may still make.
pub(super) fn left(state: &State<'_, '_>) -> usize {
    state.get_extension::<Left>().map_or(MAX_TEXT, |left| left.0)
}

pub(super) fn too_much_text() -> Error {
    refuse("too much text").with_source(TooMuchText)
}
