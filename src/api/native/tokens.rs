//! `/tokenize`, `/detokenize` and `/apply-template`: what a prompt is made of.

use axum::extract::State;
use serde::{Deserialize, Serialize};
use text::{Special, TokenId};
use utoipa::ToSchema;

use crate::error::ApiError;
use crate::form;
use crate::json::{Input, Output};
use crate::openai::chat::chat_input;
use crate::openai::chat_types::ChatRequest;

use crate::pictures;
use crate::state::AppState;
use crate::work::{Caller, Work, WorkKind};

/// A text to be cut into tokens.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct TokenizeRequest {
    model: Option<String>,
    content: String,
    /// Put the beginning-of-text token before it and the end-of-text token after it, where the model wants them.
    add_special: Option<bool>,
    /// Find special tokens in the text; true by default.
    parse_special: Option<bool>,
    /// Give the tokens' texts.
    with_pieces: Option<bool>,
}

/// Its tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TokenizeResponse {
    tokens: Vec<Token>,
}

/// A token's id, with its text where that was asked for.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Token {
    /// The id alone.
    Id(u32),
    /// The id and the text.
    Piece { id: u32, piece: Text },
}

/// The text of a token; its bytes where they are a part of a character.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Text {
    /// Whole characters.
    Whole(String),
    /// Something else.
    Bytes(Vec<u8>),
}

/// `POST /tokenize`.
pub(crate) async fn tokenize(
    State(state): State<AppState>,
    caller: Caller,
    input: Input,
) -> Result<Output<TokenizeResponse>, ApiError> {
    let body: TokenizeRequest = input.read().await?;
    let served = state.registry().get(body.model.as_deref()).await?;
    let cut = move |work: &mut Work| {
        let vocab = work.served().vocab();
        let special = if body.parse_special.unwrap_or(true) { Special::Parse } else { Special::Plain };
        let add_special = body.add_special.unwrap_or(false);
        let bos = vocab.bos().filter(|_| add_special && vocab.add_bos());
        let eos = vocab.eos().filter(|_| add_special && vocab.add_eos());
        let ids = bos.into_iter().chain(vocab.encode(&body.content, special)).chain(eos);
        let token = |id: TokenId| match body.with_pieces {
            Some(true) => {
                let piece = match String::from_utf8(vocab.bytes(id).unwrap_or_default().to_vec()) {
                    Ok(text) => Text::Whole(text),
                    Err(error) => Text::Bytes(error.into_bytes()),
                };
                Token::Piece { id: id.0, piece }
            }
            _ => Token::Id(id.0),
        };
        Ok(Output(TokenizeResponse { tokens: ids.map(token).collect() }))
    };
    state.work(&served, caller, 0, cut).await
}

/// Tokens to be joined into a text.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct DetokenizeRequest {
    model: Option<String>,
    tokens: Vec<i64>,
}

/// Their text.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DetokenizeResponse {
    content: String,
}

/// `POST /detokenize`.
pub(crate) async fn detokenize(
    State(state): State<AppState>,
    caller: Caller,
    input: Input,
) -> Result<Output<DetokenizeResponse>, ApiError> {
    let body: DetokenizeRequest = input.read().await?;
    let served = state.registry().get(body.model.as_deref()).await?;
    let join = move |work: &mut Work| {
        let vocab = work.served().vocab();
        let mut bytes = Vec::new();
        for &id in &body.tokens {
            let known = u32::try_from(id).ok().and_then(|id| vocab.bytes(TokenId(id)));
            let known = known.ok_or_else(|| {
                let message = format!("tokens: ids from 0 to {} expected, {id} found", vocab.len().saturating_sub(1));
                ApiError::field("tokens", message)
            })?;
            bytes.extend_from_slice(known);
        }
        Ok(Output(DetokenizeResponse { content: String::from_utf8_lossy(&bytes).into_owned() }))
    };
    state.work(&served, caller, 0, join).await
}

/// A rendered conversation.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TemplateResponse {
    prompt: String,
}

/// `POST /apply-template`: the prompt that `/v1/chat/completions` would make of the same fields.
pub(crate) async fn apply_template(
    State(state): State<AppState>,
    caller: Caller,
    input: Input,
) -> Result<Output<TemplateResponse>, ApiError> {
    let body: ChatRequest = input.read().await?;
    let served = state.registry().get(body.model.as_deref()).await?;
    let form = form::form_of(&input).await?;
    let chat = chat_input(form, body, &state.settings().reasoning)?;
    let kind = WorkKind::of(&served, pictures::are_in(&chat));
    let apply = move |work: &mut Work| Ok(Output(TemplateResponse { prompt: work.render(chat)?.text }));
    state.work_at(kind, &served, caller, 0, apply).await
}
