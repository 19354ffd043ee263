//! What a run found, in one aligned table of at most 100 columns: rates, and what drafts gain.

use std::fmt::Write;

use program::words::counted;
use speculate::Depth;

use super::super::draft::{Draft, Source};
use super::super::machine;
use super::super::stats::{median, range};
use super::measured::{Findings, Measured};

/// What a column says of a test.
type Cell = fn(&Measured) -> String;

/// The table, with a line above about the model and the machine.
pub(super) fn table(found: &Findings) -> String {
    let (threads, rounds) = (counted(found.n_threads, "thread"), counted(found.repeat as usize, "round"));
    let mut out = format!("{}\n{}, {threads}, {rounds}{}\n\n", found.line, found.machine.cpu, machine::DEBUG);
    let shown: Vec<&Measured> = found.tests.iter().filter(|test| !is_measured_better(test, &found.tests)).collect();
    let differs = |of: Cell| shown.windows(2).any(|pair| of(pair[0]) != of(pair[1]));
    let mut columns: Vec<(&str, Cell)> = vec![("test", name as Cell)];
    if differs(|test| test.n_ctx.to_string()) {
        columns.push(("context", |test| test.n_ctx.to_string()));
    }
    if differs(|test| test.cache.clone()) {
        columns.push(("cache", |test| test.cache.clone()));
    }
    columns.push(("tokens/s", |test| format!("{:.2}", median(&test.tokens_per_second))));
    columns.push(("lowest", |test| format!("{:.2}", range(&test.tokens_per_second).0)));
    columns.push(("highest", |test| format!("{:.2}", range(&test.tokens_per_second).1)));
    if shown.iter().any(|test| test.drafted.is_some()) {
        columns
            .push(("speed-up", |test| test.drafted.as_ref().map_or(String::new(), |d| format!("{:.2}x", d.to_plain))));
        columns.push(("acceptance", acceptance));
    }
    let rows: Vec<Vec<String>> = shown.iter().map(|test| columns.iter().map(|(_, of)| of(test)).collect()).collect();
    let heads: Vec<String> = columns.iter().map(|(head, _)| (*head).to_owned()).collect();
    out += &aligned(&[vec![heads], rows].concat());
    if shown.iter().any(|test| test.drafted.as_ref().is_some_and(|d| !d.same_tokens)) {
        out += "\nWith drafts other tokens came than without: near ties in batches of another width (--exact).\n";
    }
    if let Some(why) = shown.iter().find_map(|test| test.drafted.as_ref()?.degenerate.as_ref()) {
        // Writing to a string cannot fail.
        let _ =
            writeln!(out, "\nDegenerate output, which is easy to draft: {why}.\nThese speeds say nothing of real use.");
    }
    out
}

/// Plain decoding is measured on the runner too; where the engine decoded as much, that is what drafts compare with.
fn is_measured_better(test: &Measured, all: &[Measured]) -> bool {
    let alike = |other: &Measured| {
        (other.n_gen, other.n_ctx, &other.cache, other.n_sequences) == (test.n_gen, test.n_ctx, &test.cache, 1)
            && other.drafted.as_ref().is_some_and(|drafted| drafted.depth == Draft::Off)
    };
    test.drafted.is_none() && test.n_gen > 0 && all.iter().any(alike)
}

fn name(test: &Measured) -> String {
    let many = if test.n_sequences > 1 { format!("{} sequences: ", test.n_sequences) } else { String::new() };
    let Some(drafted) = &test.drafted else {
        return match (test.n_gen, test.name.strip_prefix("rows")) {
            (0, Some(_)) => format!("forward pass, {}", counted(test.n_prompt, "token")),
            (0, None) => format!("prefill, {}", counted(test.n_prompt, "token")),
            (n, _) => format!("decode, {}", counted(n, "token")),
        };
    };
    match drafted.depth {
        Draft::Off => format!("{many}decode, {}", counted(test.n_gen, "token")),
        Draft::On(Source::Head, Depth::Auto) => format!("{many}decode with MTP"),
        Draft::On(Source::Head, Depth::Fixed(n)) => format!("{many}decode with MTP, {}", counted(n, "draft")),
        other => format!("{many}decode with {other}"),
    }
}

fn acceptance(test: &Measured) -> String {
    let drafted = test.drafted.as_ref().filter(|drafted| drafted.depth != Draft::Off);
    drafted.map_or(String::new(), |drafted| format!("{:.1} %", 100.0 * drafted.acceptance))
}

/// The first column to the left, the others to the right, two spaces between them.
fn aligned(rows: &[Vec<String>]) -> String {
    let n_columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> =
        (0..n_columns).map(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate();
        let line: String = cells
            .map(|(i, (cell, &width))| if i == 0 { format!("{cell:width$}") } else { format!("  {cell:>width$}") })
            .collect();
        out += line.trim_end();
        out.push('\n');
    }
    out
}
