//! `nextn-bench eval`: answers that can be right or wrong, without drafts and with: drafting must not cost quality.
//! Owns the modes and the verdict.

mod tasks;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use model::Model;
use serde_json::json;
use session::dialect::{Dialect, ReplyEvent, ReplyOptions};
use speculate::DraftVocabSize;
use text::template::Chat;
use text::{Special, TokenId};

use super::draft::{self, Bench, Draft, greedy};
use super::setup::{Setup, say, warn};
use super::stats::wilson;
use tasks::{Reply, Task};

/// Options of `nextn-bench eval`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    setup: Setup,
    /// Questions, one JSON object per line: prompt, answer, optionally match (exact, contains, number, json,
    /// call), kind and tools
    #[arg(short, long, value_name = "FILE.jsonl")]
    file: Option<PathBuf>,
    /// Number of generated questions of each kind
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    per_kind: u32,
    /// Seed of the generated questions
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Draft lengths to compare with none: numbers, auto
    #[arg(short, long, value_delimiter = ',', default_value = "1,3,auto")]
    draft: Vec<Draft>,
    /// Draft vocabulary: auto, full, or the first N token ids plus the tokens in context
    #[arg(long, default_value_t)]
    draft_vocab: DraftVocabSize,
    /// Tokens of an answer at most
    #[arg(short = 'n', long, default_value_t = 96, value_parser = clap::value_parser!(u32).range(1..))]
    n_gen: u32,
    /// Fail when drafts change a reply
    #[arg(long)]
    gate: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// What one way to draft did.
struct Mode {
    draft: Draft,
    /// Right or not, question by question.
    right: Vec<bool>,
    answers: Vec<Vec<TokenId>>,
    drafted: usize,
    accepted: usize,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let tasks = match &args.file {
        Some(path) => tasks::read(path)?,
        None => tasks::generated(args.per_kind as usize, args.seed),
    };
    let model = args.setup.open()?;
    let prompts = tasks.iter().map(|task| prompt(&model, task)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut drafts = args.draft.clone();
    drafts.retain(|&d| d != Draft::Off);
    drafts.insert(0, Draft::Off);
    if !model.nextn().is_bound() {
        drafts.truncate(1);
    }
    warn(draft::without_effect(&drafts, args.draft_vocab, &model));
    let modes = drafts
        .into_iter()
        .map(|draft| mode(args, &model, draft, &tasks, &prompts))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let others: Vec<usize> = modes.iter().map(|mode| others(mode, &modes[0])).collect();
    if args.json {
        say(json(&tasks, &modes, &others))?;
    } else {
        say(format_args!("{}, {} questions, greedy\n", model.describe(), tasks.len()))?;
        show(&tasks, &modes, &others)?;
    }
    match others.iter().sum() {
        0 => Ok(()),
        n if args.gate => bail!("{n} answers with drafts are not those without"),
        _ => Ok(()),
    }
}

/// Answers that are not those of the first mode.
fn others(mode: &Mode, plain: &Mode) -> usize {
    mode.answers.iter().zip(&plain.answers).filter(|(a, b)| a != b).count()
}

fn mode(
    args: &Args,
    model: &Arc<Model>,
    draft: Draft,
    tasks: &[Task],
    prompts: &[Vec<TokenId>],
) -> anyhow::Result<Mode> {
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let bench =
        Bench::new(model, args.setup.engine(longest + args.n_gen as usize), draft, args.draft_vocab, &args.setup)?;
    let dialect = Dialect::detect(model.chat_template(), model.vocab());
    let mut mode = Mode { draft, right: Vec::new(), answers: Vec::new(), drafted: 0, accepted: 0 };
    for (task, prompt) in tasks.iter().zip(prompts) {
        let answer = bench.generate(prompt, greedy(args.n_gen as usize, false))?;
        mode.right.push(task.expected.is(&reply(&dialect, &answer.text, task)));
        mode.drafted += answer.timings.drafted;
        mode.accepted += answer.timings.accepted;
        mode.answers.push(answer.tokens);
    }
    Ok(mode)
}

fn prompt(model: &Model, task: &Task) -> anyhow::Result<Vec<TokenId>> {
    let Some(template) = session::template_of(model)? else {
        return Ok(model.vocab().encode(&task.question, Special::Parse));
    };
    let chat = Chat {
        messages: vec![json!({ "role": "user", "content": task.question })],
        tools: task.tools.clone(),
        add_generation_prompt: true,
        enable_thinking: Some(false),
        kwargs: serde_json::Map::new(),
    };
    Ok(model.vocab().encode(&template.render(&chat)?.text, Special::Parse))
}

/// Takes an answer apart into text and calls.
fn reply(dialect: &Dialect, text: &str, task: &Task) -> Reply {
    let options = ReplyOptions { reasoning: true, tools: !task.tools.is_empty(), ..ReplyOptions::default() };
    let mut parser = dialect.parser(options);
    let mut reply = Reply::default();
    for event in parser.push(text).into_iter().chain(parser.finish()) {
        match event {
            ReplyEvent::Text(text) => reply.text.push_str(&text),
            ReplyEvent::ToolCallStart { name, .. } => reply.calls.push((name, String::new())),
            ReplyEvent::ToolCallArguments { delta, .. } => {
                if let Some(call) = reply.calls.last_mut() {
                    call.1.push_str(&delta);
                }
            }
            _ => {}
        }
    }
    reply
}

/// The kinds in their order, each with the indices of its questions.
fn kinds(tasks: &[Task]) -> Vec<(&str, Vec<usize>)> {
    let mut kinds: Vec<(&str, Vec<usize>)> = Vec::new();
    for (i, task) in tasks.iter().enumerate() {
        match kinds.iter_mut().find(|(kind, _)| *kind == task.kind) {
            Some((_, of)) => of.push(i),
            None => kinds.push((&task.kind, vec![i])),
        }
    }
    kinds
}

fn show(tasks: &[Task], modes: &[Mode], others: &[usize]) -> anyhow::Result<()> {
    let kinds = kinds(tasks);
    let names: String = kinds.iter().map(|(kind, _)| format!(" {kind} |")).collect();
    say(format_args!("| drafts |{names} all right | 95 % | answers unlike plain | drafts accepted |"))?;
    say(format_args!("|---|{}---|---|---|---|", "---|".repeat(kinds.len())))?;
    for (mode, others) in modes.iter().zip(others) {
        let of = |indices: &[usize]| indices.iter().filter(|&&i| mode.right[i]).count();
        let parts: String = kinds.iter().map(|(_, i)| format!(" {} of {} |", of(i), i.len())).collect();
        let right = mode.right.iter().filter(|&&r| r).count();
        let n = mode.right.len();
        let (low, high) = wilson(right, n);
        let kept = match mode.drafted {
            0 => "-".into(),
            drafted => format!("{:.1} %", 100.0 * mode.accepted as f64 / drafted as f64),
        };
        say(format_args!(
            "| {} |{parts} {:.1} % | {:.1} to {:.1} | {others} | {kept} |",
            mode.draft,
            100.0 * right as f64 / n as f64,
            100.0 * low,
            100.0 * high
        ))?;
    }
    let n_others: usize = others.iter().sum();
    if n_others == 0 {
        say("\nEvery answer with drafts is the one without.")
    } else {
        say(format_args!("\n{n_others} answers with drafts are not those without."))
    }
}

fn json(tasks: &[Task], modes: &[Mode], others: &[usize]) -> serde_json::Value {
    let kinds = kinds(tasks);
    let modes = modes.iter().zip(others).map(|(mode, others)| {
        let right = mode.right.iter().filter(|&&r| r).count();
        let (low, high) = wilson(right, mode.right.len());
        let by_kind: serde_json::Value = kinds
            .iter()
            .map(|(kind, i)| {
                let right = i.iter().filter(|&&i| mode.right[i]).count();
                ((*kind).to_owned(), json!({ "right": right, "n": i.len() }))
            })
            .collect();
        json!({
            "draft": mode.draft.to_string(),
            "right": right,
            "n": mode.right.len(),
            "interval": [low, high],
            "kinds": by_kind,
            "unlike_plain": others,
            "drafted": mode.drafted,
            "accepted": mode.accepted,
        })
    });
    json!({ "modes": modes.collect::<Vec<_>>() })
}
