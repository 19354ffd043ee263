//! Finding the few tokens that matter in a row of logits.
//! Owns a candidate's place in the order and the scans that skip the rest. Knows nothing of pools or stages.
//!
//! Order everywhere: higher logit first, then lower id.

use super::math::{self, LOGIT_MAX, clean};

/// A token with its logit in one integer, so that comparing two is comparing numbers:
/// the high half falls as the logit rises, the low half is the id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Cand(u64);

impl Cand {
    /// `logit` must be clean and not masked.
    pub fn new(id: u32, logit: f32) -> Self {
        // Adding zero turns -0 into +0, which must compare equal. Flipping the sign bit of positive numbers and all
        // bits of negative ones orders floats as unsigned integers.
        let bits = (logit + 0.0).to_bits();
        let rising = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
        Self(u64::from(!rising) << 32 | u64::from(id))
    }

    pub fn id(self) -> u32 {
        self.0 as u32
    }

    pub fn logit(self) -> f32 {
        let rising = !((self.0 >> 32) as u32);
        f32::from_bits(if rising >> 31 == 1 { rising & !(1 << 31) } else { !rising })
    }
}

/// Index of the largest clean logit, the lowest one among equals; `None` when all are masked.
pub(super) fn argmax(row: &[f32]) -> Option<u32> {
    let max = math::max(row);
    // Blocks first: comparing a block for equality is vector code, finding the place in it is not.
    let (i, block) =
        row.chunks(BLOCK).enumerate().find(|(_, b)| b.iter().fold(false, |any, &x| any | (clean(x) == max)))?;
    let at = block.iter().position(|&x| clean(x) == max)?;
    (max > f32::NEG_INFINITY).then_some((i * BLOCK + at) as u32)
}

/// The first `k >= 1` candidates of a row in order. Reads the row once; only values above the `k`-th best so far are
/// looked at one by one, which for a row in random order are about `k ln(n / k)`.
pub(super) fn top(row: &[f32], k: usize, out: &mut Vec<Cand>) {
    let limit = k.saturating_mul(2).max(MIN_ROOM);
    let mut least = f32::NEG_INFINITY;
    out.clear();
    for (i, block) in row.chunks(BLOCK).enumerate() {
        // Ids rise, so an equal value that comes later would come later in order, too.
        if !block.iter().fold(false, |any, &x| any | (x > least)) {
            continue;
        }
        for (j, &x) in block.iter().enumerate() {
            let x = clean(x);
            if x > least {
                out.push(Cand::new((i * BLOCK + j) as u32, x));
                if out.len() == limit {
                    least = out.select_nth_unstable(k - 1).1.logit();
                    out.truncate(k);
                }
            }
        }
    }
    if out.len() > k {
        out.select_nth_unstable(k - 1);
        out.truncate(k);
    }
    out.sort_unstable();
}

/// All candidates of a row with a logit of at least `least`, in the order of their ids.
pub(super) fn above(row: &[f32], least: f32, out: &mut Vec<Cand>) {
    out.clear();
    let least = least.max(-LOGIT_MAX);
    for (i, block) in row.chunks(BLOCK).enumerate() {
        if !block.iter().fold(false, |any, &x| any | (x >= least)) {
            continue;
        }
        let kept = block.iter().enumerate().filter(|&(_, &x)| clean(x) >= least);
        out.extend(kept.map(|(j, &x)| Cand::new((i * BLOCK + j) as u32, clean(x))));
    }
}

const BLOCK: usize = 64;
/// A small `k` still collects this many before it selects.
const MIN_ROOM: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_orders_by_logit_then_id_and_gives_both_back() {
        let xs = [LOGIT_MAX, 3.0, 1e-30, 0.0, -1e-30, -3.0, -LOGIT_MAX];
        for w in xs.windows(2) {
            assert!(Cand::new(9, w[0]) < Cand::new(1, w[1]), "{w:?}");
        }
        assert!(Cand::new(1, 0.0) < Cand::new(2, -0.0));
        assert!(Cand::new(1, -0.0) < Cand::new(2, 0.0));
        for x in xs {
            assert_eq!((Cand::new(7, x).id(), Cand::new(7, x).logit()), (7, x));
        }
    }
}
