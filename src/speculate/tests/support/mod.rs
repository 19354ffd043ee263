//! What the tests of drafting share: a model of the repository, engines that draft with its head, whole answers.
#![allow(dead_code, reason = "every test file uses a part of this")]

use std::path::Path;
use std::sync::{Arc, OnceLock};

use engine::sample::SamplingParams;
use engine::{
    Engine, EngineConfig, EngineHandle, Event, GenerateRequest, Generation, Guess, Proposer, RequestOptions, Scope,
    Timings,
};
use model::{LoadOptions, Model};
use speculate::{Depth, DraftVocabSize, NextN, NextNConfig};
use text::TokenId;

/// Trained, with recurrent layers and a NextN head.
pub fn pocket() -> Arc<Model> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    let open = || {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/pocket-q4_k_m.gguf");
        Model::open(&path, &LoadOptions::default()).expect("a model of the repository")
    };
    Arc::clone(MODEL.get_or_init(open))
}

/// One thread: engines of several tests would spin against each other.
pub fn config(n_sequences: usize) -> EngineConfig {
    EngineConfig { n_ctx: Some(512), n_sequences, threads: Some(1), ..EngineConfig::default() }
}

/// The head of `model`, with drafts of one length and from all words: what it drafts depends on its state alone.
pub fn head(model: &Arc<Model>, config: &EngineConfig) -> NextN {
    let of_head = NextNConfig { depth: Depth::Fixed(3), vocab: DraftVocabSize::Full };
    NextN::new(model, config, of_head).expect("room for the head's cells").expect("a head")
}

/// An engine that drafts with the model's head.
pub fn drafting(model: &Arc<Model>, config: EngineConfig) -> EngineHandle {
    let head = head(model, &config);
    spawn(model, config, Box::new(head))
}

pub fn spawn(model: &Arc<Model>, config: EngineConfig, proposer: Box<dyn Proposer>) -> EngineHandle {
    Engine::spawn_with(Arc::clone(model), config, Some(proposer)).expect("an engine")
}

/// `n` tokens of the vocabulary.
pub fn words(n: u32) -> Vec<TokenId> {
    (0..n).map(|i| TokenId(100 + 3 * i)).collect()
}

/// The bytes of the first slot.
pub fn bytes(engine: &EngineHandle) -> Vec<u8> {
    engine.save_slot(0, Scope::default()).expect("a free slot").to_bytes().expect("the model's file is there")
}

/// An answer with what was drafted for it.
#[derive(Debug)]
pub struct Answer {
    pub tokens: Vec<TokenId>,
    /// For each token, its place in its cycle's draft.
    pub guesses: Vec<Guess>,
    pub timings: Timings,
}

/// The likeliest `n` tokens after `prompt`.
pub fn ask(engine: &EngineHandle, prompt: &[TokenId], n: usize) -> Answer {
    ask_with(engine, prompt, greedy(n))
}

pub fn greedy(n: usize) -> RequestOptions {
    RequestOptions {
        max_tokens: Some(n),
        sampling: SamplingParams::greedy(),
        ignore_eos: true,
        ..RequestOptions::default()
    }
}

pub fn ask_with(engine: &EngineHandle, prompt: &[TokenId], options: RequestOptions) -> Answer {
    let request = GenerateRequest::new(prompt.to_vec(), options, engine.limits()).expect("a request that fits");
    read(engine.submit(request).expect("a place in the queue"))
}

/// Reads an answer to its end.
pub fn read(mut generation: Generation) -> Answer {
    let (mut tokens, mut guesses) = (Vec::new(), Vec::new());
    loop {
        match generation.next().expect("an answer ends in an event") {
            Event::Prompt(_) => {}
            Event::Tokens(pieces) => pieces.iter().for_each(|piece| {
                tokens.push(piece.token);
                guesses.push(piece.guess);
            }),
            Event::Finished(summary) => return Answer { tokens, guesses, timings: summary.timings },
            Event::Failed(why) => panic!("{why}"),
        }
    }
}
