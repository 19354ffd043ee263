//! Tells the user once when drafts are wrong so often that something must be broken.
//! Owns two counts; a sound head is right with more than half of its first drafts on any text.

/// First drafts of a count.
const N_DRAFTS: u32 = 200;

/// Fewer right ones than this share are a sign that something is wrong.
const RIGHT: f64 = 0.3;

/// Counts first drafts, in windows of 200.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Alarm {
    n: u32,
    right: u32,
    told: bool,
}

impl Alarm {
    /// A step judged `n_drafted` drafts and kept the first `n_right`. True when this is the moment to tell, which comes once.
    pub(crate) fn judged(&mut self, n_drafted: usize, n_right: usize) -> bool {
        if n_drafted == 0 || self.told {
            return false;
        }
        self.n += 1;
        self.right += u32::from(n_right > 0);
        if self.n < N_DRAFTS {
            return false;
        }
        let share = f64::from(self.right) / f64::from(self.n);
        (self.n, self.right) = (0, 0);
        self.told = share < RIGHT;
        if self.told {
            tracing::warn!(
                "only {:.0} % of the last {N_DRAFTS} first drafts were right, where 60 to 95 % are usual. Answers are not affected, \
                 drafting gains nothing. Likely causes: a head of another model or of another fine-tune of it \
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
        let mut good = Alarm::default();
        assert!(!(0..1000).any(|i| good.judged(3, usize::from(i % 3 != 0))));
        let mut bad = Alarm::default();
        let told: Vec<u32> = (0..1000).filter(|i| bad.judged(1, usize::from(i % 4 == 0))).collect();
        assert_eq!(told, [199]);
        let mut none = Alarm::default();
        assert!(!(0..1000).any(|_| none.judged(0, 0)));
    }
}
