//! `nextn-bench acceptance`: how often drafts of the MTP layer are accepted, by domain, depth and draft vocabulary.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use engine::Timings;
use serde::Deserialize;
use serde_json::{Value, json};
use speculate::{Depth, DraftVocabSize};

use super::draft::{Bench, Draft, Source, degenerate, greedy};
use super::setup::{Setup, say};
use super::stats::wilson;

/// Options of `nextn-bench acceptance`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    setup: Setup,
    /// Prompts, one per line: text, or JSON with "prompt" and optionally "domain" [default: built in]
    #[arg(short, long, value_name = "PROMPTS")]
    file: Option<PathBuf>,
    /// Most tokens of each reply
    #[arg(short = 'n', long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..))]
    n_gen: u32,
    /// Draft length in tokens
    #[arg(short, long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=16))]
    draft: u8,
    /// Draft vocabularies to try: auto, full, or the first N token ids
    #[arg(long, value_delimiter = ',', default_value = "full")]
    draft_vocab: Vec<DraftVocabSize>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A line of a file of prompts.
#[derive(Debug, Deserialize)]
struct Prompt {
    prompt: String,
    #[serde(default = "general")]
    domain: String,
}

fn general() -> String {
    "all".into()
}

/// Prompts of several kinds, such as the embedded model knows.
const BUILT_IN: &[(&str, &str)] = &[
    ("facts", "What is the capital of France?"),
    ("facts", "Tell me about the planet Mars."),
    ("arithmetic", "What is 48 + 37?"),
    ("arithmetic", "What is 7 x 8?"),
    ("story", "Tell me a short story about a dragon."),
    ("story", "Tell me a story about a fox and a river."),
    ("code", "Write a Python function that reverses a string."),
    ("code", "Write a Rust function that adds two numbers."),
    ("json", "Extract the fields name, age, city as JSON from this text: Mia Brown is 34 years old and lives in Oslo."),
    ("list", "Sort these words alphabetically: pear, apple, fig, cherry"),
];

/// What was seen of one domain with one draft vocabulary.
#[derive(Clone, Debug, Default)]
struct Seen {
    n_prompts: usize,
    n_tokens: usize,
    n_cycles: usize,
    judged: Vec<Judged>,
    degenerate: usize,
}

/// Drafts at one depth.
#[derive(Clone, Copy, Debug, Default)]
struct Judged {
    /// Those before them were accepted.
    reached: usize,
    /// They were accepted, too.
    right: usize,
}

impl Judged {
    fn of(t: &Timings) -> Vec<Self> {
        t.verified_by_depth.iter().zip(&t.accepted_by_depth).map(|(&reached, &right)| Self { reached, right }).collect()
    }

    fn share(self) -> f64 {
        self.right as f64 / self.reached.max(1) as f64
    }
}

impl Seen {
    fn add(&mut self, other: &Seen) {
        self.n_prompts += other.n_prompts;
        self.n_tokens += other.n_tokens;
        self.n_cycles += other.n_cycles;
        self.degenerate += other.degenerate;
        self.judged.resize(self.judged.len().max(other.judged.len()), Judged::default());
        for (sum, more) in self.judged.iter_mut().zip(&other.judged) {
            sum.reached += more.reached;
            sum.right += more.right;
        }
    }

    fn tokens_per_cycle(&self) -> f64 {
        self.n_tokens as f64 / self.n_cycles.max(1) as f64
    }
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let prompts = match &args.file {
        Some(path) => read(path)?,
        None => BUILT_IN.iter().map(|(d, p)| Prompt { prompt: (*p).into(), domain: (*d).into() }).collect(),
    };
    let model = args.setup.open()?;
    let mut found: Vec<(String, BTreeMap<String, Seen>)> = Vec::new();
    for &vocab in &args.draft_vocab {
        let mut by_domain: BTreeMap<String, Seen> = BTreeMap::new();
        for p in &prompts {
            let ids = session::prompt_of(&model, &p.prompt)?;
            let config = args.setup.engine(ids.len() + args.n_gen as usize);
            let bench = Bench::new(
                &model,
                config,
                Draft::On(Source::Head, Depth::Fixed(args.draft.into())),
                vocab,
                &args.setup,
            )?;
            let reply = bench.generate(&ids, greedy(args.n_gen as usize, false))?;
            let seen = Seen {
                n_prompts: 1,
                n_tokens: reply.timings.generated_tokens.saturating_sub(1),
                n_cycles: reply.timings.steps,
                judged: Judged::of(&reply.timings),
                degenerate: usize::from(degenerate(&reply.tokens).is_some()),
            };
            by_domain.entry(p.domain.clone()).or_default().add(&seen);
        }
        found.push((vocab.to_string(), by_domain));
    }
    if args.json {
        return say(found.iter().map(|(vocab, by_domain)| (vocab.clone(), json(by_domain))).collect::<Value>());
    }
    show(args, &model.describe().to_string(), &found)
}

fn read(path: &Path) -> anyhow::Result<Vec<Prompt>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut prompts = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let prompt = if line.trim_start().starts_with('{') {
            serde_json::from_str(line).with_context(|| format!("{}, line {}", path.display(), i + 1))?
        } else {
            Prompt { prompt: line.to_owned(), domain: general() }
        };
        prompts.push(prompt);
    }
    ensure!(!prompts.is_empty(), "{}: no prompts", path.display());
    Ok(prompts)
}

fn total(by_domain: &BTreeMap<String, Seen>) -> Seen {
    let mut sum = Seen::default();
    by_domain.values().for_each(|seen| sum.add(seen));
    sum
}

fn show(args: &Args, line: &str, found: &[(String, BTreeMap<String, Seen>)]) -> anyhow::Result<()> {
    say(format_args!("{line}, drafts of {}, replies of {} tokens at most, greedy", args.draft, args.n_gen))?;
    say("Columns 1, 2, ..: of the draft tokens that this position was reached with, the share that was accepted.\n")?;
    let depths: String = (1..=args.draft).map(|d| format!(" {d} |")).collect();
    let rule = "---|".repeat(args.draft.into());
    say(format_args!("| vocabulary | domain | prompts | tokens | tokens/step |{depths} first, 95 % |"))?;
    say(format_args!("|---|---|---|---|---|{rule}---|"))?;
    let mut n_degenerate = 0;
    for (vocab, by_domain) in found {
        let all = total(by_domain);
        n_degenerate += all.degenerate;
        for (domain, seen) in by_domain.iter().map(|(d, s)| (d.as_str(), s)).chain([("together", &all)]) {
            let depths: String = (0..args.draft.into())
                .map(|d| match seen.judged.get(d) {
                    Some(j) if j.reached > 0 => format!(" {:.1} % |", 100.0 * j.share()),
                    _ => " - |".into(),
                })
                .collect();
            let first = seen.judged.first().copied().unwrap_or_default();
            let (low, high) = wilson(first.right, first.reached);
            say(format_args!(
                "| {vocab} | {domain} | {} | {} | {:.2} |{depths} {:.1} to {:.1} |",
                seen.n_prompts,
                seen.n_tokens,
                seen.tokens_per_cycle(),
                100.0 * low,
                100.0 * high
            ))?;
        }
    }
    if n_degenerate > 0 {
        say(format_args!(
            "\n{n_degenerate} replies are degenerate, which is easy to draft: do not trust these figures."
        ))?;
    }
    Ok(())
}

fn json(by_domain: &BTreeMap<String, Seen>) -> Value {
    let one = |seen: &Seen| {
        json!({
            "n_prompts": seen.n_prompts,
            "n_tokens": seen.n_tokens,
            "n_cycles": seen.n_cycles,
            "tokens_per_cycle": seen.tokens_per_cycle(),
            "reached": seen.judged.iter().map(|j| j.reached).collect::<Vec<_>>(),
            "right": seen.judged.iter().map(|j| j.right).collect::<Vec<_>>(),
            "acceptance": seen.judged.iter().map(|j| j.share()).collect::<Vec<_>>(),
            "n_degenerate": seen.degenerate,
        })
    };
    let domains: Value = by_domain.iter().map(|(domain, seen)| (domain.clone(), one(seen))).collect();
    json!({ "domains": domains, "together": one(&total(by_domain)) })
}
