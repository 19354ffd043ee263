//! What the commands of a chat do.

use std::io::{self, Write};
use std::path::Path;

use model::{Adapter, AdapterSet};

use super::chat::{Chat, Next};
use super::clipboard;
use super::command::{COMMANDS, Command};
use super::pictures::Image;
use super::transcript::Transcript;
use super::{input, settings, stats};
use program::exit::Outcome;
use program::sanitize::clean;
use program::words::counted;

impl Chat<'_> {
    /// Does what was typed.
    pub(super) fn obey(&mut self, command: Command) -> Outcome<Next> {
        match command {
            Command::Exit => return Ok(Next::Leave),
            Command::Regen => {
                let before = self.transcript.clone();
                if self.transcript.reopen() {
                    self.attempts += 1;
                    return self.answer(self.attempts, before);
                }
                self.tell("there is no message to answer again");
            }
            Command::Help => self.help(),
            Command::Clear => {
                self.transcript.clear();
                self.ahead.clear();
                self.images.clear();
                self.attempts = 0;
                self.tell("the conversation is forgotten");
            }
            Command::Undo => match self.transcript.undo() {
                Some(message) => self.tell(&format!("taken back: {}", shortened(&message))),
                None => self.tell("there is nothing to take back"),
            },
            Command::System(None) => match &self.transcript.system {
                Some(text) => self.tell(&clean(text)),
                None => self.tell("there is no system message"),
            },
            Command::System(Some(text)) => {
                self.transcript.system = Some(text).filter(|text| !text.is_empty());
                let state = if self.transcript.system.is_some() { "set" } else { "removed" };
                self.tell(&format!("system message {state}; it holds from the next message on"));
            }
            Command::Set(None) => {
                self.tell(&self.settings.text());
                self.tell(&format!("names: {}", settings::names().join(" ")));
            }
            Command::Set(Some((name, None))) => {
                self.tell(&format!("/set {name} needs a value (`default` takes a change back)"))
            }
            Command::Set(Some((name, Some(value)))) => match self.settings.set(&name, &value) {
                Ok(()) => self.tell(&format!("{name} {value}")),
                Err(words) => self.tell(&clean(&words)),
            },
            Command::Show => self.show(),
            Command::Stats => {
                if let Some(last) = &self.last {
                    self.tell(&stats::line(last, self.loaded.drafts_by_mtp()));
                }
                self.tell(&self.totals.text(self.loaded.drafts_by_mtp()));
            }
            Command::Save(path) => self.save(&path),
            Command::Load(path) => self.load(&path),
            Command::Read(path) => self.read(&path),
            Command::Image(path) => self.image(&path),
            Command::Think(None) => self.tell(&format!("think {}", self.think.name())),
            Command::Think(Some(think)) => {
                self.think = think;
                self.tell(&format!("think {}", think.name()));
            }
            Command::Spec(change) => {
                if let Some(max_draft) = change {
                    self.settings.max_draft = max_draft;
                }
                self.tell(&self.drafting());
            }
            Command::Lora(change) => self.lora(change),
            Command::Copy => self.copy()?,
        }
        Ok(Next::Line)
    }

    fn help(&self) {
        let width = COMMANDS.iter().map(|c| c.name.len() + 1 + c.argument.len()).max().unwrap_or(0);
        let mut text = String::new();
        for entry in COMMANDS {
            let name = format!("{} {}", entry.name, entry.argument);
            text += &format!("{name:width$}  {}\n", entry.help);
        }
        text += "\nA line that ends in \\, Alt-Enter, or a block between \"\"\" and \"\"\" makes more lines.\n";
        text += "Ctrl-C stops an answer or clears the line, twice it leaves; Ctrl-R searches what was typed before.";
        self.tell(&text);
    }

    /// How tokens are drafted, for the person.
    fn drafting(&self) -> String {
        match (self.loaded.model.drafts().max > 0, self.settings.max_draft) {
            (false, _) => "spec off: started without drafting, or the model has no NextN layer".to_owned(),
            (true, None) => format!("spec {}", self.loaded.spec),
            (true, Some(0)) => "spec off".to_owned(),
            (true, Some(n)) => format!("spec {}, at most {}", self.loaded.spec, counted(n, "token")),
        }
    }

    /// Shows the LoRA adapters, after the change of one.
    fn lora(&mut self, change: Option<(usize, f32)>) {
        let model = self.loaded.model.model();
        let set = self.settings.adapters();
        if let Some((id, scale)) = change {
            let others = set.scales().filter(|&(other, _)| other != id);
            match AdapterSet::new(others.chain([(id, scale)]), model.adapters().len()) {
                Ok(set) => self.settings.set_adapters(set),
                Err(error) => return self.tell(&error.to_string()),
            }
        }
        let set = self.settings.adapters();
        let line = |(id, adapter): (usize, &Adapter)| format!("{id}  {}  {}", set.scale(id), adapter.path().display());
        let lines: Vec<String> = model.adapters().iter().enumerate().map(line).collect();
        let none = "no LoRA adapter is loaded: start with --lora FILE";
        self.tell(&if lines.is_empty() { none.to_owned() } else { clean(&lines.join("\n")) });
    }

    fn show(&self) {
        let n_ctx = self.loaded.model.engine().limits().n_ctx;
        let used = match self.transcript.n_tokens() {
            Some(n) => format!("{n} of {n_ctx} tokens of context used"),
            None => format!("{n_ctx} tokens of context; how many are used shows with the next reply"),
        };
        let system = self.transcript.system.as_deref().map_or("none".to_owned(), |text| shortened(&clean(text)));
        self.tell(&format!(
            "{}\n{}\nsystem {system}\nthink {}  {}\n{}, {used}",
            self.loaded.line(),
            self.settings.text(),
            self.think.name(),
            self.drafting(),
            self.messages(),
        ));
    }

    fn messages(&self) -> String {
        counted(self.transcript.n_turns(), "message")
    }

    fn save(&self, path: &Path) {
        match self.transcript.save(path) {
            Ok(()) => self.tell(&format!("{} in {}", self.messages(), path.display())),
            Err(error) => self.tell(&clean(&format!("not saved: {error:#}"))),
        }
    }

    fn load(&mut self, path: &Path) {
        match Transcript::load(path) {
            Ok(transcript) => {
                self.transcript = transcript;
                self.tell(&format!("{} from {}", self.messages(), path.display()));
            }
            Err(error) => self.tell(&clean(&format!("not loaded: {error:#}"))),
        }
    }

    fn read(&mut self, path: &Path) {
        match input::read_file(path) {
            Ok(text) => {
                self.tell(&format!(
                    "{} of {} go before the next message",
                    counted(text.chars().count(), "character"),
                    path.display()
                ));
                self.ahead.push(text);
            }
            Err(failure) => {
                failure.report(&mut io::stderr());
            }
        }
    }

    fn image(&mut self, path: &Path) {
        let Some(sight) = self.loaded.model.sight() else { return self.tell(session::BLIND) };
        match Image::read(path) {
            Ok(image) => match sight.image(image.bytes()) {
                Ok(shown) => {
                    let tokens = counted(shown.n_rows(), "token");
                    let words = format!("{} goes with the next message: {tokens}", image.name);
                    self.tell(&clean(&words));
                    self.images.push(image);
                }
                Err(error) => self.tell(&clean(&format!("{}: {error}", image.name))),
            },
            Err(failure) => {
                failure.report(&mut io::stderr());
            }
        }
    }

    fn copy(&self) -> Outcome<()> {
        let Some(reply) = self.transcript.last_reply() else {
            self.tell("there is no reply to copy");
            return Ok(());
        };
        match clipboard::osc52(&reply.text) {
            Ok(sequence) if self.terminals.stdout => {
                io::stdout().write_all(sequence.as_bytes())?;
                io::stdout().flush()?;
            }
            Ok(sequence) if self.terminals.stderr => io::stderr().write_all(sequence.as_bytes())?,
            Ok(_) => {
                self.tell("copying needs a terminal");
                return Ok(());
            }
            Err(words) => {
                self.tell(&words);
                return Ok(());
            }
        }
        let characters = counted(reply.text.chars().count(), "character");
        self.tell(&format!("{characters} handed to the terminal's clipboard"));
        Ok(())
    }
}

/// The first words of a long text, on one line.
fn shortened(text: &str) -> String {
    let line = clean(text).replace(['\n', '\t'], " ");
    match line.char_indices().nth(SHORT) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None => line,
    }
}

const SHORT: usize = 60;
