//! What happens to the models, as those who follow are told: llama.cpp's names and shapes.

use serde::Serialize;
use serde_json::{Value, json};

use super::entry::Phase;

/// Something that happened to a model.
#[derive(Clone, Debug, Serialize)]
pub struct ModelEvent {
    /// Its name; `*` is all of them.
    pub model: String,
    /// `model_status`, `load_progress`, `download_progress`, `download_finished`, `download_failed`, `model_remove` or `models_reload`.
    pub event: &'static str,
    /// More of it.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub data: Value,
}

impl ModelEvent {
    pub(crate) fn new(model: &str, event: &'static str, data: Value) -> Self {
        Self { model: model.to_owned(), event, data }
    }

    pub(super) fn status(model: &str, phase: Phase) -> Self {
        Self::new(model, "model_status", json!({ "status": phase.word() }))
    }

    /// The list has changed, or a reader has missed something: it is to be read anew.
    pub fn reload() -> Self {
        Self::new("*", "models_reload", Value::Null)
    }
}
