//! `/api/tags`, `/api/show`, `/api/ps` and `/api/version`: which models there are, in Ollama's form.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::names;
use super::reply::time_of;
use crate::error::ApiError;
use crate::json::{Input, Output};
use crate::registry::{ModelEntry, Phase, Served};
use crate::state::AppState;

/// The version of Ollama whose interface this is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaVersion {
    version: &'static str,
}

/// `GET /api/version`. Clients compare it with the versions that they need.
pub(crate) async fn version() -> Output<OllamaVersion> {
    Output(OllamaVersion { version: VERSION })
}

const VERSION: &str = "0.13.0";

/// All models, or those in memory.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaModels {
    models: Vec<OllamaModel>,
}

/// One model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaModel {
    /// With a tag.
    name: String,
    /// The same.
    model: String,
    modified_at: String,
    /// Bytes of its tensors; 0 until it was loaded.
    size: u64,
    /// Of its name: this server keeps no manifests.
    digest: String,
    details: OllamaDetails,
    /// With `/api/ps`: nothing is unloaded at a time that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<&'static str>,
    /// With `/api/ps`: bytes on devices other than the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    size_vram: Option<u64>,
    /// With `/api/ps`: tokens of one sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    context_length: Option<usize>,
}

/// What a model file says of itself; empty until the model was loaded.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct OllamaDetails {
    parent_model: &'static str,
    format: &'static str,
    family: String,
    families: Vec<String>,
    parameter_size: String,
    quantization_level: String,
}

impl OllamaDetails {
    fn of(served: Option<&Served>) -> Self {
        let Some(served) = served else { return Self { format: "gguf", ..Self::default() } };
        let about = served.model().describe();
        Self {
            parent_model: "",
            format: "gguf",
            family: about.architecture.clone(),
            families: vec![about.architecture.clone()],
            parameter_size: parameters(about.n_params),
            quantization_level: about.quantization.to_uppercase(),
        }
    }
}

/// `GET /api/tags`.
pub(crate) async fn tags(State(state): State<AppState>) -> Output<OllamaModels> {
    let loaded = state.registry().loaded();
    let there = state.registry().list().into_iter().filter(|(.., phase)| *phase != Phase::Downloading);
    let models = there.map(|(entry, created, _)| {
        let served = loaded.iter().find(|served| served.id == entry.id).map(|served| &**served);
        model(&entry.id, created, served)
    });
    Output(OllamaModels { models: models.collect() })
}

/// `GET /api/ps`.
pub(crate) async fn ps(State(state): State<AppState>) -> Output<OllamaModels> {
    let listed = state.registry().list();
    let models = state.registry().loaded().into_iter().map(|served| {
        let created = listed.iter().find(|(entry, ..)| entry.id == served.id).map_or(0, |(_, created, _)| *created);
        let on_devices = if served.model().is_on_cpu() { 0 } else { served.model().describe().n_bytes };
        OllamaModel {
            expires_at: Some("9999-12-31T00:00:00Z"),
            size_vram: Some(on_devices),
            context_length: Some(served.engine().limits().n_ctx),
            ..model(&served.id, created, Some(&served))
        }
    });
    Output(OllamaModels { models: models.collect() })
}

fn model(id: &str, created: u64, served: Option<&Served>) -> OllamaModel {
    OllamaModel {
        name: names::listed(id),
        model: names::listed(id),
        modified_at: time_of(created, 0),
        size: served.map_or(0, |served| served.model().describe().n_bytes),
        digest: digest(id),
        details: OllamaDetails::of(served),
        expires_at: None,
        size_vram: None,
        context_length: None,
    }
}

/// Which model is asked about.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct OllamaName {
    /// Its name.
    pub(super) model: Option<String>,
    /// An older name of `model`.
    pub(super) name: Option<String>,
}

impl OllamaName {
    /// The name that was given.
    ///
    /// # Errors
    /// 400 for none.
    pub(super) fn given(self) -> Result<String, ApiError> {
        let name = self.model.or(self.name).filter(|name| !name.is_empty());
        name.ok_or_else(|| ApiError::field("model", "model: the name of a model is expected"))
    }
}

/// What is known of a model; little until it was loaded.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OllamaShow {
    modelfile: String,
    /// Settings of requests that do not say, a line each.
    parameters: String,
    template: String,
    details: OllamaDetails,
    #[schema(value_type = Object)]
    model_info: Map<String, Value>,
    /// `completion`, `tools`, `thinking`, `insert`, `embedding`.
    capabilities: Vec<&'static str>,
    modified_at: String,
}

/// `POST /api/show`.
pub(crate) async fn show(State(state): State<AppState>, input: Input) -> Result<Output<OllamaShow>, ApiError> {
    let given = input.read::<OllamaName>().await?.given()?;
    let (entry, created) = entry(&state, &given)?;
    let loaded = state.registry().loaded();
    let served = loaded.iter().find(|served| served.id == entry.id).map(|served| &**served);
    let parameters = served.map(settings).unwrap_or_default();
    Ok(Output(OllamaShow {
        modelfile: format!("# Served by nextn-server, which reads no Modelfile\nFROM {}\n", entry.id),
        parameters,
        template: served.map(|served| served.template_source().to_owned()).unwrap_or_default(),
        details: OllamaDetails::of(served),
        model_info: served.map(info).unwrap_or_default(),
        capabilities: capabilities(&state, served),
        modified_at: time_of(created, 0),
    }))
}

/// The model of this name; a server of one model answers to any.
fn entry(state: &AppState, given: &str) -> Result<(ModelEntry, u64), ApiError> {
    let mut all = state.registry().list();
    let ids: Vec<String> = all.iter().map(|(entry, ..)| entry.id.clone()).collect();
    let name = names::asked(state.registry(), Some(given)).unwrap_or_default();
    let is_it = |entry: &ModelEntry| entry.id == name || entry.aliases.contains(&name);
    let at = all.iter().position(|(entry, ..)| is_it(entry)).or((all.len() == 1).then_some(0));
    let (entry, created, _) = all.swap_remove(at.ok_or_else(|| ApiError::no_model(given, &ids))?);
    Ok((entry, created))
}

/// The settings that Ollama's options name.
fn settings(served: &Served) -> String {
    let sampling = session::options::request_fields(served.sampling());
    let known = ["temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n"];
    let known = sampling.filter(|(name, _)| known.contains(name)).map(|(name, value)| (name, value.to_string()));
    let n_ctx = ("num_ctx", served.engine().limits().n_ctx.to_string());
    let lines: Vec<String> =
        [n_ctx].into_iter().chain(known).map(|(name, value)| format!("{name:<30} {value}")).collect();
    lines.join("\n")
}

fn info(served: &Served) -> Map<String, Value> {
    let (about, hparams) = (served.model().describe(), served.model().hparams());
    let architecture = about.architecture.as_str();
    let all = [
        ("general.architecture".to_owned(), json!(architecture)),
        ("general.basename".to_owned(), json!(about.name)),
        ("general.parameter_count".to_owned(), json!(about.n_params)),
        // What fits, not what the model was trained for: clients measure their prompts by it.
        (format!("{architecture}.context_length"), json!(served.engine().limits().n_ctx)),
        (format!("{architecture}.embedding_length"), json!(hparams.n_embd)),
        (format!("{architecture}.block_count"), json!(hparams.n_layer)),
        (format!("{architecture}.attention.head_count"), json!(hparams.n_head)),
        (format!("{architecture}.vocab_size"), json!(hparams.n_vocab)),
    ];
    all.into_iter().collect()
}

fn capabilities(state: &AppState, served: Option<&Served>) -> Vec<&'static str> {
    let Some(served) = served else { return vec!["completion"] };
    let dialect = served.dialect();
    let all = [
        ("completion", true),
        ("tools", dialect.has_calls()),
        ("thinking", dialect.reasoning_end().is_some()),
        ("insert", served.vocab().fim().is_some()),
        ("vision", served.sight().is_some()),
        ("embedding", state.settings().embeddings),
    ];
    all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
}

/// 64 digits, the same for the same name. Clients show the first twelve.
fn digest(id: &str) -> String {
    let hashes = BuildHasherDefault::<DefaultHasher>::default();
    (0u8..4).map(|i| format!("{:016x}", hashes.hash_one((i, id)))).collect()
}

/// A number of parameters as Ollama writes it.
fn parameters(n: u64) -> String {
    match n as f64 {
        n if n >= 1e12 => format!("{:.1}T", n / 1e12),
        n if n >= 1e9 => format!("{:.1}B", n / 1e9),
        n if n >= 1e6 => format!("{:.2}M", n / 1e6),
        n => format!("{:.2}K", n / 1e3),
    }
}
