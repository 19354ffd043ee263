//! The line editor of a chat: keys, completion, multi-line input and history. Owns the history file.
//! Gives whole messages; knows not what they mean.

use std::cell::RefCell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::config::{Behavior, ColorMode, CompletionType};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Cmd, ConditionalEventHandler, Config, Context, Editor, Event, EventContext, EventHandler, Helper, KeyCode,
    KeyEvent, Modifiers, RepeatCount,
};

use super::command::{COMMANDS, Takes, is_open};
use super::settings;
use super::style::{self, paint};

/// What the person did.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Input {
    /// Entered a message or a command; it may have several lines.
    Line(String),
    /// Pressed Ctrl-C; `cleared` when that threw away text.
    Interrupt {
        /// There was text on the line.
        cleared: bool,
    },
    /// Pressed Ctrl-D on an empty line, or the terminal is gone.
    End,
}

/// The editor of one chat.
pub struct LineEditor {
    editor: Editor<Assist, FileHistory>,
    history: Option<PathBuf>,
    cleared: Arc<AtomicBool>,
}

impl LineEditor {
    /// An editor on the terminal; lines go to `history` and come from there.
    ///
    /// # Errors
    /// A terminal that cannot be set up.
    pub fn new(colours: bool, stdout_is_terminal: bool, history: Option<PathBuf>) -> anyhow::Result<Self> {
        let config = Config::builder()
            .max_history_size(HISTORY_LINES)?
            .history_ignore_space(true)
            .completion_type(CompletionType::List)
            .color_mode(if colours { ColorMode::Forced } else { ColorMode::Disabled })
            // Replies may go to a file while the person types on the terminal.
            .behavior(if stdout_is_terminal { Behavior::Stdio } else { Behavior::PreferTerm })
            .build();
        let mut editor = Editor::with_config(config)?;
        editor.set_helper(Some(Assist { colours, files: FilenameCompleter::new(), settings: RefCell::default() }));
        for modifiers in [Modifiers::ALT, Modifiers::SHIFT] {
            editor.bind_sequence(KeyEvent(KeyCode::Enter, modifiers), Cmd::Newline);
        }
        let cleared = Arc::new(AtomicBool::new(false));
        let watch = EventHandler::Conditional(Box::new(WatchInterrupt(Arc::clone(&cleared))));
        editor.bind_sequence(KeyEvent::ctrl('C'), watch);
        let history = history.filter(|path| open_history(&mut editor, path));
        Ok(Self { editor, history, cleared })
    }

    /// Waits for the next input.
    ///
    /// # Errors
    /// A terminal that cannot be read.
    pub fn read(&mut self) -> anyhow::Result<Input> {
        self.cleared.store(false, Ordering::Relaxed);
        match self.editor.readline(PROMPT) {
            Ok(line) => {
                self.remember(&line);
                Ok(Input::Line(line))
            }
            Err(ReadlineError::Interrupted) => {
                let cleared = self.cleared.load(Ordering::Relaxed);
                if !cleared {
                    self.wipe_placeholder();
                }
                Ok(Input::Interrupt { cleared })
            }
            Err(ReadlineError::Eof) => {
                self.wipe_placeholder();
                Ok(Input::End)
            }
            // The terminal has hung up.
            Err(ReadlineError::Io(error)) if error.raw_os_error() == Some(EIO) => Ok(Input::End),
            Err(error) => Err(error.into()),
        }
    }

    /// The placeholder of an empty line that was left by Ctrl-C or Ctrl-D would stay on the screen.
    fn wipe_placeholder(&self) {
        if self.editor.helper().is_some_and(|assist| assist.colours) {
            let up_and_empty = "\x1b[A\r\x1b[2K";
            let mut out = std::io::stdout();
            // A terminal that is gone is noticed when the next line is read.
            let _ = out.write_all(up_and_empty.as_bytes()).and_then(|()| out.flush());
        }
    }

    /// Each line is written at once: a chat that is killed keeps its history.
    fn remember(&mut self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        let Some(path) = &self.history else {
            // Within the session arrow keys work all the same.
            let _ = self.editor.add_history_entry(line);
            return;
        };
        let written = self.editor.add_history_entry(line).and_then(|_| self.editor.append_history(path));
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "the history is not kept");
            self.history = None;
        }
    }
}

/// Where the history is kept: `nextn/history` in the XDG state directory, or in the one that Windows has for programs.
pub fn history_path(env: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let absolute = |path: String| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    let state = env("XDG_STATE_HOME")
        .and_then(absolute)
        .or_else(|| env("HOME").and_then(absolute).map(|home| home.join(".local/state")))
        .or_else(|| env("LOCALAPPDATA").and_then(absolute))?;
    Some(state.join("nextn/history"))
}

/// Reads the history; false when it cannot be kept.
fn open_history(editor: &mut Editor<Assist, FileHistory>, path: &Path) -> bool {
    if let Err(error) = make_private(path) {
        tracing::warn!(path = %path.display(), %error, "no history is kept");
        return false;
    }
    match editor.load_history(path) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the history cannot be read, and none is kept");
            false
        }
    }
}

/// Makes the file where it is missing. Whoever may read the folder may read it: that of programs is the user's alone.
#[cfg(windows)]
fn make_private(path: &Path) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::OpenOptions::new().append(true).create(true).open(path).map(drop)
}

/// Makes the file where it is missing; nobody else may read it.
#[cfg(unix)]
fn make_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};

    if let Some(parent) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    let file = std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))
}

/// Notes whether Ctrl-C threw text away; the key itself does what it always does.
struct WatchInterrupt(Arc<AtomicBool>);

impl ConditionalEventHandler for WatchInterrupt {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext<'_>) -> Option<Cmd> {
        self.0.store(!context.line().is_empty(), Ordering::Relaxed);
        None
    }
}

/// Completion, hints and colours while typing.
struct Assist {
    colours: bool,
    files: FilenameCompleter,
    /// Names of settings, made on first use.
    settings: RefCell<Vec<String>>,
}

impl Helper for Assist {}

impl Completer for Assist {
    type Candidate = Pair;

    fn complete(&self, line: &str, pos: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = &line[..pos];
        if !typed.starts_with('/') {
            return Ok((pos, Vec::new()));
        }
        let Some((name, rest)) = typed.split_once(' ') else {
            let names = COMMANDS.iter().map(|entry| (entry.name, entry.takes != Takes::Nothing));
            return Ok((0, matching(names, typed)));
        };
        let start = name.len() + 1;
        match COMMANDS.iter().find(|entry| entry.name == name).map(|entry| entry.takes) {
            Some(Takes::File) => self.files.complete_path(line, pos),
            Some(Takes::Word(words)) => Ok((start, matching(words.iter().map(|word| (*word, false)), rest))),
            Some(Takes::Setting) => {
                let mut names = self.settings.borrow_mut();
                if names.is_empty() {
                    *names = settings::names();
                }
                Ok((start, matching(names.iter().map(|name| (name.as_str(), true)), rest)))
            }
            _ => Ok((pos, Vec::new())),
        }
    }
}

/// The words that start with `typed`, with a space after those that take more.
fn matching<'a>(words: impl Iterator<Item = (&'a str, bool)>, typed: &str) -> Vec<Pair> {
    words
        .filter(|(word, _)| word.starts_with(typed))
        .map(|(word, more)| Pair {
            display: word.to_owned(),
            replacement: format!("{word}{}", if more { " " } else { "" }),
        })
        .collect()
}

impl Hinter for Assist {
    type Hint = String;

    fn hint(&self, line: &str, _: usize, _: &Context<'_>) -> Option<String> {
        (self.colours && line.is_empty()).then(|| PLACEHOLDER.to_owned())
    }
}

impl Highlighter for Assist {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(&'s self, prompt: &'p str, _: bool) -> std::borrow::Cow<'b, str> {
        paint(prompt, style::PROMPT, self.colours).into()
    }

    fn highlight_hint<'h>(&self, hint: &'h str) -> std::borrow::Cow<'h, str> {
        paint(hint, style::DIM, self.colours).into()
    }
}

impl Validator for Assist {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let open = is_open(context.input());
        Ok(if open { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

const PROMPT: &str = "> ";
const PLACEHOLDER: &str = "a message, or /help";
const HISTORY_LINES: usize = 2000;
/// What reading gives when the terminal has hung up.
const EIO: i32 = 5;

#[cfg(test)]
mod tests {
    use rustyline::history::DefaultHistory;

    use super::*;

    fn complete(line: &str) -> Vec<String> {
        let assist = Assist { colours: false, files: FilenameCompleter::new(), settings: RefCell::default() };
        let history = DefaultHistory::new();
        let (_, pairs) = assist.complete(line, line.len(), &Context::new(&history)).unwrap();
        pairs.into_iter().map(|pair| pair.replacement).collect()
    }

    #[test]
    fn commands_settings_and_words_are_completed() {
        assert_eq!(complete("/re"), ["/regen", "/read "]);
        assert_eq!(complete("/think o"), ["on", "off"]);
        assert_eq!(complete("/set top-"), ["top-k ", "top-n-sigma ", "top-p "]);
        assert!(complete("no command").is_empty() && complete("/nope x").is_empty());
    }

    #[test]
    fn file_names_are_completed_for_commands_that_take_them() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("notes.txt"), "x").unwrap();
        let stem = directory.path().join("no");
        let found = complete(&format!("/read {}", stem.display()));
        assert!(found.len() == 1 && found[0].ends_with("notes.txt"), "{found:?}");
    }

    #[test]
    fn the_history_has_its_place() {
        let home = |name: &str| (name == "HOME").then(|| "/home/a".to_owned());
        assert_eq!(history_path(home), Some("/home/a/.local/state/nextn/history".into()));
        let xdg = |name: &str| match name {
            "XDG_STATE_HOME" => Some("/state".to_owned()),
            _ => Some("/home/a".to_owned()),
        };
        assert_eq!(history_path(xdg), Some("/state/nextn/history".into()));
        let relative = |name: &str| (name == "XDG_STATE_HOME").then(|| "state".to_owned());
        assert_eq!(history_path(relative), None, "the specification says that relative paths are ignored");
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_reads_the_history() {
        use std::os::unix::fs::PermissionsExt;

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/er/history");
        make_private(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        make_private(&path).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
    }
}
