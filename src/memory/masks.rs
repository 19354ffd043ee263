//! Index and mask data of a step: which position each row has, where its keys go, which cells it sees.

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

    /// The cell of each row, among the cells of all slots.
    pub fn kv_rows(&self, into: &mut Vec<i64>) {
        into.clear();
        let n_ctx = self.memory.config.n_ctx;
        self.each_row(|slot, position| into.push((slot * n_ctx + position) as i64));
    }

    /// The place of each element of each row's values, among all of them; for transposed values.
    pub fn v_element_rows(&self, into: &mut Vec<i64>) {
        into.clear();
        let (n_ctx, n) = (self.memory.config.n_ctx, self.v_elements());
        self.each_row(|slot, position| {
            let first = slot * n * n_ctx + position;
            into.extend((0..n).map(|element| (first + element * n_ctx) as i64));
        });
    }

    /// The additive mask of a segment as F16 bits, `[n_kv, n_rows, 1, n_seqs]`: a row sees cells up to its own.
    pub fn mask(&self, s: &Segment, into: &mut Vec<u16>) {
        into.clear();
        into.reserve(s.n_kv * s.n_tokens());
        for slot in s.first_slot..s.first_slot + s.n_seqs {
            let len = self.first_position(slot);
            for position in len..len + s.n_rows {
                into.resize(into.len() + position + 1, 0);
                into.resize(into.len() + s.n_kv - position - 1, MASKED);
            }
        }
    }
}
