//! `extract-nextn inspect`.

use std::io::Write;
use std::path::PathBuf;

use convert::inspect::{AsDraft, Inspection, Promise, Share, Speculation, Status, TypeShare, inspect};

use super::Outcome;
use super::show::{bar, bytes, count};
use program::sanitize;
use program::words::counted;

/// Options of `inspect`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// GGUF file (the first shard), checkpoint folder, or MTP layer in safetensors
    file: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Outcome {
    let found = inspect(&args.file)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&found)?)?;
    } else {
        for line in lines(&found) {
            // Names come from the file: they must not drive the terminal.
            writeln!(out, "{}", sanitize::clean_line(&line).trim_end())?;
        }
    }
    Ok(0)
}

fn lines(found: &Inspection) -> Vec<String> {
    let mut lines = Vec::new();
    let mut row = |name: &str, text: String| lines.push(format!("{name:<13}{text}"));
    let files = if found.n_files == 1 { String::new() } else { format!(" in {} files", found.n_files) };
    row("file", format!("{}, {}, {}{files}", short(found), found.format, bytes(found.n_bytes)));
    if let Some(name) = &found.name {
        row("name", cut(name, 60));
    }
    let arch = found.architecture.as_deref().unwrap_or("not told");
    row(
        "architecture",
        format!("{}, {} parameters in {} tensors", cut(arch, 30), count(found.n_parameters), found.n_tensors),
    );
    if let Some(s) = &found.sizes {
        let mut text = format!("{} blocks of width {}", s.n_layer, s.n_embd);
        if let (Some(q), Some(kv)) = (s.n_head, s.n_head_kv) {
            text += &format!(", {q} query and {kv} key heads");
        }
        if let (Some(n), Some(used)) = (s.n_expert.filter(|n| *n > 0), s.n_expert_used) {
            text += &format!(", {used} of {n} experts");
        }
        row("sizes", text);
    }
    if let Some(t) = &found.projector {
        let side = t.patch * t.merge;
        row("projector", format!("{}: {} blocks of width {}, rows of {}", t.kind, t.n_layer, t.n_embd, t.n_embd_text));
        row(
            "images",
            format!(
                "patches of {0} x {0} pixels, a token for {side} x {side}; it goes beside its model, or is named by --mmproj",
                t.patch
            ),
        );
    } else {
        let context = found.context_length.map_or("not told".to_owned(), |n| format!("{n} tokens"));
        row("context", context);
    }
    if let Some(t) = &found.tokenizer {
        let pre = t.pre.as_deref().unwrap_or("no pre-tokenizer named");
        row("tokenizer", format!("{} tokens, {}", t.n_tokens, cut(pre, 30)));
    }
    if found.projector.is_none() {
        row("template", found.template_bytes.map_or("none".to_owned(), |n| format!("{n} bytes")));
    }
    for (i, line) in types(&found.types).into_iter().enumerate() {
        row(if i == 0 { "types" } else { "" }, line);
    }
    if let Some(promise) = found.batch_invariant.filter(|_| found.projector.is_none()) {
        row("exact", together(promise));
    }
    if found.projector.is_none() {
        row("NextN layer", head(found));
    }
    if let Some(as_draft) = found.as_draft {
        row("as a draft", draft(as_draft, arch));
    }
    lines.push(String::new());
    let whole: u64 = found.roles.iter().map(|role| role.n_bytes).sum();
    lines.extend(found.roles.iter().map(|role| role_line(role, whole)));
    if let Some(s) = &found.speculation {
        lines.push(String::new());
        lines.extend(speculation(s));
    }
    lines
}

/// What all types promise together.
fn together(promise: Promise) -> String {
    match promise {
        Promise::Any => "drafts keep greedy output on this CPU; --exact: in batches of any width".into(),
        Promise::UpTo(n) => {
            let draft = n.saturating_sub(1);
            format!(
                "drafts of up to {draft} tokens keep greedy output on this CPU; --exact: in batches of up to {n} tokens"
            )
        }
        Promise::No => "drafts may change greedy output at near ties on this CPU; --exact keeps it, more slowly".into(),
        Promise::Unusable => "not to be opened: some tensors have a type without products".into(),
    }
}

/// Tensors and bytes of each type, by what products with them promise on this CPU; in lines that fit a terminal.
fn types(types: &[TypeShare]) -> Vec<String> {
    let mut promises: Vec<Promise> = Vec::new();
    for t in types.iter().filter(|t| t.n_tensors > 0) {
        if !promises.contains(&t.batch_invariant) {
            promises.push(t.batch_invariant);
        }
    }
    promises.sort_by_key(|promise| std::cmp::Reverse(promise.width()));
    let mut lines = Vec::new();
    for promise in promises {
        let mut line = match promise {
            Promise::Any => "batch-invariant at any width:".to_owned(),
            Promise::UpTo(n) => format!("batch-invariant up to {n} tokens:"),
            Promise::No => "not batch-invariant:".to_owned(),
            Promise::Unusable => "without products:".to_owned(),
        };
        for t in types.iter().filter(|t| t.batch_invariant == promise) {
            let word = format!(" {} {} ({}),", t.n_tensors, t.name, bytes(t.n_bytes));
            if line.len() + word.len() > WIDTH {
                lines.push(std::mem::replace(&mut line, " ".to_owned()));
            }
            line += &word;
        }
        lines.push(line.trim_end_matches(',').to_owned());
    }
    lines
}

fn head(found: &Inspection) -> String {
    let head = &found.head;
    match head.status {
        Status::Present => {
            let own = head.layout.map_or(String::new(), |layout| format!(", a file of its own, layout {layout}"));
            let tensors = format!("{} tensors, {}", head.n_tensors, bytes(head.n_bytes));
            if let Some(target) = head.target {
                return format!("the whole file: {tensors}, a draft head for {target}; --draft-model takes it");
            }
            let block = match head.block {
                None => ", alone".to_owned(),
                Some(first) if head.n_blocks > 1 => format!(", blocks {first} to {}", first + head.n_blocks - 1),
                Some(block) => format!(", block {block}"),
            };
            format!("present: {tensors}{block}{own}")
        }
        Status::Promised => "promised and not here; `extract-nextn graft` adds one".into(),
        Status::Unannounced => {
            format!("{} tensors that the metadata do not count; see `extract-nextn verify`", head.n_tensors)
        }
        Status::Missing => "missing; `extract-nextn graft` adds one".into(),
        Status::Unknown => {
            let arch = found.architecture.as_deref().unwrap_or_default();
            let own = model::head_architectures().into_iter().find(|(_, target)| *target == arch);
            own.map_or("not known for this architecture".into(), |(head, _)| {
                format!("in a file of its own ({head}), which --draft-model takes")
            })
        }
    }
}

/// What `--draft-model` makes of it.
fn draft(as_draft: AsDraft, arch: &str) -> String {
    match as_draft {
        AsDraft::Head => "a head: --draft-model beside a model of its width and tokens".into(),
        AsDraft::Model => "a draft model: --draft-model beside a larger one of the same tokens".into(),
        AsDraft::ModelWithHead => {
            "its NextN layer beside a model of its width, itself beside another of the same tokens (--draft-model)"
                .into()
        }
        AsDraft::NotRead => format!("{}: draft files of this kind are not read", cut(arch, 30)),
    }
}

fn role_line(role: &Share, whole: u64) -> String {
    let percent = role.n_bytes as f64 * 100.0 / whole.max(1) as f64;
    format!("{:<17}{:>10} {percent:>5.1} %  {}", role.name, bytes(role.n_bytes), bar(role.n_bytes, whole, BAR))
}

fn speculation(s: &Speculation) -> Vec<String> {
    let share = s.draft_bytes as f64 * 100.0 / s.pass_bytes.max(1) as f64;
    let mut lines = vec![format!(
        "A token reads {}, a draft {} ({share:.0} % of it, with {} rows of the output matrix).",
        bytes(s.pass_bytes),
        bytes(s.draft_bytes),
        s.draft_vocab
    )];
    lines.push("Times faster at most, if reading is all that takes time:".into());
    for acceptance in [0.6, 0.8] {
        let row = s.gains.iter().filter(|g| g.acceptance == acceptance);
        let cells: Vec<String> =
            row.map(|g| format!("{} {:.2}", counted(g.depth as usize, "draft"), g.factor)).collect();
        lines.push(format!("  {:.0} % of drafts accepted:  {}", acceptance * 100.0, cells.join("   ")));
    }
    lines
}

fn short(found: &Inspection) -> String {
    found.path.file_name().map_or_else(|| found.path.display().to_string(), |name| cut(&name.to_string_lossy(), 60))
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most { text.to_owned() } else { text.chars().take(most).chain("...".chars()).collect() }
}

/// Characters of a line of types, beside its heading.
const WIDTH: usize = 105;

/// Characters of the longest bar.
const BAR: usize = 40;
