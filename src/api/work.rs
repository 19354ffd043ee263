//! Work on requests before the engine has them: templates, tokens, grammars, samplers.
//! Owns its limits: it has places in the engine's queue, only some of it is done at a time, each piece within a time limit, on
//! threads that may block, and for as long as somebody waits for the result. Knows not what is worked on.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::FromRequestParts;
use engine::{RequestOptions, Reserved, Scope};
use hyper::http::request::Parts;
use session::{Conversation, Prepared, Rendered, Waiting};
use tokio::time::{Instant, timeout_at};

use crate::blocking::blocking;
use crate::error::ApiError;
use crate::lane::Turn;
use crate::metrics::Preparing;
use crate::params::Wanted;
use crate::pictures;
use crate::rate::Client;
use crate::registry::Served;
use crate::running_reply::RunningReply;
use crate::state::{AppState, Course};

/// Whose request it is, as far as anything but being let in depends on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    /// Whose cached state it may take up.
    pub scope: Scope,
    /// The number of the key that it came with.
    pub key: Option<usize>,
    /// Who takes turns with others.
    pub(crate) client: Client,
}

impl FromRequestParts<AppState> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &AppState) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or_default())
    }
}

/// How long work takes, as far as that is known before it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// Milliseconds.
    Quick,
    /// Seconds: a projector looks at images, one request's after another's, in turns of the clients. Quick work does not wait.
    Seeing,
}

impl WorkKind {
    /// Of work on these requests.
    pub(crate) fn of(served: &Served, has_images: bool) -> Self {
        if has_images && served.sight().is_some() { Self::Seeing } else { Self::Quick }
    }
}

/// A piece of work while it is done.
#[derive(Debug)]
pub struct Work {
    state: AppState,
    served: Arc<Served>,
    caller: Caller,
    places: Vec<Reserved>,
    given_up: Arc<AtomicBool>,
    preparing: Preparing,
    /// At looking at images, if it has images.
    turn: Mutex<Option<Turn>>,
}

impl Waiting for Work {
    fn is_wanted(&self) -> bool {
        Work::is_wanted(self)
    }

    fn before_picture(&self) {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        *turn = turn.take().map(|turn| turn.after_others(self.caller.client));
    }
}

impl Work {
    /// The model that it is for.
    pub fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// Somebody waits for the result.
    pub fn is_wanted(&self) -> bool {
        !self.given_up.load(Ordering::Relaxed)
    }

    /// To be asked between parts of the work.
    ///
    /// # Errors
    /// Nobody waits for the result, and so nobody will read this.
    pub fn go_on(&self) -> Result<(), ApiError> {
        match self.is_wanted() {
            true => Ok(()),
            false => Err(ApiError::unavailable("nobody waits for this request any more", None)),
        }
    }

    /// The request for a reply to `conversation`.
    ///
    /// # Errors
    /// 400 with the field at fault; as [`Work::go_on`].
    pub fn prepare(&self, conversation: Conversation, options: RequestOptions) -> Result<Prepared, ApiError> {
        Ok(self.served.prepare(self.whole(conversation)?, options, self)?)
    }

    /// The prompts as `__verbose` shows them; none where that is not wanted.
    pub(crate) fn shown(&self, wanted: &Wanted, prepared: &[Prepared]) -> Vec<String> {
        let verbose = wanted.verbose.unwrap_or(self.state.settings().verbose);
        let shown = prepared.iter().filter(|_| verbose);
        shown.map(|one| self.served.text_of_tokens(one.request.prompt())).collect()
    }

    /// The prompt of `conversation`.
    ///
    /// # Errors
    /// As [`Work::prepare`].
    pub fn render(&self, conversation: Conversation) -> Result<Rendered, ApiError> {
        Ok(self.served.render(self.whole(conversation)?, self)?)
    }

    /// With its images, and with the server's variables for the template where the request has none of that name.
    fn whole(&self, conversation: Conversation) -> Result<Conversation, ApiError> {
        let fetcher = self.state.settings().fetcher.as_ref();
        // An address of the web may answer late.
        let next = || {
            self.before_picture();
            self.go_on()
        };
        let mut conversation = pictures::taken(conversation, self.sees(), fetcher, next)?;
        for (name, value) in &self.state.settings().template_kwargs {
            if !conversation.kwargs.contains_key(name) {
                conversation.kwargs.insert(name.clone(), value.clone());
            }
        }
        Ok(conversation)
    }

    /// The model reads images.
    pub fn sees(&self) -> bool {
        self.served.sight().is_some()
    }

    /// Hands every request over `n` times, each time with a seed of its own where the seed is fixed.
    ///
    /// # Errors
    /// What the engine refuses; what was handed over before is cancelled.
    pub fn submit(&mut self, requests: &[Prepared], n: usize) -> Result<Vec<RunningReply>, ApiError> {
        let each = requests.iter().flat_map(|request| (0..n).map(move |i| (request, i)));
        each.map(|(request, i)| self.submit_one(request, i)).collect()
    }

    fn submit_one(&mut self, request: &Prepared, choice: usize) -> Result<RunningReply, ApiError> {
        self.go_on()?;
        let request = request.choice(choice, self.caller.scope)?;
        let place = match self.places.pop() {
            Some(place) => place,
            None => self.served.engine().reserve(1)?.pop().ok_or_else(|| ApiError::server("there is no place"))?,
        };
        let generation = place.submit(request.request)?;
        self.preparing.one_less();
        Ok(RunningReply::new(&self.state, Arc::clone(&self.served), self.caller.key, generation, request.reply))
    }
}

/// Gives the work up when the future that waits for it is dropped: the client is gone, or it took too long.
struct GiveUp(Arc<AtomicBool>);

impl Drop for GiveUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl AppState {
    /// Does work on a request that leads to `n_replies` replies of `served`, or to none. Dropping the future gives it up: what
    /// has not begun does not begin.
    ///
    /// # Errors
    /// Those of the work; 503 when the queue is full, when too much other work goes before it, or when the server is on its
    /// way out; 504 when it takes too long.
    pub async fn work<T: Send + 'static>(
        &self,
        served: &Arc<Served>,
        caller: Caller,
        n_replies: usize,
        work: impl FnOnce(&mut Work) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.work_at(WorkKind::Quick, served, caller, n_replies, work).await
    }

    /// As [`AppState::work`], of a kind.
    ///
    /// # Errors
    /// As there.
    pub async fn work_at<T: Send + 'static>(
        &self,
        kind: WorkKind,
        served: &Arc<Served>,
        caller: Caller,
        n_replies: usize,
        work: impl FnOnce(&mut Work) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if self.course() != Course::Open {
            return Err(ApiError::shutdown());
        }
        let n_places = n_replies.max(1);
        let places = served.engine().reserve(n_places).inspect_err(|_| {
            self.metrics().refused.inc();
        })?;
        let given_up = Arc::new(AtomicBool::new(false));
        let mut piece = Work {
            state: self.clone(),
            served: Arc::clone(served),
            caller,
            places,
            given_up: Arc::clone(&given_up),
            preparing: self.metrics().preparing(n_places),
            turn: Mutex::default(),
        };
        let give_up = GiveUp(given_up);
        let limits = &self.settings().limits;
        let limit = if kind == WorkKind::Seeing { limits.seeing_timeout } else { limits.prepare_timeout };
        let deadline = Instant::now() + limit;
        let workplaces = self.workplaces();
        let turn = async {
            match kind {
                WorkKind::Seeing => Ok((Some(workplaces.seeing().turn(caller.client).await), None)),
                WorkKind::Quick => workplaces.quick().acquire_owned().await.map(|place| (None, Some(place))),
            }
        };
        let Ok(Ok((turn, place))) = timeout_at(deadline, turn).await else { return Err(busy()) };
        *piece.turn.get_mut().unwrap_or_else(PoisonError::into_inner) = turn;
        let span = tracing::Span::current();
        let done = timeout_at(
            deadline,
            blocking(move || {
                // Held until the work has ended, wanted or not: it takes a core until then.
                let _place = place;
                span.in_scope(|| piece.go_on().and_then(|()| work(&mut piece)))
            }),
        );
        let done = done.await.unwrap_or_else(|_| Err(too_long(limit)));
        drop(give_up);
        done
    }
}

fn busy() -> ApiError {
    let message = "other requests are being prepared, and this one had no turn in time: try again later";
    ApiError { code: Some("queue_full"), ..ApiError::unavailable(message, Some(RETRY_WHEN_BUSY)) }
}

fn too_long(limit: Duration) -> ApiError {
    let message = format!(
        "the request was not prepared after {} s, which is this server's limit: send a shorter conversation or prompt",
        limit.as_secs_f64()
    );
    ApiError { message, ..ApiError::timeout(limit.as_secs()) }
}

/// Seconds.
const RETRY_WHEN_BUSY: u64 = 1;
