//! What numbers and keys of a model can be, and what they mean when they are otherwise.
//! Owns the thresholds; reads no file.

use super::Report;
use super::values::Stats;
use crate::heads::{Content, Facts, block_of};
use crate::model::Key;
use crate::source::Source;

/// What the keys say that no tensor shows.
pub(super) fn words(source: &Source, facts: &Facts, report: &mut Report) {
    match facts.content {
        Content::Promised => report.notes.push(format!(
            "{} promises a NextN head and its tensors are not here: `extract-nextn graft` adds one, \
             `extract-nextn strip` takes the promise away",
            facts.full("nextn_predict_layers")
        )),
        Content::Unannounced => report.damage.push(format!(
            "tensors of block {} and above are here, {} does not count them",
            facts.n_layer,
            facts.full("nextn_predict_layers")
        )),
        _ => {}
    }
    if facts.n_nextn > 1 {
        report.damage.push(format!("{} NextN blocks promised, 1 is known", facts.n_nextn));
    }
    if matches!(source.key(&facts.full("ssm.v_head_reordered")), Some(Key::Bool(false))) {
        report.damage.push(format!(
            "{} is false: value heads are in the checkpoint's order, the graph wants them by turns; convert again",
            facts.full("ssm.v_head_reordered")
        ));
    }
}

/// What the numbers tell.
pub(super) fn numbers(source: &Source, facts: Option<&Facts>, stats: &[Stats], report: &mut Report) {
    let mut zero_rows = Vec::new();
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
        if s.n_zero_rows == 0 || t.ne.len() < 2 && !t.name.ends_with("norm.weight") {
            continue;
        }
        let what = format!(
            "{}: {} of {} rows are all zero, the first is row {}",
            t.name,
            s.n_zero_rows,
            t.n_rows(),
            s.first_zero_row.unwrap_or(0)
        );
        // Few bits and small weights make zeros of rows that had numbers.
        let rounded = is_coarse(t.dtype) && s.n_zero_rows <= t.n_rows() / 16;
        // A dimension that nothing writes to is a row of zeros in every matrix into the stream, and takes nothing from it.
        let into_stream = [
            "ssm_out.weight",
            "attn_output.weight",
            "ffn_down.weight",
            "ffn_down_exps.weight",
            "ffn_down_shexp.weight",
        ];
        let unused = into_stream.iter().any(|name| t.name.ends_with(name)) && s.n_zero_rows <= t.n_rows() / 16;
        // Rows of tokens that do not exist are zeros in many models.
        let by_token = ["token_embd.weight", "output.weight"].contains(&t.name.as_str())
            || t.name.ends_with("embed_tokens.weight")
            || t.name.ends_with("shared_head_head.weight");
        if by_token && s.n_zero_rows < t.n_rows() {
            report.notes.push(format!("{what} (tokens that are not used?)"));
        } else if unused {
            report.notes.push(format!("{what} (a dimension that is not used?)"));
        } else if rounded {
            report.notes.push(format!("{what} (rounded away in {}?)", t.dtype));
        } else {
            zero_rows.push(what);
        }
    }
    let more = zero_rows.len().saturating_sub(SHOWN);
    report.damage.extend(zero_rows.into_iter().take(SHOWN));
    if more > 0 {
        report.damage.push(format!("rows of zeros in {more} more tensors"));
    }
    let Some(facts) = facts else { return };
    for (t, s) in source.tensors.iter().zip(stats) {
        let part = block_of(&t.name).map_or(t.name.as_str(), |(_, part)| part);
        if part == "ssm_a" && s.n > 0 && s.max >= 0.0 {
            report.damage.push(format!("{}: {} found, below 0 expected: -exp(A_log) was not taken", t.name, s.max));
        }
    }
    norms(source, facts, stats, report);
}

/// Checkpoints store weights of norms less one; files have them whole. A shift that was left out or made twice shows in
/// the head's own two norms, and in its other norms beside those of the trunk.
fn norms(source: &Source, facts: &Facts, stats: &[Stats], report: &mut Report) {
    let head_mean = |part: &str| {
        let found =
            source.tensors.iter().zip(stats).find(|(t, s)| block_of(&t.name) == Some((facts.n_layer, part)) && s.n > 0);
        found.map(|(_, s)| s.mean())
    };
    let (Some(e), Some(h)) = (head_mean("nextn.enorm.weight"), head_mean("nextn.hnorm.weight")) else { return };
    if e < UNSHIFTED && h < UNSHIFTED {
        report.damage.push(format!(
            "norms are not shifted: mean(enorm) {e:.3}, mean(hnorm) {h:.3}, about 1 expected; convert the head again"
        ));
        return;
    }
    if e > TWICE && h > TWICE {
        report.damage.push(format!(
            "norms are shifted twice: mean(enorm) {e:.3}, mean(hnorm) {h:.3}, about 1 expected; convert the head again"
        ));
        return;
    }
    for (part, mean) in [("nextn.enorm", e), ("nextn.hnorm", h)] {
        if !(UNSHIFTED..=TWICE).contains(&mean) {
            report.notes.push(format!("mean({part}) is {mean:.3}, about 1 is usual: was it shifted by one once?"));
        }
    }
    // The other norms of the block are like those of the trunk's blocks of attention.
    for part in ["attn_norm.weight", "post_attention_norm.weight", "attn_q_norm.weight", "attn_k_norm.weight"] {
        let Some(own) = head_mean(part) else { continue };
        let of_trunk: Vec<f64> = source
            .tensors
            .iter()
            .zip(stats)
            .filter(|(t, s)| block_of(&t.name).is_some_and(|(il, p)| il < facts.n_layer && p == part) && s.n > 0)
            .map(|(_, s)| s.mean())
            .collect();
        let least = of_trunk.iter().copied().fold(f64::INFINITY, f64::min);
        let most = of_trunk.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if !of_trunk.is_empty() && (own < least - 0.9 && own < UNSHIFTED || own > most + 0.9) {
            report.notes.push(format!(
                "mean of the head's {part} is {own:.3}, those of the trunk are {least:.3} to {most:.3}: shifted by one \
                 otherwise than they?"
            ));
        }
    }
}

/// Whether a type has less than eight bits for a number.
fn is_coarse(dtype: gguf::TensorType) -> bool {
    dtype.type_size() * 8 < dtype.block_size() * 8
}

/// Whether a mean says that one was not added.
const UNSHIFTED: f64 = 0.5;
/// Or twice.
const TWICE: f64 = 1.75;
/// Sentences about one kind of damage.
const SHOWN: usize = 6;
