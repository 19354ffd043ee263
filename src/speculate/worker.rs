//! A source of drafts on a thread and a compute pool of its own, so that drafting and the engine's other work overlap.
//! Owns the hand-over. Knows nothing of how drafts are made.
//!
//! Everything that drafts belongs to one [`Drafting`], which is at one place at a time: here, or with the thread. Handing it
//! over takes it and gives a [`Pending`]; waiting for that gives it back. So there is no lock, and nothing is read while it
//! is being changed.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;

use engine::{Ask, Observed, Proposer, SavedDraftError};
use model::{Model, RunError, Runner, Stats};
use text::TokenId;

use crate::nextn::GuessOn;

/// The thread's name.
const NAME: &str = "nextn-draft";

/// A source of drafts with what it computes by.
struct Drafting<P> {
    proposer: P,
    runner: Runner,
}

/// What the thread does next, in this order.
#[derive(Default)]
struct Work {
    seen: Vec<Seen>,
    took: Option<Duration>,
    asks: Vec<Ask>,
    then: Then,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Then {
    #[default]
    Propose,
    GuessOn,
}

/// An [`Observed`] that is kept.
struct Seen {
    slot: usize,
    tokens: Vec<TokenId>,
    hidden: Vec<f32>,
    next: Option<TokenId>,
    n_drafted: usize,
    n_accepted: usize,
}

impl Seen {
    fn of(o: &Observed<'_>) -> Self {
        let (tokens, hidden) = (o.tokens.to_vec(), o.hidden.to_vec());
        Self { slot: o.slot, tokens, hidden, next: o.next, n_drafted: o.n_drafted, n_accepted: o.n_accepted }
    }

    fn view(&self) -> Observed<'_> {
        let (tokens, hidden) = (&self.tokens[..], &self.hidden[..]);
        Observed {
            slot: self.slot,
            tokens,
            hidden,
            next: self.next,
            n_drafted: self.n_drafted,
            n_accepted: self.n_accepted,
        }
    }
}

type Drafts = Result<Vec<Vec<TokenId>>, RunError>;

impl<P: GuessOn> Drafting<P> {
    fn work(&mut self, work: &Work) -> Drafts {
        if !work.seen.is_empty() {
            let observed: Vec<_> = work.seen.iter().map(Seen::view).collect();
            self.proposer.observe(&mut self.runner, &observed, work.took)?;
        }
        match work.then {
            _ if work.asks.is_empty() => Ok(Vec::new()),
            Then::Propose => self.proposer.propose(&mut self.runner, &work.asks),
            Then::GuessOn => self.proposer.guess_on(&mut self.runner, &work.asks).map(|()| Vec::new()),
        }
    }
}

/// The thread.
struct Worker<P> {
    jobs: Option<Sender<Job<P>>>,
    thread: Option<JoinHandle<()>>,
}

struct Job<P> {
    drafting: Box<Drafting<P>>,
    work: Work,
    done: SyncSender<(Box<Drafting<P>>, Drafts)>,
}

impl<P: GuessOn + 'static> Worker<P> {
    fn new() -> std::io::Result<Self> {
        let (jobs, waiting) = mpsc::channel::<Job<P>>();
        let work = move || {
            for Job { mut drafting, work, done } in waiting {
                let drafts = drafting.work(&work);
                // Whoever waited may be gone: the engine has ended.
                let _ = done.send((drafting, drafts));
            }
        };
        let thread = std::thread::Builder::new().name(NAME.into()).spawn(work)?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Hands over. `epochs`: for each ask, the sequence's at this time.
    fn start(&self, drafting: Box<Drafting<P>>, work: Work, epochs: Vec<u64>) -> Result<Pending<P>, RunError> {
        let asks = if work.then == Then::Propose { work.asks.clone() } else { Vec::new() };
        let (done, result) = mpsc::sync_channel(1);
        let jobs = self.jobs.as_ref().ok_or_else(lost)?;
        jobs.send(Job { drafting, work, done }).map_err(|_| lost())?;
        Ok(Pending { asks, epochs, result })
    }
}

impl<P> Drop for Worker<P> {
    fn drop(&mut self) {
        // The thread ends when it has done what it was given.
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been said already.
            let _ = thread.join();
        }
    }
}

fn lost() -> RunError {
    RunError::Thread(NAME.into())
}

/// What comes back, with drafts for the asks.
struct Back<P> {
    drafting: Box<Drafting<P>>,
    asks: Vec<Ask>,
    epochs: Vec<u64>,
    drafts: Drafts,
}

/// A [`Drafting`] that is with the thread.
struct Pending<P> {
    asks: Vec<Ask>,
    epochs: Vec<u64>,
    result: Receiver<(Box<Drafting<P>>, Drafts)>,
}

impl<P> Pending<P> {
    /// Waits.
    fn wait(self) -> Result<Back<P>, RunError> {
        let (drafting, drafts) = self.result.recv().map_err(|_| lost())?;
        Ok(Back { drafting, asks: self.asks, epochs: self.epochs, drafts })
    }
}

enum Place<P> {
    Here(Box<Drafting<P>>),
    Away(Pending<P>),
    /// The thread has panicked.
    Lost,
}

/// What is known here of one sequence.
#[derive(Default)]
struct Sequence {
    /// Goes up whenever the sequence changes: what was drafted before is stale.
    epoch: u64,
    /// The last token's hidden row, as the proposer has it.
    last: Vec<f32>,
    /// A draft that nobody has asked for yet.
    ready: Option<(Ask, Vec<TokenId>)>,
}

/// A source of drafts that works beside the engine.
pub struct Aside<P: GuessOn> {
    place: Place<P>,
    max_depth: usize,
    wants_hidden: bool,
    max_saved_bytes: usize,
    /// Guess on while the model judges.
    guesses_on: bool,
    sequences: Vec<Sequence>,
    /// Seen, not told yet.
    seen: Vec<Seen>,
    took: Option<Duration>,
    stats: Stats,
    // Last: the thread may hold the state until then.
    worker: Worker<P>,
}

impl<P: GuessOn + 'static> Aside<P> {
    /// `proposer` on a thread of its own, computing with `n_threads` (on a CPU). `guesses_on`: also while the model judges,
    /// which pays where nobody else needs the processors that it takes.
    ///
    /// # Errors
    /// [`RunError`]: no thread, or the device cannot be opened again.
    pub fn new(mut proposer: P, model: &Arc<Model>, n_threads: usize, guesses_on: bool) -> Result<Self, RunError> {
        let runner = Runner::new(Arc::clone(model), n_threads)?;
        let (max_depth, wants_hidden) = (proposer.max_depth(), proposer.wants_hidden());
        let max_saved_bytes = proposer.max_saved_bytes();
        if guesses_on {
            proposer.prepare();
        }
        let worker = Worker::new().map_err(|error| RunError::Thread(format!("{NAME}, {error}")))?;
        let place = Place::Here(Box::new(Drafting { proposer, runner }));
        let (sequences, seen) = (Vec::new(), Vec::new());
        let stats = Stats::default();
        let took = None;
        Ok(Self { place, max_depth, wants_hidden, max_saved_bytes, guesses_on, sequences, seen, took, stats, worker })
    }

    fn sequence(&mut self, slot: usize) -> &mut Sequence {
        if self.sequences.len() <= slot {
            self.sequences.resize_with(slot + 1, Sequence::default);
        }
        &mut self.sequences[slot]
    }

    /// The sequence of `slot` is another one now, whose last token left this hidden row.
    fn changed(&mut self, slot: usize, last: &[f32]) {
        let sequence = self.sequence(slot);
        sequence.epoch += 1;
        sequence.ready = None;
        sequence.last.clear();
        sequence.last.extend_from_slice(last);
    }

    /// Waits until everything is here again, and puts the drafts that are still good where they will be asked for.
    fn settle(&mut self) -> Result<&mut Drafting<P>, RunError> {
        match std::mem::replace(&mut self.place, Place::Lost) {
            Place::Here(drafting) => self.place = Place::Here(drafting),
            Place::Lost => {}
            Place::Away(pending) => {
                let Back { drafting, asks, epochs, drafts } = pending.wait()?;
                self.stats = drafting.runner.stats();
                self.place = Place::Here(drafting);
                for ((ask, epoch), draft) in asks.into_iter().zip(epochs).zip(drafts?) {
                    let sequence = self.sequence(ask.slot);
                    if sequence.epoch == epoch {
                        sequence.ready = Some((ask, draft));
                    }
                }
            }
        }
        match &mut self.place {
            Place::Here(drafting) => Ok(drafting),
            _ => Err(lost()),
        }
    }

    /// As [`Aside::settle`], with everything told that was seen.
    fn up_to_date(&mut self) -> Result<&mut Drafting<P>, RunError> {
        if !self.seen.is_empty() {
            self.start(&[], Then::Propose)?;
        }
        self.settle()
    }

    /// Hands everything to the thread.
    fn start(&mut self, asks: &[Ask], then: Then) -> Result<(), RunError> {
        self.settle()?;
        let epochs = asks.iter().map(|ask| self.sequence(ask.slot).epoch).collect();
        let work = Work { seen: std::mem::take(&mut self.seen), took: self.took.take(), asks: asks.to_vec(), then };
        if let Place::Here(drafting) = std::mem::replace(&mut self.place, Place::Lost) {
            self.place = Place::Away(self.worker.start(drafting, work, epochs)?);
        }
        Ok(())
    }
}

impl<P: GuessOn + 'static> Proposer for Aside<P> {
    fn max_depth(&self) -> usize {
        self.max_depth
    }

    fn wants_hidden(&self) -> bool {
        self.wants_hidden
    }

    fn begin(&mut self, slot: usize, tokens: &[TokenId], hidden: Option<&[f32]>) -> Result<(), RunError> {
        self.up_to_date()?.proposer.begin(slot, tokens, hidden)?;
        self.changed(slot, hidden.unwrap_or_default());
        Ok(())
    }

    fn forget(&mut self, slot: usize) -> Result<(), RunError> {
        self.up_to_date()?.proposer.forget(slot)?;
        self.changed(slot, &[]);
        Ok(())
    }

    fn save(&mut self, slot: usize, n_tokens: usize) -> Result<Vec<u8>, RunError> {
        self.up_to_date()?.proposer.save(slot, n_tokens)
    }

    fn max_saved_bytes(&self) -> usize {
        self.max_saved_bytes
    }

    fn load(&mut self, slot: usize, tokens: &[TokenId], saved: &[u8]) -> Result<(), SavedDraftError> {
        self.up_to_date()?.proposer.load(slot, tokens, saved)?;
        self.changed(slot, &[]);
        Ok(())
    }

    fn hidden(&self, slot: usize) -> Option<&[f32]> {
        let last = &self.sequences.get(slot)?.last;
        (!last.is_empty()).then_some(last)
    }

    fn observe(&mut self, _: &mut Runner, observed: &[Observed<'_>], took: Option<Duration>) -> Result<(), RunError> {
        for o in observed {
            let n_embd = o.hidden.len() / o.tokens.len().max(1);
            self.changed(o.slot, &o.hidden[o.hidden.len() - n_embd..]);
        }
        self.seen.extend(observed.iter().map(Seen::of));
        self.took = took;
        Ok(())
    }

    fn expect(&mut self, asks: &[Ask]) -> Result<(), RunError> {
        if asks.is_empty() && self.seen.is_empty() {
            return Ok(());
        }
        self.start(asks, Then::Propose)?;
        if asks.is_empty() && !self.guesses_on {
            // The model's next pass follows at once, and wants the processors for itself.
            self.settle()?;
        }
        Ok(())
    }

    fn propose(&mut self, _: &mut Runner, asks: &[Ask]) -> Result<Vec<Vec<TokenId>>, RunError> {
        self.settle()?;
        let is_ready =
            |a: &Ask, s: &Sequence| s.ready.as_ref().is_some_and(|(of, _)| (of.ahead, of.p_min) == (a.ahead, a.p_min));
        let missing: Vec<Ask> = asks.iter().filter(|a| !is_ready(a, self.sequence(a.slot))).copied().collect();
        if !missing.is_empty() {
            self.start(&missing, Then::Propose)?;
            self.settle()?;
        }
        let draft = |ask: &Ask| {
            let (_, mut draft) = self.sequence(ask.slot).ready.take().unwrap_or((*ask, Vec::new()));
            draft.truncate(ask.max);
            draft
        };
        let drafts: Vec<_> = asks.iter().map(draft).collect();
        if self.guesses_on {
            let judged: Vec<Ask> = asks.iter().zip(&drafts).filter(|(_, d)| !d.is_empty()).map(|(a, _)| *a).collect();
            if !judged.is_empty() {
                self.start(&judged, Then::GuessOn)?;
            }
        }
        Ok(drafts)
    }

    fn stats(&self) -> Stats {
        self.stats
    }
}
