//! The engine's thread: takes requests, runs steps, hands out events.
//! Owns the model's state and compute. Everything it does between two steps is short.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{self, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use memory::{Memory, MemoryConfig};
use model::{Model, Pass, PassOutput, Rows, RunError, Runner};
use text::TokenId;

use crate::cache::SlotCache;
use crate::config::{EngineConfig, EngineError};
use crate::event::Event;
use crate::handle::{Command, EngineHandle, Submission};
use crate::proposer::{Ask, Observed, Proposer};
use crate::request::Limits;
use crate::schedule::{Part, schedule};
use crate::sequence::{Scores, Sequence, millis};
use crate::slots::{SavedSlot, SlotError, SlotInfo};

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
    /// Of that, ggml's computation.
    pub compute: Duration,
    /// Graphs built.
    pub n_builds: u64,
    /// Bytes of sequence state.
    pub state_bytes: usize,
    /// Bytes of compute buffers.
    pub compute_bytes: usize,
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
        let (state, handle) = State::new(model, config, proposer)?;
        std::thread::Builder::new().name("nextn-engine".into()).stack_size(STACK).spawn(move || state.run())?;
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
    memory: Memory,
    runner: Runner,
    proposer: Option<Box<dyn Proposer>>,
    cache: SlotCache,
    // Before the requests: should the thread panic, whoever sees a generation end finds the engine stopped.
    commands: mpsc::Receiver<Command>,
    waiting: VecDeque<Submission>,
    /// Those that have a slot.
    sequences: Vec<Sequence>,
    /// Those that are done and wait for their reader to take the last events; they have no slot any more.
    leaving: Vec<Sequence>,
    output: PassOutput,
    /// The tokens of the last step's rows.
    step_tokens: Vec<TokenId>,
    /// When the turn began, and the graphs built until then.
    turn: (Instant, u64),
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
        let depth = proposer.as_ref().map_or(0, |p| p.max_depth());
        if (depth + 1).saturating_mul(config.n_sequences) > config.n_batch {
            let (n_sequences, n_batch) = (config.n_sequences, config.n_batch);
            let what = format!(
                "drafts of {depth} tokens for {n_sequences} sequences do not fit into passes of {n_batch} rows"
            );
            return Err(EngineError::Config(what));
        }
        let wanted = MemoryConfig { n_snapshots: depth + 1, ..config.memory(&model) };
        let mut memory = model.memory(wanted)?;
        let mut runner = Runner::new(Arc::clone(&model), config.n_threads())?;
        reserve(&mut runner, &mut memory, &config, proposer.is_some() || config.embeddings)?;
        let cache = SlotCache::new(&mut memory, config.checkpoint_bytes, config.store_bytes)?;
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
            proposer,
            cache,
            commands,
            waiting: VecDeque::new(),
            sequences: Vec::new(),
            leaving: Vec::new(),
            output: PassOutput::default(),
            step_tokens: Vec::new(),
            turn: (Instant::now(), 0),
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
        self.turn = (Instant::now(), self.runner.stats().n_builds);
        self.propose();
        let parts = schedule(&self.sequences, self.config.n_batch, self.config.n_batch_shared);
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
            Command::Save(index, to) => {
                let _ = to.send(self.cache.save(&self.memory, index));
            }
            Command::Load(index, saved, to) => {
                let _ = to.send(self.load_slot(index, saved.map(|saved| *saved)));
            }
        }
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            compute: self.runner.stats().compute,
            n_builds: self.runner.stats().n_builds,
            state_bytes: self.memory.n_bytes(),
            compute_bytes: self.runner.buffer_bytes(),
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

    fn load_slot(&mut self, index: usize, saved: Option<SavedSlot>) -> Result<usize, SlotError> {
        match saved {
            Some(saved) => {
                if let Some(id) = saved.tokens.iter().find(|id| id.0 as usize >= self.model.hparams().n_vocab) {
                    return Err(SlotError::Format(format!("token {} is outside of the vocabulary", id.0)));
                }
                self.cache.load(&mut self.memory, index, saved)
            }
            None => self.cache.clear(&mut self.memory, index),
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
                    self.begin(slot);
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
            Ok(kept) => self.after(&parts, &kept),
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

    /// Tells the proposer that a slot was taken up, and at which tokens it stands.
    fn begin(&mut self, slot: usize) {
        let foreign = self.cache.take_foreign(slot);
        let Some(proposer) = &mut self.proposer else { return };
        // What the proposer has of a slot whose state came from elsewhere belongs to another text.
        if foreign && let Err(error) = proposer.begin(slot, &[], None) {
            return self.stop_drafting(&error);
        }
        if let Err(error) = proposer.begin(slot, &self.cache.get(slot).tokens, self.cache.hidden(slot)) {
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
            if running(s) && s.draft.is_empty() && s.pending.len() == 1 && max > 0 {
                asks.push((Ask { slot: s.slot, max, ahead: s.ahead() }, i));
            }
        }
        if asks.is_empty() {
            return;
        }
        asks.sort_unstable_by_key(|(ask, _)| ask.slot);
        let only: Vec<Ask> = asks.iter().map(|(ask, _)| *ask).collect();
        let start = Instant::now();
        match proposer.propose(&mut self.runner, &only) {
            Ok(drafts) => {
                let took = millis(start.elapsed());
                for ((_, i), draft) in asks.iter().zip(drafts) {
                    self.sequences[*i].take_draft(draft);
                    self.sequences[*i].timings.draft_ms += took;
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
        let embeds = parts.iter().any(|p| self.sequences[p.sequence].embeds());
        let hidden = embeds || self.proposer.as_ref().is_some_and(|p| p.wants_hidden());
        let start = Instant::now();
        // From a GPU the logits of a large vocabulary take longer to come than ids do.
        let best = self.model.weights().device().kind() != ggml::DeviceKind::Cpu
            && parts.iter().all(|p| !p.samples || self.sequences[p.sequence].takes_the_best());
        let rows = if best { Rows::Best(&rows) } else { Rows::Some(&rows) };
        self.runner.run(txn.view(), &Pass { tokens: &tokens, rows, hidden }, &mut self.output)?;
        let took = millis(start.elapsed());
        let mut first = 0;
        let mut kept = Vec::with_capacity(parts.len());
        for p in parts {
            let mut n_kept = p.n_rows;
            let s = &mut self.sequences[p.sequence];
            if s.is_prefill() {
                s.prompt_advanced(p.n_rows);
            } else {
                s.timings.verify_ms += took;
            }
            if p.samples {
                let output = &self.output;
                let scores = |i| match output.best.get(first + i) {
                    Some(&token) => Scores::Best(token),
                    None => Scores::Logits(output.logits(first + i)),
                };
                let n_right = s.judge(scores, self.model.vocab());
                n_kept = p.n_rows - p.n_draft + n_right;
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
            let hidden = if self.output.hidden.is_empty() { 0..0 } else { first * n_embd..(first + n_kept) * n_embd };
            observed.push(Observed {
                slot: s.slot,
                tokens,
                hidden: &self.output.hidden[hidden.clone()],
                next: s.pending.front().copied().filter(|_| part.samples),
                n_drafted: part.n_draft,
                n_accepted: n_kept + part.n_draft - part.n_rows,
            });
            first += part.n_rows;
            s.pool(&self.output.hidden[hidden.clone()], n_embd);
        }
        if let Some(proposer) = &mut self.proposer {
            let (start, n_builds) = self.turn;
            let alike = parts.iter().all(|p| p.samples && p.n_rows == 1 + p.n_draft);
            let took = (alike && self.runner.stats().n_builds == n_builds).then(|| start.elapsed());
            let start = Instant::now();
            if let Err(error) = proposer.observe(&mut self.runner, &observed, took) {
                self.stop_drafting(&error);
            }
            let took = millis(start.elapsed());
            for part in parts.iter().filter(|p| p.n_rows == 1 + p.n_draft) {
                self.sequences[part.sequence].timings.draft_ms += took;
            }
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

    /// Takes slots back from sequences that are done or that nobody waits for. A reader that lags behind keeps no slot
    /// once its answer is complete.
    fn retire(&mut self) {
        let done = |s: &mut Sequence| s.finished || s.is_cancelled();
        for s in self.sequences.extract_if(.., done) {
            if s.request.options().cache {
                self.cache.release(s.slot, self.proposer.as_ref().and_then(|p| p.hidden(s.slot)));
            } else {
                self.cache.forget(&mut self.memory, s.slot);
            }
            self.leaving.push(s);
        }
        self.leaving.retain(|s| s.is_blocked() && !s.is_cancelled());
    }
}

#[cfg(test)]
mod tests;
