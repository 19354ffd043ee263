//! Servers of tiny models, whose files a test makes.

use api::Served;
use engine::EngineConfig;
use model::{LoadOptions, Model};
use session::ModelOptions;

use crate::tiny::Document;

/// A tiny model of random weights, by what a test makes of its file, and options that were given.
pub fn served_tiny(document: &Document, config: EngineConfig, options: &ModelOptions) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let path = document.write(&dir.path().join("tiny.gguf"));
    let config = EngineConfig { n_ctx: Some(1024), threads: Some(1), ..config };
    let model = Model::open(&path, &LoadOptions::default()).expect("a sound file");
    let model = session::start_engine_with(model, config, options, None).expect("it is small");
    Served { id: "tiny".into(), model }
}
