//! What every op checks of its operands, and the two macros by which ops call ggml.

use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};
use ggml_sys as sys;

/// Adds one node by a call of ggml: `op!(graph, "name for messages", function, first operand, more arguments)`.
macro_rules! op {
    ($g:expr, $name:literal, $call:ident, $first:expr $(, $arg:expr)* $(,)?) => {{
        let first = $first;
        // SAFETY: the arena has room (`node` counts). All operands carry the graph's brand, so they lie in its arena or
        // in weights and states that it keeps alive; their shapes were checked by the caller of this macro.
        $g.node($name, first, |ctx| unsafe { ggml_sys::$call(ctx, first.raw() $(, $arg)*) })
    }};
}
pub(crate) use op;

/// Asks ggml a question about a tensor's layout.
macro_rules! ask {
    ($call:ident, $t:expr) => {{
        let t = $t;
        // SAFETY: the description outlives the brand; the function only reads it.
        unsafe { ggml_sys::$call(t.raw()) }
    }};
}
pub(crate) use ask;

impl<'g> Graph<'g> {
    /// True when the op may be made: there was no error before and `sound` holds; otherwise `what` becomes the error.
    pub(crate) fn check(&self, op: &'static str, sound: bool, what: impl FnOnce() -> String) -> bool {
        if !self.ok() {
            return false;
        }
        if !sound {
            self.fail(op, what());
        }
        sound
    }

    /// Checks that `t` is F32, F16 or BF16.
    pub(crate) fn check_float(&self, op: &'static str, name: &str, t: Tensor<'g>) -> bool {
        self.check(op, t.dtype().is_float(), || format!("`{name}` is {}, f32, f16 or bf16 is needed", t.dtype()))
    }

    /// Checks that the elements of a row of `t` follow each other. Stricter than ggml's own question, which overlooks
    /// rows of one element; its kernels do not.
    pub(crate) fn check_elements(&self, op: &'static str, name: &str, t: Tensor<'g>) -> bool {
        self.check(op, t.nb()[0] == t.dtype().block_bytes(), || {
            format!("the elements of `{name}` {t:?} do not follow each other")
        })
    }

    /// Checks that a result of this type and shape has a size that ggml can count.
    pub(crate) fn check_size(&self, op: &'static str, dtype: Dtype, ne: [i64; 4]) -> bool {
        self.check(op, dtype.is_sizeable(ne), || format!("a result of {dtype} {ne:?} is too large"))
    }

    /// Checks that `t` is F32.
    pub(crate) fn check_f32(&self, op: &'static str, name: &str, t: Tensor<'g>) -> bool {
        self.check(op, t.dtype() == Dtype::F32, || format!("`{name}` is {}, f32 is needed", t.dtype()))
    }
}

/// Bytes from the first to past the last element.
pub(crate) fn n_bytes(t: Tensor<'_>) -> usize {
    ask!(ggml_nbytes, t)
}

/// True when ggml can repeat `b` over `a`: each dimension of `a` is a multiple of `b`'s.
pub(crate) fn can_repeat(b: Tensor<'_>, a: Tensor<'_>) -> bool {
    // SAFETY: both descriptions outlive the brand; the function only reads them.
    unsafe { sys::ggml_can_repeat(b.raw(), a.raw()) }
}
