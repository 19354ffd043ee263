//! A reply on its way to a person: where text and thinking go, and how they look. Owns no terminal, only two writers.
//! Escapes are taken out before anything is shown on a terminal.

use std::io::{self, Write};

use super::choices::{AutoOnOff, When};
use super::markdown::Markdown;
use super::style::{self, Colours, Terminals, paint};
use super::wrap::{Wrap, wrapped};
use program::sanitize::{Sanitizer, clean_line};
use program::terminal;

/// Where what goes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Plan {
    /// Take terminal escapes out of the reply.
    pub clean: bool,
    /// Show markdown as styles.
    pub markdown: bool,
    /// Where thinking goes.
    pub thinking: Place,
    /// Show only that the model thinks.
    pub fold: bool,
    /// Break lines at words, at the width of the terminal of standard output.
    pub wrap_out: bool,
    /// The same, of standard error.
    pub wrap_err: bool,
    /// Which streams get colours.
    pub colours: Colours,
}

/// One of the two writers, or none.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Place {
    /// Is not shown.
    #[default]
    Nowhere,
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// What the person asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wishes {
    /// A chat, not a single reply.
    pub chat: bool,
    /// `--raw`.
    pub raw: bool,
    /// `--hide-thinking`.
    pub fold: bool,
    /// `--no-wrap`.
    pub no_wrap: bool,
    /// `--markdown`.
    pub markdown: AutoOnOff,
    /// `--color`.
    pub color: When,
}

impl Plan {
    /// Thinking is never part of a single reply on standard output, and goes only where a person reads it.
    pub fn new(wishes: Wishes, terminals: Terminals, colours: Colours) -> Self {
        let markdown = match wishes.markdown {
            AutoOnOff::Auto => colours.out && !wishes.raw,
            AutoOnOff::On => wishes.color != When::Never,
            AutoOnOff::Off => false,
        };
        let thinking = match (wishes.chat && terminals.stdout, terminals.stderr) {
            (true, _) => Place::Out,
            (false, true) => Place::Err,
            (false, false) => Place::Nowhere,
        };
        let wrap = !wishes.no_wrap && !wishes.raw;
        Self {
            clean: terminals.stdout || colours.out || markdown,
            markdown,
            thinking,
            fold: wishes.fold,
            wrap_out: wrap && terminals.stdout,
            wrap_err: wrap && terminals.stderr,
            colours,
        }
    }
}

impl Plan {
    /// The program's own words, in lines that fit the terminal of standard error.
    pub fn aside(&self, words: &str) -> String {
        paint(&self.lines(words), style::DIM, self.colours.err)
    }

    /// Words that are no aside, in such lines.
    pub fn lines(&self, words: &str) -> String {
        wrapped(self.wrap_err.then_some(terminal::error_columns as fn() -> Option<usize>), words)
    }
}

/// Shows one reply.
pub struct Screen<O, E> {
    out: O,
    err: E,
    plan: Plan,
    section: Section,
    sanitizer: Sanitizer,
    markdown: Markdown,
    wrap: Wrap,
    /// Of thinking.
    aside: Wrap,
    /// What is on the screen since the last line break; 0 at the start of a line.
    open_line: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Section {
    Nothing,
    Thinking,
    Text,
}

impl<O: Write, E: Write> Screen<O, E> {
    /// A screen with nothing shown yet.
    pub fn new(out: O, err: E, plan: Plan) -> Self {
        let columns = |on: bool, of: fn() -> Option<usize>| Wrap::new(on.then_some(of));
        let aside = match plan.thinking {
            Place::Out => columns(plan.wrap_out, terminal::output_columns),
            Place::Err => columns(plan.wrap_err, terminal::error_columns),
            Place::Nowhere => Wrap::default(),
        };
        Self {
            out,
            err,
            plan,
            section: Section::Nothing,
            sanitizer: Sanitizer::default(),
            markdown: Markdown::default(),
            wrap: columns(plan.wrap_out, terminal::output_columns),
            aside,
            open_line: false,
        }
    }

    /// Shows more of the thinking.
    ///
    /// # Errors
    /// Those of the writers, here and below.
    pub fn thinking(&mut self, text: &str) -> io::Result<()> {
        if self.plan.thinking == Place::Nowhere {
            return Ok(());
        }
        let colours = self.thinking_colours();
        let mut shown = String::new();
        if self.section != Section::Thinking {
            self.end_section()?;
            self.section = Section::Thinking;
            if colours {
                shown.push_str(&style::DIM.render().to_string());
            }
            if self.plan.fold {
                shown.push_str("thinking...");
                self.open_line = true;
            }
        }
        if !self.plan.fold {
            let mut clean = String::new();
            self.sanitizer.push(text, &mut clean);
            // Models put empty lines around their thoughts.
            let clean = if self.open_line { &clean[..] } else { clean.trim_start_matches('\n') };
            self.note_line(clean);
            self.aside.push(clean, &mut shown);
        }
        self.write_thinking(&shown)
    }

    /// Shows more of the reply.
    ///
    /// # Errors
    /// As above.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        if self.section != Section::Text {
            self.end_section()?;
            self.section = Section::Text;
        }
        let mut shown = String::new();
        if self.plan.clean {
            self.sanitizer.push(text, &mut shown);
        } else {
            shown.push_str(text);
        }
        self.note_line(&shown);
        if self.plan.markdown {
            let plain = std::mem::take(&mut shown);
            self.markdown.push(&plain, &mut shown);
        }
        let mut lines = String::new();
        self.wrap.push(&shown, &mut lines);
        self.out.write_all(lines.as_bytes())?;
        self.out.flush()
    }

    /// Tells of a tool that the model asked for.
    ///
    /// # Errors
    /// As above.
    pub fn tool_call(&mut self, name: &str, arguments: &str) -> io::Result<()> {
        self.end_section()?;
        let words = format!(
            "the model asks for the tool {name}({arguments}); there are no tools here",
            name = clean_line(name),
            arguments = clean_line(arguments)
        );
        writeln!(self.err, "{}", paint(&words, style::DIM, self.plan.colours.err))
    }

    /// Ends the reply: styles are off, and the next output starts on a line of its own.
    ///
    /// # Errors
    /// As above.
    pub fn finish(&mut self) -> io::Result<()> {
        self.end_section()
    }

    fn end_section(&mut self) -> io::Result<()> {
        let open_line = std::mem::take(&mut self.open_line);
        self.sanitizer = Sanitizer::default();
        match std::mem::replace(&mut self.section, Section::Nothing) {
            Section::Nothing => Ok(()),
            Section::Thinking => {
                let reset = if self.thinking_colours() { anstyle::Reset.render().to_string() } else { String::new() };
                let space = if open_line { "\n\n" } else { "\n" };
                let mut rest = String::new();
                self.aside.finish(&mut rest);
                self.write_thinking(&format!("{rest}{reset}{space}"))
            }
            Section::Text => {
                let (mut held, mut rest) = (String::new(), String::new());
                if self.plan.markdown {
                    self.markdown.finish(&mut held);
                }
                self.wrap.push(&held, &mut rest);
                self.wrap.finish(&mut rest);
                if open_line {
                    rest.push('\n');
                }
                self.out.write_all(rest.as_bytes())?;
                self.out.flush()
            }
        }
    }

    fn thinking_colours(&self) -> bool {
        match self.plan.thinking {
            Place::Out => self.plan.colours.out,
            Place::Err => self.plan.colours.err,
            Place::Nowhere => false,
        }
    }

    fn write_thinking(&mut self, text: &str) -> io::Result<()> {
        match self.plan.thinking {
            Place::Nowhere => Ok(()),
            Place::Out => self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()),
            Place::Err => self.err.write_all(text.as_bytes()).and_then(|()| self.err.flush()),
        }
    }

    fn note_line(&mut self, text: &str) {
        if let Some(last) = text.chars().next_back() {
            self.open_line = last != '\n';
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Terminals = Terminals { stdin: true, stdout: true, stderr: true };
    const COLOURS: Colours = Colours { out: true, err: true };

    fn show(plan: Plan, run: impl FnOnce(&mut Screen<&mut Vec<u8>, &mut Vec<u8>>)) -> (String, String) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut screen = Screen::new(&mut out, &mut err, plan);
        run(&mut screen);
        screen.finish().unwrap();
        (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn a_pipe_gets_the_answer_as_it_is_and_nothing_else() {
        let plan = Plan::new(Wishes::default(), Terminals::default(), Colours::default());
        let (out, err) = show(plan, |screen| {
            screen.thinking("hm").unwrap();
            screen.text("**a** \x1b[1m").unwrap();
            screen.text("b").unwrap();
        });
        assert_eq!((out.as_str(), err.as_str()), ("**a** \x1b[1mb\n", ""));
    }

    #[test]
    fn a_chat_on_a_terminal_shows_thinking_dim_and_markdown_styled() {
        let plan = Plan::new(Wishes { chat: true, ..Wishes::default() }, ALL, COLOURS);
        let (out, _) = show(plan, |screen| {
            screen.thinking("\nhm").unwrap();
            screen.thinking("\x1b]0;x\x07m\n").unwrap();
            screen.text("**a**\n").unwrap();
        });
        assert_eq!(out, "\x1b[2mhmm\n\x1b[0m\n\x1b[1ma\x1b[0m\n");
    }

    #[test]
    fn a_single_answer_keeps_its_thinking_off_standard_output() {
        let plan = Plan::new(Wishes::default(), ALL, Colours::default());
        let (out, err) = show(plan, |screen| {
            screen.thinking("hm").unwrap();
            screen.text("a").unwrap();
        });
        assert_eq!((out.as_str(), err.as_str()), ("a\n", "hm\n\n"));
    }

    #[test]
    fn folded_thinking_is_one_mark() {
        let plan = Plan::new(Wishes { chat: true, fold: true, ..Wishes::default() }, ALL, Colours::default());
        let (out, _) = show(plan, |screen| {
            screen.thinking("secret").unwrap();
            screen.thinking("more").unwrap();
            screen.text("a").unwrap();
        });
        assert_eq!(out, "thinking...\n\na\n");
    }

    #[test]
    fn an_answer_on_a_terminal_cannot_drive_it() {
        let plan = Plan::new(Wishes { chat: true, ..Wishes::default() }, ALL, Colours::default());
        let (out, err) = show(plan, |screen| {
            screen.text("a\x1b]52;c;QQ").unwrap();
            screen.text("==\x07b\n").unwrap();
            screen.tool_call("x\x1b[2J", "{\n}").unwrap();
        });
        assert_eq!(out, "ab\n");
        assert!(err.contains("tool x({ })") && !err.contains('\x1b'), "{err:?}");
    }

    #[test]
    fn forced_styles_reach_a_pipe_clean() {
        let wishes = Wishes { markdown: AutoOnOff::On, ..Wishes::default() };
        let plan = Plan::new(wishes, Terminals::default(), Colours::default());
        assert!(plan.markdown && plan.clean);
        let never = Plan::new(Wishes { color: When::Never, ..wishes }, ALL, Colours::default());
        assert!(!never.markdown);
    }
}
