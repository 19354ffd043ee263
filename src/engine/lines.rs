//! Limits that end a generation at a line: its time, and the least indentation of its lines.
//! Knows text as bytes, no tokens and no clock.

use std::time::Duration;

/// What a request says of its lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineLimits {
    /// Time for the generation from its first token on; a longer one ends with the next token that has a line break.
    pub max_time: Option<Duration>,
    /// Blanks and tabs that every line after the first begins with; the generation ends before a line that has fewer. 0 is off.
    pub min_indent: usize,
}

/// Follows the lines of a generation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lines {
    limits: LineLimits,
    /// Blanks at the beginning of the line, until something else comes.
    indent: Option<usize>,
    /// There was a line break.
    pub(crate) has_break: bool,
}

impl Lines {
    pub(crate) fn new(limits: LineLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Takes the text of a token that came after `time`. `Some(n)`: the generation ends with the first `n` bytes of it.
    pub(crate) fn take(&mut self, text: &[u8], time: Duration) -> Option<usize> {
        self.has_break |= text.contains(&b'\n');
        if self.limits.min_indent > 0 {
            for (i, byte) in text.iter().enumerate() {
                match (byte, &mut self.indent) {
                    (b' ' | b'\t', Some(indent)) => *indent += 1,
                    (_, Some(indent)) if *indent < self.limits.min_indent => return Some(i),
                    (b'\n', indent) => *indent = Some(0),
                    (_, indent) => *indent = None,
                }
            }
        }
        let is_late = self.limits.max_time.is_some_and(|max| time > max) && text.contains(&b'\n');
        is_late.then_some(text.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(limits: LineLimits, texts: &[&str], time: Duration) -> String {
        let (mut lines, mut all) = (Lines::new(limits), String::new());
        for text in texts {
            match lines.take(text.as_bytes(), time) {
                Some(n) => return all + &text[..n] + "|",
                None => all += text,
            }
        }
        all
    }

    #[test]
    fn a_line_with_too_few_blanks_ends_the_generation_before_it() {
        let four = LineLimits { min_indent: 4, ..LineLimits::default() };
        let of = |texts: &[&str]| taken(four, texts, Duration::ZERO);
        assert_eq!(of(&["x = 1", "\n  ", "  y", "\n\t\t", "\t\tz"]), "x = 1\n    y\n\t\t\t\tz");
        assert_eq!(of(&["x\n", "   ", " y\n  ", "z"]), "x\n    y\n  |");
        assert_eq!(of(&["x\n    y\n}", "never"]), "x\n    y\n|");
        assert_eq!(of(&["x\n\n", "never"]), "x\n|", "an empty line has no blanks");
        assert_eq!(taken(LineLimits::default(), &["x\ny"], Duration::MAX), "x\ny");
    }

    #[test]
    fn a_late_generation_ends_with_a_line() {
        let second = LineLimits { max_time: Some(Duration::from_secs(1)), ..LineLimits::default() };
        assert_eq!(taken(second, &["a\nb", "\nc"], Duration::from_secs(1)), "a\nb\nc");
        assert_eq!(taken(second, &["a", "b\n", "c"], Duration::from_secs(2)), "ab\n|");
    }
}
