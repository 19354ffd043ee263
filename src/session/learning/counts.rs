//! What was kept of finished replies, in numbers that several threads look at. Knows no files.

use std::sync::atomic::{AtomicU64, Ordering};

use engine::FinishedReply;

/// Of finished replies.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) n_kept: AtomicU64,
    pub(super) n_bytes: AtomicU64,
    pub(super) n_lost: AtomicU64,
    /// Of kept replies.
    pub(super) n_tokens: AtomicU64,
    pub(super) n_drafts: AtomicU64,
    pub(super) n_begun: AtomicU64,
}

impl Counts {
    /// Counts a reply that was kept.
    pub(super) fn add(&self, reply: &FinishedReply) {
        self.n_drafts.fetch_add(reply.n_drafts as u64, Ordering::Relaxed);
        self.n_begun.fetch_add(reply.n_begun as u64, Ordering::Relaxed);
        self.n_tokens.fetch_add(reply.reply.len() as u64, Ordering::Relaxed);
    }

    /// Generated tokens of replies.
    pub(super) fn n_tokens(&self) -> u64 {
        self.n_tokens.load(Ordering::Relaxed)
    }

    /// Drafts that were verified, and those of them whose first token was the model's choice.
    pub(super) fn drafts(&self) -> Share {
        let n_right = self.n_begun.load(Ordering::Relaxed);
        Share { n: self.n_drafts.load(Ordering::Relaxed), n_right }
    }
}

/// How often something was right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) n: u64,
    pub(super) n_right: u64,
}

impl Share {
    /// What came after `before`.
    pub(super) fn since(self, before: Share) -> Share {
        Share { n: self.n - before.n, n_right: self.n_right - before.n_right }
    }

    /// Between 0 and 1; 0 of none.
    pub(super) fn value(self) -> f64 {
        self.n_right as f64 / self.n.max(1) as f64
    }
}
