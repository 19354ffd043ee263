//! How much work on requests is done at the same time.

use std::num::NonZero;
use std::sync::Arc;

use tokio::sync::Semaphore;

/// Room for work that is done at the same time.
#[derive(Debug)]
pub(crate) struct Workplaces(pub(crate) Arc<Semaphore>);

impl Workplaces {
    /// `n` at a time; `None` is one for each core, and at least two, so that one long piece does not hold up all others.
    pub(crate) fn new(n: Option<usize>) -> Self {
        let n_cores = || std::thread::available_parallelism().map_or(1, NonZero::get);
        let n = n.unwrap_or_else(|| n_cores().max(2));
        Self(Arc::new(Semaphore::new(n.clamp(1, Semaphore::MAX_PERMITS))))
    }
}
