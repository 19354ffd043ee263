//! The engine's thread: takes requests, runs steps, hands out events.
//! Owns the model's state and compute. Everything it does between two steps is short.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{self, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use memory::Memory;
use model::{Model, Pass, PassOutput, Rows, RunError, Runner};
use text::TokenId;

use crate::cache::SlotCache;
use crate::config::{EngineConfig, EngineError};
use crate::event::Event;
use crate::handle::{Command, EngineHandle, Submission};
use crate::request::Limits;
use crate::schedule::{Part, schedule};
use crate::sequence::Sequence;

/// How long to wait for lagging readers before looking again, at first and after many times in vain.
const READER_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

/// What an engine has done since it started.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineStats {
    /// Passes computed.
    pub n_steps: u64,
    /// Rows of those passes.
    pub n_rows: u64,
    /// Time in steps, from taking commands and picking the rows to handing out the events.
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
        let (state, handle) = State::new(model, config)?;
        std::thread::Builder::new().name("nextn-engine".into()).spawn(move || state.run())?;
        Ok(handle)
    }
}

/// Makes room for the largest pass: a full prompt piece at the end of the context.
fn reserve(runner: &mut Runner, memory: &mut Memory, config: &EngineConfig) -> Result<(), EngineError> {
    let Some(slot) = memory.acquire()? else { return Ok(()) };
    let n_rows = config.n_batch.min(memory.config().n_ctx);
    let widest = memory.begin(&[(&slot, n_rows)], 1)?;
    runner.reserve(widest.view().over_whole_context().view(), config.n_sequences, false)?;
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
    // Before the requests: should the thread panic, whoever sees a generation end finds the engine stopped.
    commands: mpsc::Receiver<Command>,
    waiting: VecDeque<Submission>,
    /// Those that have a slot.
    sequences: Vec<Sequence>,
    /// Those that are done and wait for their reader to take the last events; they have no slot any more.
    leaving: Vec<Sequence>,
    output: PassOutput,
    stats: EngineStats,
    /// How long to wait for lagging readers next time.
    pause: Duration,
    /// Some handle is left.
    open: bool,
}

impl State {
    fn new(model: Arc<Model>, config: EngineConfig) -> Result<(Self, EngineHandle), EngineError> {
        config.check()?;
        let wanted = config.memory(&model);
        let mut memory = model.memory(wanted)?;
        let mut runner = Runner::new(Arc::clone(&model), config.n_threads())?;
        reserve(&mut runner, &mut memory, &config)?;
        let cache = SlotCache::new(&mut memory, config.checkpoint_bytes)?;
        // As asked: memory rounds up, which is neither what the user said nor what the model was trained for.
        let limits = Limits { n_ctx: wanted.n_ctx, n_vocab: model.hparams().n_vocab };
        let (sender, commands) = mpsc::channel();
        let handle = EngineHandle {
            commands: sender,
            model: Arc::clone(&model),
            limits,
            n_waiting: Arc::new(AtomicUsize::new(0)),
            max_queue: config.max_queue,
        };
        let state = State {
            model,
            config,
            memory,
            runner,
            cache,
            commands,
            waiting: VecDeque::new(),
            sequences: Vec::new(),
            leaving: Vec::new(),
            output: PassOutput::default(),
            stats: EngineStats::default(),
            pause: READER_PAUSE,
            open: true,
        };
        Ok((state, handle))
    }

    fn run(mut self) {
        while self.open || !self.is_idle() {
            self.turn();
        }
        tracing::debug!(n_steps = self.stats.n_steps, "engine ends");
    }

    /// Nobody is owed anything.
    fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.leaving.is_empty() && self.waiting.is_empty()
    }

    /// Once round: what has come in, one step if there is one to make, what goes out.
    fn turn(&mut self) {
        if !self.has_work() {
            self.wait();
        }
        let start = Instant::now();
        self.take_commands();
        self.admit();
        let parts = schedule(&self.sequences, self.config.n_batch, self.config.n_batch_shared);
        let n_rows: usize = parts.iter().map(|p| p.n_rows).sum();
        if n_rows > 0 {
            self.step(parts);
        }
        self.sequences.iter_mut().for_each(Sequence::deliver);
        self.leaving.iter_mut().for_each(Sequence::deliver);
        self.retire();
        if n_rows > 0 {
            self.stats.n_rows += n_rows as u64;
            self.pause = READER_PAUSE;
            self.stats.step += start.elapsed();
        }
    }

    /// Something may be computed now.
    fn has_work(&self) -> bool {
        self.sequences.iter().any(|s| !s.is_blocked()) || self.cache.has_free() && !self.waiting.is_empty()
    }

    /// Sleeps until a command comes; while readers lag behind only for a moment, and longer the longer they do.
    fn wait(&mut self) {
        let command = if self.is_idle() {
            self.commands.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else if self.open {
            self.commands.recv_timeout(self.pause)
        } else {
            std::thread::sleep(self.pause);
            Err(RecvTimeoutError::Timeout)
        };
        match command {
            Ok(command) => self.take(command),
            Err(RecvTimeoutError::Timeout) => self.pause = (2 * self.pause).min(LONGEST_PAUSE),
            Err(RecvTimeoutError::Disconnected) => self.open = false,
        }
    }

    /// Takes what has come in.
    fn take_commands(&mut self) {
        while self.open {
            match self.commands.try_recv() {
                Ok(command) => self.take(command),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => self.open = false,
            }
        }
    }

    fn take(&mut self, command: Command) {
        match command {
            Command::Submit(submission) => self.waiting.push_back(*submission),
            Command::Stats(to) => {
                // The asker may be gone: nobody to tell then.
                let _ = to.send(self.stats());
            }
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
        self.waiting.retain(|s| !s.events.is_closed());
        while self.cache.has_free()
            && let Some(submission) = self.waiting.pop_front()
        {
            let request = &submission.request;
            match self.cache.take(&mut self.memory, request.prompt(), request.options().cache) {
                Ok(Some((slot, n_cached))) => {
                    self.sequences.push(Sequence::new(submission, slot, n_cached, self.stats.n_steps));
                }
                Ok(None) => return self.waiting.push_front(submission),
                Err(error) => {
                    // The reader may be gone: nobody to tell then.
                    let _ = submission.events.try_send(Event::Failed(error.to_string()));
                }
            }
        }
    }

    fn step(&mut self, mut parts: Vec<Part>) {
        self.stats.n_steps += 1;
        parts.sort_by_key(|p| self.cache.get(self.sequences[p.sequence].slot).slot.index());
        for part in &parts {
            self.sequences[part.sequence].last_step = self.stats.n_steps;
        }
        match self.compute(&parts) {
            Ok(()) => self.after(&parts),
            Err(error) => {
                tracing::error!(%error, "a step was not computed");
                for part in &parts {
                    let s = &mut self.sequences[part.sequence];
                    s.fail(error.to_string());
                    self.cache.forget(&mut self.memory, s.slot);
                }
            }
        }
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

    /// Takes slots back from sequences that are done or that nobody waits for. A reader that lags behind keeps no slot
    /// once its answer is complete.
    fn retire(&mut self) {
        let done = |s: &mut Sequence| s.finished || s.is_cancelled();
        for s in self.sequences.extract_if(.., done) {
            if s.request.options().cache {
                self.cache.release(s.slot);
            } else {
                self.cache.forget(&mut self.memory, s.slot);
            }
            self.leaving.push(s);
        }
        self.leaving.retain(|s| s.is_blocked() && !s.is_cancelled());
    }
}
