//! What was measured, as a Markdown table, JSON or comma-separated values.

use std::fmt::Write;

use program::words::counted;
use serde_json::{Value, json};

use super::super::machine;
use super::super::setup::say;
use super::super::stats::{self, median, range};
use super::headline;
use super::measured::{Args, Findings, Measured};

pub(super) fn show(args: &Args, found: &Findings) -> anyhow::Result<()> {
    if args.json {
        say(json(found))
    } else if args.csv {
        say(csv(found).trim_end())
    } else if args.verbose {
        say(table(found).trim_end())
    } else {
        say(headline::table(found).trim_end())
    }
}

/// Bytes a second that a test moved, and its share of what memory gives.
fn traffic(found: &Findings, t: &Measured) -> Option<(f64, Option<f64>)> {
    let rate = t.pass_bytes? / (1e-3 * median(&t.pass_ms));
    Some((rate, found.bandwidth.map(|most| rate / most)))
}

pub(super) fn table(found: &Findings) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let (threads, rounds) = (counted(found.n_threads, "thread"), counted(found.repeat as usize, "round"));
    let _ = writeln!(out, "{}, {threads}, {rounds}", found.line);
    let _ = writeln!(out, "{}; {}", found.machine.line(), machine::build_line());
    if let Some(rate) = found.bandwidth {
        let _ = writeln!(out, "memory reads at {:.1} GB/s with {} threads", rate / 1e9, found.n_threads);
    }
    let (plain, drafted): (Vec<&Measured>, Vec<&Measured>) = found.tests.iter().partition(|t| t.drafted.is_none());
    if !plain.is_empty() {
        out.push_str("\n| test | context | cache | tokens/s | lowest | highest | ms a forward pass | GB a forward pass | GB/s | of memory | outside ggml |\n");
        out.push_str("|---|---|---|---|---|---|---|---|---|---|---|\n");
    }
    for t in plain {
        let (low, high) = range(&t.tokens_per_second);
        let (gb, rate, share) = match (t.pass_bytes, traffic(found, t)) {
            (Some(bytes), Some((rate, share))) => {
                let share = share.map_or("-".into(), |s| format!("{:.0} %", 100.0 * s));
                (format!("{:.3}", bytes / 1e9), format!("{:.1}", rate / 1e9), share)
            }
            _ => ("-".into(), "-".into(), "-".into()),
        };
        let _ = writeln!(
            out,
            "| {} | {} | {} | {:.2} | {low:.2} | {high:.2} | {:.3} | {gb} | {rate} | {share} | {:.2} % |",
            t.name,
            t.n_ctx,
            t.cache,
            median(&t.tokens_per_second),
            median(&t.pass_ms),
            100.0 * median(&t.outside),
        );
    }
    if !drafted.is_empty() {
        out.push_str("\n| draft | sequences | context | cache | tokens/s | lowest | highest | to plain | acceptance | tokens/step | ms/step: forward pass, draft, rest | launches | kB copied | same tokens |\n");
        out.push_str("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    }
    for t in &drafted {
        let Some(d) = &t.drafted else { continue };
        let (low, high) = range(&t.tokens_per_second);
        let same = if d.same_tokens { "yes" } else { "NO" };
        let [pass, draft, rest] = d.cycle_ms;
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {:.2} | {low:.2} | {high:.2} | {:.2} | {:.1} % | {:.2} | {pass:.2}, {draft:.2}, {rest:.2} | {:.2} | {:.1} | {same} |",
            d.depth,
            t.n_sequences,
            t.n_ctx,
            t.cache,
            median(&t.tokens_per_second),
            d.to_plain,
            100.0 * d.acceptance,
            d.tokens_per_cycle,
            d.launches,
            1e-3 * d.bytes_copied,
        );
    }
    if let Some(why) = drafted.iter().find_map(|t| t.drafted.as_ref()?.degenerate.as_ref()) {
        let _ =
            writeln!(out, "\nDegenerate output, which is easy to draft: {why}. These speeds say nothing of real use.");
    }
    out
}

pub(super) fn json(found: &Findings) -> Value {
    let tests = found.tests.iter().filter(|t| t.drafted.is_none()).map(|t| {
        let traffic = traffic(found, t);
        json!({
            "name": t.name,
            "n_prompt": t.n_prompt,
            "n_gen": t.n_gen,
            "context": t.n_ctx,
            "cache": t.cache,
            "tokens_per_second": t.tokens_per_second,
            "median": median(&t.tokens_per_second),
            "pass_ms": stats::json(&t.pass_ms),
            "pass_bytes": t.pass_bytes,
            "bytes_per_second": traffic.map(|t| t.0),
            "share_of_bandwidth": traffic.and_then(|t| t.1),
            "outside_compute": median(&t.outside),
        })
    });
    let speculation = found.tests.iter().filter_map(|t| {
        let d = t.drafted.as_ref()?;
        Some(json!({
            "depth": d.depth.to_string(),
            "n_sequences": t.n_sequences,
            "n_gen": t.n_gen,
            "context": t.n_ctx,
            "cache": t.cache,
            "tokens_per_second": t.tokens_per_second,
            "median": median(&t.tokens_per_second),
            "ratio_to_plain": d.to_plain,
            "acceptance": d.acceptance,
            "acceptance_by_depth": d.acceptance_by_depth,
            "tokens_per_cycle": d.tokens_per_cycle,
            "launches": d.launches,
            "bytes_copied": d.bytes_copied,
            "cycle_ms": { "pass": d.cycle_ms[0], "draft": d.cycle_ms[1], "rest": d.cycle_ms[2] },
            "same_tokens": d.same_tokens,
            "degenerate": d.degenerate,
        }))
    });
    json!({
        "model": found.model,
        "machine": found.machine.json(),
        "build": machine::build(),
        "threads": found.n_threads,
        "bandwidth": found.bandwidth,
        "tests": tests.collect::<Vec<_>>(),
        "speculation": speculation.collect::<Vec<_>>(),
    })
}

fn csv(found: &Findings) -> String {
    let mut out = String::from(
        "test,sequences,context,cache,tokens_per_second,lowest,highest,pass_ms,pass_bytes,share_of_bandwidth,to_plain,acceptance,tokens_per_cycle,same_tokens\n",
    );
    for t in &found.tests {
        let (low, high) = range(&t.tokens_per_second);
        let number = |v: Option<f64>| v.map_or(String::new(), |v| format!("{v:.6}"));
        let d = t.drafted.as_ref();
        let _ = writeln!(
            out,
            "{},{},{},{},{:.4},{low:.4},{high:.4},{:.5},{},{},{},{},{},{}",
            t.name,
            t.n_sequences,
            t.n_ctx,
            t.cache,
            median(&t.tokens_per_second),
            median(&t.pass_ms),
            number(t.pass_bytes),
            number(traffic(found, t).and_then(|t| t.1)),
            number(d.map(|d| d.to_plain)),
            number(d.map(|d| d.acceptance)),
            number(d.map(|d| d.tokens_per_cycle)),
            d.map_or(String::new(), |d| d.same_tokens.to_string()),
        );
    }
    out
}
