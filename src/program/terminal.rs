//! The terminal while a reply is shown: how wide it is, and that typed keys and `^C` do not come between the words.
//! Knows nothing of what is shown.

use std::io;
use std::os::fd::AsFd;

use rustix::process::getpgrp;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};

/// Columns of the terminal of standard output, where it is one that tells.
pub fn output_columns() -> Option<usize> {
    columns(&io::stdout())
}

/// Columns of the terminal of standard error, where it is one that tells.
pub fn error_columns() -> Option<usize> {
    columns(&io::stderr())
}

fn columns(stream: &impl AsFd) -> Option<usize> {
    tcgetwinsize(stream).ok().map(|size| usize::from(size.ws_col)).filter(|&n| n > 0)
}

/// While this lives the terminal of standard input shows no keys. They are not lost: what reads the next line gets them.
pub struct SilentKeys {
    before: Option<Termios>,
}

impl SilentKeys {
    /// Silences the keys, where standard input is a terminal that this process may set.
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

impl Drop for SilentKeys {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // A terminal that is gone shows nothing.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}
