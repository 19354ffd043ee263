//! `nextn-bench compare`: the same work here and on another engine, in turns, with the replies compared.
//! Speeds are printed only when the replies are worth it and agree, or part at a near tie.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use model::{Model, Pass, PassOutput, Rows};
use program::words::counted;
use serde_json::{Value, json};
use speculate::DraftVocabSize;
use text::{Special, TokenId};

use super::draft::{self, Bench, Draft, degenerate};
use super::http::{Completion, Server};
use super::machine::{self, Machine};
use super::setup::{Setup, argmax, say, warn};
use super::stats::{self, median, range, ratio_of_medians, with_range};

/// Options of `nextn-bench compare`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    setup: Setup,
    /// llama.cpp server program to start with the same file
    #[arg(long, value_name = "PROGRAM", required_unless_present = "url", conflicts_with = "url")]
    server: Option<PathBuf>,
    /// Arguments for the server, separated by spaces
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true, default_value = "")]
    server_args: String,
    /// URL of a running server with OpenAI's interface
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Model name at that server [default: its first]
    #[arg(long, value_name = "NAME")]
    model_name: Option<String>,
    /// Our draft length (0 is none), or auto
    #[arg(short, long, default_value = "0")]
    draft: Draft,
    /// Draft vocabulary: auto, full, or the first N token ids plus the tokens in context
    #[arg(long, default_value_t)]
    draft_vocab: DraftVocabSize,
    /// Prompt; repeatable
    #[arg(short, long, default_values = ["Tell me a story about a fox and a river.", "What is the capital of France?"])]
    prompt: Vec<String>,
    /// Tokens before each prompt, to measure long prompts
    #[arg(long, default_value_t = 0)]
    depth_ctx: usize,
    /// Tokens of each reply; fewer where it ends before
    #[arg(short = 'n', long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..))]
    n_gen: u32,
    /// Rounds of both engines in turn, after a warm-up round
    #[arg(short, long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Replies may differ where our two likeliest tokens are this close, in nats
    #[arg(long, default_value_t = 0.05)]
    near_tie: f32,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// What both did with one prompt.
#[derive(Default)]
struct Pair {
    prompt: Vec<TokenId>,
    /// Tokens of each reply.
    n_gen: usize,
    ours: Vec<Completion>,
    theirs: Vec<Completion>,
    /// Where and how the replies part, if they do.
    parted: Option<Parted>,
}

/// The first token at which two replies differ.
#[derive(Clone, Debug)]
struct Parted {
    at: usize,
    /// How much likelier we find ours, in nats.
    gap: f32,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let model = args.setup.open()?;
    warn(draft::without_effect(&[args.draft], args.draft_vocab, &model));
    let before = super::speed::tokens(args.depth_ctx, model.hparams().n_vocab);
    let mut pairs = Vec::new();
    for text in &args.prompt {
        let prompt: Vec<TokenId> = before.iter().copied().chain(session::prompt_of(&model, text)?).collect();
        ensure!(!prompt.is_empty(), "a prompt has no tokens");
        pairs.push(Pair { prompt, n_gen: args.n_gen as usize, ..Pair::default() });
    }
    let longest = pairs.iter().map(|p| p.prompt.len()).max().unwrap_or(0);
    let n_ctx = longest + args.n_gen as usize;
    let server = peer(args, n_ctx)?;
    let native = server.is_native();
    let name = args.model_name.clone().or_else(|| server.model());
    for round in 0..=args.repeat {
        for pair in &mut pairs {
            let mut own = ours(args, &model, pair, n_ctx)?;
            // After its end a reply is another text on each engine.
            if let Some(end) = own.tokens.iter().position(|&id| model.vocab().is_eog(id)).filter(|_| round == 0) {
                ensure!(end > 1, "an answer ends at once: choose other prompts");
                pair.n_gen = end;
                own = ours(args, &model, pair, n_ctx)?;
            }
            let theirs = theirs(&model, &server, pair, native, name.as_deref())?;
            if round == 0 {
                judge(args, &model, pair, &own, &theirs)?;
            } else {
                let changed = pair.ours.first().is_some_and(|first| first.tokens != own.tokens);
                ensure!(!changed, "our own answer changed from round to round: that is a defect, not a speed");
                pair.ours.push(own);
                pair.theirs.push(theirs);
            }
        }
    }
    let found = Found { args, pairs: &pairs, native, line: model.describe().to_string() };
    if args.json { say(found.json()) } else { found.show() }
}

/// Before each reply: what the other engine still does after its own (idle threads that spin, state put away) is over.
const REST: Duration = Duration::from_millis(300);

fn peer(args: &Args, n_ctx: usize) -> anyhow::Result<Server> {
    if let Some(url) = &args.url {
        return Server::at(url);
    }
    let program = args.server.as_deref().context("give --server PROGRAM or --url URL")?;
    let path = args.setup.path().context("the other engine needs a file: give -m FILE")?;
    let path = path.to_str().context("the file's name is not UTF-8")?;
    let n_ctx = n_ctx.next_multiple_of(256).to_string();
    let threads = args.setup.n_threads().to_string();
    let own = ["-m", path, "-t", &threads, "-c", &n_ctx, "--parallel", "1"].map(str::to_owned);
    let more = args.server_args.split_whitespace().map(str::to_owned);
    Server::start(program, &own.into_iter().chain(more).collect::<Vec<_>>())
}

fn ours(args: &Args, model: &Arc<Model>, pair: &Pair, n_ctx: usize) -> anyhow::Result<Completion> {
    // Made anew for each reply: threads of an idle engine would still spin now and then. A first reply touches its memory,
    // as the server's was touched long ago.
    let bench = Bench::new(model, args.setup.engine(n_ctx), args.draft, args.draft_vocab, &args.setup)?;
    bench.exactly(&pair.prompt, 1)?;
    std::thread::sleep(REST);
    let reply = bench.exactly(&pair.prompt, pair.n_gen)?;
    let t = &reply.timings;
    Ok(Completion {
        n_tokens: reply.tokens.len(),
        n_prompt: t.prompt_tokens,
        prompt_ms: t.prompt_ms,
        generated_ms: t.generated_ms,
        drafted: t.drafted,
        accepted: t.accepted,
        text: reply.text,
        tokens: reply.tokens,
    })
}

fn theirs(model: &Model, server: &Server, pair: &Pair, native: bool, name: Option<&str>) -> anyhow::Result<Completion> {
    let n = pair.n_gen;
    std::thread::sleep(REST);
    if native {
        return server.native(&pair.prompt, n);
    }
    let mut text = Vec::new();
    for &id in &pair.prompt {
        // Special tokens as text: the server finds them again.
        text.extend_from_slice(model.vocab().bytes(id).unwrap_or_default());
    }
    let mut done = server.completion(&String::from_utf8_lossy(&text), n, name)?;
    done.tokens = model.vocab().encode(&done.text, Special::Parse);
    Ok(done)
}

/// Refuses replies that say nothing about speed.
fn judge(
    args: &Args,
    model: &Arc<Model>,
    pair: &mut Pair,
    ours: &Completion,
    theirs: &Completion,
) -> anyhow::Result<()> {
    for (who, reply) in [("our", ours), ("the other engine's", theirs)] {
        if let Some(why) = degenerate(&reply.tokens) {
            bail!("{who} output is degenerate, {why}: no speed is worth anything here");
        }
    }
    let n = ours.tokens.len().min(theirs.tokens.len());
    // The tokens of a text are found again, and may be cut in other places: the text decides, then.
    let differ = |i: &usize| ours.tokens[*i] != theirs.tokens[*i];
    let Some(at) = (0..n).find(differ).filter(|_| ours.text != theirs.text) else { return Ok(()) };
    let known: Vec<TokenId> = pair.prompt.iter().chain(&ours.tokens[..at]).copied().collect();
    let logits = last_logits(args, model, &known)?;
    let (a, b) = (ours.tokens[at], theirs.tokens[at]);
    let gap = logits[a.0 as usize] - logits[b.0 as usize];
    let likeliest = argmax(&logits);
    if gap > args.near_tie {
        bail!(
            "the answers part at token {at}: {} here, {} there, and ours is likelier by {gap:.3} nats (likeliest: {}). \
             That is no near tie: one of the engines computes something else",
            a.0,
            b.0,
            likeliest.0
        );
    }
    pair.parted = Some(Parted { at, gap });
    Ok(())
}

fn last_logits(args: &Args, model: &Arc<Model>, tokens: &[TokenId]) -> anyhow::Result<Vec<f32>> {
    let (mut runner, mut memory) = args.setup.runner(model, tokens.len())?;
    let slot = memory.acquire()?.context("a new memory has a free slot")?;
    let mut output = PassOutput::default();
    for chunk in tokens.chunks(512) {
        let step = memory.begin(&[(&slot, chunk.len())], 1)?;
        let last = [chunk.len() - 1];
        runner.run(step.view(), &Pass { tokens: chunk, rows: Rows::Some(&last), hidden: false }, &mut output)?;
        step.commit(&[chunk.len()])?;
    }
    Ok(output.logits(0).to_vec())
}

struct Found<'a> {
    args: &'a Args,
    pairs: &'a [Pair],
    native: bool,
    line: String,
}

/// Something of each round, over all prompts.
fn of(pairs: &[Pair], value: impl Fn(&Pair, usize) -> f64) -> Vec<f64> {
    pairs.iter().flat_map(|p| (0..p.ours.len()).map(|i| value(p, i)).collect::<Vec<_>>()).collect()
}

impl Found<'_> {
    fn columns(&self) -> [(&'static str, [Vec<f64>; 3]); 2] {
        let p = self.pairs;
        let generation = [
            of(p, |p, i| p.ours[i].rate()),
            of(p, |p, i| p.theirs[i].rate()),
            of(p, |p, i| p.ours[i].rate() / p.theirs[i].rate().max(1e-9)),
        ];
        let prompt = [
            of(p, |p, i| p.ours[i].prompt_rate()),
            of(p, |p, i| p.theirs[i].prompt_rate()),
            of(p, |p, i| p.ours[i].prompt_rate() / p.theirs[i].prompt_rate().max(1e-9)),
        ];
        [("prompt", prompt), ("generation", generation)]
    }

    fn accepted(&self, of: fn(&Pair) -> &[Completion]) -> Option<f64> {
        let sum = |value: fn(&Completion) -> usize| -> usize { self.pairs.iter().flat_map(of).map(value).sum() };
        let (drafted, accepted) = (sum(|c| c.drafted), sum(|c| c.accepted));
        (drafted > 0).then(|| accepted as f64 / drafted as f64)
    }

    fn show(&self) -> anyhow::Result<()> {
        let a = self.args;
        let (threads, rounds) = (counted(a.setup.n_threads(), "thread"), counted(a.repeat as usize, "round"));
        say(format_args!("{}, {threads}, {rounds} in turns", self.line))?;
        say(format_args!("{}; {}", Machine::this().line(), machine::build_line()))?;
        let other = a.server.as_ref().map_or_else(|| a.url.clone(), |p| Some(p.display().to_string()));
        say(format_args!("the other: {} {}", other.unwrap_or_default(), a.server_args))?;
        say("\n| tokens/s | here | there | here / there (in single rounds) |\n|---|---|---|---|")?;
        for (name, [ours, theirs, ratio]) in self.columns() {
            let (low, high) = range(&ratio);
            let both = ratio_of_medians(&ours, &theirs);
            let (ours, theirs) = (with_range(&ours), with_range(&theirs));
            say(format_args!("| {name} | {ours} | {theirs} | {both:.2} ({low:.2} to {high:.2}) |"))?;
        }
        let (ours, theirs) = (self.accepted(|p| &p.ours), self.accepted(|p| &p.theirs));
        for (who, share) in [("here", ours), ("there", theirs)] {
            if let Some(share) = share {
                say(format_args!("\ndrafts accepted {who}: {:.1} %", 100.0 * share))?;
            }
        }
        for (i, pair) in self.pairs.iter().enumerate() {
            let n = pair.n_gen;
            match &pair.parted {
                None => say(format_args!("answer {i}: the same {n} tokens"))?,
                Some(p) => {
                    say(format_args!("answer {i}: parts at token {} of {n}, at a tie of {:.4} nats", p.at, p.gap))?
                }
            }
        }
        if !self.native {
            say("The other engine's times are a client's, with the way through HTTP.")?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let mut v = json!({
            "model": self.line,
            "machine": Machine::this().json(),
            "build": machine::build(),
            "threads": self.args.setup.n_threads(),
            "draft": self.args.draft.to_string(),
            "acceptance": self.accepted(|p| &p.ours),
            "their_acceptance": self.accepted(|p| &p.theirs),
            "answers": self.pairs.iter().map(|p| json!({
                "same": p.parted.is_none(),
                "parts_at": p.parted.as_ref().map(|p| p.at),
                "tie": p.parted.as_ref().map(|p| p.gap),
            })).collect::<Vec<_>>(),
        });
        for (name, [ours, theirs, ratio]) in self.columns() {
            v[name] = json!({
                "here": stats::json(&ours),
                "there": stats::json(&theirs),
                "ratio": stats::json(&ratio),
                "median_ratio": median(&ratio),
                "ratio_of_medians": ratio_of_medians(&ours, &theirs),
            });
        }
        v
    }
}
