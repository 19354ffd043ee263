//! Colours: when they are used, and which. Owns every style that the command line prints.

use std::io::IsTerminal;

use anstyle::{AnsiColor, Style};

use super::choices::When;

/// Headings of a reply.
pub const HEADING: Style = AnsiColor::Cyan.on_default().bold();
/// Code, inline and in blocks of a language that is not known.
pub const CODE: Style = AnsiColor::Yellow.on_default();
/// Keywords of code.
pub const KEYWORD: Style = AnsiColor::Magenta.on_default();
/// Strings of code.
pub const STRING: Style = AnsiColor::Green.on_default();
/// Numbers of code.
pub const NUMBER: Style = AnsiColor::Cyan.on_default();
/// What is not the reply: thinking, marks, hints.
pub const DIM: Style = Style::new().dimmed();
/// `**strong**`.
pub const BOLD: Style = Style::new().bold();
/// `*emphasis*`.
pub const ITALIC: Style = Style::new().italic();
/// `~~struck~~`.
pub const STRUCK: Style = Style::new().strikethrough();
/// The prompt of the editor.
pub const PROMPT: Style = AnsiColor::Green.on_default().bold();
/// The word that starts an error or a warning.
pub const WARNING: Style = AnsiColor::Yellow.on_default().bold();

/// A text with marks in place of styles, so that a test that fails can be read.
#[cfg(test)]
pub fn marked(mut text: String, marks: &[(Style, &str)]) -> String {
    for (style, mark) in marks {
        text = text.replace(&style.render().to_string(), mark);
    }
    text.replace(&anstyle::Reset.render().to_string(), "<>")
}

/// What the three standard streams are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terminals {
    /// Standard input is a terminal.
    pub stdin: bool,
    /// Standard output is a terminal.
    pub stdout: bool,
    /// Standard error is a terminal.
    pub stderr: bool,
}

impl Terminals {
    /// Those of this process.
    pub fn detect() -> Self {
        Self {
            stdin: std::io::stdin().is_terminal(),
            stdout: std::io::stdout().is_terminal(),
            stderr: std::io::stderr().is_terminal(),
        }
    }
}

/// Where colours go.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Colours {
    /// On standard output.
    pub out: bool,
    /// On standard error.
    pub err: bool,
}

impl Colours {
    /// `--color` first; with `auto` only terminals get colours, none when `NO_COLOR` is set (to anything but nothing) or
    /// the terminal is dumb, and none on standard output when the prompt came through a pipe.
    pub fn choose(when: When, terminals: Terminals, env: impl Fn(&str) -> Option<String>) -> Self {
        match when {
            When::Always => Self { out: true, err: true },
            When::Never => Self::default(),
            When::Auto => {
                let refused =
                    env("NO_COLOR").is_some_and(|v| !v.is_empty()) || env("TERM").is_some_and(|v| v == "dumb");
                Self { out: terminals.stdout && terminals.stdin && !refused, err: terminals.stderr && !refused }
            }
        }
    }
}

/// `text` in `style` where `on`, bare otherwise.
pub fn paint(text: &str, style: Style, on: bool) -> String {
    if on { format!("{style}{text}{style:#}") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Terminals = Terminals { stdin: true, stdout: true, stderr: true };

    #[test]
    fn auto_colours_terminals_only_and_obeys_no_color() {
        let none = |_: &str| None;
        assert_eq!(Colours::choose(When::Auto, ALL, none), Colours { out: true, err: true });
        let piped_out = Terminals { stdout: false, ..ALL };
        assert_eq!(Colours::choose(When::Auto, piped_out, none), Colours { out: false, err: true });
        let piped_in = Terminals { stdin: false, ..ALL };
        assert!(!Colours::choose(When::Auto, piped_in, none).out);
        let no_color = |name: &str| (name == "NO_COLOR").then(|| "1".to_owned());
        assert_eq!(Colours::choose(When::Auto, ALL, no_color), Colours::default());
        let empty = |name: &str| (name == "NO_COLOR").then(String::new);
        assert!(Colours::choose(When::Auto, ALL, empty).out, "an empty NO_COLOR is not set");
        let dumb = |name: &str| (name == "TERM").then(|| "dumb".to_owned());
        assert_eq!(Colours::choose(When::Auto, ALL, dumb), Colours::default());
    }

    #[test]
    fn always_and_never_ask_nobody() {
        let no_color = |_: &str| Some("1".to_owned());
        assert!(Colours::choose(When::Always, Terminals::default(), no_color).out);
        assert_eq!(Colours::choose(When::Never, ALL, |_| None), Colours::default());
    }
}
