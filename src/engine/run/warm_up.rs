//! Answers that nobody asked for, before the first request: kernels are loaded, graphs built, and a proposer measures what
//! its drafts cost, for one answer, for as many as there may be, and for some between. They leave nothing else behind.

use std::time::{Duration, Instant};

use text::TokenId;

use super::{EngineStats, State};
use crate::handle::EngineHandle;
use crate::request::{GenerateRequest, RequestOptions};
use crate::sample::SamplingParams;
use crate::sequence::Sequence;

/// Rows of the prompt at most: kernels for many rows are loaded too.
const N_PROMPT: usize = 64;

/// No turn begins after so long: a slow device is not worth waiting for. One answer comes first, and so do shallow depths.
const BUDGET: Duration = Duration::from_secs(2);

/// Passes of one row where no drafts are to be measured.
const N_PLAIN: usize = 3;

/// Rows of the prompt where several answers run.
const N_SHORT_PROMPT: usize = 4;

impl State {
    /// Runs it on the calling thread; `handle` is the only one so far. What goes wrong here will go wrong again in an answer,
    /// where somebody is told.
    pub(super) fn warm_up(&mut self, handle: &EngineHandle) {
        let start = Instant::now();
        let most = self.config.n_sequences.min(self.config.max_queue);
        for n_answers in std::iter::once(1).chain([most, most / 4].into_iter().filter(|n| *n > 1)) {
            self.rehearse(handle, n_answers, start);
        }
        if let Some(proposer) = &mut self.proposer {
            proposer.rehearse(None);
        }
        self.stats = EngineStats::default();
    }

    /// So many answers at once.
    fn rehearse(&mut self, handle: &EngineHandle, n_answers: usize, start: Instant) {
        let n_cycles = self.proposer.as_mut().map_or(0, |p| p.rehearse(Some(n_answers)));
        let n_prompt = if n_answers == 1 { N_PROMPT.min(self.config.n_batch) } else { N_SHORT_PROMPT };
        let n_prompt = n_prompt.min(handle.limits().n_ctx / 4);
        let options = RequestOptions {
            sampling: SamplingParams::greedy(),
            ignore_eos: true,
            cache: false,
            max_draft: (n_cycles == 0).then_some(0),
            ..RequestOptions::default()
        };
        let answer = || {
            let request = GenerateRequest::new(vec![TokenId(0); n_prompt], options.clone(), handle.limits());
            request.map_err(drop).and_then(|request| handle.submit(request).map_err(drop))
        };
        let Ok(answers) = (0..n_answers).map(|_| answer()).collect::<Result<Vec<_>, ()>>() else { return };
        let mut n_left = n_cycles.max(N_PLAIN);
        while n_left > 0 && start.elapsed() < BUDGET {
            self.turn();
            if self.is_idle() {
                break;
            }
            let in_prompts = self.sequences.len() < n_answers || self.sequences.iter().any(Sequence::is_prefill);
            n_left -= usize::from(!in_prompts);
        }
        drop(answers);
        while !self.is_idle() {
            self.turn();
        }
    }
}
