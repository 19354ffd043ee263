//! Takes terminal escapes out of text that we did not write: replies, model names, error messages about files.
//! Works on a stream, one character at a time. Knows nothing of styles: it runs before any of ours are added.

/// Removes escape sequences and control characters; `\n` and `\t` stay. The result is the same for every way of
/// cutting the text into pieces.
#[derive(Debug, Default)]
pub struct Sanitizer {
    state: State,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum State {
    #[default]
    Text,
    /// After ESC.
    Escape,
    /// After ESC and intermediate bytes: one final byte is to come.
    EscapeIntermediate,
    /// A control sequence; so many characters of it are gone.
    Csi(u16),
    /// A string (OSC, DCS, SOS, PM, APC) until ST or BEL; so many characters of it are gone.
    String(u16),
}

impl Sanitizer {
    /// Appends what may be shown of `text` to `out`.
    pub fn push(&mut self, text: &str, out: &mut String) {
        for c in text.chars() {
            self.step(c, out);
        }
    }

    fn step(&mut self, c: char, out: &mut String) {
        self.state = match (self.state, c) {
            (State::String(_), '\x07' | '\u{9c}') => State::Text,
            // ESC and a backslash end a string; ESC and something else break it off and start anew.
            (State::String(_), '\x1b') => State::Escape,
            // A string that is never closed must not swallow the rest of the reply.
            (State::String(n), c) if c != '\n' && n < STRING_MAX => State::String(n + 1),
            (State::Csi(n), ' '..='?') if n < CSI_MAX => State::Csi(n + 1),
            (State::Csi(_), '@'..='~') => State::Text,
            (State::Escape, '[') => State::Csi(0),
            (State::Escape, ']' | 'P' | 'X' | '^' | '_') => State::String(0),
            (State::Escape | State::EscapeIntermediate, ' '..='/') => State::EscapeIntermediate,
            (State::Escape | State::EscapeIntermediate, '0'..='~') => State::Text,
            // Not part of any sequence, or one that is broken off here.
            (_, '\x1b') => State::Escape,
            (_, '\u{9b}') => State::Csi(0),
            (_, '\u{90}' | '\u{98}' | '\u{9d}'..='\u{9f}') => State::String(0),
            (_, c) => {
                if c == '\n' || c == '\t' || !c.is_control() {
                    out.push(c);
                }
                State::Text
            }
        };
    }
}

/// [`Sanitizer`] for one whole string.
pub fn clean(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    Sanitizer::default().push(text, &mut out);
    out
}

/// [`clean`], and on one line.
pub fn clean_line(text: &str) -> String {
    clean(text).replace(['\n', '\t'], " ")
}

/// Longest string sequence that is taken out whole; what follows is shown as text.
const STRING_MAX: u16 = 8192;
/// Longest control sequence that is taken out whole.
const CSI_MAX: u16 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_go_and_text_stays() {
        for (found, shown) in [
            ("plain\n\ttext \u{e9}\u{4e2d}", "plain\n\ttext \u{e9}\u{4e2d}"),
            ("\x1b[31mred\x1b[0m", "red"),
            ("a\x1b]52;c;ZXZpbA==\x07b", "ab"),
            ("a\x1b]0;title\x1b\\b", "ab"),
            ("a\x1bPq#0\x1b\\b", "ab"),
            ("a\u{9b}31mb\u{9d}52;c;AA\u{9c}c", "abc"),
            ("\x1b(Bx\x1bcy\x1b#8z", "xyz"),
            ("over\rwrite\x08\x07\x7f\u{85}\0", "overwrite"),
            ("\x1b[?1049hx\x1b[>0;276;0cy", "xy"),
            // A broken sequence ends where it breaks; its own characters are gone, the rest stays.
            ("\x1b[31\nnext", "\nnext"),
            ("\x1b\x1b[1mx", "x"),
            ("a\x1b]0;never closed\nnext line", "a\nnext line"),
            ("end\x1b", "end"),
            // Characters above ASCII are no final bytes.
            ("\x1b[3\u{e9}", "\u{e9}"),
        ] {
            assert_eq!(clean(found), shown, "{found:?}");
        }
    }

    #[test]
    fn cutting_the_text_changes_nothing() {
        let text =
            "a\x1b[1;31mb\x1b]52;c;QUJD\x1b\\c\u{9b}2Jd\x1bPdata\u{9c}e\r\nf\u{4e2d}\x1b(0g\x1b]8;;http://x\x07h";
        let whole = clean(text);
        assert_eq!(whole, "abcde\nf\u{4e2d}gh");
        for cut in text.char_indices().map(|(i, _)| i) {
            let (mut sanitizer, mut out) = (Sanitizer::default(), String::new());
            sanitizer.push(&text[..cut], &mut out);
            sanitizer.push(&text[cut..], &mut out);
            assert_eq!(out, whole, "cut at {cut}");
        }
    }

    #[test]
    fn nothing_that_a_terminal_obeys_gets_through() {
        // Every pair and triple of the characters that start, fill and end sequences.
        let parts =
            ["\x1b", "[", "]", "P", "\\", "\x07", "\u{9b}", "\u{9c}", "\u{9d}", "5", ";", "m", "\n", "x", "\u{e9}"];
        for a in parts {
            for b in parts {
                for c in parts {
                    let out = clean(&format!("{a}{b}{c}{a}{c}{b}"));
                    let bad = out.chars().find(|&c| c.is_control() && c != '\n');
                    assert_eq!(bad, None, "{a:?} {b:?} {c:?} gave {out:?}");
                }
            }
        }
    }

    #[test]
    fn an_endless_string_does_not_hide_the_answer() {
        let out = clean(&format!("\x1b]{}tail", "x".repeat(20_000)));
        assert!(out.ends_with("tail") && out.len() > 10_000, "{} characters left", out.len());
    }
}
