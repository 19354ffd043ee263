//! `/infill`: the text between two others, where the vocabulary has tokens for that.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use session::Gap;
use utoipa::ToSchema;

use super::completion::{self, Asked};
use crate::error::ApiError;
use crate::json::Input;
use crate::params::Params;
use crate::state::AppState;
use crate::work::{Caller, Work};

/// The fields of a request, beside [`crate::Params`].
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct InfillRequest {
    model: Option<String>,
    /// Before the gap.
    input_prefix: String,
    /// After the gap.
    input_suffix: String,
    /// Other files of the project.
    input_extra: Option<Vec<ExtraFile>>,
    /// What the gap begins with.
    prompt: Option<String>,
    /// Give these fields of the reply and no others.
    response_fields: Option<Vec<String>>,
}

/// Another file.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct ExtraFile {
    filename: Option<String>,
    text: String,
}

/// `POST /infill`.
pub(crate) async fn infill(State(state): State<AppState>, caller: Caller, input: Input) -> Result<Response, ApiError> {
    let body: InfillRequest = input.read().await?;
    let params = Params::read(&input).await?;
    let n = params.n_replies()?;
    let fields = body.response_fields.clone();
    let served = state.registry().get(body.model.as_deref()).await?;
    let work = move |work: &mut Work| {
        let wanted = params.wanted(work.served())?;
        let prepared = work.served().prepare_text(work.served().infill(&body.gap())?, wanted.options.clone())?;
        Ok((work.submit(&[prepared], wanted.n)?, wanted))
    };
    let (replies, wanted) = state.work(&served, caller, n, work).await?;
    drop(input);
    let asked = Asked { wanted, fields: fields.unwrap_or_default() };
    completion::respond_to(&state, &served, replies, asked, vec![String::new()]).await
}

impl InfillRequest {
    fn gap(&self) -> Gap<'_> {
        Gap {
            before: &self.input_prefix,
            after: &self.input_suffix,
            begins: self.prompt.as_deref(),
            files: self
                .input_extra
                .iter()
                .flatten()
                .map(|file| (file.filename.as_deref(), file.text.as_str()))
                .collect(),
        }
    }
}
