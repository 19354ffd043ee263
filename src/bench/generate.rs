//! A greedy continuation through the engine.

use serde_json::json;
use speculate::{DraftVocabSize, Mode};

use super::draft::{Bench, Draft, Source};
use super::setup::{Input, Setup, say};

pub(super) fn run(setup: &Setup, input: &Input, n_tokens: usize, draft: Draft) -> anyhow::Result<()> {
    let ids = input.ids()?;
    let model = setup.open()?;
    let config = setup.engine(ids.len() + n_tokens);
    let draft = match draft {
        Draft::On(Source::Head, depth) if setup.draft_model(Mode::Auto)?.is_some() => Draft::On(Source::Model, depth),
        draft => draft,
    };
    let reply = Bench::new(&model, config, draft, DraftVocabSize::Full, setup)?.exactly(&ids, n_tokens)?;
    let tokens: Vec<u32> = reply.tokens.iter().map(|t| t.0).collect();
    say(json!({ "tokens": tokens, "drafted": reply.timings.drafted, "accepted": reply.timings.accepted }))
}
