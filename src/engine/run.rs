//! The engine's thread: takes requests, runs steps (`cycle.rs`), hands out events.
//! Owns the model's state and compute. Everything it does between two steps is short.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{self, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use memory::Memory;
use model::{Model, PassOutput, Runner, Stats};
use text::TokenId;

use crate::cache::{SlotCache, Wish};
use crate::config::{EngineConfig, EngineError};
use crate::event::Event;
use crate::handle::{Command, EngineHandle, Submission};
use crate::life::{EngineLife, Told};
use crate::live::Live;
use crate::proposer::Proposer;
use crate::request::Limits;
use crate::room::{check_room, explain};
use crate::saved::SlotFormat;
use crate::schedule::{Company, schedule};
use crate::sequence::Sequence;
use crate::slots::SlotInfo;

/// How long to wait for lagging readers before looking again, at first and after many times in vain.
const READER_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

/// Stack of the engine's thread; grammars that requests carry may recurse. Only what is used takes memory.
const STACK: usize = 64 << 20;

/// What an engine has done since it started.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineStats {
    /// Passes computed.
    pub n_steps: u64,
    /// Rows of those passes.
    pub n_rows: u64,
    /// Sequences that had rows in those passes, over all passes.
    pub n_busy: u64,
    /// Time in steps, from taking commands and picking the rows to handing out the events.
    pub step: Duration,
    /// ggml's computation: of that, but for drafts that are made beside the engine.
    pub compute: Duration,
    /// Graphs launched: passes, and those of drafts.
    pub n_launches: u64,
    /// Graphs built.
    pub n_builds: u64,
    /// Bytes brought to the device and back.
    pub n_bytes_copied: u64,
    /// Bytes of sequence state.
    pub state_bytes: usize,
    /// Bytes of compute buffers.
    pub compute_bytes: usize,
    /// Bytes of checkpoints of the sequences in slots.
    pub checkpoint_bytes: usize,
    /// Bytes of stored sequences.
    pub stored_bytes: usize,
}

/// Makes engines.
pub struct Engine;

impl Engine {
    /// Makes state and compute buffers for `model` and starts the thread that owns them.
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
        let warm_up = config.warm_up.unwrap_or(!model.is_on_cpu());
        let (mut state, handle) = State::new(model, config, proposer)?;
        if warm_up {
            state.warm_up(&handle);
        }
        let life = handle.life();
        let thread = move || {
            // Dropped last: the state is gone by then, whichever way the thread ends.
            let _freed = life.frees();
            state.run();
        };
        std::thread::Builder::new().name("nextn-engine".into()).stack_size(STACK).spawn(thread)?;
        Ok(handle)
    }
}

/// Makes room for the largest pass: a full prompt piece at the end of the context.
fn reserve(runner: &mut Runner, memory: &mut Memory, config: &EngineConfig, hidden: bool) -> Result<(), EngineError> {
    let Some(slot) = memory.acquire()? else { return Ok(()) };
    let n_rows = config.n_batch.min(memory.config().n_ctx);
    let widest = memory.begin(&[(&slot, n_rows)], 1)?;
    runner.reserve(widest.view().over_whole_context().view(), config.n_sequences, hidden)?;
    drop(widest);
    memory.release(slot);
    Ok(())
}

struct State {
    model: Arc<Model>,
    config: EngineConfig,
    company: Company,
    memory: Memory,
    runner: Runner,
    proposer: Option<Box<dyn Proposer>>,
    cache: SlotCache,
    // These two before the requests: should the thread panic, whoever sees a generation end finds the engine stopped.
    _stopped: Told,
    commands: mpsc::Receiver<Command>,
    waiting: VecDeque<Submission>,
    /// Those that have a slot.
    sequences: Vec<Sequence>,
    /// Those that are done and wait for their reader to take the last events; they have no slot any more.
    leaving: Vec<Sequence>,
    output: PassOutput,
    /// The tokens of the last step's rows.
    step_tokens: Vec<TokenId>,
    /// When the turn began, and what had been computed until then.
    turn: (Instant, Stats),
    /// Cycles in turn that built graphs.
    builds: u32,
    stats: EngineStats,
    /// How long to wait for lagging readers next time.
    pause: Duration,
    /// Some handle is left.
    open: bool,
}

impl State {
    fn new(
        model: Arc<Model>,
        config: EngineConfig,
        proposer: Option<Box<dyn Proposer>>,
    ) -> Result<(Self, EngineHandle), EngineError> {
        config.check()?;
        let company = config.company(model.facts());
        let depth = proposer.as_ref().map_or(0, |p| p.max_depth()).min(company.max_draft());
        if (depth + 1).saturating_mul(config.n_sequences) > config.n_batch {
            let (n_sequences, n_batch) = (config.n_sequences, config.n_batch);
            let what = format!(
                "drafts of {depth} tokens for {n_sequences} sequences do not fit into passes of {n_batch} rows"
            );
            return Err(EngineError::Config(what));
        }
        let kept = |config: &EngineConfig| config.kept(model.facts(), depth);
        check_room(&model, &config, &kept)?;
        let mut memory = model.memory(kept(&config).state).map_err(|e| explain(e.into(), &model, &config, &kept))?;
        let mut runner = Runner::new(Arc::clone(&model), config.n_threads())?;
        if let Err(error) = reserve(&mut runner, &mut memory, &config, proposer.is_some() || config.embeddings) {
            // What is free without it.
            drop((memory, runner));
            return Err(explain(error, &model, &config, &kept));
        }
        let cache = SlotCache::new(&mut memory, config.cache(&model))?;
        // As asked: memory rounds up, which is neither what the user said nor what the model was trained for.
        let limits = Limits { n_ctx: config.n_ctx(model.facts()), n_vocab: model.hparams().n_vocab };
        let (sender, commands) = mpsc::channel();
        let life = EngineLife::default();
        let handle = EngineHandle {
            commands: sender,
            model: Arc::clone(&model),
            limits,
            n_waiting: Arc::new(AtomicUsize::new(0)),
            max_queue: config.max_queue,
            slot_format: Arc::new(SlotFormat {
                model: Arc::clone(&model),
                limits,
                shape: memory.shape(),
                checkpoint_bytes: config.checkpoint_bytes,
                draft_bytes: proposer.as_ref().map_or(0, |p| p.max_saved_bytes()),
            }),
            life: life.clone(),
        };
        let state = State {
            model,
            config,
            company,
            memory,
            runner,
            proposer,
            cache,
            _stopped: life.stops(),
            commands,
            waiting: VecDeque::new(),
            sequences: Vec::new(),
            leaving: Vec::new(),
            output: PassOutput::default(),
            step_tokens: Vec::new(),
            turn: (Instant::now(), Stats::default()),
            builds: 0,
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
        self.follow();
        self.turn = (Instant::now(), self.computed());
        self.propose();
        let n_batch = self.config.n_batch;
        let n_shared = if self.config.n_sequences > 1 { self.config.n_batch_shared.min(n_batch) } else { n_batch };
        let parts = schedule(&self.sequences, n_batch, n_shared, self.company);
        let n_rows: usize = parts.iter().map(|p| p.n_rows).sum();
        let n_busy = parts.len();
        if n_rows > 0 {
            self.step(parts);
        }
        self.sequences.iter_mut().for_each(Sequence::deliver);
        self.leaving.iter_mut().for_each(Sequence::deliver);
        self.retire();
        if n_rows > 0 {
            self.stats.n_rows += n_rows as u64;
            self.stats.n_busy += n_busy as u64;
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
            Command::Slots(to) => {
                let _ = to.send(self.slots());
            }
            Command::Save(index, scope, to) => {
                let live = &mut Live { memory: &mut self.memory, proposer: &mut self.proposer };
                let _ = to.send(self.cache.save(live, index, scope));
            }
            Command::Load(index, scope, saved, to) => {
                let live = &mut Live { memory: &mut self.memory, proposer: &mut self.proposer };
                let _ = to.send(self.cache.load(live, index, *saved, scope));
            }
            Command::Clear(index, to) => {
                let _ = to.send(self.cache.clear(&mut self.memory, index));
            }
        }
    }

    /// What has been computed here and beside the engine.
    fn computed(&self) -> Stats {
        self.runner.stats() + self.proposer.as_ref().map(|p| p.stats()).unwrap_or_default()
    }

    fn stats(&self) -> EngineStats {
        let all = self.computed();
        EngineStats {
            compute: all.compute,
            n_launches: all.n_runs,
            n_builds: all.n_builds,
            n_bytes_copied: all.n_bytes_copied,
            state_bytes: self.memory.n_bytes(),
            compute_bytes: self.runner.buffer_bytes(),
            checkpoint_bytes: self.cache.checkpoint_bytes(),
            stored_bytes: self.cache.stored_bytes(),
            ..self.stats
        }
    }

    fn slots(&self) -> Vec<SlotInfo> {
        let mut slots = self.cache.infos();
        for s in &self.sequences {
            slots[s.slot].work = Some(s.work());
        }
        slots
    }

    /// Gives free slots to waiting requests, in order.
    fn admit(&mut self) {
        self.waiting.retain(|s| !s.events.is_closed());
        while self.cache.has_free()
            && let Some(submission) = self.waiting.pop_front()
        {
            let request = &submission.request;
            let options = request.options();
            let live = &mut Live { memory: &mut self.memory, proposer: &mut self.proposer };
            match self.cache.take(live, &Wish::of(request)) {
                Ok(Some((slot, n_cached))) => {
                    self.begin(slot);
                    let n_left = request.prompt().len() - n_cached;
                    let every = self.cache.checkpoint_every(n_left).filter(|_| options.cache);
                    let mut sequence = Sequence::new(submission, slot, n_cached, self.stats.n_steps);
                    sequence.checkpoint_every = every;
                    self.sequences.push(sequence);
                }
                Ok(None) => return self.waiting.push_front(submission),
                Err(error) => {
                    // The reader may be gone: nobody to tell then.
                    let _ = submission.events.try_send(Event::Failed(error.to_string()));
                }
            }
        }
    }

    /// Takes slots back from sequences that are done or that nobody waits for. A reader that lags behind keeps no slot
    /// once its answer is complete.
    fn retire(&mut self) {
        let done = |s: &mut Sequence| s.finished || s.is_cancelled();
        for s in self.sequences.extract_if(.., done).collect::<Vec<_>>() {
            if s.is_unseen() {
                self.spoil(s.slot);
            }
            if s.is_spoiled {
                self.forget_spoiled(s.slot);
            } else if s.request.options().cache {
                self.cache.release(s.slot, self.proposer.as_ref().and_then(|p| p.hidden(s.slot)));
            } else {
                self.cache.forget(&mut self.memory, s.slot);
            }
            self.leaving.push(s);
        }
        self.leaving.retain(|s| s.is_blocked() && !s.is_cancelled());
    }
}

mod cycle;
mod follow;
#[cfg(test)]
mod tests;
mod warm_up;
