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

/// Where a model goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The embedding of `BAD` is NaN.
    Embedding,
    /// The last layer makes infinity of `BAD`, which no other row of the trunk sees: only the head does.
    LastLayer,
}

fn model(arch: &'static str, fault: Fault) -> Arc<Model> {
    let dir = tempfile::TempDir::new().expect("a folder");
    let spec = Spec { nextn: true, ..Spec::of(arch) };
    let mut document = spec.document();
    let mut set = |name: &str, first: usize, step: usize, n: usize, value: f32| {
        let Some(tensor) = document.tensors.iter_mut().find(|t| t.name == name) else { return };
        for i in 0..n {
            tensor.data[4 * (first + i * step)..][..4].copy_from_slice(&value.to_le_bytes());
        }
    };
    let d = spec.n_embd;
    match fault {
        Fault::Embedding => set("token_embd.weight", BAD * d, 1, d, f32::NAN),
        Fault::LastLayer => {
            // Element 0 of the stream is that of the embedding up to the end, and only this token has something there.
            set("token_embd.weight", 0, d, spec.n_vocab, 0.0);
            set("token_embd.weight", BAD * d, 1, 1, 30.0);
            let d_value = spec.n_v_heads * spec.d_state;
            for il in 0..spec.n_layer {
                set(&format!("blk.{il}.attn_output.weight"), 0, 1, spec.d_head * spec.n_head, 0.0);
                set(&format!("blk.{il}.ssm_out.weight"), 0, 1, d_value, 0.0);
                set(&format!("blk.{il}.ffn_down.weight"), 0, 1, spec.n_ff, 0.0);
            }
            set(&format!("blk.{}.ffn_up.weight", spec.n_layer - 1), 0, d, spec.n_ff, 3e38);
        }
    }
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
    for (arch, fault) in [("qwen35", Fault::Embedding), ("qwen35moe", Fault::Embedding), ("qwen35", Fault::LastLayer)] {
        let model = model(arch, fault);
        let config = EngineConfig { n_ctx: Some(512), threads: Some(1), n_batch: 64, ..EngineConfig::default() };
        for beside in [false, true] {
            let what = format!("{arch}, {fault:?}, on a thread of its own: {beside}");
            let of_head = NextNConfig { depth: Depth::Fixed(3), vocab: DraftVocabSize::Full };
            let head = NextN::new(&model, &config, of_head).expect("room for the head's cells").expect("a head");
            let proposer: Box<dyn Proposer> = match beside {
                false => Box::new(head),
                true => Box::new(Aside::new(head, &model, 1, true).expect("a thread")),
            };
            let log = Log::default();
            let proposer = Box::new(Logged(proposer, Arc::clone(&log)));
            let engine = Engine::spawn_with(Arc::clone(&model), config.clone(), Some(proposer)).expect("an engine");
            let take = || std::mem::take(&mut *log.lock().expect("no panic holds it"));
            let expected = (ask(&engine, &good).expect("good numbers"), take());
            assert!(expected.1.iter().any(|draft| draft.len() == 3), "{what}: {:?}", expected.1);
            let end = ask(&engine, &bad);
            match fault {
                Fault::Embedding => assert!(end.is_err_and(|why| why.contains("not finite")), "{what}"),
                Fault::LastLayer => assert!(end.is_ok(), "{what}: the answer does not depend on that row"),
            }
            take();
            let again = (ask(&engine, &good).expect("good numbers"), take());
            assert_eq!(again, expected, "{what}");
        }
    }
}
