//! `/infill`: the text between two others, where the vocabulary has tokens for that.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use text::{Special, TokenId};
use utoipa::ToSchema;

use super::completion;
use crate::error::ApiError;
use crate::json::Input;
use crate::openai::prompt::Prompt;
use crate::params::Params;
use crate::prepare;
use crate::registry::Served;
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
    let params: Params = input.read().await?;
    let n = params.n_answers()?;
    let served = state.registry().get(body.model.as_deref()).await?;
    let work = move |work: &mut Work| {
        let wanted = params.wanted(work.served())?;
        let prepared = prepare::text(work.served(), tokens(work.served(), &body)?, &wanted.options)?;
        Ok((work.submit(&[prepared], wanted.n)?, wanted))
    };
    let (answers, wanted) = state.work(&served, caller, n, work).await?;
    drop(input);
    completion::respond_to(&state, &served, answers, wanted, vec![String::new()]).await
}

fn tokens(served: &Served, body: &InfillRequest) -> Result<Vec<TokenId>, ApiError> {
    let vocab = served.model.vocab();
    let fim = vocab.fim().ok_or_else(no_fim)?;
    let plain = |text: &str| vocab.encode(text, Special::Plain);
    let mut tokens = Vec::new();
    let separator = vocab.id("<|file_sep|>");
    for file in body.input_extra.iter().flatten() {
        // Without a token between files their names are all that parts them.
        tokens.extend(separator);
        tokens.extend(plain(&format!("{}\n{}", file.filename.as_deref().unwrap_or("tmp"), file.text)));
    }
    if let (Some(separator), false) = (separator, tokens.is_empty()) {
        tokens.push(separator);
        tokens.extend(plain("filename\n"));
    }
    tokens.push(fim.prefix);
    tokens.extend(plain(&body.input_prefix));
    tokens.extend(body.prompt.iter().flat_map(|text| plain(text)));
    tokens.push(fim.suffix);
    tokens.extend(plain(&body.input_suffix));
    tokens.push(fim.middle);
    Ok(tokens)
}

/// A prompt with a suffix, as `/v1/completions` has it.
pub(crate) fn filled(served: &Served, before: Prompt, after: &str) -> Result<Vec<TokenId>, ApiError> {
    let vocab = served.model.vocab();
    let fim = vocab.fim().ok_or_else(no_fim)?;
    let mut tokens = vec![fim.prefix];
    tokens.extend(before.tokens(vocab));
    tokens.push(fim.suffix);
    tokens.extend(vocab.encode(after, Special::Plain));
    tokens.push(fim.middle);
    Ok(tokens)
}

fn no_fim() -> ApiError {
    ApiError::not_supported("this model's vocabulary has no tokens for filling in the middle")
}
