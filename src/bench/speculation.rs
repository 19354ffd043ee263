//! Generation through the engine at several draft depths, all in one run, the rounds taken in turns.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use engine::sample::SamplingParams;
use engine::{Engine, EngineHandle, Event, GenerateRequest, Proposer, RequestOptions, Timings};
use model::Model;
use serde_json::{Value, json};
use speculate::{Depth, NextN, NextNConfig};
use text::template::{Chat, ChatTemplate};
use text::{Special, TokenId};

use super::setup::say;
use super::speed::{Args, median};

/// How to draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Draft {
    Off,
    Nextn(Depth),
}

impl FromStr for Draft {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "0" => Ok(Draft::Off),
            "auto" => Ok(Draft::Nextn(Depth::Auto)),
            n => match n.parse() {
                Ok(n) if n <= 16 => Ok(Draft::Nextn(Depth::Fixed(n))),
                _ => Err(format!("`{s}` is not auto or a depth from 0 to 16")),
            },
        }
    }
}

impl fmt::Display for Draft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Draft::Off => f.write_str("0"),
            Draft::Nextn(Depth::Auto) => f.write_str("auto"),
            Draft::Nextn(Depth::Fixed(n)) => write!(f, "{n}"),
        }
    }
}

/// Generation at one depth.
pub(super) struct Drafted {
    depth: Draft,
    tokens_per_second: Vec<f64>,
    /// Figures of the last round; they are the same in all.
    timings: Timings,
    /// Rates divided by those without drafts, round by round.
    ratios: Vec<f64>,
    same_tokens: bool,
}

pub(super) fn run(args: &Args, model: &Arc<Model>) -> anyhow::Result<Vec<Drafted>> {
    if args.draft.is_empty() || args.n_gen == 0 {
        return Ok(Vec::new());
    }
    ensure!(args.n_gen > 1, "generation with drafts needs at least two tokens: raise -n");
    let prompt = prompt(model, &args.prompt)?;
    let mut depths = args.draft.clone();
    depths.retain(|&d| d != Draft::Off);
    depths.insert(0, Draft::Off);
    let mut drafted: Vec<Drafted> = Vec::new();
    let mut plain_tokens = Vec::new();
    for depth in &depths {
        let (tokens_per_second, ratios) = (Vec::new(), Vec::new());
        let timings = Timings::default();
        drafted.push(Drafted { depth: *depth, tokens_per_second, timings, ratios, same_tokens: true });
    }
    for round in 0..=args.repeat {
        for d in &mut drafted {
            // Made anew for each round: threads of an idle engine would still spin now and then.
            let engine = engine(args, model, d.depth, prompt.len())?;
            let (tokens, timings) = generate(&engine, prompt.clone(), args.n_gen)?;
            if round == 0 && d.depth == Draft::Off {
                plain_tokens.clone_from(&tokens);
            }
            d.same_tokens &= tokens == plain_tokens;
            if round > 0 {
                d.tokens_per_second.push(timings.tokens_per_second());
            }
            d.timings = timings;
        }
    }
    let plain = drafted[0].tokens_per_second.clone();
    for d in &mut drafted {
        d.ratios = d.tokens_per_second.iter().zip(&plain).map(|(a, b)| a / b).collect();
    }
    Ok(drafted)
}

fn prompt(model: &Model, text: &str) -> anyhow::Result<Vec<TokenId>> {
    let Some(source) = model.chat_template() else { return Ok(model.vocab().encode(text, Special::Parse)) };
    let chat = Chat {
        messages: vec![json!({ "role": "user", "content": text })],
        tools: Vec::new(),
        add_generation_prompt: true,
        enable_thinking: Some(false),
        kwargs: serde_json::Map::new(),
    };
    Ok(model.vocab().encode(&ChatTemplate::new(source)?.render(&chat)?.text, Special::Parse))
}

fn engine(args: &Args, model: &Arc<Model>, draft: Draft, n_prompt: usize) -> anyhow::Result<EngineHandle> {
    let config = args.setup.engine(n_prompt + args.n_gen);
    let proposer = match draft {
        Draft::Off => None,
        Draft::Nextn(depth) => {
            let head = NextN::new(model, &config, NextNConfig { depth, vocab: args.draft_vocab })?;
            Some(Box::new(head.context("the model has no NextN head")?) as Box<dyn Proposer>)
        }
    };
    Ok(Engine::spawn_with(Arc::clone(model), config, proposer)?)
}

fn generate(engine: &EngineHandle, prompt: Vec<TokenId>, n: usize) -> anyhow::Result<(Vec<TokenId>, Timings)> {
    let options = RequestOptions {
        max_tokens: Some(n),
        sampling: SamplingParams::greedy(),
        ignore_eos: true,
        ..RequestOptions::default()
    };
    let mut generation = engine.submit(GenerateRequest::new(prompt, options, engine.limits())?)?;
    let mut tokens = Vec::with_capacity(n);
    while let Some(event) = generation.next() {
        match event {
            Event::Prompt(_) => {}
            Event::Tokens(pieces) => tokens.extend(pieces.iter().map(|p| p.token)),
            Event::Finished(summary) => return Ok((tokens, summary.timings)),
            Event::Failed(why) => bail!(why),
        }
    }
    bail!("the engine ended before the answer was complete")
}

impl Drafted {
    fn acceptance(&self) -> f64 {
        self.timings.accepted as f64 / (self.timings.drafted as f64).max(1.0)
    }

    fn tokens_per_cycle(&self) -> f64 {
        (self.timings.generated_tokens - 1) as f64 / (self.timings.cycles as f64).max(1.0)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "depth": self.depth.to_string(),
            "tokens_per_second": self.tokens_per_second,
            "median": median(&self.tokens_per_second),
            "ratio_to_plain": median(&self.ratios),
            "acceptance": self.acceptance(),
            "acceptance_by_depth": self.timings.acceptance_by_depth,
            "tokens_per_cycle": self.tokens_per_cycle(),
            "same_tokens": self.same_tokens,
        })
    }
}

pub(super) fn print_table(drafted: &[Drafted]) -> anyhow::Result<()> {
    if drafted.is_empty() {
        return Ok(());
    }
    say("\n| draft | tokens/s, median | to plain | acceptance | tokens a cycle | cycles/s | same tokens |")?;
    say("|---|---|---|---|---|---|---|")?;
    for d in drafted {
        let rate = median(&d.tokens_per_second);
        let (per_cycle, acceptance) = (d.tokens_per_cycle(), 100.0 * d.acceptance());
        let ratio = median(&d.ratios);
        let same = if d.same_tokens { "yes" } else { "NO" };
        let cycles = rate / per_cycle;
        let depth = d.depth;
        say(format_args!(
            "| {depth} | {rate:.2} | {ratio:.2} | {acceptance:.1} % | {per_cycle:.2} | {cycles:.1} | {same} |"
        ))?;
    }
    Ok(())
}
