//! Exit codes and the one failure type of the command line: what went wrong, and which code the shell sees.
//! Knows nothing of models or prompts.

use std::io::{self, Write};
use std::process::ExitCode;

/// What the shell sees. The numbers are part of the interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Exit {
    /// The reply is out.
    Success = 0,
    /// Something broke while running: a device, memory, a full disk.
    Runtime = 1,
    /// Unknown options, or values out of range.
    Usage = 2,
    /// The model file is missing, damaged or of an unknown architecture.
    ModelFile = 3,
    /// The prompt is missing, empty, unreadable or longer than the context.
    Prompt = 4,
    /// Ended by Ctrl-C.
    Interrupted = 130,
    /// Ended by SIGTERM.
    Terminated = 143,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// Why a run ends early.
#[derive(Debug)]
pub struct Failure {
    /// The code for the shell.
    pub exit: Exit,
    /// What to tell; `None` when there is nothing to say (a signal, a reader that has gone).
    pub error: Option<anyhow::Error>,
}

/// Runs of this program end well or with a [`Failure`].
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A failure with a message.
    pub fn new(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        Self { exit, error: Some(error.into()) }
    }

    /// A failure with a message made on the spot.
    pub fn message(exit: Exit, text: impl Into<String>) -> Self {
        Self { exit, error: Some(anyhow::Error::msg(text.into())) }
    }

    /// An end without words.
    pub fn silent(exit: Exit) -> Self {
        Self { exit, error: None }
    }

    /// Writes the message to `err`, with everything that control characters in file names or model data could do taken
    /// out, and gives the code.
    pub fn report(&self, err: &mut impl Write) -> Exit {
        if let Some(error) = &self.error {
            let text = crate::sanitize::clean(&format!("{error:#}"));
            // Nowhere is left to tell about a closed standard error.
            let _ = writeln!(err, "error: {text}");
        }
        self.exit
    }
}

/// Errors of writing to standard output: a reader that has gone (`| head`) ends the run quietly and well.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::silent(Exit::Success);
        }
        Self::new(Exit::Runtime, anyhow::Error::new(error).context("standard output"))
    }
}

/// Gives an error its exit code where it happens, for the layer that knows what it means.
pub trait OrExit<T> {
    /// The value, or a failure with this code.
    fn or_exit(self, exit: Exit) -> Outcome<T>;
}

impl<T, E: Into<anyhow::Error>> OrExit<T> for Result<T, E> {
    fn or_exit(self, exit: Exit) -> Outcome<T> {
        self.map_err(|error| Failure::new(exit, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_has_gone_is_no_error() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(failure.exit, Exit::Success);
        let mut err = Vec::new();
        failure.report(&mut err);
        assert!(err.is_empty(), "{err:?}");
    }

    #[test]
    fn other_output_errors_are_told() {
        let mut err = Vec::new();
        let exit = Failure::from(io::Error::other("disk full")).report(&mut err);
        assert_eq!(exit, Exit::Runtime);
        assert_eq!(String::from_utf8_lossy(&err), "error: standard output: disk full\n");
    }

    #[test]
    fn a_message_cannot_drive_the_terminal() {
        let mut err = Vec::new();
        Failure::message(Exit::ModelFile, "bad name \x1b]52;c;AAAA\x07\x1b[2Jend").report(&mut err);
        assert_eq!(String::from_utf8_lossy(&err), "error: bad name end\n");
    }
}
