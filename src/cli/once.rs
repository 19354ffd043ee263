//! One reply and out: `-p`, `-f`, or a prompt through a pipe.

use std::io::{self, Write};

use serde_json::json;

use super::args::Args;
use super::loaded::{Loaded, Prompt};
use super::pictures::{Film, Image, content};
use super::progress::PromptBar;
use super::report::Line;
use super::screen::{Plan, Screen};
use super::settings::TurnSettings;
use super::sink::{Lines, Person, Silent, Sink};
use super::style::Terminals;
use super::{stats, turn};
use program::exit::{Failure, Outcome};
use program::signals::Signals;
use program::terminal::{SilentKeys, tell};

/// Answers `text` and prints the reply as asked for.
///
/// # Errors
/// Those of the prompt, the engine and the output; a signal, after what was generated is out.
pub fn run(
    args: &Args,
    loaded: &Loaded,
    signals: &Signals,
    system: Option<String>,
    text: &str,
    plan: Plan,
    terminals: Terminals,
) -> Outcome<()> {
    let settings = TurnSettings::new(args.turn.clone(), loaded.model.request_options());
    let prompt = if args.prompt.raw {
        Prompt::Raw(text.to_owned())
    } else {
        let mut messages: Vec<_> = system.iter().map(|s| json!({"role": "system", "content": s})).collect();
        let images = Image::read_all(&args.prompt.image)?;
        let film = Film::read(&args.prompt.video, args.prompt.fps)?;
        messages.push(json!({"role": "user", "content": content(text, images.len(), film.is_some())}));
        let videos = film.iter().map(Film::video).collect();
        let images = images.iter().map(Image::bytes).collect();
        Prompt::Chat { messages, images, videos, thinking: args.prompt.think.enabled() }
    };
    let bar = PromptBar::new(terminals.stderr);
    let mut person;
    let mut silent;
    let mut lines;
    let sink: &mut dyn Sink = if args.output.json {
        silent = Silent::new(bar);
        &mut silent
    } else if args.output.jsonl {
        lines = Lines::new(io::stdout());
        let model = loaded.line();
        lines.line(&Line::Start {
            model: &model,
            n_ctx: loaded.model.engine().limits().n_ctx,
            load_ms: loaded.load_ms(),
        })?;
        &mut lines
    } else {
        person = Person::new(Screen::new(io::stdout(), io::stderr(), plan), bar);
        &mut person
    };
    let keys = SilentKeys::new();
    let done = turn::run(loaded, signals, prompt, settings.options(0), sink)?;
    drop(keys);
    if args.output.json {
        let mut line = serde_json::to_string(&done.answer).map_err(io::Error::other)?;
        line.push('\n');
        io::stdout().write_all(line.as_bytes())?;
    } else if args.output.jsonl {
        Lines::new(io::stdout()).line(&Line::End { answer: &done.answer })?;
    } else if !args.output.no_stats {
        tell(&plan.aside(&stats::line(&done.timings, loaded.drafts_by_mtp())));
    }
    io::stdout().flush()?;
    match done.stopped {
        Some(exit) => Err(Failure::silent(exit)),
        None => Ok(()),
    }
}
