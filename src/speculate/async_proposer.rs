//! A proposer on a thread and a compute pool of its own, so that drafting and the engine's other work overlap.
//! Owns the hand-over. Knows nothing of how drafts are made.
//!
//! Everything that drafts belongs to one [`Drafting`], which is at one place at a time: here, or with the thread. Handing it
//! over takes it and gives a [`Pending`]; waiting for that gives it back. So there is no lock, and nothing is read while it
//! is being changed.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;

use engine::{
    DraftRequest, ObservedSequence, ObservedStep, Proposer, ProposerInfo, SavedDraftError, SequenceChange, TargetState,
};
use model::{Model, RunError, Runner};
use text::TokenId;

/// The thread's name.
const NAME: &str = "nextn-draft";

/// A proposer that reads nothing of the main model's state, and can draft on while that verifies its last draft.
pub trait DraftAhead: Proposer {
    /// As [`Proposer::propose`].
    ///
    /// # Errors
    /// As [`Proposer::propose`].
    fn draft(&mut self, runner: &mut Runner, requests: &[DraftRequest]) -> Result<Vec<Vec<TokenId>>, RunError>;

    /// Told once, before all drafts: [`DraftAhead::draft_ahead`] will be called.
    fn prepare(&mut self);

    /// Drafts on from drafts that are being verified, as if all of them were accepted: should that be so, and the token
    /// sampled after them be the one drafted here, the next draft is there at once.
    ///
    /// # Errors
    /// As [`Proposer::propose`].
    fn draft_ahead(&mut self, runner: &mut Runner, requests: &[DraftRequest]) -> Result<(), RunError>;
}

/// A proposer with what it computes by.
struct Drafting<P> {
    proposer: P,
    runner: Runner,
}

/// What the thread does next, in this order.
#[derive(Default)]
struct Work {
    observed: Vec<OwnedObservation>,
    took: Option<Duration>,
    warm_up: bool,
    requests: Vec<DraftRequest>,
    then: Then,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Then {
    #[default]
    Propose,
    DraftAhead,
}

/// An [`ObservedSequence`] that is kept.
struct OwnedObservation {
    slot: usize,
    tokens: Vec<TokenId>,
    hidden: Vec<f32>,
    hidden_before: Vec<f32>,
    next: Option<TokenId>,
    n_drafted: usize,
    n_accepted: usize,
}

impl OwnedObservation {
    fn of(s: &ObservedSequence<'_>) -> Self {
        let ObservedSequence { slot, tokens, hidden, hidden_before, next, n_drafted, n_accepted } = *s;
        let (tokens, hidden, hidden_before) = (tokens.to_vec(), hidden.to_vec(), hidden_before.to_vec());
        Self { slot, tokens, hidden, hidden_before, next, n_drafted, n_accepted }
    }

    fn view(&self) -> ObservedSequence<'_> {
        let Self { slot, tokens, hidden, hidden_before, next, n_drafted, n_accepted } = self;
        let (slot, next, n_drafted, n_accepted) = (*slot, *next, *n_drafted, *n_accepted);
        ObservedSequence { slot, tokens, hidden, hidden_before, next, n_drafted, n_accepted }
    }
}

type Drafts = Result<Vec<Vec<TokenId>>, RunError>;

impl<P: DraftAhead> Drafting<P> {
    fn work(&mut self, work: &Work) -> Drafts {
        if !work.observed.is_empty() {
            let sequences: Vec<_> = work.observed.iter().map(OwnedObservation::view).collect();
            let (took, warm_up) = (work.took, work.warm_up);
            let step = ObservedStep { sequences: &sequences, took, built: None, expected: &[], warm_up };
            self.proposer.observe(&mut self.runner, &step)?;
        }
        match work.then {
            _ if work.requests.is_empty() => Ok(Vec::new()),
            Then::Propose => self.proposer.draft(&mut self.runner, &work.requests),
            Then::DraftAhead => self.proposer.draft_ahead(&mut self.runner, &work.requests).map(|()| Vec::new()),
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

impl<P: DraftAhead + 'static> Worker<P> {
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

    /// Hands over. `epochs`: for each request, the sequence's at this time.
    fn start(&self, drafting: Box<Drafting<P>>, work: Work, epochs: Vec<u64>) -> Result<Pending<P>, RunError> {
        let requests = if work.then == Then::Propose { work.requests.clone() } else { Vec::new() };
        let (done, result) = mpsc::sync_channel(1);
        let jobs = self.jobs.as_ref().ok_or_else(lost)?;
        jobs.send(Job { drafting, work, done }).map_err(|_| lost())?;
        Ok(Pending { requests, epochs, result })
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

/// A [`Drafting`] that is with the thread, which makes drafts for the requests.
struct Pending<P> {
    requests: Vec<DraftRequest>,
    epochs: Vec<u64>,
    result: Receiver<(Box<Drafting<P>>, Drafts)>,
}

/// Where a [`Drafting`] is.
enum Whereabouts<P> {
    Here(Box<Drafting<P>>),
    Away(Pending<P>),
    /// The thread has panicked.
    Lost,
}

/// What is known here of one sequence.
#[derive(Default)]
struct ReadyDraft {
    /// Goes up whenever the sequence changes: what was drafted in an earlier epoch is discarded.
    epoch: u64,
    /// A draft that nobody has asked for yet.
    draft: Option<(DraftRequest, Vec<TokenId>)>,
}

/// A proposer that works beside the engine.
pub struct AsyncProposer<P: DraftAhead> {
    drafting: Whereabouts<P>,
    /// As it was when the proposer was here last.
    info: ProposerInfo,
    /// Draft on while the main model verifies.
    drafts_ahead: bool,
    ready: Vec<ReadyDraft>,
    /// What the thread was not told yet.
    untold: Work,
    // Last: the thread may hold the state until then.
    worker: Worker<P>,
}

impl<P: DraftAhead + 'static> AsyncProposer<P> {
    /// `proposer` on a thread of its own, computing with `n_threads` (on a CPU). `drafts_ahead`: also while the main model
    /// verifies, which pays where nobody else needs the processors that it takes.
    ///
    /// # Errors
    /// [`RunError`]: no thread, or the device cannot be opened again.
    pub fn new(mut proposer: P, model: &Arc<Model>, n_threads: usize, drafts_ahead: bool) -> Result<Self, RunError> {
        let runner = Runner::new(Arc::clone(model), n_threads)?;
        if drafts_ahead {
            proposer.prepare();
        }
        let info = proposer.info();
        let worker = Worker::new().map_err(|error| RunError::Thread(format!("{NAME}, {error}")))?;
        let drafting = Whereabouts::Here(Box::new(Drafting { proposer, runner }));
        Ok(Self { drafting, info, drafts_ahead, ready: Vec::new(), untold: Work::default(), worker })
    }

    fn ready(&mut self, slot: usize) -> &mut ReadyDraft {
        if self.ready.len() <= slot {
            self.ready.resize_with(slot + 1, ReadyDraft::default);
        }
        &mut self.ready[slot]
    }

    /// The sequence of `slot` is another one now.
    fn changed(&mut self, slot: usize) {
        let ready = self.ready(slot);
        (ready.epoch, ready.draft) = (ready.epoch + 1, None);
    }

    /// Waits until everything is here again, and puts the drafts that are still good where they will be asked for.
    fn settle(&mut self) -> Result<&mut Drafting<P>, RunError> {
        match std::mem::replace(&mut self.drafting, Whereabouts::Lost) {
            Whereabouts::Away(Pending { requests, epochs, result }) => {
                let (drafting, drafts) = result.recv().map_err(|_| lost())?;
                self.info = drafting.proposer.info();
                self.info.computed = self.info.computed + drafting.runner.stats();
                self.drafting = Whereabouts::Here(drafting);
                for ((request, epoch), draft) in requests.into_iter().zip(epochs).zip(drafts?) {
                    let ready = self.ready(request.slot);
                    if ready.epoch == epoch {
                        ready.draft = Some((request, draft));
                    }
                }
            }
            here_or_lost => self.drafting = here_or_lost,
        }
        match &mut self.drafting {
            Whereabouts::Here(drafting) => Ok(drafting),
            _ => Err(lost()),
        }
    }

    /// As [`AsyncProposer::settle`], with everything told that was observed.
    fn up_to_date(&mut self) -> Result<&mut Drafting<P>, RunError> {
        if !self.untold.observed.is_empty() {
            self.start(&[], Then::Propose)?;
        }
        self.settle()
    }

    /// Hands everything to the thread.
    fn start(&mut self, requests: &[DraftRequest], then: Then) -> Result<(), RunError> {
        self.settle()?;
        let epochs = requests.iter().map(|request| self.ready(request.slot).epoch).collect();
        let work = Work { requests: requests.to_vec(), then, ..std::mem::take(&mut self.untold) };
        if let Whereabouts::Here(drafting) = std::mem::replace(&mut self.drafting, Whereabouts::Lost) {
            self.drafting = Whereabouts::Away(self.worker.start(drafting, work, epochs)?);
        }
        Ok(())
    }
}

impl<P: DraftAhead + 'static> Proposer for AsyncProposer<P> {
    fn info(&self) -> ProposerInfo {
        self.info
    }

    fn change(&mut self, slot: usize, change: SequenceChange<'_>) -> Result<(), SavedDraftError> {
        self.up_to_date()?.proposer.change(slot, change)?;
        self.changed(slot);
        Ok(())
    }

    fn observe(&mut self, _: &mut Runner, step: &ObservedStep<'_>) -> Result<(), RunError> {
        step.sequences.iter().for_each(|s| self.changed(s.slot));
        self.untold.observed.extend(step.sequences.iter().map(OwnedObservation::of));
        (self.untold.took, self.untold.warm_up) = (step.took, step.warm_up);
        if step.expected.is_empty() && self.untold.observed.is_empty() {
            return Ok(());
        }
        self.start(step.expected, Then::Propose)?;
        if step.expected.is_empty() && !self.drafts_ahead {
            // The main model's next pass follows at once, and wants the processors for itself.
            self.settle()?;
        }
        Ok(())
    }

    fn propose(
        &mut self,
        _: &mut Runner,
        _: &TargetState<'_>,
        requests: &[DraftRequest],
    ) -> Result<Vec<Vec<TokenId>>, RunError> {
        self.settle()?;
        let is_ready = |request: &DraftRequest, ready: &ReadyDraft| {
            ready.draft.as_ref().is_some_and(|(of, _)| (of.gumbel, of.p_min) == (request.gumbel, request.p_min))
        };
        let missing: Vec<_> = requests.iter().filter(|r| !is_ready(r, self.ready(r.slot))).copied().collect();
        if !missing.is_empty() {
            self.start(&missing, Then::Propose)?;
            self.settle()?;
        }
        let draft = |request: &DraftRequest| {
            let (_, mut draft) = self.ready(request.slot).draft.take().unwrap_or((*request, Vec::new()));
            draft.truncate(request.max);
            draft
        };
        let drafts: Vec<_> = requests.iter().map(draft).collect();
        if self.drafts_ahead {
            let verified: Vec<_> =
                requests.iter().zip(&drafts).filter(|(_, draft)| !draft.is_empty()).map(|(r, _)| *r).collect();
            if !verified.is_empty() {
                self.start(&verified, Then::DraftAhead)?;
            }
        }
        Ok(drafts)
    }

    fn save(&mut self, slot: usize, n_tokens: usize) -> Result<Vec<u8>, RunError> {
        self.up_to_date()?.proposer.save(slot, n_tokens)
    }
}
