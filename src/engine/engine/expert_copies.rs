//! Copies of experts on a GPU follow what is asked for, a little between steps.

use std::time::{Duration, Instant};

use super::Engine;
use crate::config::Exact;

/// Time for exchanges between two steps.
const AT_ONCE: Duration = Duration::from_millis(2);

/// Steps take so many times as long as exchanges at least.
const STEPS_PER_EXCHANGE: u32 = 32;

/// How long to wait before looking again, at least.
const PAUSE: Duration = Duration::from_millis(50);

impl Engine {
    /// Exchanges some copies, if it is time. Which experts have one changes the bits of what they give, so with `--exact` they stay,
    /// and only the counts of uses are kept small.
    pub(super) fn renew_expert_copies(&mut self) {
        let now = Instant::now();
        if self.warming_up || self.expert_renewal.is_none_or(|next| now < next) {
            return;
        }
        let weights = self.model.weights();
        let at_once = if self.config.exact == Exact::Off { AT_ONCE } else { Duration::ZERO };
        let n_exchanged = weights.renew_expert_copies(now + at_once);
        let took = now.elapsed();
        self.expert_renewal = Some(now + (took * STEPS_PER_EXCHANGE).max(PAUSE));
        if n_exchanged > 0 {
            let (n_asked, n_found) = weights.expert_uses();
            tracing::debug!(n_exchanged, ?took, n_asked, n_found, "copies of experts exchanged");
        }
    }

    /// Of the experts that were lately wanted, the share that had a copy.
    pub(super) fn copies_found(&self) -> Option<f64> {
        let (n_asked, n_found) = self.model.weights().expert_uses();
        (n_asked > 0).then(|| n_found as f64 / n_asked as f64)
    }
}
