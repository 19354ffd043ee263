//! What comes in: requests, questions about the engine, and work on slots; and the wait for them.

use std::sync::mpsc::{RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use model::Stats;

use super::Engine;
use crate::sequence::Sequence;
use crate::slot_info::SlotInfo;
use crate::stats::EngineStats;
use crate::submission::{Command, GenerationId};

/// How long to wait for lagging readers after many times in vain.
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

/// How long a copy for the disk goes on before the engine looks for requests again.
const PART_OF_COPY: Duration = Duration::from_millis(2);

/// How long a sequence rests before it is kept on disk.
const REST: Duration = Duration::from_secs(10);

impl Engine {
    /// Waits until something can be computed or a command comes, then takes all commands. Gives when the wait was over.
    pub(super) fn receive(&mut self) -> Instant {
        if !self.has_work() {
            self.wait();
        }
        let start = Instant::now();
        while self.open {
            match self.commands.try_recv() {
                Ok(command) => self.take(command),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => self.open = false,
            }
        }
        start
    }

    /// Something may be computed now.
    fn has_work(&self) -> bool {
        self.sequences.iter().any(|s| !s.is_blocked()) || self.may_admit()
    }

    /// Sleeps until a command comes; while readers lag behind only for a moment, and longer the longer they do.
    fn wait(&mut self) {
        let command = if self.is_idle() && self.cache.has_unsaved() {
            // Whoever asks again soon would have it written again; whoever asks meanwhile does not wait for the copy.
            match self.commands.recv_timeout(if self.cache.is_leaving() { Duration::ZERO } else { REST }) {
                Err(RecvTimeoutError::Timeout) => {
                    self.cache.keep_on_disk(&mut self.state, Some(Instant::now() + PART_OF_COPY));
                    return;
                }
                command => command,
            }
        } else if self.is_idle() {
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

    fn take(&mut self, command: Command) {
        // Whoever asked may be gone: there is nobody to tell then.
        match command {
            Command::Submit(submission) => self.waiting.push_back(*submission),
            Command::Cancel(id) => self.cancel(id),
            Command::EndThinking(id, to) => {
                let found = self.all_mut().find(|s| s.id == id);
                let _ = to.send(found.is_some_and(Sequence::end_thinking));
            }
            Command::Stats(to) => drop(to.send(self.stats())),
            Command::Slots(to) => drop(to.send(self.slots())),
            Command::Save(index, scope, to) => drop(to.send(self.cache.save(&mut self.state, index, scope))),
            Command::Load(index, scope, saved, to) => {
                drop(to.send(self.cache.load(&mut self.state, index, *saved, scope)));
            }
            Command::Clear(index, to) => drop(to.send(self.cache.clear(&mut self.state.memory, index))),
        }
    }

    /// Ends a generation where it stands, be it running or waiting.
    fn cancel(&mut self, id: GenerationId) {
        if let Some(running) = self.all_mut().find(|s| s.id == id) {
            running.cancel();
        } else if let Some(i) = self.waiting.iter().position(|s| s.id == id)
            && let Some(submission) = self.waiting.remove(i)
        {
            submission.cancel();
        }
    }

    /// What has been computed here and beside the engine.
    pub(super) fn computed(&self) -> Stats {
        self.runner.stats() + self.state.drafter.info().computed
    }

    fn stats(&self) -> EngineStats {
        let all = self.computed();
        EngineStats {
            compute: all.compute,
            n_launches: all.n_runs,
            n_builds: all.n_builds,
            n_bytes_copied: all.n_bytes_copied,
            state_bytes: self.state.memory.n_bytes(),
            taken_bytes: self.state.memory.taken_bytes(),
            state_limit: self.budget.unwrap_or(self.state.memory.n_bytes()),
            compute_bytes: self.runner.buffer_bytes(),
            checkpoint_bytes: self.cache.checkpoint_bytes(),
            stored_bytes: self.cache.stored_bytes(),
            reused: self.cache.reused(),
            copies_found: self.copies_found(),
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
}
