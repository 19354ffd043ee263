//! Rows of pictures in passes: what stands in place of embeddings, at which positions, and who sees whom.

use memory::StepView;

use super::Scratch;
use crate::error::RunError;
use crate::placed::{GivenData, PlacedEntries, PlacedRows};
use crate::step::Extras;

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
                self.attention[0].see_later(view, &(first..first + span.len()), p.pictures.both_ways());
            }
        }
        Ok(())
    }
}
