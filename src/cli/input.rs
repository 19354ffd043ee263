//! Where the prompt comes from: options, a file, standard input. Owns the rule when standard input is read at all.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, anyhow};

use program::exit::{Exit, Failure, OrExit, Outcome};

/// What standard input is, as far as the rule needs it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Stdin {
    /// A person types there.
    Terminal,
    /// A pipe or a file: somebody put it there to be read.
    Data,
    /// `/dev/null`, a socket, another device: perhaps only inherited, and may never end.
    Other,
}

impl Stdin {
    /// That of this process.
    pub fn detect() -> Self {
        use std::io::IsTerminal;

        let stdin = std::io::stdin();
        if stdin.is_terminal() {
            return Self::Terminal;
        }
        if is_data(&stdin) { Self::Data } else { Self::Other }
    }

    /// Whether it is read: always when nothing else says what to ask, and beside `-p` or `-f` only when somebody put
    /// data there.
    fn is_read(self, asked: bool) -> bool {
        match self {
            Self::Terminal => false,
            Self::Data => true,
            Self::Other => !asked,
        }
    }
}

#[cfg(unix)]
fn is_data(stdin: &impl std::os::fd::AsFd) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let kind = stdin.as_fd().try_clone_to_owned().and_then(|fd| File::from(fd).metadata()).map(|m| m.file_type());
    kind.is_ok_and(|kind| kind.is_file() || kind.is_fifo())
}

/// `NUL` is a device of characters.
#[cfg(windows)]
fn is_data(_: &std::io::Stdin) -> bool {
    winapi_util::file::typ(winapi_util::HandleRef::stdin()).is_ok_and(|kind| kind.is_disk() || kind.is_pipe())
}

/// The parts of one prompt.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sources<'a> {
    /// `-p`.
    pub prompt: Option<&'a str>,
    /// `-f`; `-` is standard input.
    pub file: Option<&'a Path>,
    /// What stands between the parts.
    pub joint: &'a str,
}

/// The prompt of a single reply, or `None` when a chat is to start.
///
/// # Errors
/// A file that cannot be read, text that is not UTF-8 or longer than [`MAX_BYTES`], and a prompt without a character:
/// all with [`Exit::Prompt`].
pub fn gather(sources: Sources<'_>, stdin: Stdin, reader: &mut impl Read) -> Outcome<Option<String>> {
    let dash = sources.file == Some(Path::new("-"));
    let asked = sources.prompt.is_some() || sources.file.is_some();
    let mut parts = Vec::new();
    if let Some(prompt) = sources.prompt {
        parts.push(prompt.to_owned());
    }
    if let Some(path) = sources.file.filter(|_| !dash) {
        parts.push(read_file(path)?);
    }
    if dash || stdin.is_read(asked) {
        parts.push(read_text(reader, "standard input").or_exit(Exit::Prompt)?);
    } else if !asked {
        return Ok(None);
    }
    parts.retain(|part| !part.is_empty());
    if parts.is_empty() {
        return Err(Failure::message(
            Exit::Prompt,
            "the prompt is empty: give -p TEXT, -f FILE, or text on standard input",
        ));
    }
    Ok(Some(parts.join(sources.joint)))
}

/// The text of a prompt file, without one newline at its end.
///
/// # Errors
/// As [`gather`].
pub fn read_file(path: &Path) -> Outcome<String> {
    let name = path.display();
    let mut file = File::open(path).with_context(|| format!("{name}")).or_exit(Exit::Prompt)?;
    read_text(&mut file, &name.to_string()).or_exit(Exit::Prompt)
}

/// A reader that says on standard error what it waits for, once, when no data comes.
pub struct Announced<R> {
    reader: R,
    waiting: Option<mpsc::Sender<()>>,
}

impl<R: Read> Announced<R> {
    /// `reader`, with a word on standard error when its first data is not there after `patience`.
    pub fn new(reader: R, patience: Duration) -> Self {
        let (waiting, came) = mpsc::channel();
        std::thread::spawn(move || {
            if came.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                eprintln!("waiting for the end of standard input (`< /dev/null` when there is none)");
            }
        });
        Self { reader, waiting: Some(waiting) }
    }
}

impl<R: Read> Read for Announced<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let n = self.reader.read(buffer);
        self.waiting = None;
        n
    }
}

/// What `reader` gives, at most `max` bytes; `name` stands in errors.
///
/// # Errors
/// Those of the reader, and more bytes than that.
pub fn read_bytes(reader: &mut impl Read, name: &str, max: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(max + 1).read_to_end(&mut bytes).with_context(|| name.to_owned())?;
    if bytes.len() as u64 > max {
        return Err(anyhow!("{name}: more than {} MiB", max >> 20));
    }
    Ok(bytes)
}

fn read_text(reader: &mut impl Read, name: &str) -> anyhow::Result<String> {
    let bytes = read_bytes(reader, name, MAX_BYTES)?;
    let mut text = String::from_utf8(bytes)
        .map_err(|e| anyhow!("{name}: byte {} is not UTF-8: convert the text first", e.utf8_error().valid_up_to()))?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

/// Longest prompt text; far beyond any context.
const MAX_BYTES: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use super::*;

    /// Fails when it is read.
    struct Untouched;

    impl Read for Untouched {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("standard input was read"))
        }
    }

    fn sources(prompt: Option<&str>) -> Sources<'_> {
        Sources { prompt, file: None, joint: "\n\n" }
    }

    #[test]
    fn a_terminal_without_a_prompt_starts_a_chat() {
        assert_eq!(gather(sources(None), Stdin::Terminal, &mut Untouched).unwrap(), None);
    }

    #[test]
    fn a_terminal_or_device_is_not_read_beside_a_prompt() {
        for stdin in [Stdin::Terminal, Stdin::Other] {
            assert_eq!(gather(sources(Some("hi")), stdin, &mut Untouched).unwrap().as_deref(), Some("hi"));
        }
    }

    #[test]
    fn piped_text_joins_the_prompt_and_an_empty_pipe_adds_nothing() {
        let joined = gather(sources(Some("sum up:")), Stdin::Data, &mut &b"one\ntwo\n"[..]).unwrap();
        assert_eq!(joined.as_deref(), Some("sum up:\n\none\ntwo"));
        assert_eq!(gather(sources(Some("hi")), Stdin::Data, &mut &b""[..]).unwrap().as_deref(), Some("hi"));
        assert_eq!(gather(sources(None), Stdin::Data, &mut &b"asked\r\n"[..]).unwrap().as_deref(), Some("asked"));
        assert_eq!(gather(sources(None), Stdin::Other, &mut &b"asked"[..]).unwrap().as_deref(), Some("asked"));
    }

    #[test]
    fn an_empty_prompt_is_an_error_with_its_code() {
        for (prompt, stdin) in
            [(Some(""), Stdin::Terminal), (None, Stdin::Data), (None, Stdin::Other), (Some(""), Stdin::Data)]
        {
            let failure = gather(sources(prompt), stdin, &mut &b"\n"[..]).unwrap_err();
            assert_eq!(failure.exit, Exit::Prompt, "{prompt:?} {stdin:?}");
        }
    }

    #[test]
    fn files_are_read_and_their_errors_name_them() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"from a file\n").unwrap();
        let path = file.path().to_owned();
        let sources = Sources { prompt: Some("read:"), file: Some(&path), joint: "\n" };
        assert_eq!(gather(sources, Stdin::Terminal, &mut Untouched).unwrap().as_deref(), Some("read:\nfrom a file"));

        file.write_all(b"\xff\xfe").unwrap();
        let failure = gather(sources, Stdin::Terminal, &mut Untouched).unwrap_err();
        let text = format!("{:#}", failure.error.unwrap());
        assert!(text.contains("byte 12 is not UTF-8") && text.contains(&*path.to_string_lossy()), "{text}");

        let missing = Sources { file: Some(Path::new("/no/such/file")), ..sources };
        assert_eq!(gather(missing, Stdin::Terminal, &mut Untouched).unwrap_err().exit, Exit::Prompt);
        let directory = Sources { file: Some(Path::new("/")), ..sources };
        assert_eq!(gather(directory, Stdin::Terminal, &mut Untouched).unwrap_err().exit, Exit::Prompt);
    }

    #[test]
    fn a_dash_is_standard_input_even_from_a_terminal() {
        let sources = Sources { prompt: None, file: Some(Path::new("-")), joint: "\n" };
        assert_eq!(gather(sources, Stdin::Terminal, &mut &b"typed"[..]).unwrap().as_deref(), Some("typed"));
    }

    #[test]
    fn endless_input_is_cut_with_an_error() {
        let failure = gather(sources(None), Stdin::Data, &mut io::repeat(b'a')).unwrap_err();
        assert!(format!("{:#}", failure.error.unwrap()).contains("more than 64 MiB"));
    }
}
