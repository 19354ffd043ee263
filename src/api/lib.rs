//! The server's front: wire formats over the engine.
//! Owns HTTP, JSON and everything between a request's body and the engine's events. Knows no tensors and no slots.
//!
//! [`router`] gives all endpoints over an [`AppState`]; [`serve`] runs it on a listener. A map, from outside in:
//!
//! | File | Owns |
//! |---|---|
//! | `serve` | the accept loop: connections, time limits, TLS, draining |
//! | `places`, `socket` | how many connections, for whom; sockets that nobody reads |
//! | `gate` | before every handler: request ids, names, keys, rate limits, log lines |
//! | `hosts`, `cors`, `rate` | names that the server goes by; pages that may ask; how often who may ask |
//! | `json`, `bodies`, `error` | bodies in and out, and their memory; errors as clients see them |
//! | `openai/` | `/v1/chat/completions`, `/v1/completions`, `/v1/responses`, `/v1/models`, ... |
//! | `anthropic/` | `/v1/messages` |
//! | `ollama/` | `/api/chat`, `/api/generate`, `/api/tags`, ... |
//! | `native/` | llama.cpp's own: `/completion`, `/tokenize`, `/props`, `/slots`, ... |
//! | `web/` | the pages at `/` and `/dashboard` |
//! | `params` | fields that every generating endpoint knows |
//! | `work`, `lane` | what all preparation may take: places, time, threads; turns at long work |
//! | `pictures`, `content`, `fetch` | images in requests: parts that hold them, contents with them, those of the web |
//! | `form`, `prompt` | what a request demands of its reply's form; prompts as texts or token ids |
//! | `blocks` | a reply as blocks that open and close |
//! | `in_flight`, `control` | responses under way by their ids; ending them, or their thinking |
//! | `vectors` | inputs that are embedded or ranked, many at a time |
//! | `running_reply` | engine events to reasoning, text and tool calls; deadlines |
//! | `pace` | when events are waited for together |
//! | `respond` | the one reader of replies; each wire format is a writer |
//! | `stream` | streams: server-sent events, lines of JSON |
//! | `registry` | models: loading, unloading, finding, downloading |
//! | `metrics`, `model_metrics`, `openapi` | Prometheus, and by model; `/openapi.json` |
//! | `state`, `settings` | what handlers share; what the program sets |
//!
//! A handler reads its fields from [`Input`], and calls [`AppState::work`] with all that may take long: that makes a
//! [`session::Conversation`] or tokens and submits them. The handler hands the [`RunningReply`]s to `respond` with a writer of
//! its wire format. A new family of endpoints is such a writer and its lines in [`router`].
#![forbid(unsafe_code)]

mod anthropic;
mod blocking;
mod blocks;
mod bodies;
mod content;
mod control;
mod cors;
mod error;
mod fetch;
mod form;
mod gate;
mod health;
mod hosts;
mod ids;
mod in_flight;
mod json;
mod lane;
mod metrics;
mod model_metrics;
mod native;
mod ollama;
mod openai;
mod openapi;
mod pace;
mod params;
mod pictures;
mod places;
pub mod prompt;
mod query;
mod rate;
mod registry;
mod respond;
pub mod running_reply;
mod serve;
mod settings;
mod socket;
mod state;
mod stream;
mod vectors;
mod vllm_names;
mod web;
mod whole;
mod wire;
mod work;
mod workplaces;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use hyper::StatusCode;
use tower_http::catch_panic::CatchPanicLayer;

pub use error::{ApiError, ErrorBody, ErrorDetail};
pub use fetch::Fetcher;
pub use json::{Input, Output};
pub use openapi::document;
pub use params::{OneOrMany, Params, StreamOptions, Wanted};
pub use registry::{Detail, Loader, ModelEntry, ModelEvent, ModelStore, Phase, Registry, Served};
pub use running_reply::{Part, RunningReplies, RunningReply};
pub use serve::{Peer, ServeError, Server, Tls};
pub use session::Reasoning;
pub use settings::{CacheScope, HttpLimits, KeptResponses, Settings};
pub use state::{AppState, Course};
pub use work::{Caller, Work, WorkKind};

/// All endpoints.
pub fn router(state: AppState) -> Router {
    let routes = Router::new()
        .route("/health", get(health::health))
        .route("/v1/health", get(health::health))
        .route("/openapi.json", get(openapi::openapi))
        .route("/metrics", get(native::metrics::metrics))
        .route("/v1/chat/completions", post(openai::chat::chat))
        .route("/chat/completions", post(openai::chat::chat))
        .route("/v1/chat/completions/input_tokens", post(openai::chat::input_tokens))
        .route("/chat/completions/input_tokens", post(openai::chat::input_tokens))
        .route("/v1/completions", post(openai::completions::completions))
        .route("/v1/responses", post(openai::responses::responses))
        .route("/responses", post(openai::responses::responses))
        .route("/v1/responses/input_tokens", post(openai::responses::input_tokens))
        .route("/responses/input_tokens", post(openai::responses::input_tokens))
        .route("/v1/responses/{id}", get(openai::responses::fetch::get).delete(openai::responses::fetch::delete))
        .route("/responses/{id}", get(openai::responses::fetch::get).delete(openai::responses::fetch::delete))
        .route("/v1/responses/{id}/input_items", get(openai::responses::fetch::input_items))
        .route("/responses/{id}/input_items", get(openai::responses::fetch::input_items))
        .route("/v1/messages", post(anthropic::messages::messages))
        .route("/v1/messages/count_tokens", post(anthropic::messages::count_tokens))
        .route("/v1/chat/completions/control", post(control::control))
        .route("/v1/responses/{id}/cancel", post(control::cancel))
        .route("/responses/{id}/cancel", post(control::cancel))
        .route("/v1/embeddings", post(openai::embeddings::embeddings))
        .route("/embeddings", post(openai::embeddings::embeddings))
        .route("/embedding", post(openai::embeddings::embedding))
        .route("/v1/rerank", post(native::rerank::rerank))
        .route("/v1/reranking", post(native::rerank::rerank))
        .route("/v2/rerank", post(native::rerank::rerank))
        .route("/rerank", post(native::rerank::rerank))
        .route("/reranking", post(native::rerank::rerank))
        .route("/completion", post(native::completion::completion))
        .route("/completions", post(native::completion::completion))
        .route("/infill", post(native::infill::infill))
        .route("/tokenize", post(native::tokens::tokenize))
        .route("/detokenize", post(native::tokens::detokenize))
        .route("/apply-template", post(native::tokens::apply_template))
        .route("/props", get(native::props::props))
        .route("/slots", get(native::slots::slots))
        .route("/slots/{id}", post(native::slots::act))
        .route("/lora-adapters", get(native::lora::list).post(native::lora::set))
        .route("/v1/models", get(openai::models::list))
        .route("/models", get(openai::models::list).post(openai::downloads::create).delete(openai::downloads::remove))
        .route("/models/sse", get(openai::downloads::events))
        .route("/models/load", post(openai::models::load))
        .route("/models/unload", post(openai::models::unload))
        .route("/models/{*id}", get(openai::models::one).delete(openai::downloads::remove_one))
        .route("/v1/models/{*id}", get(openai::models::one).delete(openai::downloads::remove_one))
        .route("/api/chat", post(ollama::chat::chat))
        .route("/api/generate", post(ollama::generate::generate))
        .route("/api/embed", post(ollama::embed::embed))
        .route("/api/embeddings", post(ollama::embed::embeddings))
        .route("/api/tags", get(ollama::models::tags))
        .route("/api/show", post(ollama::models::show))
        .route("/api/ps", get(ollama::models::ps))
        .route("/api/version", get(ollama::models::version))
        .route("/api/pull", post(ollama::pull::pull))
        .route("/api/delete", delete(ollama::pull::delete))
        .route("/api/copy", post(ollama::pull::not_served))
        .route("/api/create", post(ollama::pull::not_served))
        .route("/api/push", post(ollama::pull::not_served))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method);
    let routes = match state.settings().webui {
        true => web::routes(routes),
        false => routes.route("/", get(ollama::probe)),
    };
    // The last layer is the outermost.
    let routes = routes.layer(CatchPanicLayer::custom(panicked)).layer(from_fn_with_state(state.clone(), gate::gate));
    cors::layered(routes, &state.settings().cors_origins).with_state(state)
}

async fn nothing_here() -> ApiError {
    ApiError::not_found("there is nothing at this path")
}

async fn wrong_method() -> ApiError {
    ApiError::refused(StatusCode::METHOD_NOT_ALLOWED, "this path does not take this method")
}

/// A panic ends its own request and nothing else.
fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    tracing::error!("a handler panicked");
    ApiError::server("the server made a mistake: see its log").into_response()
}
