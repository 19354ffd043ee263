//! The models with their states, and who makes room for whom.
//! Owns the rules of memory: a model has its place until its engine has ended and its memory is freed, so no model is there
//! twice, and no more of them than are allowed. Computes only: knows no threads, no waiting and no loading.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use engine::EngineLife;
use tokio::sync::watch;

use super::entry::{About, ModelEntry, Phase, Served};
use super::store::{Download, FileBytes};
use crate::error::ApiError;

/// How a load ended, for all who wait for it. It holds the model until each of them has it, so none is too late.
pub(super) type Outcome = Option<Result<Arc<Served>, ApiError>>;

/// Where a model is.
pub(super) enum State {
    /// On its way from a hub.
    Downloading(Download),
    /// Not listed any more; its place in the table stays, so that places are names.
    Removed,
    Unloaded,
    /// Asked for; there is no room for it yet.
    Waiting {
        done: watch::Receiver<Outcome>,
        since: Instant,
    },
    /// Has its place in memory.
    Loading(watch::Receiver<Outcome>),
    Ready(Arc<Served>),
    /// Ready, but another model waits for its place: it finishes its replies and takes no more. What is left of `changed`
    /// wakes those who came meanwhile.
    Closing {
        served: Arc<Served>,
        changed: watch::Sender<()>,
    },
    /// It did not load, or did not come, in words.
    Failed(String),
    /// Its engine has ended by itself: the next request loads it again.
    Ended,
}

/// A model that was in memory and may be there still: its replies end first.
struct Past {
    served: Weak<Served>,
    life: EngineLife,
}

/// One model.
pub(super) struct Slot {
    pub(super) entry: ModelEntry,
    pub(super) state: State,
    /// How far those are that are locked or copied while it is loaded.
    pub(super) files: FileBytes,
    pub(super) last_used: Instant,
    pub(super) created: u64,
    /// The phase that was told last to those who follow.
    told: Option<Phase>,
    past: Option<Past>,
    /// What is told of it while it is out of memory because nobody asked.
    pub(super) asleep: Option<Arc<About>>,
}

impl Slot {
    pub(super) fn new(entry: ModelEntry, created: u64) -> Self {
        let last_used = Instant::now();
        let (state, files) = (State::Unloaded, FileBytes::default());
        Self { entry, state, files, last_used, created, told: None, past: None, asleep: None }
    }

    /// The model, if it answers.
    pub(super) fn served(&self) -> Option<&Arc<Served>> {
        match &self.state {
            State::Ready(served) | State::Closing { served, .. } => Some(served),
            _ => None,
        }
    }

    /// Where it is, as others are told.
    pub(super) fn phase(&self) -> Phase {
        match self.state {
            State::Downloading(_) => Phase::Downloading,
            State::Unloaded if self.lingers() => Phase::Unloading,
            State::Unloaded | State::Removed => Phase::Unloaded,
            State::Waiting { .. } | State::Loading(_) => Phase::Loading,
            State::Ready(_) | State::Closing { .. } => Phase::Ready,
            State::Failed(_) => Phase::Failed,
            State::Ended => Phase::Ended,
        }
    }

    /// What whoever wants an answer is told while the model loads at the start.
    pub(super) fn still_loading(&self) -> ApiError {
        let far = self.files.percent().map_or_else(String::new, |percent| format!(" ({percent} %)"));
        ApiError::unavailable(format!("the model is still loading{far}: try again"), Some(1))
    }

    /// It is one of those that clients know of.
    pub(super) fn is_listed(&self) -> bool {
        !matches!(self.state, State::Removed)
    }

    /// Its phase, if that is another than the last time.
    pub(super) fn news(&mut self) -> Option<Phase> {
        let phase = self.phase();
        let told = self.told.replace(phase);
        (self.is_listed() && told != Some(phase)).then_some(phase)
    }

    /// No request runs on it, and none is about to: nobody else holds it.
    fn is_idle(&self) -> bool {
        self.served().is_some_and(|served| Arc::strong_count(served) == 1)
    }

    /// What was in memory before is there still.
    fn lingers(&self) -> bool {
        self.past.as_ref().is_some_and(|past| past.served.strong_count() > 0 || !past.life.is_freed())
    }

    /// It has a place in memory.
    fn occupies(&self) -> bool {
        matches!(self.state, State::Loading(_) | State::Ready(_) | State::Closing { .. }) || self.lingers()
    }
}

/// All models.
pub(super) struct Table {
    pub(super) slots: Vec<Slot>,
    /// Names to places.
    names: HashMap<String, usize>,
    /// Places in memory; `None` is one for each.
    max: Option<usize>,
    /// Models taken out, to be dropped where no lock is held: freeing one may take long.
    pub(super) dropped: Vec<Arc<Served>>,
}

impl Table {
    pub(super) fn new(slots: Vec<Slot>, max: Option<usize>) -> Self {
        let mut table = Self { slots: Vec::new(), names: HashMap::new(), max, dropped: Vec::new() };
        for mut slot in slots {
            slot.told = Some(Phase::Unloaded);
            table.add(slot);
        }
        table
    }

    /// Takes in a model; a name that another one has stays with that.
    pub(super) fn add(&mut self, slot: Slot) -> usize {
        let i = self.slots.len();
        for name in std::iter::once(&slot.entry.id).chain(&slot.entry.aliases) {
            self.names.entry(name.clone()).or_insert(i);
        }
        self.slots.push(slot);
        i
    }

    /// The place of a name.
    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    /// Another name for a model, unless it is taken.
    pub(super) fn also_called(&mut self, i: usize, name: &str) {
        if *self.names.entry(name.to_owned()).or_insert(i) == i && self.slots[i].entry.id != name {
            let aliases = &mut self.slots[i].entry.aliases;
            if !aliases.iter().any(|alias| alias == name) {
                aliases.push(name.to_owned());
            }
        }
    }

    /// Takes a model off the list.
    pub(super) fn strike(&mut self, i: usize) {
        self.slots[i].state = State::Removed;
        self.names.retain(|_, place| *place != i);
    }

    /// Puts back what [`Table::strike`] took off.
    pub(super) fn list_again(&mut self, i: usize) {
        self.slots[i].state = State::Unloaded;
        let names: Vec<String> =
            std::iter::once(&self.slots[i].entry.id).chain(&self.slots[i].entry.aliases).cloned().collect();
        for name in names {
            self.names.entry(name).or_insert(i);
        }
    }

    /// The models that clients know of.
    pub(super) fn listed(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.is_listed())
    }

    /// Finds out whether the engine of a model has ended by itself.
    pub(super) fn settle(&mut self, i: usize) {
        if self.slots[i].served().is_some_and(|served| served.engine().life().has_stopped()) {
            tracing::error!(model = %self.slots[i].entry.id, "the engine has ended: the next request loads the model again");
            self.take_out(i, State::Ended);
        }
    }

    /// Takes a model out; requests that run on it end first. True if it was there.
    pub(super) fn unload(&mut self, i: usize) -> bool {
        self.take_out(i, State::Unloaded)
    }

    /// Takes a model out that was unused for as long as it may be.
    pub(super) fn unload_if_unused(&mut self, i: usize) {
        let slot = &self.slots[i];
        if slot.is_idle() && slot.entry.idle.is_some_and(|idle| slot.last_used.elapsed() >= idle) {
            tracing::info!(model = %slot.entry.id, "model unloaded after idle time");
            let about = slot.served().map(|served| Arc::new(About::new(served)));
            self.unload(i);
            self.slots[i].asleep = about;
        }
    }

    fn take_out(&mut self, i: usize, state: State) -> bool {
        let slot = &mut self.slots[i];
        let Some(served) = slot.served().cloned() else { return false };
        // It was loaded when what was there before had gone: nothing is forgotten.
        slot.past = Some(Past { served: Arc::downgrade(&served), life: served.engine().life() });
        slot.state = state;
        slot.asleep = None;
        self.dropped.push(served);
        true
    }

    /// Gives a waiting model its place, if there is one by now; the one that waits for longest goes first.
    pub(super) fn take_place(&mut self, i: usize) -> bool {
        self.balance();
        let State::Waiting { done, since } = &self.slots[i].state else { return false };
        let before =
            |slot: &Slot| slot.occupies() || matches!(slot.state, State::Waiting { since: s, .. } if s < *since);
        let n_before = self.slots.iter().enumerate().filter(|&(j, slot)| j != i && before(slot)).count();
        let free = !self.slots[i].lingers() && self.max.is_none_or(|max| n_before < max);
        if free {
            self.slots[i].state = State::Loading(done.clone());
        }
        free
    }

    /// A waiting model waits no more: why there was no place for it.
    pub(super) fn give_up(&mut self, i: usize) -> ApiError {
        let slot = &mut self.slots[i];
        let id = &slot.entry.id;
        let message = match (slot.lingers(), self.max) {
            (true, _) | (_, None) => {
                format!("the model {id} was unloaded and its answers have not ended yet: try again later")
            }
            (false, Some(max)) => format!(
                "there is no room for the model {id}: --models-max allows {max} in memory, and those there are \
                 answering; try again later"
            ),
        };
        slot.entry.at_start = false;
        slot.state = State::Unloaded;
        self.balance();
        ApiError { code: Some("no_room"), ..ApiError::unavailable(message, Some(RETRY_WHEN_FULL)) }
    }

    /// Makes as many models leave as others wait for: those that are idle first, the one unused for longest before others. One
    /// that is in use takes no more requests, and leaves when its replies have ended; when nobody waits any more, it stays.
    fn balance(&mut self) {
        let Some(max) = self.max else { return };
        let n_waiting = self.count(|state| matches!(state, State::Waiting { .. }));
        while self.n_staying() + n_waiting < max && self.keep_one() {}
        let is_done = |slot: &Slot| matches!(slot.state, State::Closing { .. }) && slot.is_idle();
        while let Some(done) = self.slots.iter().position(is_done) {
            self.unload(done);
        }
        // One that has become idle leaves in place of one that is in use.
        while self.latest_closing().is_some()
            && let Some(idle) = self.first_ready().filter(|&i| self.slots[i].is_idle())
        {
            self.unload(idle);
            self.keep_one();
        }
        while self.n_staying() + n_waiting > max && self.send_away() {}
    }

    fn n_staying(&self) -> usize {
        self.count(|state| matches!(state, State::Loading(_) | State::Ready(_)))
    }

    fn count(&self, is: fn(&State) -> bool) -> usize {
        self.slots.iter().filter(|slot| is(&slot.state)).count()
    }

    /// Who is to leave first: one that is idle, then the one unused for longest.
    fn first_ready(&self) -> Option<usize> {
        let ready = self.slots.iter().enumerate().filter(|(_, slot)| matches!(slot.state, State::Ready(_)));
        ready.min_by_key(|(_, slot)| (!slot.is_idle(), slot.last_used)).map(|(i, _)| i)
    }

    /// Who is to stay first of those that are about to leave.
    fn latest_closing(&self) -> Option<usize> {
        let closing = self.slots.iter().enumerate().filter(|(_, slot)| matches!(slot.state, State::Closing { .. }));
        closing.max_by_key(|(_, slot)| slot.last_used).map(|(i, _)| i)
    }

    /// False when there is none to be sent away.
    fn send_away(&mut self) -> bool {
        let Some(i) = self.first_ready() else { return false };
        if self.slots[i].is_idle() {
            return self.unload(i);
        }
        if let Some(served) = self.slots[i].served().cloned() {
            let (changed, _) = watch::channel(());
            self.slots[i].state = State::Closing { served, changed };
        }
        true
    }

    /// False when none is about to leave that could stay.
    fn keep_one(&mut self) -> bool {
        let Some(i) = self.latest_closing() else { return false };
        if let Some(served) = self.slots[i].served().cloned() {
            self.slots[i].state = State::Ready(served);
        }
        true
    }
}

/// Seconds: a reply may be long.
const RETRY_WHEN_FULL: u64 = 10;
