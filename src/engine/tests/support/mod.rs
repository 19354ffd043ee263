//! What the engine's tests share: models of the repository, one engine at a time, whole answers, and a plain loop to compare with.
//! Knows the engine's public face only.
#![allow(dead_code, reason = "every test file uses a part of this")]

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use engine::{
    Engine, EngineConfig, EngineHandle, Event, FinishReason, GenerateRequest, Generation, PromptProgress,
    RequestOptions, Summary, sample::SamplingParams, sample::TokenLogprob,
};
use model::{LoadOptions, Model, Pass, PassOutput, Rows, Runner};
use text::TokenId;
use text::template::{Chat, ChatTemplate};

fn open(path: &str, model: &'static OnceLock<Arc<Model>>) -> Arc<Model> {
    Arc::clone(model.get_or_init(|| open_own(path)))
}

fn open_own(path: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    Model::open(&path, &LoadOptions::default()).expect("a model of the repository")
}

/// Trained, with recurrent layers; products of up to 7 rows have the same bits as those of one.
pub fn pocket() -> Arc<Model> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    open("models/pocket-q4_k_m.gguf", &MODEL)
}

/// As [`pocket`], shared with no other test: the engine's hold on it can be seen.
pub fn own_pocket() -> Arc<Model> {
    open_own("models/pocket-q4_k_m.gguf")
}

/// Trained, a mixture of experts with recurrent layers.
pub fn pocket_moe() -> Arc<Model> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    open("models/pocket-moe-q8_0.gguf", &MODEL)
}

/// Random weights, attention only: its state can be cut anywhere.
pub fn tiny() -> Arc<Model> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    open("tests/golden/qwen3/qwen3.gguf", &MODEL)
}

/// One thread that computes, so that tests which run side by side do not wait for each other's barriers.
pub fn config(n_sequences: usize) -> EngineConfig {
    EngineConfig { n_sequences, threads: Some(1), n_ctx: Some(1024), ..EngineConfig::default() }
}

/// An engine, alone in this process: hold the guard as long as it is used.
pub fn engine(model: &Arc<Model>, config: EngineConfig) -> (EngineHandle, MutexGuard<'static, ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    // A test that failed has poisoned it; the lock protects nothing but time.
    let guard = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    (Engine::spawn(Arc::clone(model), config).expect("an engine"), guard)
}

/// Greedy, up to `n` tokens.
pub fn greedy(n: usize) -> RequestOptions {
    RequestOptions { max_tokens: Some(n), sampling: SamplingParams::greedy(), ..RequestOptions::default() }
}

/// Greedy, exactly `n` tokens.
pub fn greedy_exactly(n: usize) -> RequestOptions {
    RequestOptions { ignore_eos: true, ..greedy(n) }
}

pub fn submit(engine: &EngineHandle, prompt: &[TokenId], options: RequestOptions) -> Generation {
    let request = GenerateRequest::new(prompt.to_vec(), options, engine.limits()).expect("a request within the limits");
    engine.submit(request).expect("room in the queue")
}

pub fn ask(engine: &EngineHandle, prompt: &[TokenId], options: RequestOptions) -> Answer {
    Answer::read(&mut submit(engine, prompt, options))
}

/// A whole answer, with the order of its events checked.
#[derive(Debug)]
pub struct Answer {
    pub tokens: Vec<TokenId>,
    /// Bytes of each token's piece.
    pub pieces: Vec<Vec<u8>>,
    pub logprobs: Vec<Option<TokenLogprob>>,
    pub progress: Vec<PromptProgress>,
    pub end: Result<Summary, String>,
}

impl Answer {
    /// Reads to the end; panics when events come in another order than promised.
    pub fn read(generation: &mut Generation) -> Self {
        Self::read_on(generation, vec![])
    }

    /// As [`Answer::read`], after progress of the prompt was read already.
    pub fn read_on(generation: &mut Generation, mut progress: Vec<PromptProgress>) -> Self {
        let (mut tokens, mut pieces, mut logprobs) = (vec![], vec![], vec![]);
        let end = loop {
            match generation.next().expect("an end before the channel closes") {
                Event::Prompt(p) => {
                    assert!(tokens.is_empty(), "progress of the prompt after the first token");
                    progress.push(p);
                }
                Event::Tokens(some) => {
                    assert!(!progress.is_empty() && !some.is_empty(), "tokens before the prompt is done, or none");
                    for piece in some {
                        tokens.push(piece.token);
                        pieces.push(piece.bytes);
                        logprobs.push(piece.logprob);
                    }
                }
                Event::Finished(summary) => break Ok(*summary),
                Event::Failed(why) => break Err(why),
            }
        };
        assert!(generation.next().is_none(), "an event after the last");
        Self { tokens, pieces, logprobs, progress, end }
    }

    pub fn summary(&self) -> &Summary {
        self.end.as_ref().expect("a complete answer")
    }

    pub fn reason(&self) -> &FinishReason {
        &self.summary().reason
    }

    pub fn n_cached(&self) -> usize {
        self.summary().timings.cached_tokens
    }

    pub fn text(&self) -> String {
        let mut bytes = self.pieces.concat();
        bytes.extend_from_slice(&self.summary().rest);
        String::from_utf8(bytes).expect("these answers are text")
    }
}

/// The tokens of a prompt and its lasting message borders.
pub struct Prompt {
    pub tokens: Vec<TokenId>,
    pub borders: Vec<usize>,
}

/// Renders messages (`role` and `content`, JSON objects) with the model's own template.
pub fn chat(model: &Model, messages: Vec<serde_json::Value>, thinking: bool) -> Prompt {
    let template = ChatTemplate::new(model.chat_template().expect("these models have one")).expect("it compiles");
    let chat = Chat { messages, add_generation_prompt: true, enable_thinking: Some(thinking), ..Chat::default() };
    let prompt = template.render(&chat).expect("it renders");
    let (tokens, borders) = model.vocab().encode_with_cuts(&prompt.text, &prompt.borders[..prompt.n_lasting]);
    assert!(!borders.is_empty(), "borders lie between tokens");
    Prompt { tokens, borders }
}

pub fn user(text: &str) -> serde_json::Value {
    serde_json::json!({ "role": "user", "content": text })
}

/// One question, without thinking.
pub fn question(model: &Model, text: &str) -> Vec<TokenId> {
    chat(model, vec![user(text)], false).tokens
}

/// Exactly `n` greedy tokens without an engine: the whole prompt in one pass, then one token a pass. `adjust` may
/// change the logits, knowing the tokens so far.
pub fn plain_loop(
    model: &Arc<Model>,
    config: &EngineConfig,
    prompt: &[TokenId],
    n: usize,
    adjust: &dyn Fn(&mut [f32], &[TokenId]),
) -> Vec<TokenId> {
    let mut memory = model.memory(config.memory(model)).expect("memory");
    let slot = memory.acquire().expect("memory").expect("a free slot");
    let mut runner = Runner::new(Arc::clone(model), 1).expect("a runner");
    let mut output = PassOutput::default();
    let (mut all, mut done) = (prompt.to_vec(), 0);
    while all.len() < prompt.len() + n {
        let rows = &all[done..];
        let step = memory.begin(&[(&slot, rows.len())], 1).expect("room");
        let pass = Pass { tokens: rows, rows: Rows::Some(&[rows.len() - 1]), hidden: false };
        runner.run(step.view(), &pass, &mut output).expect("a pass");
        step.commit(&[rows.len()]).expect("all rows");
        done = all.len();
        adjust(&mut output.logits, &all);
        all.push(TokenId(argmax(&output.logits) as u32));
    }
    all.split_off(prompt.len())
}

/// The lowest of the best.
pub fn argmax(logits: &[f32]) -> usize {
    (0..logits.len()).rev().max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("logits")
}
