//! `nextn-server connect CLIENT`: the settings by which another program uses this server, printed or written into its file.
//!
//! | File | Owns |
//! |---|---|
//! | `options` | the words of the command; where the server is |
//! | `ask` | what a running server says of its models |
//! | `clients` | each program's file, and what stands in it |
//! | `json`, `codex`, `yaml` | putting settings into a file that has others, whose comments stay |
//! | `file` | reading, showing a change, a backup, writing whole or not at all |

mod ask;
mod clients;
mod codex;
mod file;
mod json;
mod options;
mod yaml;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};

use program::exit::{Exit, Failure, OrExit, Outcome};

use ask::Facts;
use file::Settings;
use options::Connect;

/// The word that begins the command.
pub(super) const WORD: &str = "connect";

/// The program with this command of it, for completions and the manual: it is read by itself, as a server has no commands.
pub(super) fn beside(program: clap::Command) -> clap::Command {
    let command = options::command(&program).name(WORD);
    program.disable_help_subcommand(true).subcommand(command)
}

/// Does what the words behind `connect` say.
pub(super) fn main(words: Vec<OsString>) -> Exit {
    match options::read(words).and_then(|connect| connect.map_or(Ok(()), run)) {
        Ok(()) => Exit::Success,
        Err(failure) => failure.report(&mut io::stderr()),
    }
}

fn run(connect: Connect) -> Outcome<()> {
    let facts = ask::ask(&connect.place, connect.model.as_deref())?;
    let client = connect.client;
    let path = client.file(|name| std::env::var(name).ok()).or_exit(Exit::Runtime)?;
    for note in client.notes(&facts) {
        eprintln!("note: {note}");
    }
    if !connect.write {
        eprintln!("For {} (`--write` puts it there and keeps what else is in the file):", path.display());
        let text = client.edited(None, &facts).map_err(|why| Failure::message(Exit::Runtime, why))?;
        return Ok(io::stdout().write_all(text.as_bytes())?);
    }
    write(&connect, &facts, Settings::read(path).or_exit(Exit::Runtime)?)
}

/// Shows what changes in the file, asks, and writes.
fn write(connect: &Connect, facts: &Facts, old: Settings) -> Outcome<()> {
    let place = old.path.display().to_string();
    let new = connect.client.edited(old.text.as_deref(), facts);
    let new = new.map_err(|why| Failure::message(Exit::Runtime, format!("{place}: {why}; nothing was written")))?;
    if old.text.as_deref() == Some(new.as_str()) {
        eprintln!("{place} has these settings already.");
        return Ok(());
    }
    let mut out = io::stdout();
    write!(out, "{}", old.change(&new))?;
    out.flush()?;
    if !connect.yes && !agreed(&place)? {
        eprintln!("Nothing was written.");
        return Ok(());
    }
    let backup = old.replace(&new).or_exit(Exit::Runtime)?;
    eprintln!("Written: {place}");
    if let Some(backup) = backup {
        eprintln!("As it was: {}", backup.display());
    }
    Ok(())
}

/// Asks on the terminal; without one nobody can agree.
fn agreed(place: &str) -> Outcome<bool> {
    if !io::stdin().is_terminal() {
        return Err(Failure::message(Exit::Usage, "there is no terminal to ask on: `--yes` writes without asking"));
    }
    eprint!("Write this to {place}? [y/N] ");
    let mut line = String::new();
    io::stdin().read_line(&mut line).or_exit(Exit::Runtime)?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
