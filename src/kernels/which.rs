//! Which of several states each sequence of a recurrent op goes on from.

use ggml_sys as sys;

/// A state for each sequence in their order, or the one whose number an operand holds.
#[derive(Clone, Copy)]
pub(crate) struct Which(*const i32);

impl Which {
    /// By this operand of a node; null where every sequence has the state of its own number.
    ///
    /// # Safety
    /// `operand` is null, or a tensor that is alive as long as this, whose data is an i32 for each sequence.
    pub(crate) unsafe fn of(operand: *const sys::ggml_tensor) -> Self {
        // SAFETY: null, or alive (the caller).
        let data = unsafe { operand.as_ref() }.map_or(std::ptr::null(), |t| t.data.cast_const().cast());
        Self(data)
    }

    /// The number of the state that sequence `seq` goes on from.
    pub(crate) fn state(self, seq: usize) -> usize {
        if self.0.is_null() {
            return seq;
        }
        // SAFETY: there is a number for each sequence (the contract of `of`).
        let state = unsafe { *self.0.add(seq) };
        // Inputs are checked before each run: none is below 0.
        state as usize
    }
}
