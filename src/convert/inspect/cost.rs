//! What speculation costs and may gain on a file, from the bytes that each pass reads.
//! Owns the model of it: a machine that is bound by memory, where a pass takes as long as its weights take to read.
//! State, cells of attention and arithmetic are left out, so this is a bound and no forecast.

use model::block_of;
use serde::Serialize;

use super::roles::Role;
use crate::heads::{Content, ModelInfo};
use crate::source::Source;

/// Bytes of passes and drafts.
#[derive(Clone, Debug, Serialize)]
pub struct Speculation {
    /// Read by the main model for one token.
    pub pass_bytes: u64,
    /// Read by the head for one draft token, its share of the head matrix included.
    pub draft_bytes: u64,
    /// Rows of the head matrix that a draft token reads.
    pub draft_vocab: u64,
    /// For some depths and acceptances.
    pub gains: Vec<Gain>,
}

/// Tokens per second against plain decoding, if nothing but bytes counts.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Gain {
    /// Tokens of a draft.
    pub depth: u32,
    /// The share of accepted draft tokens, at each place of the draft.
    pub acceptance: f64,
    /// Times faster.
    pub factor: f64,
}

/// None for files without main model or head.
pub(super) fn of(source: &Source, info: &ModelInfo, n_vocab: Option<u64>) -> Option<Speculation> {
    let n_vocab = n_vocab?;
    if info.content != Content::Combined {
        return None;
    }
    let n_expert = info.number(source, "expert_count", 0).unwrap_or(0) as f64;
    let n_used = info.number(source, "expert_used_count", 0).unwrap_or(0) as f64;
    // Of experts, those that any of so many rows picks, if they pick by chance.
    let touched = |rows: u32| match n_expert > 0.0 {
        true => 1.0 - (1.0 - (n_used / n_expert).min(1.0)).powi(rows as i32),
        false => 1.0,
    };
    let matrix = source.tensor("output.weight").or_else(|| source.tensor("token_embd.weight"))?.n_bytes as f64;
    let share = |name: &str, rows: u32| match block_of(name) {
        Some((_, part)) if part.contains("_exps.") => touched(rows),
        _ => 1.0,
    };
    let sum = |rows: u32, of: &dyn Fn(Role) -> bool| -> f64 {
        let some = source.tensors.iter().filter(|t| of(Role::of(&t.name, Some(info))));
        some.map(|t| t.n_bytes as f64 * share(&t.name, rows)).sum()
    };
    let of_main_model = |role: Role| !matches!(role, Role::Embedding | Role::HeadMatrix | Role::NextN);
    let pass = |rows: u32| sum(rows, &of_main_model) + matrix;
    let draft_vocab = draft_vocab(info.n_embd, n_vocab);
    // Tables by token of the head's own: of the one a row is read, the other stands in for the main model's.
    let own = |part: &str| {
        let found = source.tensors.iter().find(|t| block_of(&t.name) == Some((info.n_layer, part)));
        found.map(|t| t.n_bytes as f64)
    };
    let own_matrix = own("nextn.shared_head_head.weight");
    let tables = own_matrix.unwrap_or(0.0) + own("nextn.embed_tokens.weight").unwrap_or(0.0);
    let rows = own_matrix.unwrap_or(matrix) * draft_vocab as f64 / n_vocab.max(1) as f64;
    let draft = sum(1, &|role| role == Role::NextN) - tables + rows;
    let mut gains = Vec::new();
    for acceptance in [0.6, 0.8] {
        for depth in 1..=3 {
            let tokens: f64 = (0..=depth).map(|i| f64::powi(acceptance, i as i32)).sum();
            let bytes = pass(depth + 1) + f64::from(depth) * draft;
            gains.push(Gain { depth, acceptance, factor: tokens * pass(1) / bytes.max(1.0) });
        }
    }
    Some(Speculation { pass_bytes: pass(1) as u64, draft_bytes: draft as u64, draft_vocab, gains })
}

/// As the runtime chooses it: the frequent tokens come first in a byte-pair vocabulary.
fn draft_vocab(n_embd: u64, n_vocab: u64) -> u64 {
    let rows = if n_embd <= 2048 { 1 << 15 } else { 1 << 16 };
    if n_vocab < 2 * rows { n_vocab } else { rows }
}
