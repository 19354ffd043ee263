//! The engine's thread: takes requests, runs steps, hands out events.
//! Owns the model's state and compute. Everything it does between two steps is short.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use memory::{Memory, MemoryConfig};
use model::{Model, Pass, PassOutput, Rows, RunError, Runner};
use text::TokenId;

use crate::cache::SlotCache;
use crate::config::{EngineConfig, EngineError};
use crate::handle::{Command, EngineHandle, Submission};
use crate::proposer::{Ask, Observed, Proposer};
use crate::request::Limits;
use crate::schedule::{Part, schedule};
use crate::sequence::Sequence;

/// How long to wait for slow readers before looking again.
const READER_PAUSE: Duration = Duration::from_millis(1);

/// Checkpoints that one prompt asks for at most: its first border and its last ones.
const LAST_BORDERS: usize = 3;

/// What an engine has done since it started.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineStats {
    /// Passes computed.
    pub n_steps: u64,
    /// Rows of those passes.
    pub n_rows: u64,
    /// Time in steps, from picking the rows to handing out the events.
    pub step: Duration,
    /// Of that, ggml's computation.
    pub compute: Duration,
    /// Graphs built.
    pub n_builds: u64,
    /// Bytes of sequence state.
    pub state_bytes: usize,
    /// Bytes of compute buffers.
    pub compute_bytes: usize,
}

/// Makes engines.
pub struct Engine;

impl Engine {
    /// Makes state and compute buffers for `model` and starts the thread that owns them. Every token takes a pass.
    ///
    /// # Errors
    /// [`EngineError`]: settings that make no engine, or no room.
    pub fn spawn(model: Arc<Model>, config: EngineConfig) -> Result<EngineHandle, EngineError> {
        Self::spawn_with(model, config, None)
    }

    /// As [`Engine::spawn`], with `proposer` drafting tokens that one pass judges together.
    ///
    /// # Errors
    /// As [`Engine::spawn`].
    pub fn spawn_with(
        model: Arc<Model>,
        config: EngineConfig,
        proposer: Option<Box<dyn Proposer>>,
    ) -> Result<EngineHandle, EngineError> {
        let depth = proposer.as_ref().map_or(0, |p| p.max_depth());
        if config.n_sequences == 0 || config.n_batch == 0 || config.n_batch_shared == 0 {
            return Err(EngineError::Config("an engine needs at least one sequence and one row a pass".into()));
        }
        if config.n_sequences > config.n_batch {
            let what = format!("{} sequences do not fit into passes of {} rows", config.n_sequences, config.n_batch);
            return Err(EngineError::Config(what));
        }
        if (depth + 1).saturating_mul(config.n_sequences) > config.n_batch {
            let what = format!(
                "drafts of {depth} tokens for {} sequences do not fit into passes of {} rows",
                config.n_sequences, config.n_batch
            );
            return Err(EngineError::Config(what));
        }
        let mut memory = model.memory(MemoryConfig { n_snapshots: depth + 1, ..config.memory(&model) })?;
        let mut runner = Runner::new(Arc::clone(&model), config.n_threads())?;
        reserve(&mut runner, &mut memory, &config, proposer.is_some())?;
        let cache = SlotCache::new(&mut memory, config.checkpoint_bytes)?;
        let n_ctx = config.n_ctx.unwrap_or(memory.config().n_ctx).min(memory.config().n_ctx);
        let limits = Limits { n_ctx, n_vocab: model.hparams().n_vocab };
        let (sender, commands) = mpsc::channel();
        let n_waiting = Arc::new(AtomicUsize::new(0));
        let handle = EngineHandle {
            commands: sender,
            model: Arc::clone(&model),
            limits,
            n_waiting: Arc::clone(&n_waiting),
            max_queue: config.max_queue,
        };
        let state = State {
            model,
            config,
            memory,
            runner,
            proposer,
            cache,
            commands,
            n_waiting,
            waiting: VecDeque::new(),
            sequences: Vec::new(),
            output: PassOutput::default(),
            step_tokens: Vec::new(),
            pass_took: Duration::ZERO,
            stats: EngineStats::default(),
            turn: 0,
            open: true,
        };
        std::thread::Builder::new().name("nextn-engine".into()).spawn(move || state.run())?;
        Ok(handle)
    }
}

/// Makes room for the largest pass: a full prompt piece at the end of the context.
fn reserve(runner: &mut Runner, memory: &mut Memory, config: &EngineConfig, hidden: bool) -> Result<(), EngineError> {
    let Some(slot) = memory.acquire()? else { return Ok(()) };
    let n_rows = config.n_batch.min(memory.config().n_ctx);
    let widest = memory.begin(&[(&slot, n_rows)], 1)?;
    runner.reserve(widest.view().over_whole_context().view(), 1, hidden)?;
    drop(widest);
    memory.release(slot);
    Ok(())
}

struct State {
    model: Arc<Model>,
    config: EngineConfig,
    memory: Memory,
    runner: Runner,
    proposer: Option<Box<dyn Proposer>>,
    cache: SlotCache,
    commands: mpsc::Receiver<Command>,
    n_waiting: Arc<AtomicUsize>,
    waiting: VecDeque<Submission>,
    sequences: Vec<Sequence>,
    output: PassOutput,
    /// The tokens of the last step's rows.
    step_tokens: Vec<TokenId>,
    /// Time of the last step's pass.
    pass_took: Duration,
    stats: EngineStats,
    /// Counts steps with a prompt piece, so that prompts take turns.
    turn: usize,
    /// Some handle is left.
    open: bool,
}

impl State {
    fn run(mut self) {
        while self.open || !self.sequences.is_empty() || !self.waiting.is_empty() {
            self.take_commands();
            self.admit();
            self.propose();
            let parts = schedule(&self.sequences, self.turn, self.config.n_batch, self.config.n_batch_shared);
            if !parts.is_empty() {
                self.step(parts);
            }
            self.sequences.iter_mut().for_each(Sequence::deliver);
            self.retire();
        }
        tracing::debug!(n_steps = self.stats.n_steps, "engine ends");
    }

    /// Takes what has come in; waits when there is nothing to compute.
    fn take_commands(&mut self) {
        let mut wait = self.sequences.iter().all(Sequence::is_blocked);
        while self.open {
            let command = if !wait {
                self.commands.try_recv()
            } else if self.sequences.is_empty() && self.waiting.is_empty() {
                self.commands.recv().map_err(|_| TryRecvError::Disconnected)
            } else {
                self.commands.recv_timeout(READER_PAUSE).map_err(|e| match e {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                })
            };
            wait = false;
            match command {
                Ok(Command::Submit(submission)) => self.waiting.push_back(*submission),
                Ok(Command::Stats(to)) => {
                    // The asker may be gone: nobody to tell then.
                    let _ = to.send(self.stats());
                }
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => self.open = false,
            }
        }
        if wait && !self.sequences.is_empty() {
            std::thread::sleep(READER_PAUSE);
        }
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            compute: self.runner.stats().compute,
            n_builds: self.runner.stats().n_builds,
            state_bytes: self.memory.n_bytes(),
            compute_bytes: self.runner.buffer_bytes(),
            ..self.stats
        }
    }

    /// Gives free slots to waiting requests, in order.
    fn admit(&mut self) {
        self.waiting.retain(|s| {
            let wanted = !s.events.is_closed();
            if !wanted {
                self.n_waiting.fetch_sub(1, Ordering::Relaxed);
            }
            wanted
        });
        while self.cache.has_free()
            && let Some(submission) = self.waiting.pop_front()
        {
            self.n_waiting.fetch_sub(1, Ordering::Relaxed);
            let request = &submission.request;
            match self.cache.take(&mut self.memory, request.prompt(), request.options().cache) {
                Ok(Some((slot, n_cached))) => {
                    self.begin(slot, n_cached);
                    let checkpoints = due_checkpoints(request, n_cached);
                    self.sequences.push(Sequence::new(submission, slot, n_cached, checkpoints));
                }
                Ok(None) => return self.waiting.push_front(submission),
                Err(error) => {
                    // The reader may be gone: nobody to tell then.
                    let _ = submission.events.try_send(crate::event::Event::Failed(error.to_string()));
                }
            }
        }
    }

    fn step(&mut self, mut parts: Vec<Part>) {
        let start = Instant::now();
        parts.sort_by_key(|p| self.cache.get(self.sequences[p.sequence].slot).slot.index());
        if parts.iter().any(|p| self.sequences[p.sequence].is_prefill()) {
            self.turn += 1;
        }
        match self.compute(&parts) {
            Ok(kept) => self.after(&parts, &kept),
            Err(error) => {
                tracing::error!(%error, "a step was not computed");
                for part in &parts {
                    let s = &mut self.sequences[part.sequence];
                    s.fail(error.to_string());
                    if let Err(error) = self.cache.forget(&mut self.memory, s.slot) {
                        tracing::error!(%error, slot = s.slot, "the slot was not cleared");
                    }
                }
            }
        }
        self.stats.n_steps += 1;
        self.stats.n_rows += parts.iter().map(|p| p.n_rows as u64).sum::<u64>();
        self.stats.step += start.elapsed();
    }

    /// Tells the proposer that a slot was taken up at its first `n_cached` tokens.
    fn begin(&mut self, slot: usize, n_cached: usize) {
        let Some(proposer) = &mut self.proposer else { return };
        if let Err(error) = proposer.begin(slot, n_cached, self.cache.hidden(slot)) {
            self.stop_drafting(&error);
        }
    }

    /// Drafts for answers that are running and have none.
    fn propose(&mut self) {
        let Some(proposer) = &mut self.proposer else { return };
        let running = |s: &Sequence| !s.finished && !s.is_prefill() && !s.is_blocked() && !s.is_cancelled();
        let depth = proposer.max_depth();
        let mut asks: Vec<(Ask, usize)> = Vec::new();
        for (i, s) in self.sequences.iter().enumerate() {
            let max = s.max_draft().min(depth);
            if running(s) && s.draft.is_empty() && max > 0 {
                asks.push((Ask { slot: s.slot, max }, i));
            }
        }
        if asks.is_empty() {
            return;
        }
        asks.sort_unstable_by_key(|(ask, _)| ask.slot);
        let only: Vec<Ask> = asks.iter().map(|(ask, _)| *ask).collect();
        match proposer.propose(&mut self.runner, &only) {
            Ok(drafts) => {
                for ((_, i), draft) in asks.iter().zip(drafts) {
                    self.sequences[*i].draft = draft;
                }
            }
            Err(error) => self.stop_drafting(&error),
        }
    }

    /// Goes on without drafts: answers are the same, only slower.
    fn stop_drafting(&mut self, error: &RunError) {
        tracing::error!(%error, "drafting failed: going on without speculation");
        self.proposer = None;
    }

    /// One pass over the parts' rows. Picks tokens and keeps the rows that agree with them; gives the numbers of rows
    /// kept.
    fn compute(&mut self, parts: &[Part]) -> Result<Vec<usize>, RunError> {
        let slots: Vec<_> =
            parts.iter().map(|p| (&self.cache.get(self.sequences[p.sequence].slot).slot, p.n_rows)).collect();
        let n_snapshots = parts.iter().map(|p| 1 + p.n_draft).max().unwrap_or(1);
        let txn = self.memory.begin(&slots, n_snapshots)?;
        let mut tokens: Vec<TokenId> = Vec::with_capacity(txn.n_rows());
        let mut rows = Vec::with_capacity(parts.len());
        for p in parts {
            let s = &self.sequences[p.sequence];
            tokens.extend(s.pending.iter().take(p.n_rows - p.n_draft));
            if p.samples {
                rows.extend(tokens.len() - 1..tokens.len() + p.n_draft);
            }
            tokens.extend_from_slice(&s.draft);
        }
        let hidden = self.proposer.as_ref().is_some_and(|p| p.wants_hidden());
        let start = Instant::now();
        self.runner.run(txn.view(), &Pass { tokens: &tokens, rows: Rows::Some(&rows), hidden }, &mut self.output)?;
        self.pass_took = start.elapsed();
        let mut first = 0;
        let mut kept = Vec::with_capacity(parts.len());
        for p in parts {
            let mut n_kept = p.n_rows;
            if p.samples {
                let s = &mut self.sequences[p.sequence];
                let right = s.judge(|i| self.output.logits(first + i), self.model.vocab());
                n_kept = p.n_rows - p.n_draft + right;
                first += 1 + p.n_draft;
            }
            kept.push(n_kept);
        }
        txn.commit(&kept)?;
        self.step_tokens = tokens;
        Ok(kept)
    }

    /// Books the rows that a step kept, tells the proposer, takes checkpoints that are due.
    fn after(&mut self, parts: &[Part], kept: &[usize]) {
        let mut first = 0;
        let mut observed = Vec::with_capacity(parts.len());
        let n_embd = self.model.hparams().n_embd;
        for (part, &n_kept) in parts.iter().zip(kept) {
            let s = &mut self.sequences[part.sequence];
            let tokens = &self.step_tokens[first..first + n_kept];
            s.pending.drain(..part.n_rows - part.n_draft);
            self.cache.extend(s.slot, tokens);
            if s.is_prefill() {
                s.prompt_advanced(n_kept);
            }
            let hidden = if self.output.hidden.is_empty() { 0..0 } else { first * n_embd..(first + n_kept) * n_embd };
            observed.push(Observed {
                slot: s.slot,
                tokens,
                hidden: &self.output.hidden[hidden],
                next: s.pending.front().copied().filter(|_| part.samples),
                n_drafted: part.n_draft,
                n_accepted: n_kept + part.n_draft - part.n_rows,
            });
            first += part.n_rows;
        }
        let took = parts.iter().all(|p| p.samples && p.n_rows == 1 + p.n_draft).then_some(self.pass_took);
        let failed = self.proposer.as_mut().and_then(|p| p.observe(&mut self.runner, &observed, took).err());
        if let Some(error) = failed {
            self.stop_drafting(&error);
        }
        for part in parts {
            let s = &mut self.sequences[part.sequence];
            if s.checkpoints.front() == Some(&s.n_prompt_done) {
                s.checkpoints.pop_front();
                let hidden = self.proposer.as_ref().and_then(|p| p.hidden(s.slot));
                if let Err(error) = self.cache.checkpoint(&self.memory, s.slot, hidden) {
                    tracing::warn!(%error, "no checkpoint: the next turn computes more");
                }
            }
        }
    }

    /// Lets go of sequences that are done or that nobody waits for.
    fn retire(&mut self) {
        let Self { sequences, cache, proposer, .. } = self;
        sequences.retain(|s| {
            let gone = s.is_cancelled() || s.finished && !s.is_blocked();
            if gone {
                cache.release(s.slot, proposer.as_ref().and_then(|p| p.hidden(s.slot)));
            }
            !gone
        });
    }
}

/// Where to take checkpoints in a prompt: at its first border and at its last ones, as far as they are still to come.
fn due_checkpoints(request: &crate::request::GenerateRequest, n_cached: usize) -> VecDeque<usize> {
    let borders = &request.options().borders;
    let n_last = borders.len().saturating_sub(LAST_BORDERS);
    let kept = borders.iter().enumerate().filter(|&(i, _)| i == 0 || i >= n_last).map(|(_, &b)| b);
    let to_come = kept.filter(|&b| b > n_cached && b < request.prompt().len());
    if request.options().cache { to_come.collect() } else { VecDeque::new() }
}
