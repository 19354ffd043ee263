//! Metrics of the server as a whole, for Prometheus: llama.cpp's names where it counts the same, `nextn:` for the rest.
//! Owns counters, gauges and histograms. Knows no endpoint but its own.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use engine::{EngineStats, FinishReason, Summary, Timings};
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry as Prometheus;

use crate::model_metrics::{self, Latencies, ModelMetrics};
use crate::registry::Registry;

type Seconds = Counter<f64, AtomicU64>;
type Level = Gauge<i64, AtomicI64>;
type Rate = Gauge<f64, AtomicU64>;

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    prometheus: Prometheus,
    /// Seconds since 1970.
    started: u64,
    counts: Arc<Counts>,
    /// Requests refused by a full queue
    pub refused: Counter,
    /// Connections refused by a limit
    pub connections_refused: Counter,
    /// Requests by path and status.
    pub http: Family<HttpLabels, Counter>,
    waiting: Level,
    sequences: Level,
    processing: Level,
    /// Places in queues of requests that are being prepared.
    preparing: Level,
    steps: Counter,
    rows: Counter,
    busy: Counter,
    /// Forward passes and tokens of each engine when it was asked last.
    asked: Mutex<HashMap<String, EngineStats>>,
    busy_per_step: Rate,
    state_bytes: Level,
    state_limit: Level,
    evicted: Counter,
    paused: Counter,
    reused: Family<SourceLabel, Counter>,
    stored_bytes: Level,
    prompt_rate: Rate,
    generated_rate: Rate,
}

#[derive(Debug, Default)]
struct Counts {
    prompt_tokens: Counter,
    prompt_seconds: Seconds,
    /// Of the last request.
    prompt_rate: Rate,
    cached_tokens: Counter,
    cache_hits: Counter,
    generated_tokens: Counter,
    generated_seconds: Seconds,
    /// Of the last request.
    generated_rate: Rate,
    /// Of requests that have ended since the metrics were read.
    since_read: Mutex<SinceRead>,
    drafts: Counter,
    draft_tokens: Counter,
    accepted_tokens: Counter,
    drafted_by_depth: Family<DepthLabel, Counter>,
    accepted_by_depth: Family<DepthLabel, Counter>,
    running: Level,
    requests: Family<ReasonLabel, Counter>,
    n_tokens_max: Level,
    by_model: ModelMetrics,
    first_token: Option<Histogram>,
    between_tokens: Option<Histogram>,
    duration: Option<Histogram>,
}

/// What rates are made of: tokens, and the milliseconds that they took.
#[derive(Clone, Copy, Debug, Default)]
struct SinceRead {
    prompt: (usize, f64),
    generated: (usize, f64),
}

impl SinceRead {
    /// Tokens a second; 0 where there were none.
    fn rate((tokens, ms): (usize, f64)) -> f64 {
        if ms > 0.0 { tokens as f64 * 1e3 / ms } else { 0.0 }
    }
}

/// Labels of `nextn:http_requests`.
#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
pub struct HttpLabels {
    /// The route's pattern, never what a client made up.
    pub path: String,
    /// The status.
    pub status: u16,
}

#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct DepthLabel {
    position: u32,
}

#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct SourceLabel {
    source: &'static str,
}

#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

impl Metrics {
    /// All at zero.
    pub(crate) fn new() -> Self {
        let seconds = |bounds: &[f64]| Some(Histogram::new(bounds.iter().copied()));
        let counts = Arc::new(Counts {
            first_token: Some(model_metrics::first_token()),
            between_tokens: Some(model_metrics::between_tokens()),
            duration: seconds(&[0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0]),
            ..Counts::default()
        });
        let mut metrics = Self {
            prometheus: Prometheus::default(),
            started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            counts,
            refused: Counter::default(),
            connections_refused: Counter::default(),
            http: Family::default(),
            waiting: Level::default(),
            sequences: Level::default(),
            processing: Level::default(),
            preparing: Level::default(),
            steps: Counter::default(),
            rows: Counter::default(),
            busy: Counter::default(),
            asked: Mutex::default(),
            busy_per_step: Rate::default(),
            state_bytes: Level::default(),
            state_limit: Level::default(),
            evicted: Counter::default(),
            paused: Counter::default(),
            reused: Family::default(),
            stored_bytes: Level::default(),
            prompt_rate: Rate::default(),
            generated_rate: Rate::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let r = &mut self.prometheus;
        let c = &self.counts;
        r.register("llamacpp:prompt_tokens", "Prompt tokens computed", c.prompt_tokens.clone());
        r.register("llamacpp:prompt_seconds", "Time in prefill", c.prompt_seconds.clone());
        let help = "Prompt tokens a second, of the requests that ended since the metrics were read before";
        r.register("llamacpp:prompt_tokens_seconds", help, self.prompt_rate.clone());
        r.register("nextn:prompt_tokens_seconds", "Prompt tokens a second, last request", c.prompt_rate.clone());
        r.register("llamacpp:tokens_predicted", "Tokens generated", c.generated_tokens.clone());
        r.register("llamacpp:tokens_predicted_seconds", "Time in decode", c.generated_seconds.clone());
        let help = "Tokens generated a second, of the requests that ended since the metrics were read before";
        r.register("llamacpp:predicted_tokens_seconds", help, self.generated_rate.clone());
        r.register(
            "nextn:predicted_tokens_seconds",
            "Tokens generated a second, last request",
            c.generated_rate.clone(),
        );
        r.register("llamacpp:requests_processing", "Requests with a slot", self.processing.clone());
        r.register("llamacpp:requests_deferred", "Requests queued or in preparation", self.waiting.clone());
        r.register("nextn:requests_preparing", "Requests in preparation", self.preparing.clone());
        r.register("llamacpp:n_tokens_max", "Longest sequence so far", c.n_tokens_max.clone());
        r.register("llamacpp:n_decode", "Forward passes of the target model", self.steps.clone());
        r.register(
            "llamacpp:n_busy_slots_per_decode",
            "Sequences per forward pass, on average",
            self.busy_per_step.clone(),
        );
        r.register("llamacpp:spec_decode_num_drafts", "Drafts verified", c.drafts.clone());
        r.register("llamacpp:spec_decode_num_draft_tokens", "Draft tokens verified", c.draft_tokens.clone());
        r.register("llamacpp:spec_decode_num_accepted_tokens", "Draft tokens accepted", c.accepted_tokens.clone());
        r.register(
            "llamacpp:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by position in the draft from 0",
            c.accepted_by_depth.clone(),
        );
        r.register(
            "nextn:spec_decode_num_draft_tokens_per_pos",
            "Draft tokens verified, by position in the draft from 0",
            c.drafted_by_depth.clone(),
        );
        let help = "Prompt tokens reused from the prefix cache";
        r.register("llamacpp:prompt_tokens_cached", help, c.cached_tokens.clone());
        r.register("nextn:prompt_tokens_cached", help, c.cached_tokens.clone());
        r.register("nextn:prompt_cache_hits", "Requests that reused a cached prefix", c.cache_hits.clone());
        r.register("nextn:requests", "Requests by finish reason", c.requests.clone());
        r.register("nextn:requests_refused", "Requests refused by a full queue", self.refused.clone());
        let connections = self.connections_refused.clone();
        r.register("nextn:connections_refused", "Connections refused by a limit", connections);
        r.register("nextn:http_requests", "HTTP requests", self.http.clone());
        r.register("nextn:sequences", "Slots of the loaded models", self.sequences.clone());
        r.register("nextn:rows", "Tokens of all forward passes", self.rows.clone());
        r.register("nextn:state_bytes", "Bytes taken by KV cache and recurrent state", self.state_bytes.clone());
        let help = "Bytes that KV cache and recurrent state may take";
        r.register("nextn:state_limit_bytes", help, self.state_limit.clone());
        let help = "Prompt tokens reused, by where their state was: own (the slot), copied (another slot), stored (the host), disk";
        r.register("nextn:prompt_cache_tokens", help, self.reused.clone());
        let help = "Resting sequences that left their slot for want of memory";
        r.register("nextn:sequences_evicted", help, self.evicted.clone());
        let help = "Times that a running sequence had to wait for memory";
        r.register("nextn:sequences_paused", help, self.paused.clone());
        r.register("nextn:stored_bytes", "Bytes of conversations evicted to the host", self.stored_bytes.clone());
        let histograms = [
            (
                "nextn:time_to_first_token_seconds",
                "Time from the request to its first token, queue included",
                &c.first_token,
            ),
            (
                "nextn:inter_token_seconds",
                "Time between tokens; the tokens of an engine step share its time",
                &c.between_tokens,
            ),
            ("nextn:request_seconds", "Time from the request to its last token", &c.duration),
        ];
        for (name, help, histogram) in histograms {
            if let Some(histogram) = histogram {
                r.register(name, help, histogram.clone());
            }
        }
        c.by_model.register(r);
    }

    /// Counts a request to `model` that begins; what is dropped before its end was cancelled.
    pub(crate) fn running(&self, model: &str) -> Running {
        self.counts.running.inc();
        Running {
            model: model.to_owned(),
            latencies: self.counts.by_model.latencies(model),
            counts: Arc::clone(&self.counts),
            start: Instant::now(),
            last: None,
            timings: None,
            reason: "cancelled",
            span: tracing::Span::current(),
        }
    }

    /// Counts requests that are being prepared.
    pub(crate) fn preparing(&self, n: usize) -> Preparing {
        let preparing = Preparing { level: self.preparing.clone(), n };
        preparing.level.inc_by(n as i64);
        preparing
    }

    /// Requests that are being served or wait.
    pub fn n_running(&self) -> usize {
        usize::try_from(self.counts.running.get()).unwrap_or(0)
    }

    /// Adds what a model's engine has done since it was asked last; one with less than then was loaded anew.
    fn add_work(&self, id: &str, now: EngineStats) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let last = asked.entry(id.to_owned()).or_default();
        let old = if now.n_steps < last.n_steps { EngineStats::default() } else { *last };
        self.steps.inc_by(now.n_steps - old.n_steps);
        self.rows.inc_by(now.n_tokens.saturating_sub(old.n_tokens));
        self.busy.inc_by(now.n_busy.saturating_sub(old.n_busy));
        let (all, before) = (now.reused, old.reused);
        for (source, n, old) in [
            ("own", all.n_own, before.n_own),
            ("copied", all.n_copied, before.n_copied),
            ("stored", all.n_stored, before.n_stored),
            ("disk", all.n_disk, before.n_disk),
        ] {
            self.reused.get_or_create(&SourceLabel { source }).inc_by(n.saturating_sub(old));
        }
        self.evicted.inc_by(now.n_evicted.saturating_sub(old.n_evicted));
        self.paused.inc_by(now.n_paused.saturating_sub(old.n_paused));
        *last = now;
    }

    /// When the server started, in seconds since 1970.
    pub(crate) fn started_unix(&self) -> u64 {
        self.started
    }

    /// All metrics as OpenMetrics text. Asks the engines.
    pub(crate) fn text(&self, registry: &Registry) -> String {
        let (mut waiting, mut sequences, mut bytes, mut limit, mut stored) = (0, 0, 0, 0, 0);
        let loaded = registry.loaded();
        let mut memory = Vec::with_capacity(loaded.len());
        for served in &loaded {
            waiting += served.engine().n_waiting();
            sequences += served.n_sequences();
            // An engine that has stopped has nothing to say.
            let stats = served.engine().stats().unwrap_or_default();
            self.add_work(&served.id, stats);
            bytes += stats.taken_bytes;
            limit += stats.state_limit;
            stored += stats.stored_bytes;
            memory.push((served.id.as_str(), stats));
        }
        self.counts.by_model.memory(memory.into_iter());
        let learning = loaded.iter().filter_map(|served| Some((served.id.as_str(), &**served.learning()?)));
        self.counts.by_model.learning(learning);
        self.waiting.set(waiting as i64);
        // Those that are prepared have a place in the queue, and no reply that runs.
        let waiting = waiting.saturating_sub(usize::try_from(self.preparing.get()).unwrap_or(0));
        self.processing.set(self.n_running().saturating_sub(waiting) as i64);
        self.sequences.set(sequences as i64);
        self.busy_per_step.set(self.busy.get() as f64 / self.steps.get().max(1) as f64);
        self.state_bytes.set(bytes as i64);
        self.state_limit.set(limit as i64);
        self.stored_bytes.set(stored as i64);
        let ended = std::mem::take(&mut *self.counts.since_read.lock().unwrap_or_else(PoisonError::into_inner));
        self.prompt_rate.set(SinceRead::rate(ended.prompt));
        self.generated_rate.set(SinceRead::rate(ended.generated));
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = text::encode(&mut out, &self.prometheus);
        out
    }
}

/// Requests that are being prepared, until they are submitted or given up.
#[derive(Debug)]
pub(crate) struct Preparing {
    level: Level,
    n: usize,
}

impl Preparing {
    /// One of them was submitted.
    pub(crate) fn one_less(&mut self) {
        if self.n > 0 {
            self.n -= 1;
            self.level.dec();
        }
    }
}

impl Drop for Preparing {
    fn drop(&mut self) {
        self.level.dec_by(self.n as i64);
    }
}

/// One request, counted when it ends.
#[derive(Debug)]
pub(crate) struct Running {
    counts: Arc<Counts>,
    /// Whom it was asked of.
    model: String,
    latencies: Latencies,
    start: Instant,
    last: Option<Instant>,
    timings: Option<Timings>,
    reason: &'static str,
    /// The request's, for its last log line.
    span: tracing::Span,
}

impl Running {
    /// `n` tokens were picked `at` this time; `so_far` are our own timings.
    pub(crate) fn tokens(&mut self, n: usize, at: Instant, so_far: &Timings) {
        match self.last {
            Some(last) => self.between_tokens(n, (at - last).as_secs_f64() / n.max(1) as f64),
            None => {
                let waited = (at - self.start).as_secs_f64();
                observe(&self.counts.first_token, waited);
                self.latencies.first_token.observe(waited);
                // A grammar may force more tokens at once.
                self.between_tokens(n.saturating_sub(1), 0.0);
            }
        }
        self.last = Some(at);
        match &mut self.timings {
            Some(timings) => timings.clone_from(so_far),
            None => self.timings = Some(so_far.clone()),
        }
    }

    /// `n` tokens came `each` seconds after the one before.
    fn between_tokens(&self, n: usize, each: f64) {
        for _ in 0..n {
            observe(&self.counts.between_tokens, each);
            self.latencies.between_tokens.observe(each);
        }
    }

    pub(crate) fn finished(&mut self, summary: &Summary) {
        self.reason = match &summary.reason {
            _ if summary.embedding.is_some() => "embedding",
            FinishReason::EndOfGeneration(_) => "stop",
            FinishReason::Stop(_) => "stop_string",
            FinishReason::Complete => "grammar",
            FinishReason::Length => "length",
            FinishReason::Context => "context",
            FinishReason::Cancelled => "cancelled",
        };
        self.timings = Some(summary.timings.clone());
    }

    pub(crate) fn failed(&mut self) {
        self.reason = "failed";
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let c = &self.counts;
        c.running.dec();
        c.requests.get_or_create(&ReasonLabel { reason: self.reason }).inc();
        observe(&c.duration, self.start.elapsed().as_secs_f64());
        let Some(t) = &self.timings else {
            tracing::info!(parent: &self.span, reason = self.reason, "request ended without a reply");
            return;
        };
        tracing::info!(
            parent: &self.span,
            reason = self.reason,
            n_prompt = t.prompt_tokens,
            n_cached = t.cached_tokens,
            n_generated = t.generated_tokens,
            n_drafted = t.drafted,
            n_accepted = t.accepted,
            prompt_ms = tenths(t.prompt_ms),
            generated_ms = tenths(t.generated_ms),
            "answer ended"
        );
        c.by_model.ended(&self.model, t);
        c.prompt_tokens.inc_by(t.prompt_tokens.saturating_sub(t.cached_tokens) as u64);
        c.cached_tokens.inc_by(t.cached_tokens as u64);
        c.cache_hits.inc_by(u64::from(t.cached_tokens > 0));
        c.prompt_seconds.inc_by(t.prompt_ms / 1e3);
        c.prompt_rate.set(t.prompt_tokens_per_second());
        c.generated_tokens.inc_by(t.generated_tokens as u64);
        c.generated_seconds.inc_by(t.generated_ms / 1e3);
        c.generated_rate.set(t.tokens_per_second());
        {
            let mut ended = c.since_read.lock().unwrap_or_else(PoisonError::into_inner);
            ended.prompt.0 += t.prompt_tokens.saturating_sub(t.cached_tokens);
            ended.prompt.1 += t.prompt_ms;
            // The first token comes with the prompt.
            ended.generated.0 += t.generated_tokens.saturating_sub(1);
            ended.generated.1 += t.generated_ms;
        }
        c.n_tokens_max.inner().fetch_max((t.prompt_tokens + t.generated_tokens) as i64, Ordering::Relaxed);
        c.drafts.inc_by(t.drafts as u64);
        c.draft_tokens.inc_by(t.drafted as u64);
        c.accepted_tokens.inc_by(t.accepted as u64);
        for (family, counted) in
            [(&c.drafted_by_depth, &t.drafted_by_depth), (&c.accepted_by_depth, &t.accepted_by_depth)]
        {
            for (position, &n) in counted.iter().enumerate() {
                family.get_or_create(&DepthLabel { position: position as u32 }).inc_by(n as u64);
            }
        }
    }
}

/// As log lines have times: no digit more than anybody reads.
pub(crate) fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn observe(histogram: &Option<Histogram>, seconds: f64) {
    if let Some(histogram) = histogram {
        histogram.observe(seconds);
    }
}
