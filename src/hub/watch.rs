//! How far a download is, and how it is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::choose::Choice;
use crate::error::HubError;

/// What happens while a model is fetched.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The hub was asked, and these are the model's files; some may be in the cache.
    Chosen {
        /// In the order in which they are fetched.
        files: &'a Choice<'a>,
    },
    /// Bytes of a file are there.
    Progress {
        /// Its path in the repository.
        file: &'a str,
        /// Bytes that are there, those of earlier runs included.
        done: u64,
        /// Bytes in all.
        size: u64,
    },
    /// Another program is fetching this file.
    Waiting {
        /// Its path in the repository.
        file: &'a str,
    },
    /// A request is repeated after a while.
    Again {
        /// What went wrong.
        why: &'a str,
        /// The while.
        after: Duration,
    },
}

/// Stops a download from another thread. Clones stop the same one.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl From<Arc<AtomicBool>> for Cancel {
    /// Stops when the flag is set.
    fn from(flag: Arc<AtomicBool>) -> Self {
        Self(flag)
    }
}

impl Cancel {
    /// Stops it; a second call does nothing.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// It is to stop, or has.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Who follows a download.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// Is told of everything, on the thread that fetches.
    pub tell: &'a dyn Fn(Event<'_>),
    /// Stops it.
    pub cancel: &'a Cancel,
}

impl Watch<'_> {
    pub(crate) fn tell(&self, event: Event<'_>) {
        (self.tell)(event);
    }

    /// # Errors
    /// [`HubError::Cancelled`].
    pub(crate) fn check(&self) -> Result<(), HubError> {
        if self.cancel.is_cancelled() { Err(HubError::Cancelled) } else { Ok(()) }
    }

    /// Waits, and notices when it is to stop.
    ///
    /// # Errors
    /// [`HubError::Cancelled`].
    pub(crate) fn wait(&self, time: Duration) -> Result<(), HubError> {
        let end = Instant::now() + time;
        loop {
            self.check()?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(CHECK));
        }
    }
}

impl std::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("cancel", self.cancel).finish_non_exhaustive()
    }
}

/// Between looks whether a wait is to end.
const CHECK: Duration = Duration::from_millis(50);
