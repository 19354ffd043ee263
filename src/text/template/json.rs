//! JSON as Python's `json.dumps` writes it, for the filter `tojson`: models were trained on its spacing.
//! Knows the value model of the template engine; charges nothing itself, but stops at the limit it is given.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::repr::python_float;

/// `value` as JSON of at most `max` bytes.
///
/// # Errors
/// `None` inside `Ok` when it is longer than `max`; an error when a part is not JSON or lies too deep.
pub(super) fn dumps(value: &Value, layout: Layout, max: usize) -> Result<Option<String>, Error> {
    let mut json = Json { out: String::new(), layout, max };
    match json.value(value, 0) {
        Ok(()) if json.out.len() <= max => Ok(Some(json.out)),
        Ok(()) | Err(Stop::TooLong) => Ok(None),
        Err(Stop::Error(error)) => Err(error),
    }
}

/// Python's layout options.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// What indents a level, on a line for each item; None writes one line.
    pub indent: Option<String>,
    /// Between two items.
    pub between: String,
    /// After a key.
    pub after_key: String,
    /// Orders the keys of objects.
    pub sort_keys: bool,
    /// Escapes what is not ASCII.
    pub ascii: bool,
}

impl Default for Layout {
    fn default() -> Self {
        Self { indent: None, between: ", ".into(), after_key: ": ".into(), sort_keys: false, ascii: false }
    }
}

struct Json {
    out: String,
    layout: Layout,
    max: usize,
}

enum Stop {
    TooLong,
    Error(Error),
}

impl Json {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Stop> {
        if self.out.len() > self.max {
            return Err(Stop::TooLong);
        }
        if depth > MAX_DEPTH {
            return refuse(format!("more than {MAX_DEPTH} lists and objects in each other"));
        }
        match value.kind() {
            ValueKind::Undefined => return refuse("an undefined value is not JSON".to_owned()),
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.object(value, depth)?,
            other => return refuse(format!("a {other} is not JSON")),
        }
        Ok(())
    }

    fn number(&mut self, value: &Value) {
        if value.is_integer() {
            write!(self.out, "{value}").expect("a String takes everything");
            return;
        }
        let x = f64::try_from(value.clone()).unwrap_or(f64::NAN);
        let text = match x {
            x if x.is_nan() => "NaN".to_owned(),
            x if x.is_infinite() => (if x > 0.0 { "Infinity" } else { "-Infinity" }).to_owned(),
            x => python_float(x),
        };
        self.out.push_str(&text);
    }

    fn string(&mut self, s: &str) {
        self.out.push('"');
        for c in s.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if self.layout.ascii && !(' '..='~').contains(&c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(self.out, "\\u{unit:04x}").expect("a String takes everything");
                    }
                }
                c if c < ' ' => write!(self.out, "\\u{:04x}", c as u32).expect("a String takes everything"),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Stop> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter().map_err(Stop::Error)?.checked() {
            let item = item.map_err(Stop::Error)?;
            self.next_item(empty, depth + 1);
            empty = false;
            self.value(&item, depth + 1)?;
        }
        self.close(']', empty, depth);
        Ok(())
    }

    fn object(&mut self, value: &Value, depth: usize) -> Result<(), Stop> {
        self.out.push('{');
        let mut empty = true;
        let mut keys = Vec::new();
        for key in value.try_iter().map_err(Stop::Error)?.checked() {
            keys.push(key.map_err(Stop::Error)?);
        }
        if self.layout.sort_keys {
            keys.sort();
        }
        for key in keys {
            self.next_item(empty, depth + 1);
            empty = false;
            self.key(&key)?;
            self.out.push_str(&self.layout.after_key);
            self.value(&value.get_item(&key).map_err(Stop::Error)?, depth + 1)?;
        }
        self.close('}', empty, depth);
        Ok(())
    }

    fn key(&mut self, key: &Value) -> Result<(), Stop> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::Number | ValueKind::Bool | ValueKind::None => {
                self.out.push('"');
                self.value(key, 0)?;
                self.out.push('"');
            }
            other => return refuse(format!("a {other} is not a key of a JSON object")),
        }
        Ok(())
    }

    fn next_item(&mut self, first: bool, depth: usize) {
        if !first {
            self.out.push_str(&self.layout.between);
        }
        self.new_line(depth);
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.layout.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }
}

fn refuse<T>(detail: String) -> Result<T, Stop> {
    Err(Stop::Error(Error::new(ErrorKind::BadSerialization, detail)))
}

const MAX_DEPTH: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_holds_itself_many_times_stops_at_the_limit() {
        let mut value = Value::from("x");
        for _ in 0..100 {
            value = Value::from(vec![value.clone(), value]);
        }
        assert!(dumps(&value, Layout::default(), 1000).unwrap().is_none());
    }
}
