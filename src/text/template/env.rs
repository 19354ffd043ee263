//! The environment in which templates run: what Python's Jinja and `transformers` offer, under limits.
//! Everything that can make much out of little is replaced by a form that is counted, in `filters.rs`, `methods.rs` and `ops.rs`.
//!
//! Bounded: steps, bytes of text and items of lists made (so memory, to a small multiple of `MAX_TEXT`), levels of lists in lists.
//! Not bounded: the time to compare, sort or hash lists that hold each other many times.

use minijinja::value::Value;
use minijinja::{Environment, Error, Output, State};

use super::budget::{charge, refuse, text_of};
use super::{filters, guard, methods, ops};

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
    env.set_unknown_method_callback(methods::method);
    env.remove_global("debug");
    ops::add_to(&mut env);
    filters::add_to(&mut env);
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        let message = message.to_string();
        Err(refuse(message.clone()).with_source(Raised(message)))
    });
    env.add_function("strftime_now", |format: &str| super::clock::now(format).map_err(refuse));
    env
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
