//! The three ways a reply leaves the program: to a person, as one JSON object, as JSON lines.
//! Knows nothing of engines: it gets text that is already decoded and parted.

use std::io::{self, Write};

use engine::PromptProgress;

use super::progress::PromptBar;
use super::report::{Line, ToolCall};
use super::screen::Screen;

/// Takes a reply as it comes.
pub trait Sink {
    /// The prompt, of so many tokens, is about to be read.
    fn begin(&mut self, _n_prompt: usize) {}
    /// So much of the prompt is done.
    ///
    /// # Errors
    /// Those of the output, here and below.
    fn prompt(&mut self, progress: PromptProgress) -> io::Result<()>;
    /// Ids of new tokens, before the text that they release.
    ///
    /// # Errors
    /// As above.
    fn tokens(&mut self, ids: &[u32]) -> io::Result<()>;
    /// More of the thinking.
    ///
    /// # Errors
    /// As above.
    fn reasoning(&mut self, text: &str) -> io::Result<()>;
    /// More of the reply.
    ///
    /// # Errors
    /// As above.
    fn text(&mut self, text: &str) -> io::Result<()>;
    /// A whole call of a tool.
    ///
    /// # Errors
    /// As above.
    fn tool_call(&mut self, call: &ToolCall) -> io::Result<()>;
    /// Nothing more comes.
    ///
    /// # Errors
    /// As above.
    fn end(&mut self) -> io::Result<()>;
}

/// To a person, with a bar while a long prompt is read.
pub struct Person<O, E> {
    screen: Screen<O, E>,
    bar: PromptBar,
}

impl<O: Write, E: Write> Person<O, E> {
    /// Shows on `screen`; the bar comes on standard error.
    pub fn new(screen: Screen<O, E>, bar: PromptBar) -> Self {
        Self { screen, bar }
    }
}

impl<O: Write, E: Write> Sink for Person<O, E> {
    fn begin(&mut self, n_prompt: usize) {
        self.bar.update(PromptProgress { done: 0, cached: 0, total: n_prompt });
    }

    fn prompt(&mut self, progress: PromptProgress) -> io::Result<()> {
        self.bar.update(progress);
        Ok(())
    }

    fn tokens(&mut self, _: &[u32]) -> io::Result<()> {
        self.bar.clear();
        Ok(())
    }

    fn reasoning(&mut self, text: &str) -> io::Result<()> {
        self.screen.thinking(text)
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        self.screen.text(text)
    }

    fn tool_call(&mut self, call: &ToolCall) -> io::Result<()> {
        self.screen.tool_call(&call.name, &call.arguments)
    }

    fn end(&mut self) -> io::Result<()> {
        self.bar.clear();
        self.screen.finish()
    }
}

/// As one JSON object, which the caller prints at the end: nothing but the bar is shown before.
pub struct Silent {
    bar: PromptBar,
}

impl Silent {
    /// Shows the bar on standard error.
    pub fn new(bar: PromptBar) -> Self {
        Self { bar }
    }
}

impl Sink for Silent {
    fn begin(&mut self, n_prompt: usize) {
        self.bar.update(PromptProgress { done: 0, cached: 0, total: n_prompt });
    }

    fn prompt(&mut self, progress: PromptProgress) -> io::Result<()> {
        self.bar.update(progress);
        Ok(())
    }

    fn tokens(&mut self, _: &[u32]) -> io::Result<()> {
        self.bar.clear();
        Ok(())
    }

    fn reasoning(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn text(&mut self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn tool_call(&mut self, _: &ToolCall) -> io::Result<()> {
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        self.bar.clear();
        Ok(())
    }
}

/// As JSON lines.
pub struct Lines<O> {
    out: O,
}

impl<O: Write> Lines<O> {
    /// Writes to `out`.
    pub fn new(out: O) -> Self {
        Self { out }
    }

    /// Writes one event.
    ///
    /// # Errors
    /// Those of the output.
    pub fn line(&mut self, line: &Line<'_>) -> io::Result<()> {
        let mut text = serde_json::to_string(line).map_err(io::Error::other)?;
        text.push('\n');
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }
}

impl<O: Write> Sink for Lines<O> {
    fn prompt(&mut self, progress: PromptProgress) -> io::Result<()> {
        let PromptProgress { done, cached, total } = progress;
        self.line(&Line::Prompt { done, cached, total })
    }

    fn tokens(&mut self, ids: &[u32]) -> io::Result<()> {
        self.line(&Line::Tokens { ids })
    }

    fn reasoning(&mut self, text: &str) -> io::Result<()> {
        self.line(&Line::Reasoning { text })
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        self.line(&Line::Text { text })
    }

    fn tool_call(&mut self, call: &ToolCall) -> io::Result<()> {
        self.line(&Line::ToolCall { name: &call.name, arguments: &call.arguments })
    }

    fn end(&mut self) -> io::Result<()> {
        Ok(())
    }
}
