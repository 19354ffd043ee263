//! Tells the user once when drafts are rejected so often that something must be broken.
//! Owns two counts; of a sound MTP layer more than half of the first draft tokens are accepted on any text.

/// First draft tokens of a count.
const N_DRAFTS: u32 = 200;

/// Fewer accepted ones than this share are a sign that something is wrong.
const ACCEPTED: f64 = 0.3;

/// Counts first drafts, in windows of 200.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AcceptanceWarning {
    n: u32,
    accepted: u32,
    told: bool,
}

impl AcceptanceWarning {
    /// A step verified `n_drafted` draft tokens and accepted the first `n_accepted`. True when this is the moment to tell,
    /// which comes once.
    pub(crate) fn verified(&mut self, n_drafted: usize, n_accepted: usize) -> bool {
        if n_drafted == 0 || self.told {
            return false;
        }
        self.n += 1;
        self.accepted += u32::from(n_accepted > 0);
        if self.n < N_DRAFTS {
            return false;
        }
        let share = f64::from(self.accepted) / f64::from(self.n);
        (self.n, self.accepted) = (0, 0);
        self.told = share < ACCEPTED;
        if self.told {
            tracing::warn!(
                "only {:.0} % of the last {N_DRAFTS} first draft tokens were accepted, where 60 to 95 % are usual. The output is not \
                 affected, drafting gains nothing. Likely causes: a head of another model or of another fine-tune of it \
                 (`extract-nextn verify` compares), a head quantised to very few bits, a norm of the head converted \
                 without its +1, or text that repeats nothing and follows no pattern. --spec off ends drafting",
                100.0 * share
            );
        }
        self.told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once_and_only_when_drafts_are_bad() {
        let mut good = AcceptanceWarning::default();
        assert!(!(0..1000).any(|i| good.verified(3, usize::from(i % 3 != 0))));
        let mut bad = AcceptanceWarning::default();
        let told: Vec<u32> = (0..1000).filter(|i| bad.verified(1, usize::from(i % 4 == 0))).collect();
        assert_eq!(told, [199]);
        let mut none = AcceptanceWarning::default();
        assert!(!(0..1000).any(|_| none.verified(0, 0)));
    }
}
