//! Servers of any kind, as a client sees them: start one, wait for it, ask for a completion, read the stream.
//! Plain HTTP. Owns the processes that it starts; they end with it.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use serde_json::{Value, json};
use text::TokenId;

/// How long a server may take to load its model.
const START: Duration = Duration::from_secs(600);

/// How long a response may take.
const ANSWER: Duration = Duration::from_secs(900);

/// Bytes of a response that are read at most.
const MAX_BODY: u64 = 64 << 20;

/// A server at a URL, perhaps one that was started here.
pub(super) struct Server {
    url: String,
    agent: ureq::Agent,
    child: Option<Child>,
    /// Seconds from start to health, when it was started here.
    pub(super) start_seconds: Option<f64>,
}

/// What a server said, and how fast.
#[derive(Clone, Debug, Default)]
pub(super) struct Completion {
    pub(super) text: String,
    /// Token ids, from servers that give them.
    pub(super) tokens: Vec<TokenId>,
    pub(super) n_tokens: usize,
    pub(super) n_prompt: usize,
    /// Milliseconds until the first token, and from it to the last.
    pub(super) prompt_ms: f64,
    pub(super) generated_ms: f64,
    pub(super) drafted: usize,
    pub(super) accepted: usize,
}

impl Completion {
    /// Generated tokens a second, the first left out.
    pub(super) fn rate(&self) -> f64 {
        1e3 * (self.n_tokens.saturating_sub(1)) as f64 / self.generated_ms.max(1e-6)
    }

    pub(super) fn prompt_rate(&self) -> f64 {
        1e3 * self.n_prompt as f64 / self.prompt_ms.max(1e-6)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It is ours alone, and keeps nothing that a clean end would save.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Server {
    /// A server that runs already.
    ///
    /// # Errors
    /// Not an http:// address.
    pub(super) fn at(url: &str) -> anyhow::Result<Self> {
        ensure!(url.starts_with("http://"), "{url}: http:// expected; encrypted connections are not supported");
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(ANSWER));
        let agent = config.build().into();
        Ok(Self { url: url.trim_end_matches('/').to_owned(), agent, child: None, start_seconds: None })
    }

    /// Starts `program` with `args` and a free port, and waits until its `/health` is good.
    ///
    /// # Errors
    /// It does not start, ends, or is not healthy in time; the last words of its log are in the message.
    pub(super) fn start(program: &Path, args: &[String]) -> anyhow::Result<Self> {
        let port = TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr())?.port();
        let log = tempfile::NamedTempFile::new().context("a temporary file for the server's log")?;
        let mut command = Command::new(program);
        command.args(args).args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        command.stdin(Stdio::null()).stdout(log.reopen()?).stderr(log.reopen()?);
        let begin = Instant::now();
        let child = command.spawn().with_context(|| program.display().to_string())?;
        let mut server = Self::at(&format!("http://127.0.0.1:{port}"))?;
        server.child = Some(child);
        let last_words = || {
            let text = std::fs::read(log.path()).unwrap_or_default();
            let text = String::from_utf8_lossy(&text).into_owned();
            text.lines().rev().take(8).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")
        };
        while !server.healthy() {
            if let Some(status) = server.child.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
                bail!("{} ended with {status} before it was ready:\n{}", program.display(), last_words());
            }
            ensure!(begin.elapsed() < START, "{} is not ready after {START:?}:\n{}", program.display(), last_words());
            std::thread::sleep(Duration::from_millis(5));
        }
        server.start_seconds = Some(begin.elapsed().as_secs_f64());
        Ok(server)
    }

    fn healthy(&self) -> bool {
        self.agent.get(format!("{}/health", self.url)).call().is_ok_and(|answer| answer.status().is_success())
    }

    /// True when it speaks llama.cpp's own protocol, which takes and gives token ids.
    pub(super) fn is_native(&self) -> bool {
        let props = self.agent.get(format!("{}/props", self.url)).call();
        let known = |mut answer: ureq::http::Response<ureq::Body>| {
            let body = answer.body_mut().with_config().limit(MAX_BODY).read_json::<Value>().unwrap_or_default();
            answer.status().is_success() && body.get("build_info").is_some_and(Value::is_string)
        };
        props.is_ok_and(known)
    }

    /// The names of its models.
    pub(super) fn model(&self) -> Option<String> {
        let mut answer = self.agent.get(format!("{}/v1/models", self.url)).call().ok()?;
        let body = answer.body_mut().with_config().limit(MAX_BODY).read_json::<Value>().ok()?;
        Some(body["data"][0]["id"].as_str()?.to_owned())
    }

    fn post(&self, path: &str, body: &Value) -> anyhow::Result<ureq::http::Response<ureq::Body>> {
        let url = format!("{}{path}", self.url);
        let request = self.agent.post(&url).header("content-type", "application/json");
        let mut answer = request.send(serde_json::to_vec(body)?.as_slice()).with_context(|| url.clone())?;
        if !answer.status().is_success() {
            let words = answer.body_mut().with_config().limit(MAX_BODY).read_to_string().unwrap_or_default();
            let words: String = words.chars().take(300).collect();
            return Err(anyhow!("{url}: {}: {words}", answer.status()));
        }
        Ok(answer)
    }

    /// Greedy completion of exactly `n` tokens by llama.cpp's own protocol; times are the server's.
    ///
    /// # Errors
    /// The server's, or a response without what is needed.
    pub(super) fn native(&self, prompt: &[TokenId], n: usize) -> anyhow::Result<Completion> {
        let ids: Vec<u32> = prompt.iter().map(|id| id.0).collect();
        let body = json!({
            "prompt": ids, "n_predict": n, "temperature": 0, "top_k": 1, "ignore_eos": true, "cache_prompt": false,
            "return_tokens": true, "stream": false,
        });
        let v: Value = self.post("/completion", &body)?.body_mut().with_config().limit(MAX_BODY).read_json()?;
        let t = &v["timings"];
        let number = |value: &Value| value.as_f64().unwrap_or(0.0);
        let tokens: Vec<TokenId> = v["tokens"].as_array().into_iter().flatten().filter_map(id).collect();
        ensure!(!tokens.is_empty(), "{}: an answer without tokens: {}", self.url, v["stop_type"]);
        Ok(Completion {
            text: v["content"].as_str().unwrap_or_default().to_owned(),
            n_tokens: tokens.len(),
            tokens,
            n_prompt: number(&t["prompt_n"]) as usize,
            prompt_ms: number(&t["prompt_ms"]),
            generated_ms: number(&t["predicted_ms"]),
            drafted: number(&t["draft_n"]) as usize,
            accepted: number(&t["draft_n_accepted"]) as usize,
        })
    }

    /// Greedy completion by the OpenAI protocol, streamed; times are taken here, from the first piece to the last.
    ///
    /// # Errors
    /// The server's, or a stream without text.
    pub(super) fn completion(&self, prompt: &str, n: usize, model: Option<&str>) -> anyhow::Result<Completion> {
        let body = json!({
            "prompt": prompt, "max_tokens": n, "temperature": 0, "stream": true, "ignore_eos": true,
            "stream_options": { "include_usage": true }, "model": model.unwrap_or("default"),
        });
        self.stream("/v1/completions", &body, |choice| choice["text"].as_str().map(str::to_owned))
    }

    /// Greedy reply of a chat by the OpenAI protocol, streamed.
    ///
    /// # Errors
    /// As [`Server::completion`].
    pub(super) fn chat(&self, message: &str, n: usize, model: Option<&str>) -> anyhow::Result<Completion> {
        let body = json!({
            "messages": [{ "role": "user", "content": message }], "max_tokens": n, "temperature": 0, "stream": true,
            "stream_options": { "include_usage": true }, "model": model.unwrap_or("default"),
            "chat_template_kwargs": { "enable_thinking": false },
        });
        self.stream("/v1/chat/completions", &body, |choice| choice["delta"]["content"].as_str().map(str::to_owned))
    }

    fn stream(&self, path: &str, body: &Value, piece: impl Fn(&Value) -> Option<String>) -> anyhow::Result<Completion> {
        let begin = Instant::now();
        let answer = self.post(path, body)?;
        let mut done = Completion::default();
        let (mut first, mut last, mut n_pieces) = (None, begin, 0);
        for line in BufReader::new(answer.into_body().into_reader().take(MAX_BODY)).lines() {
            let line = line.with_context(|| self.url.clone())?;
            let Some(data) = line.strip_prefix("data:").map(str::trim) else { continue };
            if data == "[DONE]" {
                break;
            }
            let v: Value = serde_json::from_str(data).with_context(|| format!("{}: {data}", self.url))?;
            ensure!(v["error"].is_null(), "{}: {}", self.url, v["error"]);
            if let Some(text) = piece(&v["choices"][0]).filter(|text| !text.is_empty()) {
                last = Instant::now();
                first.get_or_insert(last);
                n_pieces += 1;
                done.text.push_str(&text);
            }
            if let Some(n) = v["usage"]["completion_tokens"].as_u64() {
                done.n_tokens = n as usize;
                done.n_prompt = v["usage"]["prompt_tokens"].as_u64().unwrap_or(0) as usize;
            }
        }
        let first = first.with_context(|| format!("{}{path}: the answer has no text", self.url))?;
        // Without counts of usage, every piece is taken for a token.
        done.n_tokens = if done.n_tokens == 0 { n_pieces } else { done.n_tokens };
        done.prompt_ms = 1e3 * (first - begin).as_secs_f64();
        done.generated_ms = 1e3 * (last - first).as_secs_f64();
        Ok(done)
    }
}

fn id(value: &Value) -> Option<TokenId> {
    value.as_u64().and_then(|id| u32::try_from(id).ok()).map(TokenId)
}
