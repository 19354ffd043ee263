//! Answers of an engine, with whatever drafts for it, as a reader sees them.

use std::path::Path;
use std::sync::Arc;

use engine::sample::{SamplingParams, TokenLogprob};
use engine::{
    Engine, EngineConfig, EngineHandle, Event, FinishReason, GenerateRequest, Proposer, RequestOptions, Timings,
};
use model::{LoadOptions, Model};
use speculate::{Depth, DraftVocabSize, NextN, NextNConfig};
use text::{Special, TokenId};

/// One answer, all of it.
#[derive(Debug)]
pub struct Answer {
    pub tokens: Vec<TokenId>,
    pub bytes: Vec<u8>,
    pub logprobs: Vec<TokenLogprob>,
    pub reason: FinishReason,
    pub timings: Timings,
}

impl Answer {
    /// Everything that drafts must not change.
    pub fn seen(&self) -> (&[TokenId], &[u8], &[TokenLogprob], &FinishReason) {
        (&self.tokens, &self.bytes, &self.logprobs, &self.reason)
    }
}

/// A model of the repository.
pub fn pocket(name: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(name);
    Model::open(&path, &LoadOptions::default()).expect("a model of the repository")
}

/// The prompt of a chat with one message.
pub fn chat(model: &Model, text: &str) -> Vec<TokenId> {
    let text = format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
    model.vocab().encode(&text, Special::Parse)
}

/// The model's head as a proposer.
pub fn head(model: &Arc<Model>, config: &EngineConfig, depth: Depth, vocab: DraftVocabSize) -> Box<dyn Proposer> {
    let config_of_head = NextNConfig { depth, vocab };
    let head = NextN::new(model, config, config_of_head).expect("room for the head's cells");
    Box::new(head.expect("the model has a head"))
}

/// The likeliest tokens, `max_tokens` of them, past the end of the answer too.
pub fn greedy(max_tokens: usize) -> RequestOptions {
    RequestOptions {
        max_tokens: Some(max_tokens),
        sampling: SamplingParams::greedy(),
        ignore_eos: true,
        ..RequestOptions::default()
    }
}

/// One thread: engines of several tests would spin against each other.
pub fn config(n_ctx: usize, n_sequences: usize) -> EngineConfig {
    EngineConfig { n_ctx: Some(n_ctx), n_sequences, threads: Some(1), ..EngineConfig::default() }
}

pub fn spawn(model: &Arc<Model>, config: EngineConfig, proposer: Option<Box<dyn Proposer>>) -> EngineHandle {
    Engine::spawn_with(Arc::clone(model), config, proposer).expect("an engine")
}

/// Submits all requests, then reads all answers.
pub fn answers(engine: &EngineHandle, requests: Vec<(Vec<TokenId>, RequestOptions)>) -> Vec<Answer> {
    let submit = |(prompt, options)| {
        let request = GenerateRequest::new(prompt, options, engine.limits()).expect("a request that fits");
        engine.submit(request).expect("a place in the queue")
    };
    let generations: Vec<_> = requests.into_iter().map(submit).collect();
    generations
        .into_iter()
        .map(|mut generation| {
            let (mut tokens, mut bytes, mut logprobs) = (Vec::new(), Vec::new(), Vec::new());
            let mut told = Timings::default();
            loop {
                match generation.next().expect("an answer ends in an event") {
                    Event::Prompt(_) => {}
                    Event::Tokens(pieces) => {
                        told.count_draft_of(&pieces);
                        for piece in pieces {
                            tokens.push(piece.token);
                            bytes.extend(piece.bytes);
                            logprobs.extend(piece.logprob);
                        }
                    }
                    Event::Finished(summary) => {
                        bytes.extend(summary.rest);
                        let (reason, timings) = (summary.reason, summary.timings);
                        let counts = |t: &Timings| (t.drafts, t.drafted, t.accepted, t.accepted_by_depth.clone());
                        assert_eq!(counts(&told), counts(&timings), "what the events told and what the end tells");
                        return Answer { tokens, bytes, logprobs, reason, timings };
                    }
                    Event::Failed(why) => panic!("{why}"),
                }
            }
        })
        .collect()
}

/// One request, one answer.
pub fn answer(engine: &EngineHandle, prompt: &[TokenId], options: &RequestOptions) -> Answer {
    answers(engine, vec![(prompt.to_vec(), options.clone())]).remove(0)
}
