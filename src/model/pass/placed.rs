//! Rows of pictures in passes: what stands in place of embeddings, at which positions, and who sees whom.

use std::ops::Range;

use ggml::{Data, Name};
use memory::StepView;
use text::TokenId;

use super::{Draft, PlacedEntries, PlacedRows, Scratch};
use crate::error::RunError;
use crate::step::Extras;

/// Embeddings that are given, and where they stand; kept from pass to pass.
#[derive(Default)]
pub(super) struct GivenData {
    /// `[n_embd, n_tokens]`.
    rows: Vec<f32>,
    choice: Vec<i32>,
}

impl GivenData {
    /// Adds them as inputs where the pass has some.
    pub(super) fn inputs<'a>(&'a self, extras: Extras, into: &mut Vec<(Name, Data<'a>)>) {
        if extras.rows {
            into.push((Name("rows", 0), Data::F32(&self.rows)));
            into.push((Name("choice", 0), Data::I32(&self.choice)));
        }
    }
}

/// What is given for a row, by the picture's token that is `ahead` of the row's own.
pub(super) fn given<'a>(placed: &[PlacedRows<'a>], row: usize, ahead: usize) -> Option<&'a [f32]> {
    let of = placed.iter().find(|p| p.rows.contains(&row))?;
    of.pictures.row(of.first + (row - of.rows.start) + ahead)
}

/// The id that a table is asked for: any where a given row takes its place. Tables of what pictures have none of are asked for
/// the first, the token that only fills up.
pub(super) fn in_table(id: TokenId) -> i32 {
    if id.is_of_picture() { 0 } else { id.0 as i32 }
}

/// Checks that tokens are of a vocabulary, or of a picture that is given for their row.
pub(super) fn check_tokens(
    tokens: &[TokenId],
    n_vocab: usize,
    is_given: impl Fn(usize) -> bool,
) -> Result<(), RunError> {
    for (row, id) in tokens.iter().enumerate().filter(|(_, id)| id.0 as usize >= n_vocab) {
        if !id.is_of_picture() {
            return Err(RunError::Pass(format!("token id {} is outside the vocabulary of {n_vocab}", id.0)));
        }
        if !is_given(row) {
            return Err(RunError::Pass(format!("row {row} is a picture's, and the picture is not there")));
        }
    }
    Ok(())
}

/// Checks that rows with pictures are rows of a step of `n_tokens` rows.
pub(super) fn check_rows(placed: &[PlacedRows<'_>], n_tokens: usize) -> Result<(), RunError> {
    let sound = |p: &PlacedRows<'_>| p.rows.start <= p.rows.end && p.rows.end <= n_tokens;
    if placed.iter().all(sound) && placed.windows(2).all(|w| w[0].rows.end <= w[1].rows.start) {
        return Ok(());
    }
    let rows: Vec<&Range<usize>> = placed.iter().map(|p| &p.rows).collect();
    Err(RunError::Pass(format!("rows {rows:?} with pictures in a step of {n_tokens} rows")))
}

/// The true entries of sequences with pictures, as rows of a draft with `widths` rows of each sequence.
pub(super) fn placed_rows<'a>(
    placed: &[Option<PlacedEntries<'a>>],
    n_entries: &[usize],
    widths: &[usize],
) -> Vec<PlacedRows<'a>> {
    let mut start = 0;
    let mut rows = Vec::new();
    for (p, (&n, &width)) in placed.iter().zip(n_entries.iter().zip(widths)) {
        rows.extend(p.map(|p| PlacedRows { rows: start..start + n, first: p.first, pictures: p.pictures }));
        start += width;
    }
    rows
}

/// [`check_tokens`] for a draft, whose entries are filled up to `widths`.
pub(super) fn check_draft_tokens(
    draft: &Draft<'_>,
    widths: &[usize],
    n_vocab: usize,
    rows: &[PlacedRows<'_>],
) -> Result<(), RunError> {
    let (mut tokens, mut start) = (draft.tokens, 0);
    for (&n, &width) in draft.n_entries.iter().zip(widths) {
        let (own, rest) = tokens.split_at(n);
        check_tokens(own, n_vocab, |i| given(rows, start + i, 1).is_some())?;
        (tokens, start) = (rest, start + width);
    }
    Ok(())
}

impl Scratch {
    /// Puts rows of the first view where pictures put them, and takes what is given in place of their embeddings: that of the
    /// token `ahead` of each.
    pub(super) fn place(
        &mut self,
        placed: &[PlacedRows<'_>],
        (n_tokens, n_embd): (usize, usize),
        ahead: usize,
    ) -> Extras {
        let mut extras = Extras::default();
        if placed.is_empty() {
            return extras;
        }
        for p in placed {
            extras.sections |= self.attention[0].place(p.rows.clone(), p.first, p.pictures);
        }
        if extras.sections {
            self.attention[0].turn_by_sections(placed.iter().map(|p| (p.rows.clone(), p.first, p.pictures)));
        }
        let GivenData { rows, choice } = &mut self.given;
        rows.clear();
        choice.clear();
        choice.extend(0..n_tokens as i32);
        for p in placed {
            for (i, row) in p.rows.clone().enumerate() {
                let Some(values) = p.pictures.row(p.first + i + ahead) else { continue };
                rows.resize(n_tokens * n_embd, 0.0);
                rows[row * n_embd..(row + 1) * n_embd].copy_from_slice(values);
                choice[row] = (n_tokens + row) as i32;
                extras.rows = true;
            }
        }
        extras
    }

    /// Puts the rows of a chain, one of each sequence in every view after the first, behind the entries of their sequences.
    pub(super) fn place_chain(&mut self, placed: &[Option<PlacedEntries<'_>>], n_entries: &[usize], n_chain: usize) {
        for (row, (p, n)) in placed.iter().zip(n_entries).enumerate() {
            let Some(PlacedEntries { first, pictures }) = *p else { continue };
            for i in 0..n_chain {
                self.attention[i + 1].place(row..row + 1, first + n + i, pictures);
            }
        }
    }

    /// Lets the tokens of a picture see one another where the model has it so.
    pub(super) fn see_pictures(&mut self, view: StepView<'_>, placed: &[PlacedRows<'_>]) -> Result<(), RunError> {
        for p in placed.iter().filter(|p| p.pictures.are_seen_both_ways()) {
            let tokens = p.first..p.first + p.rows.len();
            for span in p.pictures.spans().filter(|s| s.start < tokens.end && tokens.start < s.end) {
                if span.start < tokens.start || tokens.end < span.end {
                    let n = span.len();
                    return Err(RunError::Pass(format!(
                        "a part of a picture of {n} tokens, all of which must be in one pass: raise the batch size to {n} \
                         at least"
                    )));
                }
                let first = p.rows.start + (span.start - tokens.start);
                self.attention[0].see_later(view, &(first..first + span.len()));
            }
        }
        Ok(())
    }
}
