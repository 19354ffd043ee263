//! A sequence whose numbers are not finite leaves nothing in the head's cells: the slot's next user gets the drafts that a fresh
//! engine makes.

#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../../tests/support/tiny.rs"]
mod tiny;
#[path = "../../../tests/support/words.rs"]
mod words;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::sample::SamplingParams;
use engine::{Ask, Engine, EngineConfig, EngineHandle, Event, GenerateRequest, Observed, Proposer, RequestOptions};
use model::{LoadOptions, Model, RunError, Runner};
use speculate::{Aside, Depth, DraftVocabSize, NextN, NextNConfig};
use text::TokenId;
use tiny::Spec;

/// The token whose embedding is NaN.
const BAD: usize = 70;

type Log = Arc<Mutex<Vec<Vec<TokenId>>>>;

/// Writes down what another proposes.
struct Logged(Box<dyn Proposer>, Log);

impl Proposer for Logged {
    fn max_depth(&self) -> usize {
        self.0.max_depth()
    }

    fn wants_hidden(&self) -> bool {
        self.0.wants_hidden()
    }

    fn begin(&mut self, slot: usize, tokens: &[TokenId], hidden: Option<&[f32]>) -> Result<(), RunError> {
        self.0.begin(slot, tokens, hidden)
    }

    fn forget(&mut self, slot: usize) -> Result<(), RunError> {
        self.0.forget(slot)
    }

    fn hidden(&self, slot: usize) -> Option<&[f32]> {
        self.0.hidden(slot)
    }

    fn observe(&mut self, runner: &mut Runner, seen: &[Observed<'_>], took: Option<Duration>) -> Result<(), RunError> {
        self.0.observe(runner, seen, took)
    }

    fn expect(&mut self, asks: &[Ask]) -> Result<(), RunError> {
        self.0.expect(asks)
    }

    fn propose(&mut self, runner: &mut Runner, asks: &[Ask]) -> Result<Vec<Vec<TokenId>>, RunError> {
        let drafts = self.0.propose(runner, asks)?;
        self.1.lock().expect("no panic holds it").extend(drafts.iter().cloned());
        Ok(drafts)
    }
}

fn model(arch: &'static str) -> Arc<Model> {
    let dir = tempfile::TempDir::new().expect("a folder");
    let spec = Spec { nextn: true, ..Spec::of(arch) };
    let mut document = spec.document();
    let embedding = document.tensors.iter_mut().find(|t| t.name == "token_embd.weight").expect("an embedding");
    embedding.data[4 * BAD * spec.n_embd..][..4 * spec.n_embd].fill(0xFF);
    Model::open(&document.write(&dir.path().join("tiny.gguf")), &LoadOptions::default()).expect("a sound file")
}

fn ask(engine: &EngineHandle, prompt: &[u32]) -> Result<Vec<TokenId>, String> {
    let options = RequestOptions {
        max_tokens: Some(16),
        sampling: SamplingParams::greedy(),
        ignore_eos: true,
        ..RequestOptions::default()
    };
    let prompt = prompt.iter().map(|&id| TokenId(id)).collect();
    let request = GenerateRequest::new(prompt, options, engine.limits()).expect("within the limits");
    let mut generation = engine.submit(request).expect("a place in the queue");
    let mut tokens = Vec::new();
    loop {
        match generation.next().expect("an answer ends in an event") {
            Event::Prompt(_) => {}
            Event::Tokens(pieces) => tokens.extend(pieces.iter().map(|piece| piece.token)),
            Event::Finished(_) => return Ok(tokens),
            Event::Failed(why) => return Err(why),
        }
    }
}

#[test]
fn drafts_after_a_sequence_that_ended_badly_are_those_of_a_fresh_engine() {
    let good: Vec<u32> = (0..20).map(|i| 90 + i * 7).collect();
    // Long, so that cells of the head are written in its prompt.
    let mut bad: Vec<u32> = (0..320).map(|i| 80 + i * 13 % 150).collect();
    bad[200] = BAD as u32;
    for arch in ["qwen35", "qwen35moe"] {
        let model = model(arch);
        let config = EngineConfig { n_ctx: Some(512), threads: Some(1), n_batch: 64, ..EngineConfig::default() };
        for kind in ["head", "head on a thread"] {
            let of_head = NextNConfig { depth: Depth::Fixed(3), vocab: DraftVocabSize::Full };
            let head = || NextN::new(&model, &config, of_head).expect("room for the head's cells").expect("a head");
            let proposer: Box<dyn Proposer> = match kind {
                "head" => Box::new(head()),
                _ => Box::new(Aside::new(head(), &model, 1, true).expect("a thread")),
            };
            let log = Log::default();
            let proposer = Box::new(Logged(proposer, Arc::clone(&log)));
            let engine = Engine::spawn_with(Arc::clone(&model), config.clone(), Some(proposer)).expect("an engine");
            let take = || std::mem::take(&mut *log.lock().expect("no panic holds it"));
            let expected = (ask(&engine, &good).expect("good numbers"), take());
            assert!(expected.1.iter().any(|draft| draft.len() == 3), "{arch}, {kind}: {:?}", expected.1);
            let why = ask(&engine, &bad).expect_err("there are no finite numbers to go on from");
            assert!(why.contains("not finite"), "{arch}, {kind}: {why}");
            take();
            let again = (ask(&engine, &good).expect("good numbers"), take());
            assert_eq!(again, expected, "{arch}, {kind}");
        }
    }
}
