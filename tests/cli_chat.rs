//! `nextn-cli` on a terminal: the keys, the commands and the signals of a chat, over a pseudo terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

/// Engines of several processes would spin against each other: one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The binary on a terminal of its own.
struct Terminal {
    child: Child,
    keys: File,
    /// Kept open, so that its settings can be looked at after the program has ended.
    line: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
    state: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Terminal {
    fn start(args: &[&str]) -> Self {
        Self::start_as(Command::new(env!("CARGO_BIN_EXE_nextn-cli")), 100, args)
    }

    /// Control keys make signals here, as where a person types: the terminal is the one that controls the program.
    fn start_controlled(args: &[&str]) -> Self {
        let mut command = Command::new("setsid");
        command.args(["--ctty", env!("CARGO_BIN_EXE_nextn-cli")]);
        Self::start_as(command, 100, args)
    }

    fn start_as(mut command: Command, ws_col: u16, args: &[&str]) -> Self {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let state = tempfile::tempdir().expect("a directory");
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo terminal");
        grantpt(&master).expect("granted");
        unlockpt(&master).expect("unlocked");
        let name = ptsname(&master, Vec::new()).expect("a name");
        let size = Winsize { ws_row: 40, ws_col, ws_xpixel: 0, ws_ypixel: 0 };
        let line =
            File::from(rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("its other end"));
        tcsetwinsize(&line, size).expect("a size");
        let end = || line.try_clone().expect("another handle");
        command.args(["-t", "1", "--temp", "0"]).args(args).env("XDG_STATE_HOME", state.path()).env("TERM", "xterm");
        command.env_remove("NEXTN_MODEL").env_remove("NEXTN_LOG").env_remove("NO_COLOR");
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("the binary runs");
        let keys = File::from(master);
        let mut reader = keys.try_clone().expect("another handle");
        let (sender, screen) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Ends with an error when the other end is closed.
            while let Ok(n) = reader.read(&mut buffer) {
                if n == 0 || sender.send(buffer[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keys, line, screen, seen: String::new(), state, _alone: alone }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Waits until `text` is on the screen, and takes everything up to its end off our notes.
    fn expect(&mut self, text: &str) -> String {
        loop {
            if let Some(at) = self.seen.find(text) {
                let rest = self.seen.split_off(at + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            match self.screen.recv_timeout(PATIENCE) {
                Ok(bytes) => self.seen += &String::from_utf8_lossy(&bytes),
                Err(error) => {
                    panic!("{text:?} did not come ({error}); the screen since the last match: {:?}", self.seen)
                }
            }
        }
    }

    /// Waits for an empty prompt: only there control keys are keys, and only there nothing is lost. Before, the terminal
    /// would make signals of Ctrl-C, and it is not the one that controls this process, or drop Ctrl-D.
    fn prompt(&mut self) -> String {
        self.expect("a message, or /help")
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Waits for the end and gives the exit code.
    fn end(&mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it is our child") {
                return status.code();
            }
            // Also the clock of this loop.
            if let Ok(bytes) = self.screen.recv_timeout(Duration::from_millis(20)) {
                self.seen += &String::from_utf8_lossy(&bytes);
            }
            assert!(start.elapsed() < PATIENCE, "it does not end; the screen since the last match: {:?}", self.seen);
        }
    }
}

/// A test that fails must not leave a program behind.
impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const PATIENCE: Duration = Duration::from_secs(60);
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";

#[test]
fn a_chat_answers_remembers_and_leaves() {
    let mut chat = Terminal::start(&[]);
    let start = chat.prompt();
    assert!(start.contains("context ") && start.contains("NextN layer"), "{start:?}");
    chat.press("What is the capital of France?\r");
    assert!(chat.expect("| gen ").contains("Paris"), "the model knows");
    chat.prompt();
    chat.press("/nope\r");
    chat.expect("/nope is no command");
    chat.prompt();
    chat.press("/show\r");
    chat.expect("1 message,");
    chat.prompt();
    chat.press("/undo\r");
    chat.expect("taken back: What is the capital");
    chat.prompt();

    let history = chat.state.path().join("nextn/history");
    let mode = std::fs::metadata(&history).expect("a history").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let lines = std::fs::read_to_string(&history).expect("UTF-8");
    assert!(lines.contains("What is the capital of France?\n/nope\n"), "{lines}");
    chat.press(CTRL_D);
    assert_eq!(chat.end(), Some(0));
}

#[test]
fn no_history_leaves_no_file() {
    let mut chat = Terminal::start(&["--no-history"]);
    chat.prompt();
    chat.press("/stats\r");
    chat.expect("no reply yet");
    assert_eq!(std::fs::read_dir(chat.state.path()).expect("a directory").count(), 0);
    chat.prompt();
    chat.press("/exit\r");
    assert_eq!(chat.end(), Some(0));
}

#[test]
fn ctrl_c_clears_the_line_and_twice_leaves_with_130() {
    let mut chat = Terminal::start(&[]);
    chat.prompt();
    chat.press("half a thought");
    chat.expect("thought");
    chat.press(CTRL_C);
    chat.prompt();
    chat.press("/stats\r");
    chat.expect("no reply yet");
    chat.prompt();
    chat.press(CTRL_C);
    chat.expect("again leaves");
    chat.prompt();
    chat.press(CTRL_C);
    assert_eq!(chat.end(), Some(130));
}

#[test]
fn a_paste_and_open_lines_are_not_sent() {
    let mut chat = Terminal::start(&[]);
    chat.prompt();
    chat.press("\x1b[200~first\rsecond\r\x1b[201~");
    chat.expect("second");
    chat.press(CTRL_C);
    for keys in ["one\\\r", "two\x1b\r", "\"\"\"block\r"] {
        chat.prompt();
        chat.press(keys);
        chat.press(CTRL_C);
    }
    chat.prompt();
    chat.press("/show\r");
    chat.expect("0 messages,");
    chat.prompt();
    chat.press(CTRL_D);
    assert_eq!(chat.end(), Some(0));
}

#[test]
fn ctrl_c_in_an_answer_keeps_what_came() {
    let mut chat = Terminal::start(&["-c", "8192", "--ignore-eos", "--think", "off"]);
    chat.prompt();
    chat.press("Tell me a story about a dog\r");
    chat.expect("story about a dog");
    chat.expect("\r\n");
    // Some of the answer is on the screen.
    chat.expect(" ");
    chat.signal(Signal::INT);
    chat.expect("stopped; Ctrl-C again leaves");
    chat.prompt();
    chat.press("/show\r");
    chat.expect("1 message,");
    chat.prompt();
    let path = chat.state.path().join("chat.json");
    chat.press(&format!("/save {}\r", path.display()));
    chat.expect("1 message in");
    let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).expect("saved")).expect("JSON");
    let kept = saved["turns"][0]["reply"]["text"].as_str().expect("a reply");
    assert!(!kept.is_empty(), "{saved}");
    chat.prompt();
    chat.press("/exit\r");
    assert_eq!(chat.end(), Some(0));
}

#[test]
fn keys_and_ctrl_c_do_not_come_between_the_words_of_a_reply() {
    let mut chat = Terminal::start_controlled(&["-c", "8192", "--ignore-eos", "--think", "off"]);
    chat.prompt();
    chat.press("Tell me a story about a dog\r");
    chat.expect("story about a dog");
    chat.expect("\r\n");
    chat.expect(" ");
    chat.press("zzqqzz");
    chat.press(CTRL_C);
    let shown = chat.expect("stopped; Ctrl-C again leaves");
    assert!(!shown.contains("^C") && !shown.contains("zzqqzz"), "{shown:?}");
    // An empty line: what was typed meanwhile is gone.
    chat.prompt();
    chat.press("/show\r");
    chat.expect("1 message,");
    chat.prompt();
    chat.press(CTRL_D);
    assert_eq!(chat.end(), Some(0));
}

#[test]
fn a_message_that_is_stopped_before_its_first_token_is_kept() {
    let mut chat = Terminal::start(&["-c", "16384", "--think", "off"]);
    let path = chat.state.path().join("long.txt");
    std::fs::write(&path, "The fox ran to the river and back again. ".repeat(1_200)).expect("written");
    chat.prompt();
    chat.press(&format!("/read {}\r", path.display()));
    chat.expect("go before the next message");
    chat.prompt();
    chat.press("Who ran?\r");
    // The sign of life: nothing else is shown while the prompt is read.
    chat.expect(" tokens  ");
    chat.signal(Signal::INT);
    chat.expect("the message is kept: /regen answers it, /undo removes it");
    chat.prompt();
    chat.press("/show\r");
    chat.expect("1 message, 0 of 16384 tokens");
    chat.prompt();
    chat.press("/stats\r");
    assert!(!chat.expect("no reply yet").contains("prompt 0 tokens"), "what was not read has no figures");
    chat.prompt();
    chat.press("/undo\r");
    chat.expect("taken back: The fox ran");
    chat.prompt();
    chat.press("What is the capital of France?\r");
    assert!(chat.expect("| gen ").contains("Paris"), "the chat goes on");
    chat.prompt();
    chat.press("/undo\r");
    chat.prompt();
    chat.press("/show\r");
    chat.expect("0 messages, 0 of 16384 tokens");
    chat.prompt();
    chat.press(CTRL_D);
    assert_eq!(chat.end(), Some(0));
}

#[test]
fn a_message_that_is_too_long_is_refused_in_lines_that_fit() {
    let columns = 40;
    let program = Command::new(env!("CARGO_BIN_EXE_nextn-cli"));
    let mut chat = Terminal::start_as(program, columns as u16, &["-c", "64"]);
    chat.prompt();
    chat.press(&format!("{}\r", "The fox ran to the river. ".repeat(20)));
    chat.expect("error: ");
    let words = chat.expect("the message was not sent");
    assert!(words.contains("(-c N)"), "{words:?}");
    // Colours are no part of a line.
    let lines = words.split("\r\n").map(|line| line.split('\x1b').next().unwrap_or_default());
    let long: Vec<&str> = lines.skip(1).filter(|line| line.len() > columns).collect();
    assert!(long.is_empty() && words.matches("\r\n").count() >= 3, "{words:?}");
    chat.prompt();
    chat.press(CTRL_D);
    assert_eq!(chat.end(), Some(0));
}

#[test]
fn words_that_leave_other_programs_are_answered_with_the_command() {
    let mut chat = Terminal::start(&[]);
    chat.prompt();
    chat.press("quit\r");
    chat.expect("/exit is the command");
    chat.prompt();
    chat.press("/show\r");
    chat.expect("0 messages,");
    chat.prompt();
    chat.press("/exit\r");
    assert_eq!(chat.end(), Some(0));
}

#[test]
fn lines_end_at_words_on_a_terminal_and_not_in_a_pipe() {
    let options =
        ["-p", "Tell me a story about a dog", "-n", "60", "--ignore-eos", "--think", "off", "--color", "never"];
    let piped = {
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = Command::new(env!("CARGO_BIN_EXE_nextn-cli"));
        let output = command.args(["-t", "1", "--temp", "0"]).args(options).stdin(std::process::Stdio::null()).output();
        String::from_utf8(output.expect("the binary runs").stdout).expect("UTF-8")
    };
    assert!(piped.lines().any(|line| line.len() > 60), "a pipe gets lines as they are: {piped}");
    let columns = 30;
    let mut lines = vec![String::new()];
    for (i, paragraph) in piped.trim_end().split('\n').enumerate() {
        if i > 0 {
            lines.push(String::new());
        }
        for word in paragraph.split(' ') {
            let line = lines.last_mut().expect("never empty");
            if line.is_empty() {
                *line += word;
            } else if line.len() + 1 + word.len() <= columns {
                *line += &format!(" {word}");
            } else {
                lines.push(word.to_owned());
            }
        }
    }
    let program = Command::new(env!("CARGO_BIN_EXE_nextn-cli"));
    let mut terminal = Terminal::start_as(program, columns as u16, &options);
    let shown = terminal.expect("gen 60 tokens");
    assert!(shown.contains(&lines.join("\r\n")), "{lines:#?}\n{shown:?}");
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn sigterm_at_the_prompt_leaves_the_terminal_as_it_was() {
    let mut chat = Terminal::start(&[]);
    chat.prompt();
    let raw = tcgetattr(&chat.line).expect("settings").local_modes;
    assert!(!raw.contains(LocalModes::ICANON), "the editor reads keys");
    chat.signal(Signal::TERM);
    assert_eq!(chat.end(), Some(143));
    let modes = tcgetattr(&chat.line).expect("settings").local_modes;
    assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG), "{modes:?}");
    chat.expect("\x1b[?2004l");
}

#[test]
fn a_model_cannot_drive_the_terminal() {
    let bytes = program::embedded::model_bytes();
    let header = gguf::Header::parse(bytes).expect("the embedded model");
    let vocab = text::Vocab::from_metadata(header.metadata()).expect("its vocabulary");
    let escape = vocab.encode("\x1b", text::Special::Plain)[0].0;
    // Its answer is nothing but escapes, and so is its name.
    let bias = format!("{escape}=1000");
    let name = header.metadata().require_str("general.name").expect("a name");
    let at = bytes.windows(name.len()).position(|window| window == name.as_bytes()).expect("it stands in the file");
    let mut evil = bytes.to_vec();
    evil[at..at + name.len()].copy_from_slice(&b"\x1b]0;evil\x07 and some more"[..name.len()]);
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("evil.gguf");
    std::fs::write(&path, evil).expect("written");

    let options = [
        "-m",
        path_str(&path),
        "-p",
        "x",
        "-n",
        "5",
        "--logit-bias",
        &bias,
        "--raw",
        "--ignore-eos",
        "--color",
        "never",
    ];
    let mut terminal = Terminal::start(&options);
    let shown = terminal.expect("gen 5 tokens");
    // The spinner draws with escapes too; none of them is a title or comes five times in a row.
    assert!(!shown.contains("\x1b]0;") && !shown.contains("\x1b\x1b"), "{shown:?}");
    assert_eq!(terminal.end(), Some(0));

    drop(terminal);
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let piped = Command::new(env!("CARGO_BIN_EXE_nextn-cli"))
        .args(options)
        .args(["--temp", "0", "-t", "1"])
        .stdin(std::process::Stdio::null())
        .output()
        .expect("the binary runs");
    assert_eq!(piped.stdout, b"\x1b\x1b\x1b\x1b\x1b\n", "a pipe gets what the model wrote");
}

fn path_str(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}
