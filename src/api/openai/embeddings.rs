//! `/v1/embeddings` in OpenAI's form, and `/embedding` in llama.cpp's: vectors of inputs, pooled from the model's hidden states.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use engine::Pooling;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::blocking::blocking;
use crate::error::ApiError;
use crate::json::{Input, Output};
use crate::params::range;
use crate::prompt::Prompts;
use crate::registry::Served;
use crate::state::AppState;
use crate::vectors::{self, Embed, Vector};
use crate::work::Caller;

/// The fields of a request.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub(crate) struct EmbeddingRequest {
    /// The model's name.
    model: Option<String>,
    /// A text, a list of texts, a list of tokens, or a list of such lists.
    #[schema(value_type = Value)]
    input: Option<Prompts>,
    /// llama.cpp's name for `input`; the response has its form then.
    #[schema(value_type = Option<Value>)]
    content: Option<Prompts>,
    /// `float` or `base64`.
    encoding_format: Option<String>,
    /// Give the first so many numbers, normalised again.
    dimensions: Option<i64>,
    /// `mean`, `cls`, `last`, or `none` for a vector of each token; the server's default without it.
    pooling: Option<String>,
    /// -1 for none, 0 for a largest number of 32760, 1 for taxicab, 2 for Euclidean, above that for the p-norm.
    embd_normalize: Option<i64>,
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

impl EmbeddingUsage {
    /// That of all of them.
    pub(crate) fn of(vectors: &[Vector]) -> Self {
        let prompt_tokens = vectors.iter().map(|vector| vector.n_tokens).sum();
        Self { prompt_tokens, total_tokens: prompt_tokens }
    }
}

/// An input's vectors in llama.cpp's form.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NativeEmbedding {
    index: usize,
    /// One; without pooling one for each token.
    embedding: Vec<Vec<f32>>,
}

/// Which form a response has.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    OpenAi,
    Native,
}

/// `POST /v1/embeddings`, in llama.cpp's form where the request is in it.
pub(crate) async fn embeddings(
    State(state): State<AppState>,
    caller: Caller,
    input: Input,
) -> Result<Response, ApiError> {
    respond(&state, caller, input, Shape::OpenAi).await
}

/// `POST /embedding`.
pub(crate) async fn embedding(
    State(state): State<AppState>,
    caller: Caller,
    input: Input,
) -> Result<Response, ApiError> {
    respond(&state, caller, input, Shape::Native).await
}

async fn respond(state: &AppState, caller: Caller, input: Input, shape: Shape) -> Result<Response, ApiError> {
    check_on(state)?;
    let mut body: EmbeddingRequest = input.read().await?;
    let served = state.registry().get(body.model.as_deref()).await?;
    let (field, inputs, shape) = match (body.input.take(), body.content.take()) {
        (Some(inputs), _) => ("input", inputs, shape),
        (None, Some(inputs)) => ("content", inputs, Shape::Native),
        (None, None) => return Err(ApiError::field("input", "input: this field is expected")),
    };
    let plan = Plan::of(&body, &served, shape)?;
    let embed = Embed { inputs: inputs.into_list(), pooling: plan.pooling, truncate: false, field };
    drop((body, input));
    let vectors = vectors::embed(state, &served, caller, embed).await?;
    // Writing out millions of numbers takes its time.
    blocking(move || Ok(plan.response(vectors, &served))).await
}

/// Embeddings and rankings are off unless they were asked for.
///
/// # Errors
/// 501.
pub(crate) fn check_on(state: &AppState) -> Result<(), ApiError> {
    match state.settings().embeddings {
        true => Ok(()),
        false => Err(ApiError::not_supported("this server neither embeds nor ranks: start it with --embeddings")),
    }
}

/// What is made of hidden states.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    shape: Shape,
    pub(crate) pooling: Pooling,
    base64: bool,
    /// Numbers of a vector.
    n_numbers: usize,
    norm: i64,
}

impl Plan {
    /// A vector of each text, by the model's own pooling, of the first `dimensions` numbers; `norm` as `embd_normalize`.
    ///
    /// # Errors
    /// 400 for a model that makes no vectors of texts, and a number out of range.
    pub(crate) fn of_texts(served: &Served, dimensions: Option<i64>, norm: Option<i64>) -> Result<Self, ApiError> {
        let body = EmbeddingRequest { dimensions, embd_normalize: norm, ..EmbeddingRequest::default() };
        Self::of(&body, served, Shape::OpenAi)
    }

    fn of(body: &EmbeddingRequest, served: &Served, shape: Shape) -> Result<Self, ApiError> {
        let given = body.pooling.as_deref().map(str::parse).transpose();
        let given = given.map_err(|error| ApiError::field("pooling", format!("pooling: {error}")))?;
        let pooling = given.unwrap_or(served.pooling());
        match pooling {
            Pooling::Rank => {
                let message = "pooling: rank gives no vectors: send a query and documents to /v1/rerank, or ask for another pooling";
                return Err(ApiError::field("pooling", message));
            }
            Pooling::None if shape == Shape::OpenAi => {
                let message =
                    "pooling: none gives a vector for each token, for which this form has no place: use /embedding";
                return Err(ApiError::field("pooling", message));
            }
            _ => {}
        }
        let base64 = match body.encoding_format.as_deref() {
            None | Some("float") => false,
            Some("base64") => shape == Shape::OpenAi,
            Some(_) => return Err(ApiError::field("encoding_format", "encoding_format: float or base64 expected")),
        };
        let n_embd = served.model().hparams().n_embd;
        let n_numbers = match body.dimensions {
            Some(n) => range("dimensions", n, 1, n_embd as i64)? as usize,
            None => n_embd,
        };
        let norm = match (pooling, body.embd_normalize) {
            // The vectors of tokens are as the model made them.
            (Pooling::None, _) => -1,
            (_, Some(n)) => range("embd_normalize", n, -1, i32::MAX.into())?,
            (_, None) => served.embd_normalize().into(),
        };
        Ok(Self { shape, pooling, base64, n_numbers, norm })
    }

    /// Of one vector.
    pub(crate) fn numbers(&self, vector: &[f32]) -> Vec<f32> {
        normed(&vector[..self.n_numbers.min(vector.len())], self.norm)
    }

    fn response(&self, vectors: Vec<Vector>, served: &Arc<Served>) -> Response {
        let n_embd = served.model().hparams().n_embd;
        if self.shape == Shape::Native {
            let one = |(index, vector): (usize, Vector)| {
                let embedding = vector.numbers.chunks(n_embd).map(|numbers| self.numbers(numbers)).collect();
                NativeEmbedding { index, embedding }
            };
            let all: Vec<NativeEmbedding> = vectors.into_iter().enumerate().map(one).collect();
            return Output(all).into_response();
        }
        let usage = EmbeddingUsage::of(&vectors);
        let one = |(index, vector): (usize, Vector)| {
            let numbers = self.numbers(&vector.numbers);
            let embedding = if self.base64 { Row::Base64(base64_of(&numbers)) } else { Row::Floats(numbers) };
            Embedding { object: "embedding", index, embedding }
        };
        let data = vectors.into_iter().enumerate().map(one).collect();
        Output(EmbeddingResponse { object: "list", data, model: served.id.clone(), usage }).into_response()
    }
}

/// A vector of the given norm 1, by llama.cpp's numbers: -1 leaves it as it is, 0 makes its largest number 32760, any other is the
/// p-norm. One of zeros stays so.
fn normed(vector: &[f32], norm: i64) -> Vec<f32> {
    let largest = vector.iter().fold(0.0, |most: f64, &x| most.max(f64::from(x).abs()));
    let length = match norm {
        -1 => return vector.to_vec(),
        0 => largest / 32760.0,
        // Divided by the largest first: no power overflows.
        p => {
            largest
                * vector
                    .iter()
                    .map(|&x| (f64::from(x).abs() / largest).powf(p as f64))
                    .sum::<f64>()
                    .powf(1.0 / p as f64)
        }
    };
    match largest > 0.0 {
        true => vector.iter().map(|&x| (f64::from(x) / length) as f32).collect(),
        false => vector.to_vec(),
    }
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
    fn vectors_have_the_norm_that_was_asked_for() {
        let x = [3.0, -4.0];
        for (norm, expected) in [
            (-1, [3.0, -4.0]),
            (0, [24570.0, -32760.0]),
            (1, [3.0 / 7.0, -4.0 / 7.0]),
            (2, [0.6, -0.8]),
            (3, [3.0 / 91f32.cbrt(), -4.0 / 91f32.cbrt()]),
            // Of so high a power only the largest is left.
            (i64::from(i32::MAX), [0.75, -1.0]),
        ] {
            let close = normed(&x, norm).iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6 * b.abs());
            assert!(close, "{norm}: {:?}", normed(&x, norm));
            assert_eq!(normed(&[0.0, 0.0], norm), [0.0, 0.0]);
        }
    }
}
