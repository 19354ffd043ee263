//! The engine's thread: takes requests, runs steps, hands out events.
//! Owns the model's state and compute. Everything it does between two steps is short.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use memory::Memory;
use model::{Model, Pass, PassOutput, Rows, RunError, Runner};
use text::TokenId;

use crate::cache::SlotCache;
use crate::config::{EngineConfig, EngineError};
use crate::handle::{Command, EngineHandle, Submission};
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
    /// Makes state and compute buffers for `model` and starts the thread that owns them.
    ///
    /// # Errors
    /// [`EngineError`]: settings that make no engine, or no room.
    pub fn spawn(model: Arc<Model>, config: EngineConfig) -> Result<EngineHandle, EngineError> {
        if config.n_sequences == 0 || config.n_batch == 0 || config.n_batch_shared == 0 {
            return Err(EngineError::Config("an engine needs at least one sequence and one row a pass".into()));
        }
        if config.n_sequences > config.n_batch {
            let what = format!("{} sequences do not fit into passes of {} rows", config.n_sequences, config.n_batch);
            return Err(EngineError::Config(what));
        }
        let mut memory = model.memory(config.memory(&model))?;
        let mut runner = Runner::new(Arc::clone(&model), config.n_threads())?;
        reserve(&mut runner, &mut memory, &config)?;
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
            cache,
            commands,
            n_waiting,
            waiting: VecDeque::new(),
            sequences: Vec::new(),
            output: PassOutput::default(),
            stats: EngineStats::default(),
            turn: 0,
            open: true,
        };
        std::thread::Builder::new().name("nextn-engine".into()).spawn(move || state.run())?;
        Ok(handle)
    }
}

/// Makes room for the largest pass: a full prompt piece at the end of the context.
fn reserve(runner: &mut Runner, memory: &mut Memory, config: &EngineConfig) -> Result<(), EngineError> {
    let Some(slot) = memory.acquire()? else { return Ok(()) };
    let n_rows = config.n_batch.min(memory.config().n_ctx);
    let widest = memory.begin(&[(&slot, n_rows)], 1)?;
    runner.reserve(widest.view().over_whole_context().view(), 1, false)?;
    drop(widest);
    memory.release(slot);
    Ok(())
}

struct State {
    model: Arc<Model>,
    config: EngineConfig,
    memory: Memory,
    runner: Runner,
    cache: SlotCache,
    commands: mpsc::Receiver<Command>,
    n_waiting: Arc<AtomicUsize>,
    waiting: VecDeque<Submission>,
    sequences: Vec<Sequence>,
    output: PassOutput,
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
            Ok(()) => self.after(&parts),
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

    /// One pass over the parts' rows; keeps all of them.
    fn compute(&mut self, parts: &[Part]) -> Result<(), RunError> {
        let slots: Vec<_> =
            parts.iter().map(|p| (&self.cache.get(self.sequences[p.sequence].slot).slot, p.n_rows)).collect();
        let txn = self.memory.begin(&slots, 1)?;
        let mut tokens: Vec<TokenId> = Vec::with_capacity(txn.n_rows());
        let mut rows = Vec::with_capacity(parts.len());
        for p in parts {
            tokens.extend(self.sequences[p.sequence].pending.iter().take(p.n_rows));
            if p.samples {
                rows.push(tokens.len() - 1);
            }
        }
        let pass = Pass { tokens: &tokens, rows: Rows::Some(&rows), hidden: false };
        self.runner.run(txn.view(), &pass, &mut self.output)?;
        let kept: Vec<usize> = parts.iter().map(|p| p.n_rows).collect();
        txn.commit(&kept)?;
        Ok(())
    }

    /// Books the rows of a computed step, takes checkpoints that are due, picks tokens.
    fn after(&mut self, parts: &[Part]) {
        let mut n_sampled = 0;
        for part in parts {
            let s = &mut self.sequences[part.sequence];
            let computed: Vec<TokenId> = s.pending.drain(..part.n_rows).collect();
            self.cache.extend(s.slot, &computed);
            if s.is_prefill() {
                s.prompt_advanced(part.n_rows);
                if s.checkpoints.front() == Some(&s.n_prompt_done) {
                    s.checkpoints.pop_front();
                    if let Err(error) = self.cache.checkpoint(&self.memory, s.slot) {
                        tracing::warn!(%error, "no checkpoint: the next turn computes more");
                    }
                }
            }
            if part.samples {
                s.advance(self.output.logits(n_sampled), self.model.vocab());
                n_sampled += 1;
            }
        }
    }

    /// Lets go of sequences that are done or that nobody waits for.
    fn retire(&mut self) {
        let Self { sequences, cache, .. } = self;
        sequences.retain(|s| {
            let gone = s.is_cancelled() || s.finished && !s.is_blocked();
            if gone {
                cache.release(s.slot);
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
