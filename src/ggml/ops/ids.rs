//! Ids by which ops look rows up: none that a graph runs with lies outside of what it addresses. What is known of them
//! stands in the graph (`Ids`). Those of an input are checked on every run; those that an op keeps in range by itself are
//! taken as they are; all others that a graph computes are put back into range where they are used.

use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};

impl<'g> Graph<'g> {
    /// `ids` (i32) with those below 0 or not below `n` put to the nearest id in between. A row without a largest element has
    /// no [`Graph::argmax`], and what stands there instead depends on the device.
    pub fn within(&self, ids: Tensor<'g>, n: i64) -> Tensor<'g> {
        let sound = ids.dtype() == Dtype::I32 && (1..=MAX_EXACT).contains(&n);
        if !self.check("within", sound, || {
            format!(
                "`ids` {ids:?} below {n}: i32 and at most {MAX_EXACT} can be bounded in a graph; make them an input"
            )
        }) {
            return ids;
        }
        // No backend compares integers; floats of this size are exact, and every backend converts them.
        let bounded = self.clamp(self.cast(ids, Dtype::F32), 0.0, (n - 1) as f32);
        let bounded = self.cast(bounded, Dtype::I32);
        self.made_below(bounded, n);
        bounded
    }

    /// The ids 0 to below `n`: i32 `[n]`.
    pub fn ids_up_to(&self, n: i64, like: Tensor<'g>) -> Tensor<'g> {
        if !self.check("ids_up_to", (1..=MAX_EXACT).contains(&n), || format!("{n} ids, 1 to {MAX_EXACT} expected")) {
            return like;
        }
        // SAFETY: the arena has room (`node` counts); there is no operand.
        let numbers = self.node("ids_up_to", like, |ctx| unsafe { ggml_sys::ggml_arange(ctx, 0.0, n as f32, 1.0) });
        let ids = self.cast(numbers, Dtype::I32);
        self.made_below(ids, n);
        ids
    }

    /// The ids to look rows up by, so that none lies outside 0 to below `n`: `ids`, if they are an input (which every run
    /// checks) or known to be below it, or else what [`Graph::within`] makes of them.
    pub(crate) fn bounded(&self, op: &'static str, ids: Tensor<'g>, n: i64) -> Tensor<'g> {
        let base = ids.base_ptr();
        let (known, written) = {
            let of = self.ids.borrow();
            (of.below.get(&base).is_some_and(|&below| below <= n), of.written.contains(&base))
        };
        if !written && (known || self.bound_input(op, base, n)) {
            self.ids.borrow_mut().trusted.insert(base);
            return ids;
        }
        self.within(ids, n)
    }

    /// Notes that `ids` were computed by an op that gives none outside 0 to below `n`.
    pub(crate) fn made_below(&self, ids: Tensor<'g>, n: i64) {
        if self.ok() {
            self.ids.borrow_mut().below.insert(ids.base_ptr(), n);
        }
    }

    /// Checks that `t` may be written, and notes that it is: the bytes of weights are those of a file, mapped read-only, and
    /// ids that were found to be in range must stay so.
    pub(crate) fn check_writable(&self, op: &'static str, name: &str, t: Tensor<'g>) -> bool {
        let base = t.base_ptr();
        let trusted = self.ids.borrow().trusted.contains(&base);
        let sound = self.check(op, !t.is_weight(), || format!("`{name}` {t:?} is a weight, which cannot be written"))
            && self.check(op, !trusted, || format!("`{name}` {t:?} holds ids that rows are looked up by"));
        if sound {
            self.ids.borrow_mut().written.insert(base);
        }
        sound
    }
}

/// Integers up to here are exact as F32.
const MAX_EXACT: i64 = 1 << 24;
