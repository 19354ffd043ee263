//! `/api/generate`: one prompt in Ollama's form, through the template or as it stands, or around a gap.

use axum::extract::State;
use axum::response::Response;
use engine::RequestOptions;
use serde_json::json;
use session::{Conversation, Form, PrepareError, Prepared, Reasoning};
use text::TokenId;

use super::asked::{Asked, load, logprobs, shown, unload};
use super::reply::{Clock, Reply, Shape};
use super::types::{OllamaFields, OllamaGenerateRequest};
use super::{input, options};
use crate::error::ApiError;
use crate::json::Input;
use crate::pictures;
use crate::respond::respond;
use crate::state::AppState;
use crate::work::{Caller, Work, WorkKind};

/// `POST /api/generate`.
pub(crate) async fn generate(
    State(state): State<AppState>,
    caller: Caller,
    input: Input,
) -> Result<Response, ApiError> {
    let mut clock = Clock::start();
    let body: OllamaGenerateRequest = input.read().await?;
    let fields: OllamaFields = input.read().await?;
    let asked = Asked::of(&state, &fields)?;
    check(&body)?;
    let is_empty = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
    if is_empty(&body.prompt) && is_empty(&body.suffix) {
        return load(&state, Shape::Generate, &fields).await;
    }
    let params = options::params(fields.options.as_ref())?;
    let logprobs = logprobs(&fields)?;
    let prompt = Prompt::of(body, &fields, &state.settings().reasoning)?;
    let is_message = matches!(prompt, Prompt::Message(..));
    let has_images = matches!(&prompt, Prompt::Message(conversation, _) if pictures::are_in(conversation));
    let served = state.registry().get(asked.model.as_deref()).await?;
    clock.loaded();
    let kind = WorkKind::of(&served, has_images);
    let work = move |work: &mut Work| {
        let mut wanted = params.wanted(work.served())?;
        wanted.options.logprobs = logprobs;
        let prepared = prompt.prepared(work, wanted.options)?;
        // A list of ids can hold no images.
        let goes_on = is_message && prepared.request.pictures().is_empty();
        let tokens = goes_on.then(|| prepared.request.prompt().iter().map(|token| token.0).collect::<Vec<u32>>());
        Ok((work.submit(&[prepared], 1)?, tokens))
    };
    let (replies, tokens) = state.work_at(kind, &served, caller, 1, work).await?;
    drop(input);
    if asked.unloads {
        unload(&state, &served.id)?;
    }
    // What stood in no template is no conversation to go on with.
    let reply = Reply::new(Shape::Generate, shown(&fields, &served), served, clock, tokens);
    respond(&state, replies, reply, fields.stream.unwrap_or(true)).await
}

/// # Errors
/// 400 for what this server does not take, and for what excludes each other.
fn check(body: &OllamaGenerateRequest) -> Result<(), ApiError> {
    let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    if is_set(&body.template) {
        let message = "template: templates are not taken from requests: start the server with --chat-template-file, or send `raw`";
        return Err(ApiError::field("template", message));
    }
    let has_images = body.images.as_ref().is_some_and(|images| !images.is_empty());
    if has_images && (body.raw == Some(true) || is_set(&body.suffix)) {
        return Err(ApiError::field("images", "images: a prompt as it stands has none"));
    }
    let has_context = body.context.as_ref().is_some_and(|context| !context.is_empty());
    if body.raw == Some(true) && (is_set(&body.system) || has_context) {
        return Err(ApiError::field("raw", "raw: a prompt as it stands has neither `system` nor `context`"));
    }
    Ok(())
}

/// What is continued.
enum Prompt {
    /// A message of the user, behind the tokens of earlier ones.
    Message(Box<Conversation>, Vec<TokenId>),
    /// A text as it stands, and the text behind the gap, if there is one.
    Raw(String, Option<String>, Option<Form>),
}

impl Prompt {
    fn of(body: OllamaGenerateRequest, fields: &OllamaFields, defaults: &Reasoning) -> Result<Self, ApiError> {
        let text = body.prompt.unwrap_or_default();
        let suffix = body.suffix.filter(|suffix| !suffix.is_empty());
        if body.raw == Some(true) || suffix.is_some() {
            return Ok(Self::Raw(text, suffix, options::form(fields.format.as_ref())?));
        }
        let system = body.system.filter(|system| !system.is_empty());
        let system = system.map(|system| json!({ "role": "system", "content": system }));
        let content = input::with_images(&body.images.unwrap_or_default(), &text);
        let content =
            content.ok_or_else(|| ApiError::field("images", "images: a list of images in base64 expected"))?;
        let messages = system.into_iter().chain([json!({ "role": "user", "content": content })]).collect();
        let before = body.context.unwrap_or_default().into_iter().map(TokenId).collect();
        Ok(Self::Message(Box::new(input::of(messages, fields, defaults)?), before))
    }

    fn prepared(self, work: &Work, mut options: RequestOptions) -> Result<Prepared, ApiError> {
        let served = work.served();
        match self {
            Self::Message(conversation, before) => {
                let prepared = work.prepare(*conversation, options)?;
                let behind = prepared.behind(before, served.vocab().bos()).map_err(PrepareError::from);
                Ok(behind?)
            }
            Self::Raw(text, suffix, form) => {
                options.grammar = served.grammar(form.as_ref())?;
                let before = served.vocab().encode_prompt(&text);
                let tokens = match suffix {
                    Some(suffix) => served.fill_in(&before, &suffix)?,
                    None => before,
                };
                Ok(served.prepare_text(tokens, options)?)
            }
        }
    }
}
