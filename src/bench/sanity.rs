//! `nextn-bench sanity`: a served model against what it did before on the same machine: start, health, replies, speed.
//! Owns the baseline file and the verdict.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};

use super::http::Server;
use super::machine::{self, Machine};
use super::setup::say;
use super::stats::{median, with_range};

/// Options of `nextn-bench sanity`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Baseline file; written if absent
    #[arg(long, value_name = "FILE.json")]
    baseline: PathBuf,
    /// Overwrite the baseline
    #[arg(long)]
    save: bool,
    /// GGUF file to serve; the embedded model if absent
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Server program to start [default: nextn-server beside this program]
    #[arg(long, value_name = "PROGRAM", conflicts_with = "url")]
    server: Option<PathBuf>,
    /// Arguments for the server, separated by spaces
    #[arg(long, value_name = "ARGS", allow_hyphen_values = true, default_value = "", conflicts_with = "url")]
    server_args: String,
    /// URL of a running server (its start is not measured)
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Most tokens of each reply
    #[arg(short = 'n', long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..=4096))]
    n_gen: u32,
    /// Runs over all prompts
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    repeat: u32,
    /// Allowed slowdown against the baseline, in percent
    #[arg(long, default_value_t = 15.0, value_parser = percent)]
    tolerance: f64,
    /// Compare speeds even with a baseline of another machine
    #[arg(long)]
    any_machine: bool,
}

fn percent(s: &str) -> Result<f64, String> {
    s.parse().ok().filter(|v| (0.0..100.0).contains(v)).ok_or_else(|| format!("`{s}` is not from 0 to below 100"))
}

/// What is kept between runs.
#[derive(Debug, Serialize, Deserialize)]
struct Baseline {
    machine: String,
    build: String,
    model: String,
    n_gen: u32,
    answers: Vec<String>,
    tokens_per_second: Vec<f64>,
    start_seconds: Option<f64>,
}

/// Asked every time.
const PROMPTS: &[&str] =
    &["Tell me a short story about a dragon.", "What is 48 + 37?", "Write a Python function that reverses a string."];

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let server = match &args.url {
        Some(url) => Server::at(url)?,
        None => start(args)?,
    };
    let now = measure(args, &server)?;
    if let Some(seconds) = now.start_seconds {
        say(format_args!("healthy {seconds:.2} s after the start"))?;
    }
    say(format_args!("{} tokens/s over {} runs", with_range(&now.tokens_per_second), args.repeat))?;
    if args.save || !args.baseline.exists() {
        let text = serde_json::to_string_pretty(&now)?;
        std::fs::write(&args.baseline, text).with_context(|| args.baseline.display().to_string())?;
        return say(format_args!("written to {}: the next run is compared with it", args.baseline.display()));
    }
    let before = read(&args.baseline)?;
    let findings = findings(args, &before, &now)?;
    if findings.is_empty() {
        return say(format_args!("sane: as the baseline ({})", before.build));
    }
    bail!("not sane: {}", findings.join("; "))
}

fn start(args: &Args) -> anyhow::Result<Server> {
    let program = match &args.server {
        Some(program) => program.clone(),
        None => std::env::current_exe()?.with_file_name(format!("nextn-server{}", std::env::consts::EXE_SUFFIX)),
    };
    let mut arguments = Vec::new();
    if let Some(model) = &args.model {
        arguments.extend(["-m".to_owned(), model.to_str().context("the file's name is not UTF-8")?.to_owned()]);
    }
    arguments.extend(args.server_args.split_whitespace().map(str::to_owned));
    Server::start(&program, &arguments)
}

fn measure(args: &Args, server: &Server) -> anyhow::Result<Baseline> {
    let model = server.model();
    let mut answers: Vec<String> = Vec::new();
    let mut tokens_per_second = Vec::new();
    for round in 0..args.repeat {
        let (mut n_tokens, mut ms) = (0, 0.0);
        for (i, prompt) in PROMPTS.iter().enumerate() {
            let done = server.chat(prompt, args.n_gen as usize, model.as_deref())?;
            n_tokens += done.n_tokens.saturating_sub(1);
            ms += done.generated_ms;
            match answers.get(i) {
                None => answers.push(done.text),
                Some(first) => {
                    ensure!(*first == done.text, "run {round}: the answer to `{prompt}` changed between runs")
                }
            }
        }
        tokens_per_second.push(1e3 * n_tokens as f64 / f64::max(ms, 1e-6));
    }
    let name = args.model.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    Ok(Baseline {
        machine: Machine::this().line(),
        build: machine::build_line(),
        model: name.or(model).unwrap_or_default(),
        n_gen: args.n_gen,
        answers,
        tokens_per_second,
        start_seconds: server.start_seconds,
    })
}

fn read(path: &Path) -> anyhow::Result<Baseline> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| format!("{}: not a baseline; --save writes one", path.display()))
}

/// What is not as it was.
fn findings(args: &Args, before: &Baseline, now: &Baseline) -> anyhow::Result<Vec<String>> {
    ensure!(
        (before.model.as_str(), before.n_gen) == (now.model.as_str(), now.n_gen),
        "the baseline is of {} with {} tokens an answer, this run of {} with {}: use another baseline, or --save",
        before.model,
        before.n_gen,
        now.model,
        now.n_gen
    );
    let mut found = Vec::new();
    for ((prompt, a), b) in PROMPTS.iter().zip(&before.answers).zip(&now.answers) {
        if a != b {
            found.push(format!("`{prompt}` was answered `{}`, now `{}`", short(a), short(b)));
        }
    }
    if before.machine != now.machine && !args.any_machine {
        bail!(
            "the baseline is of another machine ({}, here {}): its speed means nothing here; --any-machine compares anyway",
            before.machine,
            now.machine
        );
    }
    let (a, b) = (median(&before.tokens_per_second), median(&now.tokens_per_second));
    if b < a * (1.0 - args.tolerance / 100.0) {
        let less = 100.0 * (1.0 - b / a);
        found.push(format!("{b:.2} tokens/s, {less:.0} % less than {a:.2} (a hot or busy machine, or a slow build?)"));
    }
    if let (Some(a), Some(b)) = (before.start_seconds, now.start_seconds)
        && b > 3.0 * a + 1.0
    {
        found.push(format!("healthy after {b:.2} s, before after {a:.2} s"));
    }
    Ok(found)
}

fn short(text: &str) -> String {
    let mut short: String = text.chars().take(40).collect();
    if short.len() < text.len() {
        short.push_str("..");
    }
    short.replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn baseline(answer: &str, rate: f64) -> Baseline {
        Baseline {
            machine: "m".into(),
            build: "b".into(),
            model: "x".into(),
            n_gen: 64,
            answers: vec![answer.into(); PROMPTS.len()],
            tokens_per_second: vec![rate, rate * 1.01],
            start_seconds: Some(0.1),
        }
    }

    #[test]
    fn a_slower_or_another_answer_is_found() {
        let args = Line::parse_from(["x", "--baseline", "b.json"]).args;
        let before = baseline("yes", 100.0);
        let of = |now: &Baseline| findings(&args, &before, now).expect("the same model and machine");
        assert!(of(&baseline("yes", 95.0)).is_empty());
        assert_eq!(of(&baseline("yes", 80.0)).len(), 1);
        assert_eq!(of(&baseline("no", 100.0)).len(), PROMPTS.len());
        assert_eq!(of(&Baseline { start_seconds: Some(9.0), ..baseline("yes", 100.0) }).len(), 1);
        let elsewhere = Baseline { machine: "n".into(), ..baseline("yes", 100.0) };
        assert!(findings(&args, &before, &elsewhere).is_err());
    }
}
