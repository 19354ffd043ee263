//! What numbers and keys of a model can be, and what they mean when they are otherwise.
//! Owns the rules but for those of norms; reads no file.

use std::collections::{HashMap, HashSet};

use model::block_of;

use super::norms;
use super::report::Report;
use super::values::Stats;
use crate::gguf_model::Key;
use crate::heads::{Content, ModelInfo, cut_vocab};
use crate::source::{Source, SourceTensor};

/// What the keys say that no tensor shows.
pub(super) fn words(source: &Source, info: &ModelInfo, report: &mut Report) {
    match info.content {
        Content::Promised => report.notes.push(format!(
            "{} promises a NextN head and its tensors are not here: `extract-nextn graft` adds one, \
             `extract-nextn strip` takes the promise away",
            info.full("nextn_predict_layers")
        )),
        Content::Unannounced => report.damage.push(format!(
            "tensors of block {} and above are here, {} does not count them",
            info.n_layer,
            info.full("nextn_predict_layers")
        )),
        _ => {}
    }
    if let Some(n) = cut_vocab(source) {
        report.notes.push(format!("its output matrix is cut to {n} tokens (d2t): nextn does not load such heads"));
    }
    if matches!(source.key(&info.full("ssm.v_head_reordered")), Some(Key::Bool(false))) {
        report.damage.push(format!(
            "{} is false: value heads are in the checkpoint's order, the graph wants them by turns; convert again",
            info.full("ssm.v_head_reordered")
        ));
    }
}

/// What the numbers tell.
pub(super) fn numbers(source: &Source, info: Option<&ModelInfo>, stats: &[Stats], report: &mut Report) {
    for (t, s) in source.tensors.iter().zip(stats) {
        if s.n_not_finite > 0 {
            report.damage.push(format!(
                "{}: {} of {} numbers are NaN or infinite, the first in row {}",
                t.name,
                s.n_not_finite,
                s.n,
                s.first_not_finite.unwrap_or(0)
            ));
        }
    }
    zero_rows(source, info, stats, report);
    if info.is_some() {
        for (t, s) in source.tensors.iter().zip(stats) {
            let part = block_of(&t.name).map_or(t.name.as_str(), |(_, part)| part);
            if part == "ssm_a" && s.n > 0 && s.max >= 0.0 {
                report.damage.push(format!("{}: {} found, below 0 expected: -exp(A_log) was not taken", t.name, s.max));
            }
        }
    }
    norms::check(source, info, stats, report);
}

/// Rows of nothing but zeros: a hole in the file, unless there is a reason for each of them.
fn zero_rows(source: &Source, info: Option<&ModelInfo>, stats: &[Stats], report: &mut Report) {
    let unused = Unused::of(source, info, stats);
    let (mut holes, mut odd, mut n_unused) = (Vec::new(), Vec::new(), 0);
    for (t, s) in source.tensors.iter().zip(stats) {
        let Some(first) = s.zero_rows.first() else { continue };
        if t.ne.len() < 2 && !t.name.ends_with("norm.weight") {
            continue;
        }
        let what =
            format!("{}: {} of {} rows are all zero, the first is row {first}", t.name, s.n_zero_rows, t.n_rows());
        // Rows of tokens that do not exist are zeros in many models.
        let by_token = ["token_embd.weight", "output.weight"].contains(&t.name.as_str())
            || t.name.ends_with("embed_tokens.weight")
            || t.name.ends_with("shared_head_head.weight");
        let listed = s.zero_rows.len() as u64 == s.n_zero_rows;
        let dims = if info.is_some_and(|f| f.is_head(&t.name)) { &unused.by_head } else { &unused.by_main_model };
        let all_unused = || listed && s.zero_rows.iter().all(|row| dims.contains(&(row % t.ne[1])));
        if by_token && s.n_zero_rows < t.n_rows() {
            odd.push(format!("{what} (tokens that are not used?)"));
        } else if into_stream(t) && all_unused() {
            n_unused += 1;
        } else if listed && may_be_rounded(t, s) {
            odd.push(format!("{what} (rounded away in {}?)", t.dtype));
        } else {
            holes.push(what);
        }
    }
    some(holes, &mut report.damage);
    some(odd, &mut report.notes);
    if n_unused > 0 {
        let mut dims: Vec<u64> = unused.by_main_model.union(&unused.by_head).copied().collect();
        dims.sort_unstable();
        let shown: Vec<String> = dims.iter().take(SHOWN).map(u64::to_string).collect();
        let more = if dims.len() > SHOWN { ", .." } else { "" };
        let shown = shown.join(", ");
        report
            .notes
            .push(format!("no matrix writes to dimension {shown}{more}: its rows are zeros in all {n_unused} of them"));
    }
}

/// Adds the first of some sentences, and how many there are besides.
fn some(sentences: Vec<String>, to: &mut Vec<String>) {
    let more = sentences.len().saturating_sub(SHOWN);
    to.extend(sentences.into_iter().take(SHOWN));
    if more > 0 {
        to.push(format!("rows of zeros in {more} more tensors"));
    }
}

/// Whether a tensor's rows are dimensions of the residual stream.
fn into_stream(t: &SourceTensor) -> bool {
    let names = [
        "ssm_out.weight",
        "shortconv.out_proj.weight",
        "attn_output.weight",
        "ffn_down.weight",
        "ffn_down_exps.weight",
        "ffn_down_shexp.weight",
        "proj.weight",
    ];
    let part = block_of(&t.name).map_or(t.name.as_str(), |(_, part)| part);
    t.ne.len() >= 2 && names.contains(&part)
}

/// Dimensions of the residual stream whose rows are zeros in every matrix that writes to it, of all blocks and experts.
/// A model can be trained or made so (the oracle's dense ones are: their dimension 0), and such a row takes nothing
/// from it. A row that is zeros in some of these matrices only was lost; and so were more than a sixteenth of them all.
/// A head may come from elsewhere and write to more dimensions than its main model, but not to fewer.
struct Unused {
    by_main_model: HashSet<u64>,
    by_head: HashSet<u64>,
}

impl Unused {
    fn of(source: &Source, info: Option<&ModelInfo>, stats: &[Stats]) -> Unused {
        let in_head = |t: &SourceTensor| info.is_some_and(|f| f.is_head(&t.name));
        let matrices = || source.tensors.iter().zip(stats).filter(|(t, s)| into_stream(t) && s.n > 0);
        let by_main_model = in_all(matrices().filter(|(t, _)| !in_head(t)));
        let by_head = in_all(matrices().filter(|(t, _)| in_head(t)));
        let (Some(by_main_model), Some(by_head)) = (&by_main_model, &by_head) else {
            return Unused { by_main_model: by_main_model.unwrap_or_default(), by_head: by_head.unwrap_or_default() };
        };
        Unused { by_main_model: by_main_model.clone(), by_head: by_head.intersection(by_main_model).copied().collect() }
    }
}

/// The dimensions that are zeros in all of these matrices; None when there are no matrices.
fn in_all<'s>(matrices: impl Iterator<Item = (&'s SourceTensor, &'s Stats)>) -> Option<HashSet<u64>> {
    let sets = matrices.map(|(t, s)| {
        let (n_dims, n_matrices) = (t.ne[1], t.ne.iter().skip(2).product::<u64>());
        let mut counts: HashMap<u64, u64> = HashMap::new();
        s.zero_rows.iter().for_each(|row| *counts.entry(row % n_dims).or_default() += 1);
        let set: HashSet<u64> = counts.into_iter().filter(|(_, n)| *n == n_matrices).map(|(dim, _)| dim).collect();
        if set.len() as u64 > n_dims / 16 { HashSet::new() } else { set }
    });
    sets.reduce(|a, b| a.intersection(&b).copied().collect())
}

/// Few bits and small weights make zeros of rows that had numbers: some here and there, of less than eight bits. Rows
/// that lie together and fill a page were not written.
fn may_be_rounded(t: &SourceTensor, s: &Stats) -> bool {
    let is_coarse = t.dtype.type_size() < t.dtype.block_size();
    let (mut run, mut longest, mut before) = (0, 0, None);
    for row in &s.zero_rows {
        run = if before == row.checked_sub(1) && before.is_some() { run + 1 } else { 1 };
        longest = longest.max(run);
        before = Some(*row);
    }
    let row_bytes = t.n_bytes.checked_div(t.n_rows()).unwrap_or(0);
    is_coarse && s.n_zero_rows <= t.n_rows() / 16 && longest * row_bytes < PAGE_BYTES
}

/// Sentences about one kind of damage.
const SHOWN: usize = 6;
/// What systems allot and lose at once.
const PAGE_BYTES: u64 = 4096;
