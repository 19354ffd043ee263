//! Reading and loading a saved slot whose bytes after the fingerprint are anything: an error or a slot that answers.
#![no_main]

use std::path::Path;
use std::sync::OnceLock;

use engine::sample::SamplingParams;
use engine::{Engine, EngineConfig, EngineHandle, Event, GenerateRequest, RequestOptions, Scope};
use model::{LoadOptions, Model};
use text::TokenId;

/// Magic and fingerprint, which no fuzzer finds.
const HEAD: usize = 40;

/// An engine over the small model, and the head of its slot files.
fn engine() -> &'static (EngineHandle, Vec<u8>) {
    static ENGINE: OnceLock<(EngineHandle, Vec<u8>)> = OnceLock::new();
    ENGINE.get_or_init(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../models/pocket-q4_k_m.gguf");
        let model = Model::open(&path, &LoadOptions::default()).expect("a model of the repository");
        let config = EngineConfig { n_ctx: Some(64), threads: Some(1), ..EngineConfig::default() };
        let engine = Engine::spawn(model, config).expect("it is small");
        answer(&engine);
        let saved = engine.save_slot(0, Scope::default()).and_then(|saved| saved.to_bytes()).expect("a free slot");
        (engine, saved[..HEAD].to_vec())
    })
}

fn answer(engine: &EngineHandle) {
    let sampling = SamplingParams::greedy();
    let options = RequestOptions { max_tokens: Some(2), sampling, ignore_eos: true, ..RequestOptions::default() };
    let prompt = (100..116).map(TokenId).collect();
    let request = GenerateRequest::new(prompt, options, engine.limits()).expect("within the limits");
    let mut generation = engine.submit(request).expect("it runs");
    while let Some(event) = generation.next() {
        assert!(!matches!(event, Event::Failed(_)), "{event:?}");
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (engine, head) = engine();
    match engine.read_slot(&[head, bytes].concat()) {
        // An error is an answer; the message is made too.
        Err(error) => drop(std::hint::black_box(error.to_string())),
        Ok(saved) => {
            engine.load_slot(0, saved, Scope::default()).expect("what was read fits");
            answer(engine);
        }
    }
});
