//! Views, copies and look-ups: ops that move elements without changing them.

use super::{ask, can_repeat, n_bytes, op};
use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};

impl<'g> Graph<'g> {
    /// The same elements in another shape; `a` must be contiguous. Unused dimensions are 1.
    pub fn reshape<const N: usize>(&self, a: Tensor<'g>, ne: [i64; N]) -> Tensor<'g> {
        let ne = four(ne);
        let sound = self.check("reshape", ne.iter().product::<i64>() == a.n_elements(), || {
            format!("{a:?} does not have the elements of {ne:?}")
        }) && self.check("reshape", ask!(ggml_is_contiguous, a), || format!("{a:?} is not contiguous"));
        if !sound {
            return a;
        }
        op!(self, "reshape", ggml_reshape_4d, a, ne[0], ne[1], ne[2], ne[3])
    }

    /// A window of `a`: shape `ne`, bytes `nb` to the next element of dims 1, 2 and 3, from byte `offset` on.
    pub fn view(&self, a: Tensor<'g>, ne: [i64; 4], nb: [usize; 3], offset: usize) -> Tensor<'g> {
        let row = a.dtype().row_bytes(ne[0]);
        let last = row.ok().and_then(|row| {
            (1..4).try_fold(row, |end, d| {
                let steps = usize::try_from(ne[d] - 1).ok()?;
                steps.checked_mul(nb[d - 1]).and_then(|n| n.checked_add(end))
            })
        });
        let end = last.and_then(|n| n.checked_add(offset));
        let sound = ne.iter().all(|&n| n >= 1) && end.is_some_and(|end| end <= n_bytes(a));
        if !self.check("view", sound, || format!("{ne:?} with strides {nb:?} from byte {offset} lies outside {a:?}")) {
            return a;
        }
        op!(self, "view", ggml_view_4d, a, ne[0], ne[1], ne[2], ne[3], nb[0], nb[1], nb[2], offset)
    }

    /// Dimension `i` of `a` becomes dimension `axes[i]` of the result. A view.
    pub fn permute(&self, a: Tensor<'g>, axes: [i32; 4]) -> Tensor<'g> {
        let mut sorted = axes;
        sorted.sort_unstable();
        if !self.check("permute", sorted == [0, 1, 2, 3], || format!("axes {axes:?}")) {
            return a;
        }
        op!(self, "permute", ggml_permute, a, axes[0], axes[1], axes[2], axes[3])
    }

    /// Dims 0 and 1 exchanged. A view.
    pub fn transpose(&self, a: Tensor<'g>) -> Tensor<'g> {
        op!(self, "transpose", ggml_transpose, a)
    }

    /// A contiguous copy.
    pub fn cont(&self, a: Tensor<'g>) -> Tensor<'g> {
        op!(self, "cont", ggml_cont, a)
    }

    /// `a` then `b` along `dim`.
    pub fn concat(&self, a: Tensor<'g>, b: Tensor<'g>, dim: usize) -> Tensor<'g> {
        let (na, nb) = (a.ne(), b.ne());
        let fits = dim < 4 && a.dtype() == b.dtype() && (0..4).all(|d| d == dim || na[d] == nb[d]);
        if !self.check("concat", fits, || format!("`a` {a:?} and `b` {b:?} along dimension {dim}")) {
            return a;
        }
        op!(self, "concat", ggml_concat, a, b.raw(), dim as i32)
    }

    /// `b` repeated to the shape of `like`.
    pub fn repeat(&self, b: Tensor<'g>, like: Tensor<'g>) -> Tensor<'g> {
        if !self.check("repeat", can_repeat(b, like), || format!("{b:?} does not repeat over {like:?}")) {
            return b;
        }
        op!(self, "repeat", ggml_repeat, b, like.raw())
    }

    /// Rows of `a: [n, n_rows]` by `ids: [n_ids]` (i32, below `n_rows`) as F32 `[n, n_ids]` (i32 rows stay i32).
    pub fn get_rows(&self, a: Tensor<'g>, ids: Tensor<'g>) -> Tensor<'g> {
        let (na, ni) = (a.ne(), ids.ne());
        let fits = na[2] == ni[1] && na[3] == ni[2] && ni[3] == 1 && ids.dtype() == Dtype::I32;
        if !self.check("get_rows", fits, || format!("`ids` {ids:?} do not fit `a` {na:?}")) {
            return a;
        }
        op!(self, "get_rows", ggml_get_rows, a, ids.raw())
    }

    /// Writes rows `from: [n, n_ids]` (F32) over the rows `ids: [n_ids]` (i64 or i32) of `into: [n, n_rows]`, converting
    /// to its type. Gives a view of `into`; pass it to [`Graph::keep`].
    pub fn set_rows(&self, into: Tensor<'g>, from: Tensor<'g>, ids: Tensor<'g>) -> Tensor<'g> {
        let (na, nb, nc) = (into.ne(), from.ne(), ids.ne());
        let fits = na[0] == nb[0]
            && na[2] == nb[2]
            && na[3] == nb[3]
            && nb[1] == nc[0]
            && nb[2] % nc[1] == 0
            && nb[3] % nc[2] == 0
            && nc[3] == 1;
        let types = from.dtype() == Dtype::F32 && matches!(ids.dtype(), Dtype::I64 | Dtype::I32);
        let rows = ask!(ggml_is_contiguous_rows, into) && ask!(ggml_is_contiguous_rows, from);
        let sound = self.check("set_rows", fits && types && rows, || {
            format!("`from` {from:?}, `ids` {ids:?} do not fit `into` {into:?}")
        });
        if !sound {
            return into;
        }
        op!(self, "set_rows", ggml_set_rows, into, from.raw(), ids.raw())
    }

    /// Copies `from` over `into`, element by element in memory order, converting the type. Gives a view of `into`; pass
    /// it to [`Graph::keep`].
    pub fn cpy(&self, from: Tensor<'g>, into: Tensor<'g>) -> Tensor<'g> {
        if !self.check("cpy", from.n_elements() == into.n_elements(), || format!("`from` {from:?}, `into` {into:?}")) {
            return into;
        }
        op!(self, "cpy", ggml_cpy, from, into.raw())
    }

    /// A copy of another type.
    pub fn cast(&self, a: Tensor<'g>, dtype: Dtype) -> Tensor<'g> {
        op!(self, "cast", ggml_cast, a, dtype.raw())
    }

    /// The index of the largest element of each row: `[n, n_rows]` to i32 `[n_rows]`.
    pub fn argmax(&self, a: Tensor<'g>) -> Tensor<'g> {
        let ne = a.ne();
        if !self.check("argmax", ne[2] == 1 && ne[3] == 1, || format!("{a:?} is not a matrix")) {
            return a;
        }
        op!(self, "argmax", ggml_argmax, a)
    }

    /// The indices of the `k` largest elements of each row, largest first: `[n, n_rows]` to i32 `[k, n_rows]`, a view.
    pub fn top_k(&self, a: Tensor<'g>, k: i64) -> Tensor<'g> {
        let sound = self.check_f32("top_k", "a", a)
            && self.check("top_k", k >= 1 && k <= a.ne()[0], || format!("{k} of {a:?}"));
        if !sound {
            return a;
        }
        op!(self, "top_k", ggml_argsort_top_k, a, k as i32)
    }
}

fn four<const N: usize>(ne: [i64; N]) -> [i64; 4] {
    let mut four = [1; 4];
    four[..N].copy_from_slice(&ne);
    four
}
