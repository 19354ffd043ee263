//! The engine: one thread that owns sequence state and compute, and makes one step after the other.
//! Owns the order of a step's phases; each phase has a file of its own in `engine/`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use memory::Memory;
use model::{Model, PassOutput, Runner, Stats};

use crate::batch::BatchPolicy;
use crate::cache::SlotCache;
use crate::config::{EngineConfig, EngineError};
use crate::disk_store::DiskStore;
use crate::drafter::Drafter;
use crate::handle::EngineHandle;
use crate::live_state::LiveState;
use crate::liveness::{EndFlag, EngineLife};
use crate::memory_check::{budget, check_memory, explain};
use crate::pass_times::PassTimes;
use crate::proposer::Proposer;
use crate::request::Limits;
use crate::sequence::Sequence;
use crate::slot_file::SlotFormat;
use crate::stats::EngineStats;
use crate::submission::{Command, Submission};

mod admit;
mod commit;
mod draft;
mod emit;
mod expert_copies;
mod forward;
mod prefix_sharing;
mod receive;
mod room;
mod shift;
#[cfg(test)]
mod tests;
mod warm_up;

use forward::{forward, verify};
use room::Paused;

/// How long to wait for lagging readers before looking again, at first.
const READER_PAUSE: Duration = Duration::from_millis(1);

/// Stack of the engine's thread; grammars that requests carry may recurse. Only what is used takes memory.
const STACK: usize = 64 << 20;

/// Serves requests with one model. Lives on a thread of its own; the way to it is an [`EngineHandle`].
pub struct Engine {
    model: Arc<Model>,
    config: EngineConfig,
    policy: BatchPolicy,
    state: LiveState,
    runner: Runner,
    cache: SlotCache,
    // These two before the requests: should the thread panic, whoever sees a generation end finds the engine stopped.
    _stopped: EndFlag,
    commands: mpsc::Receiver<Command>,
    waiting: VecDeque<Submission>,
    /// Those that have a slot.
    sequences: Vec<Sequence>,
    /// Those that are done and wait for their reader to take the last events; they have no slot any more.
    leaving: Vec<Sequence>,
    /// Those that had to give their slot back for want of memory, in the order of their coming; they go on before others begin.
    paused: Vec<Paused>,
    /// Bytes that the state of sequences may take; `None` where all of it was reserved at the start.
    budget: Option<usize>,
    /// Whoever is next has to wait for memory.
    is_full: bool,
    /// What the last forward pass gave.
    output: PassOutput,
    /// Of passes with a prompt's chunk.
    pass_times: PassTimes,
    clock: StepClock,
    /// The last step that computed something, without what came in before.
    step_took: Duration,
    /// Sequences are stored or brought back for so long in a step at least, however short steps are.
    least_part: Duration,
    stats: EngineStats,
    /// How long to wait for lagging readers next time.
    pause: Duration,
    /// Some handle is left.
    open: bool,
    /// The sequences are those of a warm-up.
    warming_up: bool,
    /// When to look next whether other experts should have copies; `None` where none have.
    expert_renewal: Option<Instant>,
}

/// When drafts were asked for, and what had been computed until then: what the step's batch costs is counted from here.
struct StepClock {
    start: Instant,
    computed: Stats,
    /// The part of the drafting that each batch of the step bears.
    drafting: Duration,
    /// Steps in turn that built graphs.
    n_building: u32,
}

impl Engine {
    /// Makes state and compute buffers for `model` and starts the thread that owns them.
    ///
    /// # Errors
    /// [`EngineError`]: settings that make no engine, or no room.
    pub fn spawn(model: Arc<Model>, config: EngineConfig) -> Result<EngineHandle, EngineError> {
        Self::spawn_with(model, config, None)
    }

    /// As [`Engine::spawn`], with `proposer` drafting tokens that one forward pass verifies together.
    ///
    /// # Errors
    /// As [`Engine::spawn`].
    pub fn spawn_with(
        model: Arc<Model>,
        config: EngineConfig,
        proposer: Option<Box<dyn Proposer>>,
    ) -> Result<EngineHandle, EngineError> {
        let warm_up = config.warm_up.unwrap_or(!model.is_on_cpu());
        let (mut engine, handle) = Self::new(model, config, proposer)?;
        if warm_up {
            engine.warm_up(&handle);
        }
        let life = handle.life();
        let thread = move || {
            // Dropped last: the state is gone by then, whichever way the thread ends.
            let _freed = life.frees();
            engine.run();
        };
        std::thread::Builder::new().name("nextn-engine".into()).stack_size(STACK).spawn(thread)?;
        Ok(handle)
    }

    fn new(
        model: Arc<Model>,
        config: EngineConfig,
        proposer: Option<Box<dyn Proposer>>,
    ) -> Result<(Self, EngineHandle), EngineError> {
        config.check()?;
        let policy = config.batch_policy(model.facts());
        let drafter = Drafter(proposer);
        let depth = drafter.info().max_depth.min(policy.max_draft());
        config.check_depth(depth)?;
        let planned = |config: &EngineConfig| config.memory_plan(model.facts(), depth);
        check_memory(&model, &config, &planned)?;
        let mut memory =
            model.memory(planned(&config).state).map_err(|e| explain(e.into(), &model, &config, &planned))?;
        let mut runner = Runner::new(Arc::clone(&model), config.n_threads())?;
        if let Err(error) = reserve(&mut runner, &mut memory, &config, drafter.0.is_some() || config.embeddings) {
            // What is free without it.
            drop((memory, runner));
            return Err(explain(error, &model, &config, &planned));
        }
        let budget = budget(&memory, &runner, &config, drafter.info().state_bytes)?;
        // As asked: memory rounds up, which is neither what the user said nor what the model was trained for.
        let limits = Limits {
            n_ctx: config.n_ctx(model.facts()),
            n_vocab: model.hparams().n_vocab,
            n_adapters: model.adapters().len(),
            n_batch: config.n_batch,
        };
        let slot_format = Arc::new(SlotFormat {
            model: Arc::clone(&model),
            limits,
            shape: memory.shape(),
            checkpoint_bytes: config.checkpoint_bytes,
            draft_bytes: drafter.info().max_saved_bytes,
        });
        let disk = config.disk.as_ref().map(|disk| DiskStore::open(disk, Arc::clone(&slot_format))).transpose();
        let disk = disk.map_err(EngineError::Config)?;
        let cache = SlotCache::new(&mut memory, config.cache(&model), disk)?;
        let (sender, commands) = mpsc::channel();
        let life = EngineLife::default();
        let handle = EngineHandle {
            commands: sender,
            model: Arc::clone(&model),
            limits,
            n_waiting: Arc::new(AtomicUsize::new(0)),
            max_queue: config.max_queue,
            slot_format,
            life: life.clone(),
        };
        let clock =
            StepClock { start: Instant::now(), computed: Stats::default(), drafting: Duration::ZERO, n_building: 0 };
        let expert_renewal = model.weights().has_expert_copies().then(Instant::now);
        let engine = Self {
            model,
            config,
            policy,
            state: LiveState { memory, drafter },
            runner,
            cache,
            _stopped: life.stops(),
            commands,
            waiting: VecDeque::new(),
            sequences: Vec::new(),
            leaving: Vec::new(),
            paused: Vec::new(),
            budget,
            is_full: false,
            output: PassOutput::default(),
            pass_times: PassTimes::default(),
            clock,
            step_took: Duration::ZERO,
            least_part: Duration::from_millis(1),
            stats: EngineStats::default(),
            pause: READER_PAUSE,
            open: true,
            warming_up: false,
            expert_renewal,
        };
        Ok((engine, handle))
    }

    fn run(mut self) {
        while self.open || !self.is_idle() {
            self.step();
        }
        while self.cache.keep_on_disk(&mut self.state, None) {}
        tracing::debug!(n_steps = self.stats.n_steps, "engine ends");
    }

    /// Nobody is owed anything.
    fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.leaving.is_empty() && self.waiting.is_empty() && self.paused.is_empty()
    }

    /// One engine step: what has come in, drafts, forward passes if there is anything to compute, what goes out.
    fn step(&mut self) {
        let start = self.receive();
        self.shift_full();
        self.make_room();
        self.admit();
        let admitted = Instant::now();
        self.draft();
        let batches = self.batch();
        let computes = !batches.is_empty();
        for mut batch in batches {
            let Self { state, cache, sequences, runner, output, model, pass_times, .. } = self;
            let has_prompt = batch.has_prompt(sequences);
            let accepted = forward(&mut batch, &mut state.memory, cache, sequences, runner, output)
                .and_then(|txn| verify(&batch, txn, sequences, output, model.vocab()));
            if has_prompt && accepted.is_ok() {
                pass_times.record(batch.tokens.len(), batch.forward_ms);
            }
            if !accepted.as_ref().is_err_and(|error| self.waits_for_memory(error)) {
                self.commit(&batch, accepted);
            }
        }
        self.emit();
        if computes {
            self.renew_expert_copies();
            self.pause = READER_PAUSE;
            self.step_took = admitted.elapsed();
            self.stats.step += start.elapsed();
        }
    }
}

/// Makes room for the largest forward pass: a full chunk of a prompt at the end of the context.
fn reserve(runner: &mut Runner, memory: &mut Memory, config: &EngineConfig, hidden: bool) -> Result<(), EngineError> {
    let Some(slot) = memory.acquire()? else { return Ok(()) };
    let n_tokens = config.n_batch.min(memory.config().n_ctx);
    let widest = memory.begin(&[(&slot, n_tokens)], 1)?;
    runner.reserve(widest.view().over_whole_context().view(), config.n_sequences, hidden)?;
    drop(widest);
    memory.discard(&slot)?;
    memory.release(slot);
    Ok(())
}
