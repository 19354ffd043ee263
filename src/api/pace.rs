//! When a reply's events are looked at: at once, unless they come so fast that looking at each would cost more than it
//! gives. Owns the waiting time. Knows nothing of what is in events.

use std::time::{Duration, Instant};

use engine::{Event, Generation};

/// Engine steps that follow each other faster than this are taken several at a time. Every look wakes a thread, writes to a
/// socket and wakes the reader, all of it on processors that also compute; people and programs cannot tell tokens apart
/// that are this close.
const GATHER: Duration = Duration::from_millis(2);

/// The rhythm of one reply.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When the last step was over.
    last: Option<Instant>,
    /// It came soon after the one before.
    quick: bool,
    /// When events were waited for last and came.
    looked: Option<Instant>,
}

impl Pace {
    /// The tokens of a step that was over `at` this time were taken.
    pub(crate) fn tokens(&mut self, at: Instant) {
        self.quick = self.last.is_some_and(|last| at.saturating_duration_since(last) < GATHER);
        self.last = Some(at);
    }

    /// When to look next; `None`: whenever there is something.
    fn next_look(&self) -> Option<Instant> {
        self.looked.filter(|_| self.quick).map(|looked| looked + GATHER)
    }

    /// The next event; `None` after the last. What is there already is given at once.
    pub(crate) async fn next(&mut self, from: &mut Generation) -> Option<Event> {
        if let Some(event) = from.try_next() {
            return Some(event);
        }
        // The engine does not wake anybody meanwhile.
        if let Some(at) = self.next_look() {
            tokio::time::sleep_until(at.into()).await;
        }
        let event = from.recv().await;
        self.looked = Some(Instant::now());
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_quick_cycles_are_gathered() {
        let start = Instant::now();
        let mut pace = Pace { looked: Some(start), ..Pace::default() };
        let ms = |n| start + Duration::from_millis(n);
        let mut tokens_at = |n| {
            pace.tokens(ms(n));
            pace.next_look()
        };
        assert_eq!(tokens_at(0), None, "the first tokens are followed at once");
        assert_eq!(tokens_at(1), Some(start + GATHER));
        assert_eq!(tokens_at(21), None, "a slow model's tokens are not held");
        assert_eq!(tokens_at(22), Some(start + GATHER));
    }
}
