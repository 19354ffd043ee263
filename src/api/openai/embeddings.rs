//! `/v1/embeddings`: one vector for each text, pooled from the model's hidden states and of length 1.

use axum::extract::State;
use engine::{Pooling, RequestOptions};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::json::{Input, Output};
use crate::prompt::Prompts;
use crate::running_reply::RunningReplies;
use crate::state::AppState;
use crate::work::{Caller, Work};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use session::Delta;

/// The fields of a request.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct EmbeddingRequest {
    /// The model's name.
    model: Option<String>,
    /// A text, a list of texts, a list of tokens, or a list of such lists.
    #[schema(value_type = Value)]
    input: Prompts,
    /// `float` or `base64`.
    encoding_format: Option<String>,
    /// Only the model's own number is served.
    dimensions: Option<usize>,
    /// `mean` or `last`.
    pooling: Option<String>,
}

/// All vectors.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddingResponse {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: EmbeddingUsage,
}

/// One vector.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Row,
}

/// Numbers, or the same as little-endian bytes in base64.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Row {
    /// Numbers.
    Floats(Vec<f32>),
    /// Their bytes.
    Base64(String),
}

/// Tokens of all texts.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// `POST /v1/embeddings`.
pub(crate) async fn embeddings(
    State(state): State<AppState>,
    caller: Caller,
    input: Input,
) -> Result<Output<EmbeddingResponse>, ApiError> {
    if !state.settings().embeddings {
        return Err(ApiError::not_supported("this server does not embed: start it with --embeddings"));
    }
    let body: EmbeddingRequest = input.read().await?;
    let served = state.registry().get(body.model.as_deref()).await?;
    let pooling = match body.pooling.as_deref() {
        None | Some("mean") => Pooling::Mean,
        Some("last") => Pooling::Last,
        Some(_) => return Err(ApiError::field("pooling", "pooling: mean or last expected")),
    };
    let base64 = match body.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(ApiError::field("encoding_format", "encoding_format: float or base64 expected")),
    };
    let n_embd = served.model().hparams().n_embd;
    if let Some(n) = body.dimensions.filter(|&n| n != n_embd) {
        return Err(ApiError::field("dimensions", format!("dimensions: {n_embd} expected, {n} found")));
    }
    let n = body.input.count("input")?;
    let work = move |work: &mut Work| {
        let options = RequestOptions { embed: Some(pooling), ..work.served().request_options() };
        let rows = body.input.prepared(work, "input", &options);
        // The engine calls it a prompt.
        work.submit(&rows.map_err(|error| ApiError { param: Some("input".to_owned()), ..error })?, 1)
    };
    let replies = state.work(&served, caller, n, work).await?;
    drop(input);
    let mut data = Vec::new();
    let mut usage = EmbeddingUsage::default();
    let mut replies = RunningReplies::new(replies);
    while let Some((index, delta, _)) = replies.next().await {
        match delta? {
            Delta::Progress(_) | Delta::Step(_) => {}
            Delta::End(end) => {
                usage.prompt_tokens += end.timings.prompt_tokens;
                let row = normed(end.embedding.unwrap_or_default());
                let embedding = if base64 { Row::Base64(base64_of(&row)) } else { Row::Floats(row) };
                data.push(Embedding { object: "embedding", index, embedding });
            }
        }
    }
    data.sort_by_key(|one| one.index);
    usage.total_tokens = usage.prompt_tokens;
    Ok(Output(EmbeddingResponse { object: "list", data, model: served.id.clone(), usage }))
}

fn normed(row: Vec<f32>) -> Vec<f32> {
    let length = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    if length == 0.0 { row } else { row.into_iter().map(|x| (f64::from(x) / length) as f32).collect() }
}

fn base64_of(row: &[f32]) -> String {
    BASE64_STANDARD.encode(row.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_base64_are_their_bytes() {
        // 1.0 is 00 00 80 3f.
        assert_eq!(base64_of(&[1.0]), "AACAPw==");
        assert_eq!(base64_of(&[1.0, 1.0, 1.0]), "AACAPwAAgD8AAIA/");
    }

    #[test]
    fn rows_have_length_one() {
        assert_eq!(normed(vec![3.0, 4.0]), [0.6, 0.8]);
        assert_eq!(normed(vec![0.0, 0.0]), [0.0, 0.0]);
    }
}
