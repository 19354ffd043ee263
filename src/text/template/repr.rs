//! Values as Python prints them: `str` of numbers, lists and objects, `repr` of what lies in them.
//! Knows the value model of the template engine; charges nothing itself, but stops at the limit it is given.

use std::fmt::Write;

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};
use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

/// `value` as Python's `str` gives it, of at most `max` bytes.
///
/// # Errors
/// `None` inside `Ok` when it is longer than `max`; an error when a part cannot be iterated over or lies too deep.
pub(super) fn python_str(value: &Value, max: usize) -> Result<Option<String>, Error> {
    if value.is_undefined() {
        return Ok(Some(String::new()));
    }
    if let Some(text) = value.as_str() {
        return Ok((text.len() <= max).then(|| text.to_owned()));
    }
    let mut printer = Printer { out: String::new(), max };
    match printer.value(value, 0) {
        Ok(()) if printer.out.len() <= max => Ok(Some(printer.out)),
        Ok(()) | Err(Stop::TooLong) => Ok(None),
        Err(Stop::Error(error)) => Err(error),
    }
}

/// A float as Python's `repr` writes it.
pub(super) fn python_float(x: f64) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    // Both write the shortest digits that read back as the same number; only the form differs.
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').expect("LowerExp always writes an `e`");
    let exponent: i32 = exponent.parse().expect("LowerExp writes a number after it");
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{x}");
    match plain.contains('.') {
        true => plain,
        false => plain + ".0",
    }
}

struct Printer {
    out: String,
    max: usize,
}

enum Stop {
    TooLong,
    Error(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Write for Printer {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        if self.out.len() + s.len() > self.max {
            return Err(std::fmt::Error);
        }
        self.out.push_str(s);
        Ok(())
    }
}

impl Printer {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Stop> {
        if self.out.len() > self.max {
            return Err(Stop::TooLong);
        }
        if depth > MAX_DEPTH {
            let detail = format!("more than {MAX_DEPTH} lists and objects in each other are not printed");
            return Err(Error::new(ErrorKind::InvalidOperation, detail).into());
        }
        match value.kind() {
            ValueKind::Undefined => self.out.push_str("Undefined"),
            ValueKind::None => self.out.push_str("None"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "True" } else { "False" }),
            ValueKind::Number if !value.is_integer() => {
                self.out.push_str(&python_float(f64::try_from(value.clone()).unwrap_or(f64::NAN)));
            }
            ValueKind::String if value.is_safe() => {
                self.out.push_str("Markup(");
                self.quoted(value.as_str().unwrap_or_default());
                self.out.push(')');
            }
            ValueKind::String => self.quoted(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.object(value, depth)?,
            _ => write!(self, "{value}").map_err(|_| Stop::TooLong)?,
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Stop> {
        let tuple = value.is_tuple();
        self.out.push(if tuple { '(' } else { '[' });
        let mut n = 0;
        for item in value.try_iter()?.checked() {
            if n > 0 {
                self.out.push_str(", ");
            }
            n += 1;
            self.value(&item?, depth + 1)?;
        }
        self.out.push_str(match (tuple, n) {
            (true, 1) => ",)",
            (true, _) => ")",
            (false, _) => "]",
        });
        Ok(())
    }

    fn object(&mut self, value: &Value, depth: usize) -> Result<(), Stop> {
        self.out.push('{');
        for (i, key) in value.try_iter()?.checked().enumerate() {
            let key = key?;
            if i > 0 {
                self.out.push_str(", ");
            }
            self.value(&key, depth + 1)?;
            self.out.push_str(": ");
            self.value(&value.get_item(&key)?, depth + 1)?;
        }
        self.out.push('}');
        Ok(())
    }

    fn quoted(&mut self, text: &str) {
        let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
        self.out.push(quote);
        for c in text.chars() {
            match c {
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                c if c == quote => self.out.extend(['\\', c]),
                ' ' => self.out.push(' '),
                c if !is_printed(c) => match c as u32 {
                    n @ 0..=0xff => self.out.push_str(&format!("\\x{n:02x}")),
                    n @ 0x100..=0xffff => self.out.push_str(&format!("\\u{n:04x}")),
                    n => self.out.push_str(&format!("\\U{n:08x}")),
                },
                c => self.out.push(c),
            }
        }
        self.out.push(quote);
    }
}

fn is_printed(c: char) -> bool {
    !matches!(c.general_category_group(), GeneralCategoryGroup::Other | GeneralCategoryGroup::Separator)
}

/// About what Python's own limit of recursion allows.
const MAX_DEPTH: usize = 900;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_does() {
        for (x, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
            (123456.789, "123456.789"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(python_float(x), text);
        }
    }

    #[test]
    fn a_list_that_holds_itself_many_times_stops_at_the_limit() {
        let mut value = Value::from("x");
        for _ in 0..100 {
            value = Value::from(vec![value.clone(), value]);
        }
        assert!(python_str(&value, 1000).unwrap().is_none());
    }
}
