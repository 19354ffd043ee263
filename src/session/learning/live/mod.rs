//! A head that learns while no request waits (docs/TRAINING.md, "Learning while the server runs"). A thread starts the program that
//! trains in short rounds, stops it as soon as a request comes, and takes a head into use that guesses the latest replies better.
//!
//! `rule` decides by what was measured, `round` runs the program, `place` keeps the heads on disk. Replies do not depend on any of
//! it: drafts are verified.

mod place;
mod round;
mod rule;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use engine::{EngineLife, busy};
use model::{Model, RopeOptions};
use text::hex;

use super::counts::Counts;
use super::options::{LearnOptions, LiveOptions};
use place::Place;
use round::{Ended, Report, Round, lock};
use rule::{Decision, Watch, decide};

/// What learns.
pub(crate) struct Subject {
    pub(crate) model: Weak<Model>,
    /// Of its engine.
    pub(crate) life: EngineLife,
    /// The model's file; `None` for one inside the program.
    pub(crate) path: Option<PathBuf>,
    /// The file of its head, where that is another one.
    pub(crate) head: Option<PathBuf>,
    pub(crate) rope: RopeOptions,
}

/// What came of it since the model was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LiveNumbers {
    /// Rounds that began.
    pub n_rounds: u64,
    /// Times that a request stopped one.
    pub n_paused: u64,
    /// Rounds whose head was taken into use.
    pub n_kept: u64,
    /// Heads that were taken out of use again.
    pub n_undone: u64,
    /// Rounds that ended without a head.
    pub n_failed: u64,
    /// Tokens of a forward pass with a draft of three, as measured last on the latest replies for the head in use.
    pub tokens_per_pass: Option<f64>,
}

/// The thread, and what it counts.
#[derive(Debug)]
pub(super) struct Live {
    numbers: Arc<Mutex<LiveNumbers>>,
    thread: JoinHandle<()>,
}

impl Live {
    /// Takes up the head that was in use before, if it fits, and starts the thread.
    pub(super) fn start(
        learn: &LearnOptions,
        options: &LiveOptions,
        subject: Subject,
        counts: Arc<Counts>,
    ) -> Result<Self, String> {
        let model = subject.model.upgrade().ok_or("the model is gone")?;
        let path = subject.path.clone().ok_or("the program that trains wants a model in a file (-m)")?;
        if !model.can_replace_head() {
            return Err("the model drafts with no NextN head whose numbers can change".into());
        }
        if subject.rope != RopeOptions::default() {
            return Err("positions are rotated by options (--rope-*), which training does not know".into());
        }
        let fingerprints = model.fingerprint().and_then(|of_model| Ok((of_model, model.head_fingerprint()?)));
        let (of_model, of_head) = fingerprints.map_err(|error| error.to_string())?;
        let place = Place::new(&learn.folder, hex(&of_model), hex(&of_head)).map_err(|error| error.to_string())?;
        tracing::info!(
            folder = %place.folder().display(),
            program = %options.program.display(),
            tokens = options.n_tokens,
            mib = options.n_mib,
            "the head learns from kept replies while no request waits, and is used where it guesses the latest ones better; \
             removing the folder and a restart give back the model's own"
        );
        let mut learner = Learner {
            options: options.clone(),
            kept: learn.folder.clone(),
            base: subject.head.unwrap_or_else(|| path.clone()),
            path,
            life: subject.life,
            model: subject.model,
            place,
            counts,
            numbers: Arc::default(),
            is_own: true,
            watch: Watch::default(),
            n_tokens_before: 0,
            n_failed_in_turn: 0,
        };
        learner.take_up(&model);
        let numbers = Arc::clone(&learner.numbers);
        let thread = std::thread::Builder::new().name("nextn-live".into()).spawn(move || learner.run());
        let thread = thread.map_err(|error| format!("no thread was started: {error}"))?;
        Ok(Self { numbers, thread })
    }

    pub(super) fn numbers(&self) -> LiveNumbers {
        *lock(&self.numbers)
    }

    pub(super) fn is_done(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Of several models of a process one learns at a time.
static TURN: Mutex<()> = Mutex::new(());

/// How often the thread looks whether a round is due.
const LOOK_EVERY: Duration = Duration::from_millis(100);

struct Learner {
    options: LiveOptions,
    /// The folder of kept replies.
    kept: PathBuf,
    path: PathBuf,
    /// The file of the head that the model was opened with.
    base: PathBuf,
    life: EngineLife,
    model: Weak<Model>,
    place: Place,
    counts: Arc<Counts>,
    numbers: Arc<Mutex<LiveNumbers>>,
    /// The head in use is the one that the model was opened with.
    is_own: bool,
    watch: Watch,
    /// Tokens of kept replies when the last round began.
    n_tokens_before: u64,
    n_failed_in_turn: u32,
}

impl Learner {
    /// Uses the head that was kept before, if it is one for this model and its head.
    fn take_up(&mut self, model: &Model) {
        let Some(path) = self.place.kept_before() else { return };
        match model.replace_head(&path) {
            Ok(()) => {
                self.is_own = false;
                tracing::info!(file = %path.display(), "--learn-live: the head that was learned before is in use again");
            }
            Err(error) => {
                tracing::warn!(file = %path.display(), %error, "--learn-live: the head that was learned before is left alone");
            }
        }
    }

    fn run(mut self) {
        while !self.is_over() {
            self.look_at_drafts();
            if self.is_due()
                && let Ok(_turn) = TURN.try_lock()
            {
                self.round();
            } else {
                std::thread::sleep(LOOK_EVERY);
            }
        }
    }

    fn is_over(&self) -> bool {
        self.life.has_stopped() || self.model.strong_count() == 0
    }

    /// Enough has come since the last round, and nobody waits. After rounds that failed, more has to come.
    fn is_due(&self) -> bool {
        let n_new = u64::from(self.options.n_new) << self.n_failed_in_turn.min(MAX_DOUBLED);
        self.counts.n_tokens() - self.n_tokens_before >= n_new && busy::idle_time() >= Some(self.options.idle)
    }

    /// Takes a head out of use with which drafts went wrong more often than before.
    fn look_at_drafts(&mut self) {
        if let Some((before, since)) = self.watch.is_bad(self.counts.drafts()) {
            tracing::warn!(before, since, "--learn-live: the first tokens of drafts are right less often than before");
            self.undo();
        }
    }

    fn round(&mut self) {
        let before = std::mem::replace(&mut self.n_tokens_before, self.counts.n_tokens());
        self.count(|n| n.n_rounds += 1);
        let n = lock(&self.numbers).n_rounds;
        let outcome = self.train(n);
        match outcome {
            Ok(Some(report)) => {
                self.n_failed_in_turn = 0;
                self.apply(&report);
            }
            Ok(None) => self.n_tokens_before = before,
            Err(why) => {
                self.n_failed_in_turn += 1;
                self.count(|n| n.n_failed += 1);
                tracing::warn!(why, "--learn-live: a round ended without a head; the one in use stays");
            }
        }
        self.place.forget_round();
    }

    /// Runs the program to its end; `None` where the engine ended, or a request came that it cannot wait for.
    fn train(&self, n: u64) -> Result<Option<Report>, String> {
        let folder = self.place.begin_round().map_err(|error| error.to_string())?;
        let own = (!self.is_own).then(|| self.place.head());
        let start = own.as_ref().or(Some(&self.base).filter(|base| **base != self.path));
        let rival = own.as_ref().map(|_| self.place.previous().unwrap_or_else(|| self.base.clone()));
        let mut round = Round::start(&self.options, (&self.path, &self.kept, &folder), (start, rival.as_ref()), n)?;
        loop {
            if self.is_over() {
                return Ok(None);
            }
            match round.ended()? {
                Ended::Not => {}
                Ended::Well => break,
            }
            if round.is_stopped() {
                match busy::idle_time() >= Some(self.options.idle) {
                    true => round.go_on(),
                    false => std::thread::sleep(LOOK_EVERY.min(self.options.idle)),
                }
            } else if busy::wait_for_request(LOOK_EVERY) {
                self.count(|n| n.n_paused += 1);
                if !round.stop() {
                    // It begins again when nobody waits.
                    return Ok(None);
                }
            }
        }
        Report::read(&folder).map(Some)
    }

    /// Does what was measured, when no request runs.
    fn apply(&mut self, report: &Report) {
        while !self.is_over() && busy::idle_time().is_none() {
            std::thread::sleep(LOOK_EVERY.min(self.options.idle));
        }
        let measured = report.measured();
        let decision = decide(&measured);
        tracing::info!(
            held_out = measured.n,
            in_use = measured.in_use,
            learned = measured.learned,
            before_it = measured.before,
            decision = decision.name(),
            "--learn-live: tokens of a pass with a draft, on the latest replies"
        );
        let stays = match decision {
            Decision::Keep => self.keep().then_some(measured.learned),
            Decision::Undo => self.undo().then_some(measured.before).flatten(),
            Decision::Leave => None,
        };
        self.count(|n| n.tokens_per_pass = Some(stays.unwrap_or(measured.in_use)).filter(|_| measured.n > 0));
    }

    /// Uses the head of the round; false where it cannot be used.
    fn keep(&mut self) -> bool {
        let Some(model) = self.model.upgrade() else { return false };
        let new = self.place.of_round();
        if let Err(error) = model.replace_head(&new) {
            self.count(|n| n.n_failed += 1);
            tracing::warn!(%error, "--learn-live: the head that was learned cannot be used; the one in use stays");
            return false;
        }
        if let Err(error) = self.place.keep(self.is_own) {
            tracing::warn!(%error, "--learn-live: the head is in use, and will be gone after a restart");
        }
        self.is_own = false;
        self.watch.begin(self.counts.drafts());
        self.count(|n| n.n_kept += 1);
        true
    }

    /// Goes back to the head before; false where that cannot be.
    fn undo(&mut self) -> bool {
        let Some(model) = self.model.upgrade() else { return false };
        if self.is_own {
            return false;
        }
        let previous = self.place.previous();
        let restored = match &previous {
            Some(path) => model.replace_head(path),
            None => model.restore_head(),
        };
        if let Err(error) = restored {
            tracing::warn!(%error, "--learn-live: the head before cannot be used again");
            return false;
        }
        self.is_own = previous.is_none();
        if let Err(error) = self.place.undo() {
            tracing::warn!(%error, "--learn-live: the head that was taken out of use is still in its folder");
        }
        self.watch = Watch::default();
        self.count(|n| n.n_undone += 1);
        tracing::info!("--learn-live: the head before is in use again");
        true
    }

    fn count(&self, change: impl FnOnce(&mut LiveNumbers)) {
        change(&mut lock(&self.numbers));
    }
}

/// New replies that are waited for are doubled so often at most.
const MAX_DOUBLED: u32 = 5;
