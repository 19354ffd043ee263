//! Models of the repository, engines over them, and prompts that they know.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::sample::SamplingParams;
use engine::{Engine, EngineConfig, EngineHandle, Proposer, RequestOptions, Scope};
use model::{LoadOptions, Model, Pass, PassOutput, Rows, Runner};
use serde_json::{Value, json};
use speculate::{Depth, DraftVocabSize, NextN, NextNConfig};
use text::TokenId;
use text::template::{Chat, ChatTemplate};

/// A file of the repository, opened once for each process.
fn open(path: &str) -> Arc<Model> {
    static MODELS: Mutex<Option<HashMap<String, Arc<Model>>>> = Mutex::new(None);
    let mut models = MODELS.lock().unwrap_or_else(PoisonError::into_inner);
    let models = models.get_or_insert_default();
    Arc::clone(models.entry(path.to_owned()).or_insert_with(|| open_own(path)))
}

fn open_own(path: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    let path = if path.exists() { path } else { unpacked_beside(&path) };
    Model::open(&path, &LoadOptions::default()).expect("a model of the repository")
}

/// What a packed file of the repository holds: zlib, of `.z2` and `.z4` of every second and every fourth byte, then of those behind
/// them, and so on. Exponents side by side are packed best.
pub fn unpacked(path: &Path) -> Vec<u8> {
    let packed = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let bytes = miniz_oxide::inflate::decompress_to_vec_zlib(&packed).expect("zlib data");
    let stride = match path.extension().and_then(|end| end.to_str()) {
        Some("z4") => 4,
        Some("z2") => 2,
        _ => 1,
    };
    let (mut whole, mut rest) = (vec![0; bytes.len()], bytes.into_iter());
    for first in 0..stride {
        whole.iter_mut().skip(first).step_by(stride).zip(&mut rest).for_each(|(to, byte)| *to = byte);
    }
    whole
}

/// A packed file of the repository as a file beside the test's program, where it stays for the next one.
fn unpacked_beside(path: &Path) -> PathBuf {
    let mut packed = ["z4", "z2", "z"].map(|end| path.with_added_extension(end)).into_iter();
    let whole = unpacked(&packed.find(|path| path.exists()).unwrap_or_else(|| panic!("{}: not there", path.display())));
    let program = std::env::current_exe().expect("a test's program has a path");
    let to = program.with_file_name(path.file_name().expect("a file"));
    if std::fs::read(&to).is_ok_and(|there| there == whole) {
        return to;
    }
    // Other programs may open it meanwhile: it comes whole.
    let own = program.with_extension(format!("{}.gguf", std::process::id()));
    std::fs::write(&own, whole).expect("room for the model");
    std::fs::rename(&own, &to).expect("a place for the model");
    to
}

/// One of the trained models, by the name of its file.
pub fn open_pocket(name: &str) -> Arc<Model> {
    open(&format!("models/{name}"))
}

/// Trained, with recurrent layers and an MTP layer; products of up to 7 tokens have the same bits as those of one.
pub fn pocket() -> Arc<Model> {
    open_pocket("pocket-q4_k_m.gguf")
}

/// As [`pocket`], shared with no other test: the engine's hold on it can be seen.
pub fn own_pocket() -> Arc<Model> {
    open_own("models/pocket-q4_k_m.gguf")
}

/// Trained, a mixture of experts with recurrent layers and an MTP layer; tokens have the same bits in any batch.
pub fn pocket_moe() -> Arc<Model> {
    open_pocket("pocket-moe-q8_0.gguf")
}

/// Random weights, attention only: its state can be cut anywhere.
pub fn tiny() -> Arc<Model> {
    open("tests/golden/qwen3/qwen3.gguf")
}

/// One thread that computes, so that tests which run side by side do not wait for each other's barriers.
pub fn config(n_ctx: usize, n_sequences: usize) -> EngineConfig {
    EngineConfig { n_sequences, threads: Some(1), n_ctx: Some(n_ctx), ..EngineConfig::default() }
}

/// An engine, alone in this process: hold the guard as long as it is used.
pub fn engine(model: &Arc<Model>, config: EngineConfig) -> (EngineHandle, MutexGuard<'static, ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    // A test that failed has poisoned it; the lock protects nothing but time.
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    (spawn(model, config, None), guard)
}

/// An engine that drafts with `proposer`.
pub fn spawn(model: &Arc<Model>, config: EngineConfig, proposer: Option<Box<dyn Proposer>>) -> EngineHandle {
    Engine::spawn_with(Arc::clone(model), config, proposer).expect("an engine")
}

/// The MTP layer of a model that has one.
pub fn head(model: &Arc<Model>, config: &EngineConfig, depth: Depth, vocab: DraftVocabSize) -> NextN {
    let head =
        NextN::new(model, config, NextNConfig { depth, vocab, both_heads: false }).expect("room for its KV cells");
    head.expect("the model has an MTP layer")
}

/// An engine that drafts with the model's MTP layer, by one length and from the whole vocabulary: what it drafts depends on
/// its state alone.
pub fn drafting(model: &Arc<Model>, config: EngineConfig) -> EngineHandle {
    let head = head(model, &config, Depth::Fixed(3), DraftVocabSize::Full);
    spawn(model, config, Some(Box::new(head)))
}

/// The first slot as a file holds it.
pub fn slot_bytes(engine: &EngineHandle) -> Vec<u8> {
    engine.save_slot(0, Scope::default()).expect("a free slot").to_bytes().expect("the model's file is there")
}

/// Greedy, up to `n` tokens.
pub fn greedy(n: usize) -> RequestOptions {
    RequestOptions { max_tokens: Some(n), sampling: SamplingParams::greedy(), ..RequestOptions::default() }
}

/// Greedy, exactly `n` tokens.
pub fn greedy_exactly(n: usize) -> RequestOptions {
    RequestOptions { ignore_eos: true, ..greedy(n) }
}

/// `n` tokens of the vocabulary.
pub fn some_tokens(n: u32) -> Vec<TokenId> {
    (0..n).map(|i| TokenId(100 + 3 * i)).collect()
}

/// The tokens of a prompt and its lasting message boundaries.
pub struct Prompt {
    /// All tokens.
    pub tokens: Vec<TokenId>,
    /// Where messages end, in tokens.
    pub boundaries: Vec<usize>,
}

/// Renders messages (`role` and `content`, JSON objects) with the model's own template.
pub fn chat(model: &Model, messages: Vec<Value>, thinking: bool) -> Prompt {
    let template = ChatTemplate::new(model.chat_template().expect("these models have one")).expect("it compiles");
    let chat = Chat { messages, add_generation_prompt: true, enable_thinking: Some(thinking), ..Chat::default() };
    let prompt = template.render(&chat).expect("it renders");
    let (tokens, boundaries) = model.vocab().encode_with_cuts(&prompt.text, &prompt.boundaries[..prompt.n_lasting]);
    assert!(!boundaries.is_empty(), "boundaries lie between tokens");
    Prompt { tokens, boundaries }
}

/// A message of the user.
pub fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

/// One question, without thinking.
pub fn question(model: &Model, text: &str) -> Vec<TokenId> {
    chat(model, vec![user(text)], false).tokens
}

/// Exactly `n` greedy tokens without an engine: the whole prompt in one forward pass, then one token a pass. `adjust` may
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
        let tokens = &all[done..];
        let step = memory.begin(&[(&slot, tokens.len())], 1).expect("room");
        let pass = Pass { tokens, rows: Rows::Some(&[tokens.len() - 1]), hidden: false };
        runner.run(step.view(), &pass, &mut output).expect("a pass");
        step.commit(&[tokens.len()]).expect("all tokens");
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
