//! `extract-nextn verify`.

use std::io::Write;
use std::path::PathBuf;

use convert::check::{Gate, Options, Report, Verdict, verify};
use convert::stream::available_threads;

use super::{Outcome, work};
use program::sanitize;

/// Options of `verify`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// GGUF file (the first shard), checkpoint folder, or MTP layer in safetensors
    file: PathBuf,
    /// Check the header only, not the numbers
    #[arg(long)]
    header_only: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs it. The codes are part of the interface.
pub fn run(args: &Args) -> Outcome {
    let options = Options { values: !args.header_only, n_threads: available_threads() };
    let report = work::watched("reading", |control| verify(&args.file, options, control))??;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        out.write_all(sanitize::clean(&text(&report, args.header_only)).as_bytes())?;
    }
    Ok(match report.verdict {
        Verdict::Complete => 0,
        Verdict::NoHead => 3,
        Verdict::Damaged => 4,
    })
}

fn text(report: &Report, header_only: bool) -> String {
    let mut lines = Vec::new();
    if let Some(gate) = &report.gate {
        lines.push(format!("tensors   {} of {}{}", gate.n_present, gate.n_expected, extras(gate)));
        if gate.n_head_expected > 0 {
            lines.push(format!("head      {} of {}", gate.n_head_present, gate.n_head_expected));
        }
    }
    let looked = if header_only || report.bytes_read == 0 {
        "not looked at".to_owned()
    } else {
        super::show::bytes(report.bytes_read)
    };
    lines.push(format!("numbers   {looked}"));
    lines.extend(report.damage.iter().map(|what| format!("damage    {what}")));
    lines.extend(report.notes.iter().map(|what| format!("note      {what}")));
    let arch = report.architecture.as_deref().unwrap_or_default();
    let target = model::head_architectures().into_iter().find(|(head, _)| *head == arch).map(|(_, target)| target);
    let verdict = match (report.verdict, target) {
        (Verdict::Complete, _) if report.projector.is_some() => {
            format!("sound, a projector ({})", report.projector.as_deref().unwrap_or_default())
        }
        (Verdict::Complete, Some(target)) => format!("sound, a complete draft head for {target}"),
        (Verdict::Complete, None) => "sound, with a complete NextN layer".into(),
        (Verdict::NoHead, _) => "sound, without a NextN layer".into(),
        (Verdict::Damaged, _) => "damaged".into(),
    };
    lines.push(format!("verdict   {verdict}"));
    // Each line once through the filter: a name must not start a line of its own.
    lines.iter().map(|line| sanitize::clean_line(line) + "\n").collect()
}

fn extras(gate: &Gate) -> String {
    let parts = [
        (gate.missing.len(), "missing"),
        (gate.extra.len(), "extra"),
        (gate.wrong_shape.len(), "of a wrong shape"),
        (gate.wrong_type.len(), "of a wrong type"),
    ];
    let parts: Vec<String> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}
