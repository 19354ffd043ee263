//! The commands of a chat: their names, what they take, and how a typed line becomes one. Knows not what they do.

use std::path::PathBuf;

use program::choices::Think;

/// A typed line, understood.
#[derive(Clone, Debug, PartialEq)]
pub enum Typed {
    /// Nothing to do.
    Nothing,
    /// Text for the model.
    Message(String),
    /// A command.
    Command(Command),
    /// A line that looks like a command and is none; what to tell. It is not sent.
    Hint(String),
}

/// What a chat can be told.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Command {
    Help,
    Exit,
    Clear,
    Regen,
    Undo,
    /// With text: set it; an empty one removes it.
    System(Option<String>),
    /// Name and value.
    Set(Option<(String, Option<String>)>),
    Show,
    Stats,
    Save(PathBuf),
    Load(PathBuf),
    Read(PathBuf),
    Image(PathBuf),
    Think(Option<Think>),
    /// Shows how tokens are drafted, or sets the longest draft: `None` is as started.
    Spec(Option<Option<usize>>),
    /// Shows the LoRA adapters, or sets the factor of one.
    Lora(Option<(usize, f32)>),
    Copy,
}

/// What completion offers after a command's name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Takes {
    /// Nothing.
    Nothing,
    /// Free text.
    Text,
    /// A file name.
    File,
    /// A setting and its value.
    Setting,
    /// One of these words.
    Word(&'static [&'static str]),
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// With its slash.
    pub name: &'static str,
    /// What follows.
    pub takes: Takes,
    /// How that is written in the help.
    pub argument: &'static str,
    /// What it does.
    pub help: &'static str,
}

/// All commands, in the order of the help.
pub const COMMANDS: &[Entry] = &[
    entry("/help", Takes::Nothing, "", "list the commands"),
    entry("/exit", Takes::Nothing, "", "end the chat (also Ctrl-D)"),
    entry("/clear", Takes::Nothing, "", "forget the conversation, keep the system message"),
    entry("/regen", Takes::Nothing, "", "regenerate the last reply"),
    entry("/undo", Takes::Nothing, "", "remove the last message and its reply"),
    entry("/system", Takes::Text, "[TEXT]", "show or set the system message; \"\" removes it"),
    entry("/set", Takes::Setting, "[NAME VALUE]", "show or change a setting; `default` resets it"),
    entry("/show", Takes::Nothing, "", "show model, settings and context use"),
    entry("/stats", Takes::Nothing, "", "show the speed of the last reply and of the session"),
    entry("/save", Takes::File, "FILE", "write the conversation to a file"),
    entry("/load", Takes::File, "FILE", "load a conversation from a file"),
    entry("/read", Takes::File, "FILE", "prepend a file's text to the next message"),
    entry("/image", Takes::File, "FILE", "show an image with the next message"),
    entry("/think", Takes::Word(&["on", "off", "auto"]), "[on|off|auto]", "show or set thinking"),
    entry("/spec", Takes::Word(&["auto", "off"]), "[auto|off|N]", "show or set drafts: auto, off, or at most N tokens"),
    entry("/lora", Takes::Text, "[ID SCALE]", "show LoRA adapters, or set the factor of one"),
    entry("/copy", Takes::Nothing, "", "copy the last reply to the clipboard"),
];

const fn entry(name: &'static str, takes: Takes, argument: &'static str, help: &'static str) -> Entry {
    Entry { name, takes, argument, help }
}

/// Understands a line (or several, from a block or a paste).
pub fn parse(input: &str) -> Typed {
    let Some(line) = input.strip_prefix('/') else {
        let text = message(input);
        if let word @ ("exit" | "quit" | "bye" | ":q" | "help") = text.trim_end().to_lowercase().as_str() {
            let name = if word == "help" { "/help" } else { "/exit" };
            return Typed::Hint(format!("{name} is the command (with a space before it, {word} is sent as a message)"));
        }
        return if text.trim().is_empty() { Typed::Nothing } else { Typed::Message(text) };
    };
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    match command(name, rest) {
        Ok(command) => Typed::Command(command),
        Err(hint) => Typed::Hint(hint),
    }
}

fn command(name: &str, rest: &str) -> Result<Command, String> {
    let bare = |command: Command| match rest {
        "" => Ok(command),
        _ => Err(format!("/{name} takes nothing after it; put a space before the slash to send it as a message")),
    };
    let path = |make: fn(PathBuf) -> Command| match rest {
        "" => Err(format!("/{name} needs a file name")),
        _ => Ok(make(file_name(rest))),
    };
    match name {
        "help" | "?" => bare(Command::Help),
        "exit" | "quit" | "bye" => bare(Command::Exit),
        "clear" => bare(Command::Clear),
        "regen" => bare(Command::Regen),
        "undo" => bare(Command::Undo),
        "show" => bare(Command::Show),
        "stats" => bare(Command::Stats),
        "copy" => bare(Command::Copy),
        "save" => path(Command::Save),
        "load" => path(Command::Load),
        "read" => path(Command::Read),
        "image" => path(Command::Image),
        "system" => Ok(Command::System(match rest {
            "" => None,
            "\"\"" => Some(String::new()),
            text => Some(message(text)),
        })),
        "set" => Ok(Command::Set(match rest.split_once(char::is_whitespace) {
            None if rest.is_empty() => None,
            None => Some((rest.to_owned(), None)),
            Some((name, value)) => Some((name.to_owned(), Some(value.trim().to_owned()))),
        })),
        "lora" => match rest {
            "" => Ok(Command::Lora(None)),
            words => {
                let numbers = words.split_once(char::is_whitespace);
                let numbers = numbers.and_then(|(id, scale)| Some((id.parse().ok()?, scale.trim().parse().ok()?)));
                let wrong = || "/lora takes the number of an adapter and a factor: /lora 0 0.5".to_owned();
                numbers.map(|numbers| Command::Lora(Some(numbers))).ok_or_else(wrong)
            }
        },
        "think" => match rest {
            "" => Ok(Command::Think(None)),
            "on" => Ok(Command::Think(Some(Think::On))),
            "off" => Ok(Command::Think(Some(Think::Off))),
            "auto" => Ok(Command::Think(Some(Think::Auto))),
            _ => Err(format!("/think takes on, off or auto, not {rest}")),
        },
        "spec" => match rest {
            "" => Ok(Command::Spec(None)),
            "auto" => Ok(Command::Spec(Some(None))),
            "off" => Ok(Command::Spec(Some(Some(0)))),
            n => match n.parse() {
                Ok(n) => Ok(Command::Spec(Some(Some(n)))),
                Err(_) => Err(format!("/spec takes auto, off or a number of tokens, not {n}")),
            },
        },
        _ => Err(unknown(name)),
    }
}

fn unknown(name: &str) -> String {
    let near = COMMANDS.iter().find(|entry| {
        let known = &entry.name[1..];
        !name.is_empty() && (known.starts_with(name) || name.starts_with(known))
    });
    let advice = match near {
        Some(entry) => format!("did you mean {}?", entry.name),
        None => "/help lists the commands".to_owned(),
    };
    format!("/{name} is no command: {advice} (a space before the slash sends it as a message)")
}

/// True while a message is not complete: a `"""` block is open, or the last line ends in a backslash.
pub fn is_open(input: &str) -> bool {
    match input.trim_start().strip_prefix(BLOCK) {
        Some(block) => !block.contains(BLOCK),
        None => ends_in_backslash(input),
    }
}

/// The message that was meant: without the marks of a block, and without the backslashes that joined lines.
fn message(input: &str) -> String {
    if let Some(block) = input.trim_start().strip_prefix(BLOCK) {
        let (inside, after) = block.split_once(BLOCK).unwrap_or((block, ""));
        let inside = inside.strip_prefix('\n').unwrap_or(inside);
        let inside = inside.strip_suffix('\n').unwrap_or(inside);
        let after = after.trim();
        return if after.is_empty() { inside.to_owned() } else { format!("{inside}\n{after}") };
    }
    let mut text = String::with_capacity(input.len());
    for (i, line) in input.split('\n').enumerate() {
        if i > 0 {
            text.push('\n');
        }
        text.push_str(if ends_in_backslash(line) { &line[..line.len() - 1] } else { line });
    }
    text
}

/// An even number of backslashes is text.
fn ends_in_backslash(line: &str) -> bool {
    line.bytes().rev().take_while(|&b| b == b'\\').count() % 2 == 1
}

/// A file name as typed or completed: quotes and backslashes are taken out, `~/` is the home directory.
fn file_name(typed: &str) -> PathBuf {
    let mut name = String::new();
    let mut chars = typed.chars();
    let mut quote = None;
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', None | Some('"')) => name.extend(chars.next()),
            (c, Some(q)) if c == q => quote = None,
            ('"' | '\'', None) => quote = Some(c),
            (c, _) => name.push(c),
        }
    }
    match (name.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(name),
    }
}

const BLOCK: &str = "\"\"\"";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_of_the_table_is_understood() {
        for entry in COMMANDS {
            let line = match entry.takes {
                Takes::File => format!("{} name", entry.name),
                Takes::Word(words) => format!("{} {}", entry.name, words[0]),
                _ => entry.name.to_owned(),
            };
            assert!(matches!(parse(&line), Typed::Command(_)), "{line}: {:?}", parse(&line));
        }
    }

    #[test]
    fn unknown_commands_are_not_sent() {
        for line in [
            "/nope",
            "/usr/bin is what?",
            "/",
            "/hel",
            "/clear all",
            "/think maybe",
            "/spec on",
            "/save",
            "/lora 0",
            "/lora x 1",
        ] {
            assert!(matches!(parse(line), Typed::Hint(_)), "{line}: {:?}", parse(line));
        }
        assert!(matches!(parse("/reg"), Typed::Hint(hint) if hint.contains("/regen")));
        assert_eq!(parse(" /usr/bin is what?"), Typed::Message(" /usr/bin is what?".into()));
    }

    #[test]
    fn words_that_leave_other_programs_are_not_sent() {
        for line in ["exit", "quit", "Exit ", ":q"] {
            assert!(matches!(parse(line), Typed::Hint(hint) if hint.starts_with("/exit is")), "{line}");
        }
        assert!(matches!(parse("help"), Typed::Hint(hint) if hint.starts_with("/help is")));
        assert_eq!(parse(" exit"), Typed::Message(" exit".into()));
        assert_eq!(parse("exit the room"), Typed::Message("exit the room".into()));
    }

    #[test]
    fn arguments_are_taken_as_typed() {
        assert_eq!(parse("/set temp 0.5"), Typed::Command(Command::Set(Some(("temp".into(), Some("0.5".into()))))));
        assert_eq!(parse("/set stop  a b "), Typed::Command(Command::Set(Some(("stop".into(), Some("a b".into()))))));
        assert_eq!(parse("/system Be brief."), Typed::Command(Command::System(Some("Be brief.".into()))));
        assert_eq!(parse("/system \"\""), Typed::Command(Command::System(Some(String::new()))));
        assert_eq!(parse("/read my\\ file.txt"), Typed::Command(Command::Read("my file.txt".into())));
        assert_eq!(parse("/read \"a b\""), Typed::Command(Command::Read("a b".into())));
    }

    #[test]
    fn lines_are_joined_by_backslash_or_block() {
        assert!(is_open("one\\") && !is_open("one\\\\") && !is_open("one"));
        assert!(is_open("\"\"\"") && is_open("\"\"\"one\ntwo") && !is_open("\"\"\"one\ntwo\"\"\""));
        assert_eq!(parse("one\\\ntwo"), Typed::Message("one\ntwo".into()));
        assert_eq!(parse("\"\"\"\none\n  two\n\"\"\""), Typed::Message("one\n  two".into()));
        assert_eq!(parse("\"\"\"text\"\"\" and more"), Typed::Message("text\nand more".into()));
        assert_eq!(parse("\"\"\"\nends\\\n\"\"\""), Typed::Message("ends\\".into()), "a block keeps its backslashes");
    }

    #[test]
    fn blank_lines_are_not_sent() {
        for line in ["", "   ", "\n", "\"\"\"\n\"\"\""] {
            assert_eq!(parse(line), Typed::Nothing, "{line:?}");
        }
    }
}
