//! What chat and completions have in common: the object around their choices, its timings, and how both end.
//! Owns the fields that every part of a response repeats. Knows nothing of what a choice is.

use std::borrow::Cow;
use std::sync::Arc;

use engine::{PromptProgress, Timings};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::ids;
use crate::native::completion::{NativeResponse, Part as Told};
use crate::params::Wanted;
use crate::registry::Served;
use crate::state::AppState;
use crate::stream::Events;
use crate::wire::{Progress, TimingsBody, Usage};
use session::{End, Step};

/// A whole reply, or a part of one in a stream.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Part<'a, C> {
    id: Cow<'a, str>,
    object: &'static str,
    created: u64,
    model: Cow<'a, str>,
    system_fingerprint: Cow<'a, str>,
    choices: Vec<C>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    /// Of the first choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<TimingsBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_progress: Option<Progress>,
    /// With `verbose`: what `/completion` says of the first choice, or of the one whose last part this is.
    #[serde(rename = "__verbose", skip_serializing_if = "Option::is_none")]
    verbose: Option<Box<NativeResponse>>,
}

/// What all parts of one response repeat, and the timings of its end.
#[derive(Debug)]
pub(crate) struct Frame {
    id: String,
    created: u64,
    fingerprint: String,
    /// The `object` of parts of a stream.
    object: &'static str,
    pub(crate) served: Arc<Served>,
    pub(crate) wanted: Wanted,
    usage: Usage,
    timings: Option<TimingsBody>,
    /// The replies as `/completion` tells of them, where that is wanted.
    told: Vec<Told>,
    verbose: Option<Box<NativeResponse>>,
}

impl Frame {
    /// `prefix`: of its id.
    pub(crate) fn new(
        state: &AppState,
        served: Arc<Served>,
        wanted: Wanted,
        prefix: &str,
        object: &'static str,
    ) -> Self {
        Self {
            id: ids::new(prefix),
            created: ids::now(),
            fingerprint: state.settings().build.clone(),
            object,
            served,
            wanted,
            usage: Usage::default(),
            timings: None,
            told: Vec::new(),
            verbose: None,
        }
    }

    /// The same, which tells in `__verbose` of replies to these prompts; without prompts it does not.
    pub(crate) fn telling(self, prompts: &[String]) -> Self {
        let n = self.wanted.n;
        let part = |i| Told::new(&self.served, &self.wanted, i, &prompts[i / n]);
        Self { told: (0..prompts.len() * n).map(part).collect(), ..self }
    }

    /// Takes note of more of reply `index`.
    pub(crate) fn take(&mut self, index: usize, step: &Step) {
        if let Some(told) = self.told.get_mut(index) {
            told.take(step);
        }
    }

    /// The response's id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// A part of a stream with these choices.
    pub(crate) fn part<C>(&self, choices: Vec<C>) -> Part<'_, C> {
        Part {
            id: Cow::Borrowed(&self.id),
            object: self.object,
            created: self.created,
            model: Cow::Borrowed(&self.served.id),
            system_fingerprint: Cow::Borrowed(&self.fingerprint),
            choices,
            usage: None,
            timings: None,
            prompt_progress: None,
            verbose: None,
        }
    }

    /// A part of a stream with more of one reply, whose timings are `so_far`.
    pub(crate) fn more<C>(&self, choice: C, so_far: &Timings) -> Part<'_, C> {
        Part { timings: self.wanted.timings_so_far(so_far), ..self.part(vec![choice]) }
    }

    /// Tells how far a prompt is, where that is wanted; `choice` is an empty one of its reply.
    pub(crate) fn progress<C: Serialize>(
        &self,
        choice: C,
        progress: PromptProgress,
        so_far: &Timings,
        events: &mut Events,
    ) {
        if self.wanted.return_progress {
            let timings = self.wanted.timings_so_far(so_far);
            events.data(&Part { prompt_progress: Some(progress.into()), timings, ..self.part(vec![choice]) });
        }
    }

    /// Counts reply `index`, and writes its last part.
    pub(crate) fn end<C: Serialize>(&mut self, index: usize, end: &End, last: C, events: &mut Events) {
        self.usage.add(&end.timings, end.reasoning_tokens, !index.is_multiple_of(self.wanted.n));
        let timings = self.wanted.timings_of(&end.timings);
        let verbose = self.told.get_mut(index).map(|told| Box::new(told.told(end)));
        if events.are_read() {
            events.data(&Part { timings: Some(timings.clone()), verbose, ..self.part(vec![last]) });
        } else if index == 0 {
            self.verbose = verbose;
        }
        if index == 0 {
            self.timings = Some(timings);
        }
    }

    /// Ends a stream that broke.
    pub(crate) fn failed(error: &ApiError, events: &mut Events) {
        events.data(&error.body());
        events.done();
    }

    /// Ends a stream; `C` is what its choices are.
    pub(crate) fn finish<C: Serialize>(&self, events: &mut Events) {
        if self.wanted.include_usage {
            let (usage, timings) = (Some(self.usage.clone()), self.timings.clone());
            events.data(&Part { usage, timings, ..self.part(Vec::<C>::new()) });
        }
        events.done();
    }

    /// The whole, which is no stream.
    pub(crate) fn whole<C>(self, object: &'static str, choices: Vec<C>) -> Part<'static, C> {
        Part {
            id: Cow::Owned(self.id),
            object,
            created: self.created,
            model: Cow::Owned(self.served.id.clone()),
            system_fingerprint: Cow::Owned(self.fingerprint),
            choices,
            usage: Some(self.usage),
            timings: self.timings,
            prompt_progress: None,
            verbose: self.verbose,
        }
    }
}
