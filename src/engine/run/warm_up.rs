//! An answer that nobody asked for, before the first request: kernels are loaded, graphs built, and a proposer measures what
//! its drafts cost. It leaves nothing else behind.

use std::time::{Duration, Instant};

use text::TokenId;

use super::{EngineStats, State};
use crate::handle::EngineHandle;
use crate::request::{GenerateRequest, RequestOptions};
use crate::sample::SamplingParams;

/// Rows of the prompt at most: kernels for many rows are loaded too.
const N_PROMPT: usize = 64;

/// No turn begins after so long: a slow device is not worth waiting for. Shallow depths come first.
const BUDGET: Duration = Duration::from_secs(2);

/// Passes of one row where no drafts are to be measured.
const N_PLAIN: usize = 3;

impl State {
    /// Runs it on the calling thread; `handle` is the only one so far. What goes wrong here will go wrong again in an answer,
    /// where somebody is told.
    pub(super) fn warm_up(&mut self, handle: &EngineHandle) {
        let n_prompt = N_PROMPT.min(self.config.n_batch).min(handle.limits().n_ctx / 4);
        let n_cycles = self.proposer.as_mut().map_or(0, |p| p.rehearse(true));
        let options = RequestOptions {
            sampling: SamplingParams::greedy(),
            ignore_eos: true,
            cache: false,
            max_draft: (n_cycles == 0).then_some(0),
            ..RequestOptions::default()
        };
        let request = GenerateRequest::new(vec![TokenId(0); n_prompt], options, handle.limits());
        if let Ok(answer) = request.map_err(drop).and_then(|request| handle.submit(request).map_err(drop)) {
            let start = Instant::now();
            let mut n_left = n_cycles.max(N_PLAIN);
            self.turn();
            while n_left > 0 && !self.is_idle() && start.elapsed() < BUDGET {
                n_left -= usize::from(!self.sequences.iter().any(|s| s.is_prefill()));
                self.turn();
            }
            drop(answer);
            while !self.is_idle() {
                self.turn();
            }
        }
        if let Some(proposer) = &mut self.proposer {
            proposer.rehearse(false);
        }
        self.stats = EngineStats::default();
    }
}
