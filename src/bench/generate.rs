//! A greedy continuation through the engine.

use engine::RequestOptions;
use serde_json::json;
use speculate::{DraftVocabSize, Mode};

use super::conversation::Sees;
use super::draft::{Bench, Draft, Source, greedy};
use super::setup::{Input, Setup, say};

pub(super) fn run(setup: &Setup, (input, sees): (&Input, &Sees), n_tokens: usize, draft: Draft) -> anyhow::Result<()> {
    let model = setup.open()?;
    let prompt = input.prompt(sees, setup, &model)?;
    let config = setup.engine(prompt.tokens.len() + n_tokens);
    let draft = match draft {
        Draft::On(Source::Head, depth) if setup.draft_model(Mode::Auto)?.is_some() => Draft::On(Source::Model, depth),
        draft => draft,
    };
    let bench = Bench::new(&model, config, draft, DraftVocabSize::Full, setup)?;
    let options = RequestOptions { pictures: prompt.pictures, ..greedy(n_tokens, true) };
    let reply = bench.generate(&prompt.tokens, options)?;
    let tokens: Vec<u32> = reply.tokens.iter().map(|t| t.0).collect();
    say(json!({ "tokens": tokens, "drafted": reply.timings.drafted, "accepted": reply.timings.accepted }))
}
