//! `/api/pull` and `/api/delete`: models of a hub that come and go, where the operator allows it; and what is not served.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::error::OllamaError;
use super::models::OllamaName;
use super::names;
use crate::blocking::blocking;
use crate::error::ApiError;
use crate::json::{Input, Output};
use crate::registry::Phase;
use crate::state::{AppState, Course, reached};
use crate::stream::{self, Events, Framing};

/// What is to be fetched.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct OllamaPullRequest {
    /// `USER/REPO[:QUANT]` of a hub, with or without the host `hf.co/`.
    model: Option<String>,
    /// An older name of `model`.
    name: Option<String>,
    /// Tell in lines how far it is; true by default.
    stream: Option<bool>,
}

/// How far a download is.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct OllamaProgress {
    /// `pulling manifest`, `pulling FILE`, `success`.
    status: String,
    /// The file.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// Bytes in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    /// Bytes that are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    completed: Option<u64>,
}

impl OllamaProgress {
    fn of(status: &str) -> Self {
        Self { status: status.to_owned(), ..Self::default() }
    }
}

/// `POST /api/pull`: fetches a model. One that is there already, or is one of the configuration, is a success at once.
pub(crate) async fn pull(State(state): State<AppState>, input: Input) -> Result<Response, ApiError> {
    let body: OllamaPullRequest = input.read().await?;
    let given = OllamaName { model: body.model, name: body.name }.given()?;
    let known = names::asked(state.registry(), Some(&given)).filter(|name| state.registry().knows(name));
    let name = known.unwrap_or_else(|| names::plain(&given).to_owned());
    let mut download = Download { state: state.clone(), name };
    if matches!(download.phase(), None | Some(Phase::Failed)) {
        state.registry().download(&download.name)?;
    }
    if body.stream == Some(false) {
        while download.next().await?.is_some() {}
        return Ok(Output(OllamaProgress::of(SUCCESS)).into_response());
    }
    Ok(stream::response(&state, Framing::Lines, b" ", |lines| async move {
        let mut events = Events::new(Framing::Lines);
        events.data(&OllamaProgress::of("pulling manifest"));
        loop {
            lines.send(&mut events).await?;
            match download.next().await {
                Ok(Some(progress)) => {
                    progress.iter().for_each(|line| events.data(line));
                    continue;
                }
                Ok(None) => events.data(&OllamaProgress::of(SUCCESS)),
                Err(error) => events.data(&OllamaError::new(&error)),
            }
            return lines.send(&mut events).await;
        }
    }))
}

/// A download on its way.
struct Download {
    state: AppState,
    name: String,
}

impl Download {
    fn phase(&self) -> Option<Phase> {
        let all = self.state.registry().list();
        let is_it = |name: &str, aliases: &[String]| name == self.name || aliases.contains(&self.name);
        all.into_iter().find(|(entry, ..)| is_it(&entry.id, &entry.aliases)).map(|(.., phase)| phase)
    }

    /// Waits a little, and tells how far it is; `None` where it has come.
    ///
    /// # Errors
    /// Why it did not come.
    async fn next(&mut self) -> Result<Option<Vec<OllamaProgress>>, ApiError> {
        match self.phase() {
            Some(Phase::Downloading) => {}
            Some(Phase::Failed) => {
                let why = self.state.registry().detail(&self.name).error;
                return Err(ApiError::server(why.unwrap_or_else(|| "the model did not come".into())));
            }
            None => return Err(ApiError::server("the download was stopped")),
            Some(_) => return Ok(None),
        }
        let mut course = self.state.watch_course();
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => Ok(Some(self.progress())),
            () = reached(&mut course, Course::Draining) => Err(ApiError::shutdown()),
        }
    }

    fn progress(&self) -> Vec<OllamaProgress> {
        let Some(Value::Object(files)) = self.state.registry().detail(&self.name).progress else { return Vec::new() };
        let line = |(file, bytes): (String, Value)| OllamaProgress {
            status: format!("pulling {file}"),
            total: bytes["total"].as_u64(),
            completed: bytes["done"].as_u64(),
            digest: Some(file),
        };
        files.into_iter().map(line).collect()
    }
}

/// `DELETE /api/delete`.
pub(crate) async fn delete(State(state): State<AppState>, input: Input) -> Result<(), ApiError> {
    let given = input.read::<OllamaName>().await?.given()?;
    let name = names::asked(state.registry(), Some(&given)).unwrap_or(given);
    blocking(move || state.registry().remove(&name)).await
}

/// `/api/copy`, `/api/create` and `/api/push`.
pub(crate) async fn not_served(_: Input) -> ApiError {
    ApiError::not_supported(
        "this server makes, copies and sends no models: serve a GGUF file with `-m`, give it other names with `--alias`, and \
         change a file with `extract-nextn`",
    )
}

const SUCCESS: &str = "success";

/// Between lines of progress.
const LOOK_EVERY: Duration = Duration::from_millis(100);
