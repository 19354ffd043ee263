//! `/rerank` in its many names: documents in the order in which they answer a query, as Jina, Cohere and llama.cpp write it, and
//! as text-embeddings-inference does.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use engine::{Pooling, RequestOptions};
use serde::{Deserialize, Serialize};
use text::TokenId;
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::ids;
use crate::json::{Input, Output};
use crate::openai::embeddings::{EmbeddingUsage, check_on};
use crate::params::range;
use crate::state::AppState;
use crate::vectors::{Vector, check_count, prepared, vectors};
use crate::work::{Caller, Work};

/// The fields of a request.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub(crate) struct RerankRequest {
    /// The model's name.
    model: Option<String>,
    /// What the documents are to answer.
    query: String,
    /// Texts, or objects with a `text`.
    documents: Option<Vec<Document>>,
    /// The name of `documents` in text-embeddings-inference; the response has its form then.
    texts: Option<Vec<String>>,
    /// Give so many of the best.
    top_n: Option<i64>,
    /// Give the documents, too.
    return_documents: Option<bool>,
    /// The name of `return_documents` in text-embeddings-inference.
    return_text: Option<bool>,
}

/// A text.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a text, or an object with a text as `text` expected")]
pub(crate) enum Document {
    /// As it is.
    Text(String),
    /// In an object.
    Object {
        /// The text.
        text: String,
    },
}

/// The best documents, best first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RerankResponse {
    id: String,
    object: &'static str,
    model: String,
    results: Vec<RankedDocument>,
    usage: EmbeddingUsage,
}

/// One of them.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RankedDocument {
    /// Its number in the request, from 0.
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<DocumentText>,
}

/// A document that is given back.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DocumentText {
    text: String,
}

/// As [`RankedDocument`], in the form of text-embeddings-inference.
#[derive(Debug, Serialize)]
struct RankedText {
    index: usize,
    score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

/// `POST /v1/rerank`.
pub(crate) async fn rerank(State(state): State<AppState>, caller: Caller, input: Input) -> Result<Response, ApiError> {
    check_on(&state)?;
    let body: RerankRequest = input.read().await?;
    let served = state.registry().get(body.model.as_deref()).await?;
    if served.model().n_classes().is_none() {
        let message = format!("the model {} has no rank head: serve one that ranks, such as Qwen3-Reranker", served.id);
        return Err(ApiError::not_supported(message));
    }
    let (field, in_texts) = if body.texts.is_some() { ("texts", true) } else { ("documents", false) };
    let of_objects = body.documents.into_iter().flatten().map(|document| match document {
        Document::Text(text) | Document::Object { text } => text,
    });
    let texts = body.texts.unwrap_or_else(|| of_objects.collect());
    check_count(texts.len(), field)?;
    let n_results = match body.top_n {
        Some(n) => (range("top_n", n, 1, i64::MAX)? as usize).min(texts.len()),
        None => texts.len(),
    };
    let keeps = if in_texts { body.return_text } else { body.return_documents } == Some(true);
    let (n, query) = (texts.len(), body.query);
    let mut kept = if keeps { texts.clone() } else { Vec::new() };
    drop(input);
    let vectors = vectors(&state, &served, caller, n, move |work| inputs(work, &query, &texts, field)).await?;
    let usage = EmbeddingUsage::of(&vectors);
    let mut text_of = |index: usize| kept.get_mut(index).map(std::mem::take);
    let best = ranked(&vectors).into_iter().take(n_results);
    if in_texts {
        let results = best.map(|(index, score)| RankedText { index, score, text: text_of(index) });
        return Ok(Output(results.collect::<Vec<_>>()).into_response());
    }
    let result = |(index, relevance_score)| {
        let document = text_of(index).map(|text| DocumentText { text });
        RankedDocument { index, relevance_score, document }
    };
    let results = best.map(result).collect();
    let (id, model) = (ids::new("rerank-"), served.id.clone());
    Ok(Output(RerankResponse { id, object: "list", model, results, usage }).into_response())
}

/// The engine's requests for all documents. What all of them begin with, the query among it, is computed once: its end is a
/// boundary, so that the engine keeps no more of a document than that.
fn inputs(work: &Work, query: &str, texts: &[String], field: &str) -> Result<Vec<session::Prepared>, ApiError> {
    let mut all: Vec<Vec<TokenId>> = Vec::with_capacity(texts.len());
    for text in texts {
        work.go_on()?;
        all.push(work.served().rank_tokens(query, text));
    }
    let n_common = all.iter().skip(1).fold(all[0].len(), |n, tokens| common(&all[0][..n], tokens));
    let checkpoint_boundaries = if all.len() > 1 && n_common > 0 { vec![n_common] } else { Vec::new() };
    let options = RequestOptions { embed: Some(Pooling::Rank), checkpoint_boundaries, ..RequestOptions::default() };
    let one = |(i, tokens)| prepared(work, tokens, &options, field, &format!("{field}[{i}] with the query"));
    all.into_iter().enumerate().map(one).collect()
}

/// Tokens that both begin with.
fn common(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Numbers and scores, best first; of the same score in the order of the request. The first class is the one that counts.
fn ranked(vectors: &[Vector]) -> Vec<(usize, f32)> {
    let score = |vector: &Vector| vector.numbers.first().copied().unwrap_or(f32::NEG_INFINITY);
    let mut all: Vec<(usize, f32)> = vectors.iter().map(score).enumerate().collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_ranked_by_their_first_class_and_ties_keep_their_order() {
        let vectors =
            [[0.1, 9.0], [0.7, 0.0], [0.1, 1.0], [0.9, 0.0]].map(|n| Vector { numbers: n.to_vec(), n_tokens: 1 });
        let order: Vec<usize> = ranked(&vectors).into_iter().map(|(i, _)| i).collect();
        assert_eq!(order, [3, 1, 0, 2]);
    }
}
