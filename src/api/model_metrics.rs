//! Metrics by model: what each model of a server generated, reused and drafted, how long its clients waited, and its memory.
//! Owns the families with the label `model`. Knows no requests and no engines: `metrics` tells what has happened.

use std::sync::atomic::{AtomicI64, AtomicU64};

use engine::{EngineStats, Timings};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry as Prometheus;
use session::Learning;

type Counts = Family<ModelLabel, Counter>;
type Bytes = Family<ModelLabel, Gauge<i64, AtomicI64>>;
type Numbers = Family<ModelLabel, Gauge<f64, AtomicU64>>;
type Seconds = Family<ModelLabel, Histogram, fn() -> Histogram>;

/// The families.
#[derive(Debug)]
pub(crate) struct ModelMetrics {
    requests: Counts,
    prompt_tokens: Counts,
    cached_tokens: Counts,
    cache_hits: Counts,
    generated_tokens: Counts,
    draft_tokens: Counts,
    accepted_tokens: Counts,
    first_token: Seconds,
    between_tokens: Seconds,
    state_bytes: Bytes,
    checkpoint_bytes: Bytes,
    stored_bytes: Bytes,
    compute_bytes: Bytes,
    expert_copies_found: Numbers,
    kept_replies: Bytes,
    kept_bytes: Bytes,
    dropped_replies: Bytes,
    live_rounds: Bytes,
    live_paused: Bytes,
    live_kept: Bytes,
    live_undone: Bytes,
    live_failed: Bytes,
    live_tokens_per_pass: Numbers,
}

#[derive(Clone, Debug, Eq, PartialEq, Hash, EncodeLabelSet)]
struct ModelLabel {
    model: String,
}

/// The histograms of one model, at hand for every token.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    pub(crate) first_token: Histogram,
    pub(crate) between_tokens: Histogram,
}

impl Default for ModelMetrics {
    fn default() -> Self {
        Self {
            requests: Counts::default(),
            prompt_tokens: Counts::default(),
            cached_tokens: Counts::default(),
            cache_hits: Counts::default(),
            generated_tokens: Counts::default(),
            draft_tokens: Counts::default(),
            accepted_tokens: Counts::default(),
            first_token: Seconds::new_with_constructor(first_token),
            between_tokens: Seconds::new_with_constructor(between_tokens),
            state_bytes: Bytes::default(),
            checkpoint_bytes: Bytes::default(),
            stored_bytes: Bytes::default(),
            compute_bytes: Bytes::default(),
            expert_copies_found: Numbers::default(),
            kept_replies: Bytes::default(),
            kept_bytes: Bytes::default(),
            dropped_replies: Bytes::default(),
            live_rounds: Bytes::default(),
            live_paused: Bytes::default(),
            live_kept: Bytes::default(),
            live_undone: Bytes::default(),
            live_failed: Bytes::default(),
            live_tokens_per_pass: Numbers::default(),
        }
    }
}

impl ModelMetrics {
    /// Adds them to what is served.
    pub(crate) fn register(&self, to: &mut Prometheus) {
        for (name, help, family) in [
            ("nextn:model_requests", "Requests that generated tokens, by model", &self.requests),
            ("nextn:model_prompt_tokens", "Prompt tokens computed, by model", &self.prompt_tokens),
            (
                "nextn:model_prompt_tokens_cached",
                "Prompt tokens reused from the prefix cache, by model",
                &self.cached_tokens,
            ),
            ("nextn:model_prompt_cache_hits", "Requests that reused a cached prefix, by model", &self.cache_hits),
            ("nextn:model_tokens_predicted", "Tokens generated, by model", &self.generated_tokens),
            ("nextn:model_draft_tokens", "Draft tokens verified, by model", &self.draft_tokens),
            ("nextn:model_accepted_tokens", "Draft tokens accepted, by model", &self.accepted_tokens),
        ] {
            to.register(name, help, family.clone());
        }
        for (name, help, family) in [
            (
                "nextn:model_time_to_first_token_seconds",
                "Time from the request to its first token, queue included, by model",
                &self.first_token,
            ),
            ("nextn:model_inter_token_seconds", "Time between tokens, by model", &self.between_tokens),
        ] {
            to.register(name, help, family.clone());
        }
        for (name, help, family) in [
            ("nextn:model_state_bytes", "Bytes of KV cache and recurrent state, by loaded model", &self.state_bytes),
            (
                "nextn:model_checkpoint_bytes",
                "Bytes of checkpoints of the sequences in slots, by loaded model",
                &self.checkpoint_bytes,
            ),
            (
                "nextn:model_stored_bytes",
                "Bytes of conversations evicted to the host, by loaded model",
                &self.stored_bytes,
            ),
            ("nextn:model_compute_bytes", "Bytes of compute buffers, by loaded model", &self.compute_bytes),
            (
                "nextn:model_learn_replies",
                "Replies kept to train on since the model was loaded, by loaded model (--learn)",
                &self.kept_replies,
            ),
            (
                "nextn:model_learn_bytes",
                "Bytes in the folder of --learn, when a reply of the loaded model was last kept",
                &self.kept_bytes,
            ),
            (
                "nextn:model_learn_dropped",
                "Replies not kept since the model was loaded: a slow, full or unwritable disk",
                &self.dropped_replies,
            ),
            (
                "nextn:model_learn_live_rounds",
                "Rounds in which the head learned since the model was loaded (--learn-live)",
                &self.live_rounds,
            ),
            ("nextn:model_learn_live_paused", "Times that a request stopped such a round", &self.live_paused),
            ("nextn:model_learn_live_kept", "Rounds whose head was taken into use", &self.live_kept),
            ("nextn:model_learn_live_undone", "Learned heads that were taken out of use again", &self.live_undone),
            ("nextn:model_learn_live_failed", "Rounds that ended without a usable head", &self.live_failed),
        ] {
            to.register(name, help, family.clone());
        }
        to.register(
            "nextn:model_expert_copies_found",
            "Share of the experts wanted lately that had a copy on a GPU, by loaded model (--expert-cache)",
            self.expert_copies_found.clone(),
        );
        to.register(
            "nextn:model_learn_live_tokens_per_pass",
            "Tokens of a pass with a draft of three, by the head in use on the latest replies, as last measured",
            self.live_tokens_per_pass.clone(),
        );
    }

    /// The histograms of `model`.
    pub(crate) fn latencies(&self, model: &str) -> Latencies {
        let label = label(model);
        Latencies {
            first_token: self.first_token.get_or_create(&label).clone(),
            between_tokens: self.between_tokens.get_or_create(&label).clone(),
        }
    }

    /// A request to `model` ended with these timings.
    pub(crate) fn ended(&self, model: &str, t: &Timings) {
        let label = label(model);
        for (family, n) in [
            (&self.requests, 1),
            (&self.prompt_tokens, t.prompt_tokens.saturating_sub(t.cached_tokens)),
            (&self.cached_tokens, t.cached_tokens),
            (&self.cache_hits, usize::from(t.cached_tokens > 0)),
            (&self.generated_tokens, t.generated_tokens),
            (&self.draft_tokens, t.drafted),
            (&self.accepted_tokens, t.accepted),
        ] {
            family.get_or_create(&label).inc_by(n as u64);
        }
    }

    /// The memory of all models that are loaded now, and how often it served; others have none.
    pub(crate) fn memory<'m>(&self, loaded: impl Iterator<Item = (&'m str, EngineStats)>) {
        let families = [&self.state_bytes, &self.checkpoint_bytes, &self.stored_bytes, &self.compute_bytes];
        families.iter().for_each(|family| family.clear());
        self.expert_copies_found.clear();
        for (model, stats) in loaded {
            if let Some(share) = stats.copies_found {
                self.expert_copies_found.get_or_create(&label(model)).set(share);
            }
            let bytes = [stats.taken_bytes, stats.checkpoint_bytes, stats.stored_bytes, stats.compute_bytes];
            for (family, n) in families.iter().zip(bytes) {
                family.get_or_create(&label(model)).set(n as i64);
            }
        }
    }

    /// What is kept to train on, of all models that are loaded now and of which something is.
    pub(crate) fn learning<'m>(&self, loaded: impl Iterator<Item = (&'m str, &'m Learning)>) {
        let families = [&self.kept_replies, &self.kept_bytes, &self.dropped_replies];
        let of_live = [&self.live_rounds, &self.live_paused, &self.live_kept, &self.live_undone, &self.live_failed];
        families.iter().chain(&of_live).for_each(|family| family.clear());
        self.live_tokens_per_pass.clear();
        for (model, learning) in loaded {
            let counts = [learning.n_kept(), learning.n_bytes(), learning.n_dropped()];
            for (family, n) in families.iter().zip(counts) {
                family.get_or_create(&label(model)).set(n as i64);
            }
            let Some(live) = learning.live() else { continue };
            let counts = [live.n_rounds, live.n_paused, live.n_kept, live.n_undone, live.n_failed];
            for (family, n) in of_live.iter().zip(counts) {
                family.get_or_create(&label(model)).set(n as i64);
            }
            if let Some(n) = live.tokens_per_pass {
                self.live_tokens_per_pass.get_or_create(&label(model)).set(n);
            }
        }
    }
}

fn label(model: &str) -> ModelLabel {
    ModelLabel { model: model.to_owned() }
}

/// Time to first token.
pub(crate) fn first_token() -> Histogram {
    Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0])
}

/// Time between two tokens.
pub(crate) fn between_tokens() -> Histogram {
    Histogram::new([0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28])
}
