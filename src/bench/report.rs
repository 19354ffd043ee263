//! `nextn-bench report`: one command whose result can be handed on: machine, build, and what a model does on it.
//! Owns the composition; the measuring is that of the other commands.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;

use super::draft::Draft;
use super::machine::{self, Machine};
use super::setup::{Setup, say};
use super::speed;

/// Options of `nextn-bench report`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    setup: Setup,
    /// More files to measure, beside -m
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Draft lengths
    #[arg(short, long, value_delimiter = ',', default_value = "1,2,3,4,auto")]
    draft: Vec<Draft>,
    /// Rounds of each test, after a warm-up round
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Write NAME.json and NAME.md
    #[arg(short, long, value_name = "NAME", default_value = "nextn-report")]
    output: PathBuf,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let mut setups: Vec<Setup> = args.files.iter().map(|file| args.setup.with_model(file.clone())).collect();
    if setups.is_empty() || args.setup.path().is_some() {
        setups.insert(0, args.setup.clone());
    }
    let machine = Machine::this();
    let mut results = Vec::new();
    let mut text = format!(
        "# {}\n\n{}. {}.\nFeatures: {}.\n",
        machine.cpu,
        machine.line(),
        machine::build_line(),
        machine.features.join(", ")
    );
    for setup in setups {
        let name = setup.path().map_or_else(|| "the embedded model".into(), file_name);
        eprintln!("measuring {name}");
        let model = setup.open()?;
        let draft = if model.nextn().is_bound() { args.draft.clone() } else { Vec::new() };
        drop(model);
        let found = speed::measure(&speed::Args::for_report(setup, args.repeat, draft))?;
        text.push_str(&format!("\n## {name}\n\n{}", speed::table(&found)));
        let mut result = speed::json(&found);
        result["file"] = name.into();
        results.push(result);
    }
    let whole = json!({ "machine": machine.json(), "build": machine::build(), "results": results });
    for (ending, content) in [("json", serde_json::to_string_pretty(&whole)? + "\n"), ("md", text)] {
        let path = with_ending(&args.output, ending);
        std::fs::write(&path, content).with_context(|| path.display().to_string())?;
        say(path.display())?;
    }
    Ok(())
}

/// The name with an ending. One of ours that was given is replaced; other dots are the name's own.
fn with_ending(name: &Path, ending: &str) -> PathBuf {
    let is_ours = name.extension().is_some_and(|end| end == "json" || end == "md");
    let mut path = if is_ours { name.with_extension("") } else { name.to_owned() }.into_os_string();
    path.push(format!(".{ending}"));
    path.into()
}

fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}
