//! How much work on requests is done at the same time.

use std::num::NonZero;
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::lane::Lane;

/// Room for work that is done at the same time.
#[derive(Debug)]
pub(crate) struct Workplaces {
    quick: Arc<Semaphore>,
    seeing: Arc<Lane>,
}

impl Workplaces {
    /// `n` quick pieces at a time; `None` is one for each core, and at least two, so that one long piece does not hold up all
    /// others. One piece with images beside them.
    pub(crate) fn new(n: Option<usize>) -> Self {
        let n_cores = || std::thread::available_parallelism().map_or(1, NonZero::get);
        let n = n.unwrap_or_else(|| n_cores().max(2));
        let room = |n: usize| Arc::new(Semaphore::new(n.clamp(1, Semaphore::MAX_PERMITS)));
        Self { quick: room(n), seeing: Arc::default() }
    }

    /// Where quick work waits.
    pub(crate) fn quick(&self) -> Arc<Semaphore> {
        Arc::clone(&self.quick)
    }

    /// Where work with images waits.
    pub(crate) fn seeing(&self) -> &Arc<Lane> {
        &self.seeing
    }
}
