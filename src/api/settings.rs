//! What a server is started with, as far as HTTP is concerned. Plain data with defaults; the program fills it in.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};
use session::Reasoning;

use crate::fetch::Fetcher;

/// Everything that does not depend on the model.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Sizes and times.
    pub limits: HttpLimits,
    /// Keys that are let in; empty: everybody is.
    pub api_keys: Vec<String>,
    /// Names, beside `localhost` and the machine's own, by which a server without keys may be called; `*`: any.
    pub allowed_hosts: Vec<String>,
    /// Who shares cached state, where there are keys.
    pub cache_scope: CacheScope,
    /// Origins of web pages that may call this server; empty: none, `*`: all, `localhost`: this machine's at any port.
    pub cors_origins: Vec<String>,
    /// Requests a minute for one key (or address); `None` is without limit.
    pub requests_per_minute: Option<u32>,
    /// Serve `/v1/embeddings` and `/v1/rerank`.
    pub embeddings: bool,
    /// Serve the web pages.
    pub webui: bool,
    /// Serve `/metrics`.
    pub metrics: bool,
    /// Serve `/slots`.
    pub slots: bool,
    /// Responses that are kept for `previous_response_id`.
    pub kept_responses: KeptResponses,
    /// Where sequence state may be saved; `None` is nowhere.
    pub slot_save_path: Option<PathBuf>,
    /// Fetches images of the web; `None`: images come with requests only.
    pub fetcher: Option<Fetcher>,
    /// What the program says of itself in `/props`.
    pub build: String,
    /// How thinking is given out when a request does not say.
    pub reasoning: Reasoning,
    /// Variables of chat templates that a request does not set.
    pub template_kwargs: Map<String, Value>,
    /// Replies tell the prompt and all settings in `__verbose` unless a request says otherwise.
    pub verbose: bool,
}

/// Whose earlier requests a request may take up cached state of.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum CacheScope {
    /// Those of the same API key.
    #[default]
    Key,
    /// All.
    All,
}

/// How many responses are kept, in memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KeptResponses {
    /// Responses at most; 0 keeps none.
    pub max_count: usize,
    /// Bytes at most, of responses and the conversations that led to them; 0 keeps none.
    pub max_bytes: usize,
}

impl Default for KeptResponses {
    fn default() -> Self {
        Self { max_count: 1000, max_bytes: 64 << 20 }
    }
}

/// What one client may take of the server.
#[derive(Clone, Debug)]
pub struct HttpLimits {
    /// Bytes of a request's body.
    pub max_body: usize,
    /// Bytes of a request's line and headers.
    pub max_header: usize,
    /// Time for the headers of a request, waiting for its first byte included.
    pub header_timeout: Duration,
    /// Time for the body of a request.
    pub body_timeout: Duration,
    /// Time for what comes before the engine: template, tokens, grammar; waiting for a turn included.
    pub prepare_timeout: Duration,
    /// The same for a request with images, which a projector looks at.
    pub seeing_timeout: Duration,
    /// Requests that are prepared at the same time; `None` is one for each core.
    pub preparations: Option<usize>,
    /// Time that a client may take nothing of what waits for it; its connection ends then.
    pub write_timeout: Duration,
    /// Time for a whole reply; `None` is without limit.
    pub request_timeout: Option<Duration>,
    /// Between comments that keep a silent stream alive; `None` sends none.
    pub keep_alive: Option<Duration>,
    /// Open connections.
    pub max_connections: usize,
    /// Open connections of one address.
    pub max_connections_per_address: usize,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            max_body: 32 << 20,
            max_header: 64 << 10,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            prepare_timeout: Duration::from_secs(30),
            seeing_timeout: Duration::from_secs(600),
            preparations: None,
            write_timeout: Duration::from_secs(60),
            request_timeout: None,
            keep_alive: Some(Duration::from_secs(15)),
            max_connections: 1024,
            max_connections_per_address: 512,
        }
    }
}
