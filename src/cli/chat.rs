//! The chat: reads a line, answers it or obeys it, until the person leaves. Owns the conversation and its settings.

use std::io::{self, Write};

use engine::Timings;

use super::args::Args;
use super::command::{self, Typed};
use super::editor::{Input, LineEditor};
use super::loaded::{Loaded, Prompt};
use super::pictures::{Film, Image};
use super::progress::PromptBar;
use super::report::Finish;
use super::screen::{Plan, Screen};
use super::settings::TurnSettings;
use super::sink::Person;
use super::stats::{self, Totals};
use super::style::Terminals;
use super::transcript::{Reply, Transcript};
use super::turn;
use program::choices::Think;
use program::exit::{Exit, Failure, Outcome};
use program::signals::Signals;
use program::terminal::SilentKeys;

/// A chat with one model.
pub struct Chat<'a> {
    pub(super) loaded: &'a Loaded,
    signals: &'a Signals,
    pub(super) terminals: Terminals,
    plan: Plan,
    raw: bool,
    stats: bool,
    pub(super) settings: TurnSettings,
    pub(super) think: Think,
    pub(super) transcript: Transcript,
    /// Texts of `/read`, which go before the next message.
    pub(super) ahead: Vec<String>,
    /// Images of `/image`, which go with the next message.
    pub(super) images: Vec<Image>,
    /// The video that goes with the first message.
    video: Option<Film>,
    pub(super) totals: Totals,
    pub(super) last: Option<Timings>,
    /// How often the last message was answered again.
    pub(super) attempts: u64,
}

/// Whether the chat goes on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Next {
    /// With another line.
    Line,
    /// With another line; Ctrl-C was the last key.
    LineAfterInterrupt,
    /// No.
    Leave,
}

impl<'a> Chat<'a> {
    /// A chat with nothing said.
    pub fn new(
        args: &Args,
        loaded: &'a Loaded,
        signals: &'a Signals,
        system: Option<String>,
        plan: Plan,
        terminals: Terminals,
    ) -> Outcome<Self> {
        if !args.prompt.raw {
            loaded.check_template()?;
        }
        Ok(Self {
            loaded,
            signals,
            terminals,
            plan,
            raw: args.prompt.raw,
            stats: !args.output.no_stats,
            settings: TurnSettings::new(args.turn.clone(), loaded.model.request_options()),
            think: args.prompt.think,
            transcript: Transcript::new(system),
            ahead: Vec::new(),
            images: Image::read_all(&args.prompt.image)?,
            video: Film::read(&args.prompt.video, args.prompt.fps)?,
            totals: Totals::default(),
            last: None,
            attempts: 0,
        })
    }

    /// Talks until the person leaves.
    ///
    /// # Errors
    /// A terminal or an output that is gone, signals, and two Ctrl-C in a row.
    pub fn run(&mut self, editor: &mut LineEditor) -> Outcome<()> {
        let mut interrupts = 0;
        loop {
            match editor.read().map_err(|error| Failure::new(Exit::Runtime, error.context("terminal")))? {
                Input::End => return Ok(()),
                Input::Interrupt { cleared } => {
                    interrupts = if cleared { 1 } else { interrupts + 1 };
                    if interrupts >= 2 {
                        return Err(Failure::silent(Exit::Interrupted));
                    }
                    if !cleared {
                        self.tell("Ctrl-C again leaves (so does Ctrl-D)");
                    }
                }
                Input::Line(line) => match self.line(&line)? {
                    Next::Line => interrupts = 0,
                    Next::LineAfterInterrupt => interrupts = 1,
                    Next::Leave => return Ok(()),
                },
            }
        }
    }

    fn line(&mut self, line: &str) -> Outcome<Next> {
        match command::parse(line) {
            Typed::Nothing => Ok(Next::Line),
            Typed::Hint(hint) => {
                self.tell(&hint);
                Ok(Next::Line)
            }
            Typed::Command(command) => self.obey(command),
            Typed::Message(message) => {
                let before = self.transcript.clone();
                let mut parts = std::mem::take(&mut self.ahead);
                parts.push(message);
                self.transcript.ask(parts.join("\n\n"), std::mem::take(&mut self.images));
                self.video.take().into_iter().for_each(|video| self.transcript.show(video));
                self.attempts = 0;
                self.answer(0, before)
            }
        }
    }

    /// Answers the last message. `attempt` counts its replies; a message that cannot be sent leaves the conversation as it was
    /// `before`.
    pub(super) fn answer(&mut self, attempt: u64, before: Transcript) -> Outcome<Next> {
        let screen = Screen::new(io::stdout(), io::stderr(), self.plan);
        let mut sink = Person::new(screen, PromptBar::new(self.terminals.stderr));
        let options = self.settings.options(attempt);
        let keys = SilentKeys::new();
        let result = turn::run(self.loaded, self.signals, self.prompt(), options, &mut sink);
        drop(keys);
        // The bar goes before anything else is said.
        drop(sink);
        let done = match result {
            Ok(done) => done,
            Err(Failure { exit: exit @ (Exit::Prompt | Exit::Usage), error: Some(error) }) => {
                // The message can be shortened, the setting changed: the chat goes on without it.
                self.transcript = before;
                let mut words = Vec::new();
                Failure::new(exit, error).report(&mut words);
                // As in `tell`.
                let _ = write!(io::stderr(), "{}", self.plan.lines(&String::from_utf8_lossy(&words)));
                self.tell("the message was not sent; /undo or /clear make room, /set changes settings");
                return Ok(Next::Line);
            }
            Err(failure) => return Err(failure),
        };
        let (finish, answer) = (done.answer.finish_reason, done.answer);
        let is_empty = answer.token_ids.is_empty();
        if !is_empty || done.timings.prompt_tokens > 0 {
            self.totals.add(&done.timings);
            self.last = Some(done.timings.clone());
        }
        if !is_empty {
            let reply = Reply { text: answer.text, reasoning: answer.reasoning, tool_calls: answer.tool_calls };
            self.transcript.reply(reply, done.timings.prompt_tokens + answer.token_ids.len());
        }
        if self.stats && !(is_empty && done.timings.prompt_tokens == 0) {
            self.tell(&stats::line(&done.timings, self.loaded.drafts_by_mtp()));
        }
        match (done.stopped, finish) {
            (Some(Exit::Interrupted), _) if is_empty => {
                self.tell("stopped before the first token; the message is kept: /regen answers it, /undo removes it");
                Ok(Next::LineAfterInterrupt)
            }
            (Some(Exit::Interrupted), _) => {
                self.tell("stopped; Ctrl-C again leaves");
                Ok(Next::LineAfterInterrupt)
            }
            (Some(exit), _) => Err(Failure::silent(exit)),
            (None, Finish::Context) => {
                self.tell("the context is full: /undo or /clear make room, -c N gives more");
                Ok(Next::Line)
            }
            (None, Finish::Length) => {
                self.tell("stopped at max-tokens");
                Ok(Next::Line)
            }
            _ => Ok(Next::Line),
        }
    }

    fn prompt(&self) -> Prompt {
        match self.raw {
            true => Prompt::Raw(self.transcript.last_message().unwrap_or_default().to_owned()),
            false => Prompt::Chat {
                messages: self.transcript.messages(),
                images: self.transcript.images(),
                videos: self.transcript.videos(),
                thinking: self.think.enabled(),
            },
        }
    }

    /// Words of the program, not of the model: on standard error.
    pub(super) fn tell(&self, words: &str) {
        // A terminal that takes no more is noticed when the next line is read.
        let _ = writeln!(io::stderr(), "{}", self.plan.aside(words));
    }
}
