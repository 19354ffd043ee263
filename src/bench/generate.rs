//! A greedy continuation through the engine.

use anyhow::{Context, bail};
use engine::sample::SamplingParams;
use engine::{Engine, Event, GenerateRequest, Proposer, RequestOptions};
use serde_json::json;
use speculate::{Depth, DraftVocabSize, NextN, NextNConfig};

use super::setup::{Input, Setup, say};

pub(super) fn run(setup: &Setup, input: &Input, n_tokens: usize, depth: usize) -> anyhow::Result<()> {
    let ids = input.ids()?;
    let model = setup.open()?;
    let config = setup.engine(ids.len() + n_tokens);
    let proposer = if depth > 0 {
        let head =
            NextN::new(&model, &config, NextNConfig { depth: Depth::Fixed(depth), vocab: DraftVocabSize::Full })?;
        let head = head.context("the model has no NextN head")?;
        Some(Box::new(head) as Box<dyn Proposer>)
    } else {
        None
    };
    let handle = Engine::spawn_with(model, config, proposer)?;
    let options = RequestOptions {
        max_tokens: Some(n_tokens),
        sampling: SamplingParams::greedy(),
        ignore_eos: true,
        ..RequestOptions::default()
    };
    let mut generation = handle.submit(GenerateRequest::new(ids, options, handle.limits())?)?;
    let mut tokens = Vec::with_capacity(n_tokens);
    while let Some(event) = generation.next() {
        match event {
            Event::Prompt(_) => {}
            Event::Tokens(pieces) => tokens.extend(pieces.iter().map(|p| p.token.0)),
            Event::Failed(why) => bail!(why),
            Event::Finished(summary) => {
                let t = summary.timings;
                return say(json!({ "tokens": tokens, "drafted": t.drafted, "accepted": t.accepted }));
            }
        }
    }
    bail!("the engine ended before the answer was complete")
}
