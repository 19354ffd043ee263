//! Which head is used, by what was measured. Owns the thresholds. Knows no files and no clock.

use crate::learning::counts::Share;

/// What heads are worth on replies that none of them learned from: tokens of a forward pass with a draft.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Measured {
    /// Tokens that were measured on.
    pub(super) n: u64,
    /// Of the head in use.
    pub(super) in_use: f64,
    /// Of the one that a round made of it.
    pub(super) learned: f64,
    /// Of the one that was in use before; `None` where that is the model's own still.
    pub(super) before: Option<f64>,
}

/// What becomes of the heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// The new one is used.
    Keep,
    /// Nothing changes.
    Leave,
    /// The one before is used again.
    Undo,
}

impl Decision {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Keep => "the learned head is used",
            Self::Leave => "nothing changes",
            Self::Undo => "the head before is used again",
        }
    }
}

/// The new head is used where it is better than both others, the one before where it is better than that in use. What is within
/// [`MARGIN`], or measured on too little, changes nothing.
pub(super) fn decide(measured: &Measured) -> Decision {
    let Measured { n, in_use, learned, before } = *measured;
    let is_better = |x: f64| x.is_finite() && x > in_use * (1.0 + MARGIN);
    match before.filter(|before| is_better(*before)) {
        _ if n < MIN_HELD_OUT || !in_use.is_finite() => Decision::Leave,
        Some(before) if !(is_better(learned) && learned > before) => Decision::Undo,
        None if !is_better(learned) => Decision::Leave,
        _ => Decision::Keep,
    }
}

/// Compares how often drafts begin well before and after a head was taken into use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watch {
    /// When it was, and of the time before.
    begun: Option<(Share, Share)>,
    /// Where the time before began.
    before: Share,
}

impl Watch {
    /// Another head is used from now on.
    pub(super) fn begin(&mut self, now: Share) {
        self.begun = Some((now, now.since(self.before)));
        self.before = now;
    }

    /// The shares before and since, where since then it has become clearly worse: the model's own text may have become harder, and
    /// then little is lost.
    pub(super) fn is_bad(&self, now: Share) -> Option<(f64, f64)> {
        let (at, before) = self.begun?;
        let since = now.since(at);
        if since.n < MIN_DRAFTS || before.n < MIN_DRAFTS {
            return None;
        }
        let (p, q) = (before.value(), since.value());
        let error = (p * (1.0 - p) / before.n as f64 + q * (1.0 - q) / since.n as f64).sqrt();
        (q < p - (3.0 * error).max(MAX_FALL)).then_some((p, q))
    }
}

/// Share by which a head has to be better.
const MARGIN: f64 = 0.002;

/// Tokens below which nothing is decided.
const MIN_HELD_OUT: u64 = 256;

/// Drafts below which nothing is said of a head.
const MIN_DRAFTS: u64 = 256;

/// So much less often drafts may begin well.
const MAX_FALL: f64 = 0.05;

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(in_use: f64, learned: f64, before: Option<f64>) -> Decision {
        decide(&Measured { n: 1000, in_use, learned, before })
    }

    #[test]
    fn a_head_is_used_only_where_it_is_better_than_all_others() {
        assert_eq!(decided(3.0, 3.1, None), Decision::Keep);
        assert_eq!(decided(3.0, 3.1, Some(3.05)), Decision::Keep);
        assert_eq!(decided(3.0, 3.0, None), Decision::Leave, "the best of a round may be its start");
        assert_eq!(decided(3.0, 3.001, Some(2.0)), Decision::Leave, "within the margin");
        assert_eq!(decided(3.0, 2.0, Some(2.9)), Decision::Leave);
        assert_eq!(decided(3.0, 2.9, Some(3.2)), Decision::Undo);
        assert_eq!(decided(3.0, 3.1, Some(3.2)), Decision::Undo, "the one before is better still");
    }

    #[test]
    fn little_or_broken_measurements_change_nothing() {
        assert_eq!(decide(&Measured { n: 20, in_use: 1.0, learned: 3.0, before: Some(3.0) }), Decision::Leave);
        assert_eq!(decided(f64::NAN, 3.0, Some(3.0)), Decision::Leave);
        assert_eq!(decided(3.0, f64::NAN, Some(f64::INFINITY)), Decision::Leave);
    }

    #[test]
    fn drafts_that_become_worse_are_noticed_and_chance_is_not() {
        let share = |n: u64, n_right: u64| Share { n, n_right };
        let mut watch = Watch::default();
        assert_eq!(watch.is_bad(share(1000, 0)), None, "no head was exchanged");
        watch.begin(share(1000, 900));
        assert_eq!(watch.is_bad(share(1200, 900)), None, "too few drafts");
        assert_eq!(watch.is_bad(share(1400, 1250)), None, "0.875 of 400 after 0.9");
        assert_eq!(watch.is_bad(share(1400, 1100)), Some((0.9, 0.5)));
        watch.begin(share(2000, 1700));
        assert_eq!(watch.is_bad(share(3000, 2500)), None, "0.8 as before the second exchange");
        assert!(watch.is_bad(share(3000, 2300)).is_some());
    }
}
