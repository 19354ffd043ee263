//! Warm-up: hidden requests at batch size 1, max and max/4 before the first real one. Kernels are loaded, graphs built, and
//! a proposer measures what its drafts cost. They leave nothing else behind.

use std::time::{Duration, Instant};

use text::TokenId;

use super::Engine;
use crate::handle::EngineHandle;
use crate::request::{GenerateRequest, RequestOptions};
use crate::sample::SamplingParams;
use crate::sequence::Sequence;
use crate::stats::EngineStats;

/// Tokens of the prompt at most: kernels for large batches are loaded too.
const N_PROMPT: usize = 64;

/// Tokens of the prompt where several requests run.
const N_SHORT_PROMPT: usize = 4;

/// No step begins after so long: a slow device is not worth waiting for. One sequence comes first, and so do short drafts.
const BUDGET: Duration = Duration::from_secs(2);

/// Steps where no drafts are to be measured.
const N_PLAIN: usize = 3;

impl Engine {
    /// Runs it on the calling thread; `handle` is the only one so far. What goes wrong here will go wrong again for a
    /// request, where somebody is told.
    pub(super) fn warm_up(&mut self, handle: &EngineHandle) {
        let start = Instant::now();
        let most = self.config.n_sequences.min(self.config.max_queue);
        self.warming_up = true;
        for n_sequences in std::iter::once(1).chain([most, most / 4].into_iter().filter(|n| *n > 1)) {
            self.warm_up_batch(handle, n_sequences, start);
        }
        self.warming_up = false;
        self.stats = EngineStats::default();
    }

    /// So many requests at once.
    fn warm_up_batch(&mut self, handle: &EngineHandle, n_sequences: usize, start: Instant) {
        let n_steps = self.state.drafter.info().warm_up_steps;
        let n_prompt = if n_sequences == 1 { N_PROMPT.min(self.config.n_batch) } else { N_SHORT_PROMPT };
        let n_prompt = n_prompt.min(handle.limits().n_ctx / 4);
        let options = RequestOptions {
            sampling: SamplingParams::greedy(),
            ignore_eos: true,
            cache: false,
            max_draft: (n_steps == 0).then_some(0),
            ..RequestOptions::default()
        };
        let submit = || {
            let request = GenerateRequest::new(vec![TokenId(0); n_prompt], options.clone(), handle.limits());
            request.map_err(drop).and_then(|request| handle.submit(request).map_err(drop))
        };
        let Ok(generations) = (0..n_sequences).map(|_| submit()).collect::<Result<Vec<_>, ()>>() else { return };
        let mut n_left = n_steps.max(N_PLAIN);
        while n_left > 0 && start.elapsed() < BUDGET {
            self.step();
            if self.is_idle() {
                break;
            }
            let in_prompts = self.sequences.len() < n_sequences || self.sequences.iter().any(Sequence::is_prefill);
            n_left -= usize::from(!in_prompts);
        }
        drop(generations);
        while !self.is_idle() {
            self.step();
        }
    }
}
