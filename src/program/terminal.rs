//! The terminal while a reply is shown: how wide it is, and that typed keys and `^C` do not come between the words.
//! Knows nothing of what is shown.

use std::io::{self, Write};
#[cfg(unix)]
use std::os::fd::AsFd;

#[cfg(unix)]
use rustix::process::getpgrp;
#[cfg(unix)]
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};

/// Columns of the terminal of standard output, where it is one that tells.
pub fn output_columns() -> Option<usize> {
    columns(&io::stdout())
}

/// Columns of the terminal of standard error, where it is one that tells.
pub fn error_columns() -> Option<usize> {
    columns(&io::stderr())
}

/// A line on standard error. Where that cannot be written, as behind a pipe that was closed, it is left out: what is being done
/// is worth more.
pub fn tell(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

#[cfg(windows)]
fn columns(stream: &impl std::os::windows::io::AsHandle) -> Option<usize> {
    terminal_size::terminal_size_of(stream).map(|(terminal_size::Width(n), _)| usize::from(n))
}

/// Has the console of Windows read the marks of colours and of the cursor, which one that stands alone does when it is asked.
#[cfg(windows)]
pub(crate) fn take_marks() {
    // One that does not understand them shows them, as a terminal of Unix would.
    let _ = anstyle_query::windows::enable_ansi_colors();
}

#[cfg(unix)]
fn columns(stream: &impl AsFd) -> Option<usize> {
    tcgetwinsize(stream).ok().map(|size| usize::from(size.ws_col)).filter(|&n| n > 0)
}

/// While this lives the terminal of standard input shows no keys. They are not lost: what reads the next line gets them.
/// The console of Windows shows keys only while they are read.
pub struct SilentKeys {
    #[cfg(unix)]
    before: Option<Termios>,
}

impl SilentKeys {
    /// Silences the keys, where standard input is a terminal that this process may set.
    #[cfg(windows)]
    pub fn new() -> Self {
        Self {}
    }

    /// Silences the keys, where standard input is a terminal that this process may set.
    #[cfg(unix)]
    pub fn new() -> Self {
        let stdin = io::stdin();
        // A process in the background that sets the terminal would be stopped.
        let is_ours = tcgetpgrp(&stdin).is_ok_and(|group| group == getpgrp());
        let before = is_ours.then(|| tcgetattr(&stdin).ok()).flatten();
        let silent =
            before.clone().filter(|modes| modes.local_modes.contains(LocalModes::ECHO)).is_some_and(|mut modes| {
                modes.local_modes -= LocalModes::ECHO | LocalModes::ECHONL;
                tcsetattr(&stdin, OptionalActions::Now, &modes).is_ok()
            });
        Self { before: before.filter(|_| silent) }
    }
}

impl Default for SilentKeys {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(unix)]
impl Drop for SilentKeys {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // A terminal that is gone shows nothing.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}
