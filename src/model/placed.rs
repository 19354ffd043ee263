//! Which rows of a pass are of sequences with pictures, what is given in place of their embeddings, and the checks of both.

use std::ops::Range;

use ggml::{Data, Name};
use text::TokenId;

use crate::error::RunError;
use crate::pictures::Pictures;
use crate::step::Extras;

/// Rows of a pass that are of one sequence with pictures.
#[derive(Clone, Debug)]
pub struct PlacedRows<'a> {
    /// Which rows of the step.
    pub rows: Range<usize>,
    /// The number of the first one's token in the sequence.
    pub first: usize,
    /// The sequence's pictures.
    pub pictures: &'a Pictures,
}

/// The entries of a draft that are of one sequence with pictures.
#[derive(Clone, Copy, Debug)]
pub struct PlacedEntries<'a> {
    /// The number in the sequence of the token whose hidden state the first entry has.
    pub first: usize,
    /// The sequence's pictures.
    pub pictures: &'a Pictures,
}

/// Embeddings that are given, and where they stand; kept from pass to pass.
#[derive(Default)]
pub(crate) struct GivenData {
    /// `[n_embd, n_tokens]`.
    pub(crate) rows: Vec<f32>,
    /// For each row, which of the embeddings of all rows and of those that are given.
    pub(crate) choice: Vec<i32>,
}

impl GivenData {
    /// Adds them as inputs where the pass has some.
    pub(crate) fn inputs<'a>(&'a self, extras: Extras, into: &mut Vec<(Name, Data<'a>)>) {
        if extras.rows {
            into.push((Name("rows", 0), Data::F32(&self.rows)));
            into.push((Name("choice", 0), Data::I32(&self.choice)));
        }
    }
}

/// What is given for a row, by the picture's token that is `ahead` of the row's own.
pub(crate) fn given<'a>(placed: &[PlacedRows<'a>], row: usize, ahead: usize) -> Option<&'a [f32]> {
    let of = placed.iter().find(|p| p.rows.contains(&row))?;
    of.pictures.row(of.first + (row - of.rows.start) + ahead)
}

/// The id that a table is asked for: any where a given row takes its place. Tables of what pictures have none of are asked for
/// the first, the token that only fills up.
pub(crate) fn in_table(id: TokenId) -> i32 {
    if id.is_of_picture() { 0 } else { id.0 as i32 }
}

/// Checks that tokens are of a vocabulary, or of a picture that is given for their row.
pub(crate) fn check_tokens(
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
pub(crate) fn check_rows(placed: &[PlacedRows<'_>], n_tokens: usize) -> Result<(), RunError> {
    let sound = |p: &PlacedRows<'_>| p.rows.start <= p.rows.end && p.rows.end <= n_tokens;
    if placed.iter().all(sound) && placed.windows(2).all(|w| w[0].rows.end <= w[1].rows.start) {
        return Ok(());
    }
    let rows: Vec<&Range<usize>> = placed.iter().map(|p| &p.rows).collect();
    Err(RunError::Pass(format!("rows {rows:?} with pictures in a step of {n_tokens} rows")))
}

/// The true entries of sequences with pictures, as rows of a draft with `widths` rows of each sequence.
pub(crate) fn placed_rows<'a>(
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
pub(crate) fn check_draft_tokens(
    (mut tokens, n_entries): (&[TokenId], &[usize]),
    widths: &[usize],
    n_vocab: usize,
    rows: &[PlacedRows<'_>],
) -> Result<(), RunError> {
    let mut start = 0;
    for (&n, &width) in n_entries.iter().zip(widths) {
        let (own, rest) = tokens.split_at(n);
        check_tokens(own, n_vocab, |i| given(rows, start + i, 1).is_some())?;
        (tokens, start) = (rest, start + width);
    }
    Ok(())
}
