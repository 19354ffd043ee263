//! Index and mask data of a step: which position each row has, where its keys go, which cells it sees.

use std::ops::Range;

use crate::ring::cells_of;
use crate::view::{Segment, StepView};

/// Minus infinity as F16 bits.
const MASKED: u16 = 0xFC00;

impl StepView<'_> {
    /// Calls `f` with slot and position of each row, in order.
    fn each_row(&self, mut f: impl FnMut(usize, usize)) {
        for s in self.segments {
            for slot in s.first_slot..s.first_slot + s.n_seqs {
                let len = self.first_position(slot);
                (len..len + s.n_rows).for_each(|position| f(slot, position));
            }
        }
    }

    /// The position of each row.
    pub fn positions(&self, into: &mut Vec<i32>) {
        into.clear();
        self.each_row(|_, position| into.push(position as i32));
    }

    /// The cell of each row, among the cells of all slots, in layers of a window (its number).
    pub fn kv_rows(&self, window: usize, into: &mut Vec<i64>) {
        into.clear();
        let (n_cells, stride) = (self.memory.n_cells(window), self.memory.stride(window));
        self.each_row(|slot, position| into.push((slot * stride + position % n_cells) as i64));
    }

    /// The place of each element of each row's values, among all of them; for transposed values of a kind (its number).
    pub fn v_element_rows(&self, values: usize, into: &mut Vec<i64>) {
        into.clear();
        let Some(&(window, n)) = self.memory.kinds.values.get(values) else { return };
        let n_cells = self.memory.n_cells(window);
        self.each_row(|slot, position| {
            let first = slot * n * n_cells + position % n_cells;
            into.extend((0..n).map(|element| (first + element * n_cells) as i64));
        });
    }

    /// True where rows of a segment see cells that follow each other, in layers of a window (its number), and the device makes
    /// the mask of [`StepView::spans`]; else [`StepView::mask`] fills it.
    pub fn has_spans(&self, window: usize, s: &Segment) -> bool {
        s.says_spans && !self.at_end && !self.mutual && !self.is_window(window)
    }

    /// Of each row of a segment with spans the first cell that it sees, and the one after its last, `[2, n_rows, n_seqs]`.
    pub fn spans(&self, s: &Segment, into: &mut Vec<i32>) {
        into.clear();
        for slot in s.first_slot..s.first_slot + s.n_seqs {
            let len = self.first_position(slot);
            (len..len + s.n_rows).for_each(|position| into.extend([0, position as i32 + 1]));
        }
    }

    /// The additive mask of a segment as F16 bits, `[n_kv, n_rows, 1, n_seqs]`, in layers of a window (its number): a row
    /// sees cells up to its own, as far back as the window reaches; in a mutual view up to the last of its sequence's rows.
    pub fn mask(&self, window: usize, s: &Segment, into: &mut Vec<u16>) {
        into.clear();
        let (n_kv, n_cells) = (self.n_kv(window, s), self.memory.n_cells(window));
        into.reserve(n_kv * s.n_tokens());
        let reach = self.memory.window(window).unwrap_or(usize::MAX);
        for slot in s.first_slot..s.first_slot + s.n_seqs {
            let len = self.first_position(slot);
            for position in len..len + s.n_rows {
                let unseen = (position + 1).saturating_sub(reach);
                let n_seen = match (self.at_end, self.mutual) {
                    (true, _) => position,
                    (false, true) => len + s.n_rows,
                    (false, false) => position + 1,
                };
                if n_seen.max(position + 1) <= n_cells {
                    into.resize(into.len() + unseen, MASKED);
                    into.resize(into.len() + n_seen.saturating_sub(unseen), 0);
                    into.resize(into.len() + n_kv - n_seen.max(unseen), MASKED);
                } else {
                    let row = into.len();
                    into.resize(row + n_kv, MASKED);
                    for cells in cells_of(unseen..n_seen.max(unseen), n_cells) {
                        into[row + cells.start..row + cells.end].fill(0);
                    }
                }
            }
        }
    }

    /// Lets rows of a segment see one another where the mask of a window (its number), as [`StepView::mask`] filled it, hides
    /// the later ones: `rows` are rows of the view, of one sequence.
    pub fn see_later(&self, window: usize, s: &Segment, rows: Range<usize>, mask: &mut [u16]) {
        let (n_kv, n_cells) = (self.n_kv(window, s), self.memory.n_cells(window));
        let Some(first) = rows.start.checked_sub(s.first_row).filter(|_| rows.end <= s.first_row + s.n_tokens()) else {
            return;
        };
        let (slot, at) = (s.first_slot + first / s.n_rows, first % s.n_rows);
        let position = self.first_position(slot) + at;
        for i in 0..rows.len() {
            let row = (first + i) * n_kv;
            for cells in cells_of(position + i..position + rows.len(), n_cells) {
                mask[row + cells.start..row + cells.end].fill(0);
            }
        }
    }
}
