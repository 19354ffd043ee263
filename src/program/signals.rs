//! Ctrl-C, SIGTERM and the state that the terminal must be left in. Owns the one thread that hears signals.
//! While somebody listens a signal is a message; otherwise it ends the process with the terminal put right.

use std::io::{self, Write};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::exit::Exit;

/// The signals of this process.
#[derive(Clone)]
pub struct Signals {
    shared: Arc<Mutex<Shared>>,
    terminal: Arc<Terminal>,
}

#[derive(Default)]
struct Shared {
    listener: Option<Box<dyn Fn(Exit) + Send>>,
    /// The listener was told and has not left yet; with `twice`, Ctrl-C was heard while nobody listened.
    told: bool,
    /// The first Ctrl-C that nobody listens to is let pass.
    twice: bool,
}

impl Signals {
    /// Starts to hear SIGINT and SIGTERM, and notes how the terminal is set now.
    ///
    /// # Errors
    /// The system refuses a handler or a thread.
    pub fn install() -> std::io::Result<Self> {
        let signals = Self { shared: Arc::default(), terminal: Arc::new(Terminal::note()) };
        let own = signals.clone();
        Hearing::start(move |exit| own.heard(exit))?.for_ever();
        Ok(signals)
    }

    /// Sends signals to `sender`, as `make` says, until the guard is dropped. A second one before that ends the process.
    pub fn listen<T: Send + 'static>(&self, sender: Sender<T>, make: fn(Exit) -> T) -> Listening<'_> {
        let mut shared = self.lock();
        // A listener that has gone needs no message.
        shared.listener = Some(Box::new(move |exit| drop(sender.send(make(exit)))));
        shared.told = false;
        Listening { signals: self }
    }

    /// From now on it takes two Ctrl-C in a row to end the process while nobody listens: one that was meant for a reply
    /// may come a moment after its end.
    pub fn ask_twice(&self) {
        self.lock().twice = true;
    }

    fn heard(&self, exit: Exit) {
        let mut shared = self.lock();
        match &shared.listener {
            Some(tell) if !shared.told => {
                tell(exit);
                shared.told = true;
            }
            None if exit == Exit::Interrupted && shared.twice && !shared.told => shared.told = true,
            _ => {
                self.terminal.restore();
                exit_now(exit)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Nothing is half-done in there when a thread panics.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// While this lives a thread tells of every SIGINT and SIGTERM; on Windows of Ctrl-C, Ctrl-Break, and the console's end.
pub struct Hearing {
    #[cfg(unix)]
    incoming: signal_hook::iterator::Handle,
    /// Its end is the thread's.
    #[cfg(windows)]
    _end: tokio::sync::oneshot::Sender<()>,
}

impl Hearing {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system refuses a handler or a thread.
    #[cfg(unix)]
    pub fn start(heard: impl Fn(Exit) + Send + 'static) -> io::Result<Self> {
        use signal_hook::consts::{SIGINT, SIGTERM};
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
        let incoming = signals.handle();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                heard(if signal == SIGTERM { Exit::Terminated } else { Exit::Interrupted });
            }
        })?;
        Ok(Self { incoming })
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// The system refuses a handler or a thread.
    #[cfg(windows)]
    pub fn start(heard: impl Fn(Exit) + Send + 'static) -> io::Result<Self> {
        use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown};
        let (mut interrupt, mut stop, mut close, mut end) = (ctrl_c()?, ctrl_break()?, ctrl_close()?, ctrl_shutdown()?);
        let (sender, mut left) = tokio::sync::oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let listen = async move {
            loop {
                let exit = tokio::select! {
                    _ = interrupt.recv() => Exit::Interrupted,
                    _ = stop.recv() => Exit::Terminated,
                    _ = close.recv() => Exit::Terminated,
                    _ = end.recv() => Exit::Terminated,
                    _ = &mut left => return,
                };
                heard(exit);
            }
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || runtime.block_on(listen))?;
        Ok(Self { _end: sender })
    }

    /// Until the process ends.
    fn for_ever(self) {
        std::mem::forget(self);
    }
}

#[cfg(unix)]
impl Drop for Hearing {
    fn drop(&mut self) {
        self.incoming.close();
    }
}

/// Ends the process without waiting for threads that compute.
pub fn exit_now(exit: Exit) -> ! {
    // Not `process::exit`: destructors must not run under threads that still use what they destroy.
    signal_hook::low_level::exit(exit as i32)
}

/// Ends a program that has done its work, without destructors: drivers of GPUs have threads too, and some fail when they are
/// taken down.
pub fn leave(exit: Exit) -> ! {
    // A closed output has nobody to tell.
    let _ = io::stdout().flush();
    exit_now(exit)
}

/// While this lives signals are messages.
pub struct Listening<'a> {
    signals: &'a Signals,
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        let mut shared = self.signals.lock();
        shared.listener = None;
        shared.told = false;
    }
}

/// How the terminal was set when the program started.
struct Terminal {
    #[cfg(unix)]
    mode: Option<rustix::termios::Termios>,
}

impl Terminal {
    fn note() -> Self {
        Self {
            // Fails where standard input is no terminal: there is nothing to restore then.
            #[cfg(unix)]
            mode: rustix::termios::tcgetattr(std::io::stdin()).ok(),
        }
    }

    /// The line editor may have been reading keys, a reply may have left colours on.
    fn restore(&self) {
        use std::io::IsTerminal;

        // The process is about to end: there is nobody to tell about errors.
        #[cfg(unix)]
        if let Some(mode) = &self.mode {
            let _ = rustix::termios::tcsetattr(std::io::stdin(), rustix::termios::OptionalActions::Now, mode);
        }
        let mut err = std::io::stderr();
        if err.is_terminal() {
            let _ = err.write_all(RESET.as_bytes());
        }
    }
}

/// No bracketed paste, visible cursor, no colours, a line of its own for the shell.
const RESET: &str = "\x1b[?2004l\x1b[?25h\x1b[0m\r\n";

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_listener_gets_the_signal_as_a_message() {
        use signal_hook::consts::{SIGINT, SIGTERM};
        let signals = Signals::install().unwrap();
        let (sender, messages) = mpsc::channel();
        let listening = signals.listen(sender, |exit| exit);
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert_eq!(messages.recv().unwrap(), Exit::Terminated);
        drop(listening);
        // A new listener starts afresh: the signal above does not count as its first.
        let (sender, messages) = mpsc::channel();
        let _listening = signals.listen(sender, |exit| exit);
        signal_hook::low_level::raise(SIGINT).unwrap();
        assert_eq!(messages.recv().unwrap(), Exit::Interrupted);
    }

    #[test]
    fn a_late_ctrl_c_does_not_end_a_chat() {
        let signals = Signals { shared: Arc::default(), terminal: Arc::new(Terminal::note()) };
        signals.ask_twice();
        signals.heard(Exit::Interrupted);
        assert!(signals.lock().told, "the next one would end the process");
        let (sender, _messages) = mpsc::channel();
        drop(signals.listen(sender, |exit| exit));
        signals.heard(Exit::Interrupted);
    }
}
