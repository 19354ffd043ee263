//! What all handlers share: models, settings, metrics, and whether the server is still open.
//! Cheap to clone. The way from a request to its reply is `work.rs`.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::bodies::Bodies;
use crate::hosts::Hosts;
use crate::in_flight::InFlight;
use crate::metrics::Metrics;
use crate::openai::responses::Store;
use crate::rate::RateLimit;
use crate::registry::Registry;
use crate::settings::Settings;
use crate::workplaces::Workplaces;

/// The state behind the router.
#[derive(Clone, Debug)]
pub struct AppState {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    registry: Registry,
    settings: Settings,
    metrics: Metrics,
    rate: Option<RateLimit>,
    strangers: RateLimit,
    hosts: Hosts,
    bodies: Bodies,
    workplaces: Workplaces,
    in_flight: InFlight,
    responses: Store,
    course: watch::Sender<Course>,
}

/// How far the server is on its way out.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Course {
    /// Takes requests.
    #[default]
    Open,
    /// Takes none any more; replies that run are finished.
    Draining,
    /// Replies that still run are cut.
    Cut,
}

/// Waits until the server has come so far.
pub(crate) async fn reached(course: &mut watch::Receiver<Course>, at: Course) {
    // An error means that the state is gone: nothing will come any more.
    let _ = course.wait_for(|now| *now >= at).await;
}

impl AppState {
    /// A server over these models.
    pub fn new(registry: Registry, settings: Settings) -> Self {
        let rate = settings.requests_per_minute.map(RateLimit::new);
        let inner = Inner {
            registry,
            metrics: Metrics::new(),
            rate,
            strangers: RateLimit::new(WRONG_KEYS_PER_MINUTE),
            hosts: Hosts::new(&settings),
            bodies: Bodies::new(settings.limits.max_body),
            workplaces: Workplaces::new(settings.limits.preparations),
            in_flight: InFlight::default(),
            responses: Store::new(settings.kept_responses),
            course: watch::Sender::new(Course::Open),
            settings,
        };
        Self { inner: Arc::new(inner) }
    }

    /// The models.
    pub fn registry(&self) -> &Registry {
        &self.inner.registry
    }

    /// What the server was started with.
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// Counters and histograms.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    pub(crate) fn rate(&self) -> Option<&RateLimit> {
        self.inner.rate.as_ref()
    }

    /// Requests without a key of ours, by address.
    pub(crate) fn strangers(&self) -> &RateLimit {
        &self.inner.strangers
    }

    pub(crate) fn hosts(&self) -> &Hosts {
        &self.inner.hosts
    }

    pub(crate) fn bodies(&self) -> &Bodies {
        &self.inner.bodies
    }

    pub(crate) fn workplaces(&self) -> &Workplaces {
        &self.inner.workplaces
    }

    /// Responses that are under way, by their ids.
    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.inner.in_flight
    }

    /// Responses that are kept.
    pub(crate) fn responses(&self) -> &Store {
        &self.inner.responses
    }

    /// How far the server is on its way out.
    pub fn course(&self) -> Course {
        *self.inner.course.borrow()
    }

    /// Goes on to a later course; going back does nothing.
    pub fn set_course(&self, course: Course) {
        self.inner.course.send_if_modified(|now| {
            let later = course > *now;
            *now = course.max(*now);
            later
        });
    }

    /// Follows the course.
    pub fn watch_course(&self) -> watch::Receiver<Course> {
        self.inner.course.subscribe()
    }

    /// Time for a whole reply.
    pub(crate) fn request_timeout(&self) -> Option<Duration> {
        self.settings().limits.request_timeout
    }
}

/// Requests without a key of ours that an address is told so; more are told to wait.
const WRONG_KEYS_PER_MINUTE: u32 = 60;
