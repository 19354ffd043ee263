//! Views, copies and look-ups: ops that move elements without changing them.

use super::checks::{ask, can_repeat, n_bytes, op};
use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};

impl<'g> Graph<'g> {
    /// The same elements in another shape; `a` must be contiguous. Unused dimensions are 1.
    pub fn reshape<const N: usize>(&self, a: Tensor<'g>, ne: [i64; N]) -> Tensor<'g> {
        let ne = four(ne);
        let n = ne.iter().try_fold(1i64, |all, &n| all.checked_mul(n).filter(|_| n >= 1));
        let sound = self.check("reshape", n == Some(a.n_elements()) && a.dtype().is_sizeable(ne), || {
            format!("{a:?} does not have the elements of {ne:?}")
        }) && self.check("reshape", ask!(ggml_is_contiguous, a), || format!("{a:?} is not contiguous"));
        if !sound {
            return a;
        }
        op!(self, "reshape", ggml_reshape_4d, a, ne[0], ne[1], ne[2], ne[3])
    }

    /// A window of `a`: shape `ne`, bytes `nb` to the next element of dims 1, 2 and 3, from byte `offset` on; strides and
    /// offset in whole elements (blocks). It has at most the elements that follow `offset` in the tensor under `a`.
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
        let size = a.dtype().block_bytes();
        let whole = nb.iter().chain([&offset]).all(|n| n.is_multiple_of(size));
        let sound = self
            .check("view", sound, || format!("{ne:?} with strides {nb:?} from byte {offset} lies outside {a:?}"))
            && self.check("view", whole, || format!("strides {nb:?} or byte {offset} lie within an element of {a:?}"))
            && self.check("view", a.has_room(ne, offset), || {
                format!("{ne:?} from byte {offset} has more elements than {a:?}")
            });
        if !sound {
            return a;
        }
        op!(self, "view", ggml_view_4d, a, ne[0], ne[1], ne[2], ne[3], nb[0], nb[1], nb[2], offset)
    }

    /// Dimension `i` of `a` becomes dimension `axes[i]` of the result. A view.
    pub fn permute(&self, a: Tensor<'g>, axes: [i32; 4]) -> Tensor<'g> {
        let mut sorted = axes;
        sorted.sort_unstable();
        let whole = axes[0] == 0 || a.dtype().block_size() == 1;
        let sound = self.check("permute", sorted == [0, 1, 2, 3], || format!("axes {axes:?}"))
            && self.check("permute", whole, || format!("the rows of {a:?} are blocks: axes {axes:?} would break them"));
        if !sound {
            return a;
        }
        op!(self, "permute", ggml_permute, a, axes[0], axes[1], axes[2], axes[3])
    }

    /// Dims 0 and 1 exchanged. A view.
    pub fn transpose(&self, a: Tensor<'g>) -> Tensor<'g> {
        if !self.check("transpose", a.dtype().block_size() == 1, || format!("the rows of {a:?} are blocks")) {
            return a;
        }
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
        let mut ne = na;
        if let Some(n) = ne.get_mut(dim) {
            *n = n.saturating_add(nb[dim]);
        }
        let sound = self.check("concat", fits, || format!("`a` {a:?} and `b` {b:?} along dimension {dim}"))
            && self.check_size("concat", a.dtype(), ne)
            && (a.dtype().block_size() == 1
                || (self.check_elements("concat", "a", a) && self.check_elements("concat", "b", b)));
        if !sound {
            return a;
        }
        op!(self, "concat", ggml_concat, a, b.raw(), dim as i32)
    }

    /// `b` repeated to the shape of `like`.
    pub fn repeat(&self, b: Tensor<'g>, like: Tensor<'g>) -> Tensor<'g> {
        let typed = b.dtype().is_float() || b.dtype() == Dtype::I32;
        let sound = self.check("repeat", can_repeat(b, like), || format!("`b` {b:?} does not repeat over {like:?}"))
            && self.check("repeat", typed, || format!("`b` is {}, a float or i32 is needed", b.dtype()))
            && self.check_elements("repeat", "b", b)
            && self.check_size("repeat", b.dtype(), like.ne());
        if !sound {
            return b;
        }
        op!(self, "repeat", ggml_repeat, b, like.raw())
    }

    /// `a` repeated to the shape `ne`, each dimension a multiple of `a`'s.
    pub fn repeat_to(&self, a: Tensor<'g>, ne: [i64; 4]) -> Tensor<'g> {
        let fits = ne.iter().zip(a.ne()).all(|(&to, from)| to > 0 && from > 0 && to % from == 0);
        let typed = a.dtype().is_float() || a.dtype() == Dtype::I32;
        let sound = self.check("repeat_to", fits, || format!("`a` {a:?} does not repeat to {ne:?}"))
            && self.check("repeat_to", typed, || format!("`a` is {}, a float or i32 is needed", a.dtype()))
            && self.check_elements("repeat_to", "a", a)
            && self.check_size("repeat_to", a.dtype(), ne);
        if !sound {
            return a;
        }
        op!(self, "repeat_to", ggml_repeat_4d, a, ne[0], ne[1], ne[2], ne[3])
    }

    /// Rows of `a: [n, n_rows]` by `ids: [n_ids]` (i32, below `n_rows`) as F32 `[n, n_ids]` (i32 rows stay i32).
    /// Ids that are an input are checked on every run; ids that the graph computes are put into range ([`Graph::within`])
    /// unless the op that gives them keeps them there.
    pub fn get_rows(&self, a: Tensor<'g>, ids: Tensor<'g>) -> Tensor<'g> {
        let (na, ni) = (a.ne(), ids.ne());
        let fits = na[2] == ni[1] && na[3] == ni[2] && ni[3] == 1 && ids.dtype() == Dtype::I32;
        let typed = a.dtype() == Dtype::I32 || a.dtype().unpacks();
        let sound = self.check("get_rows", fits, || format!("`ids` {ids:?} do not fit `a` {na:?}"))
            && self.check("get_rows", typed && a.dtype() != Dtype::Q8_K, || {
                format!("rows of {} cannot be read", a.dtype())
            })
            && self.check_elements("get_rows", "a", a)
            && self.check_size("get_rows", Dtype::F32, [na[0], ni[0], ni[1], ni[2]]);
        if !sound {
            return a;
        }
        let ids = self.bounded("get_rows", ids, na[1]);
        op!(self, "get_rows", ggml_get_rows, a, ids.raw())
    }

    /// Writes rows `from: [n, n_ids]` (F32) over the rows `ids: [n_ids]` (i64 or i32) of `into: [n, n_rows]`, converting
    /// to its type. Gives a view of `into`, which is no weight; pass it to [`Graph::keep`]. Ids are checked as for
    /// [`Graph::get_rows`].
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
        let sound = self
            .check("set_rows", fits && types, || format!("`from` {from:?}, `ids` {ids:?} do not fit `into` {into:?}"))
            && self.check("set_rows", into.dtype().packs(), || format!("rows of {} cannot be written", into.dtype()))
            && self.check_elements("set_rows", "into", into)
            && self.check_elements("set_rows", "from", from)
            && self.check_writable("set_rows", "into", into);
        if !sound {
            return into;
        }
        let ids = self.bounded("set_rows", ids, na[1]);
        op!(self, "set_rows", ggml_set_rows, into, from.raw(), ids.raw())
    }

    /// Copies `from` over `into`, element by element in memory order, converting the type: between floats, floats to and
    /// from blocks, F32 to and from i32. Gives a view of `into`, which is no weight; pass it to [`Graph::keep`].
    pub fn cpy(&self, from: Tensor<'g>, into: Tensor<'g>) -> Tensor<'g> {
        let sound = self
            .check("cpy", from.n_elements() == into.n_elements(), || format!("`from` {from:?}, `into` {into:?}"))
            && self
                .check("cpy", copies(from, into), || format!("`from` {from:?} cannot be copied over `into` {into:?}"))
            && self.check_writable("cpy", "into", into);
        if !sound {
            return into;
        }
        op!(self, "cpy", ggml_cpy, from, into.raw())
    }

    /// A contiguous copy of another type; see [`Graph::cpy`].
    pub fn cast(&self, a: Tensor<'g>, dtype: Dtype) -> Tensor<'g> {
        let rows = a.dtype().block_size() == 1 && dtype.block_size() == 1;
        let sound = self.check("cast", converts(a.dtype(), dtype), || format!("{a:?} cannot become {dtype}"))
            && (rows || self.check_elements("cast", "a", a))
            && self.check_size("cast", dtype, a.ne());
        if !sound {
            return a;
        }
        op!(self, "cast", ggml_cast, a, dtype.raw())
    }

    /// The index of the largest element of each row: `[n, n_rows]` to i32 `[n_rows]`. A row of NaN or minus infinities has
    /// none: there it may be -1 or any other number, and [`Graph::picked`] gives no finite value.
    pub fn argmax(&self, a: Tensor<'g>) -> Tensor<'g> {
        let ne = a.ne();
        let fits = ne[2] == 1 && ne[3] == 1 && ne[0] <= i64::from(i32::MAX);
        let sound = self.check("argmax", fits, || format!("{a:?} is not a matrix"))
            && self.check_f32("argmax", "a", a)
            && self.check_elements("argmax", "a", a);
        if !sound {
            return a;
        }
        op!(self, "argmax", ggml_argmax, a)
    }

    /// One element of each row: of `a: [n, n_rows]` those at `ids: [n_rows]` (i32), as F32 `[n_rows]`.
    pub fn picked(&self, a: Tensor<'g>, ids: Tensor<'g>) -> Tensor<'g> {
        let [n, n_rows, ..] = a.ne();
        let picked = self.get_rows(self.reshape(a, [1, n, n_rows]), self.reshape(ids, [1, n_rows])); // [1, 1, n_rows]
        self.reshape(picked, [n_rows])
    }

    /// [`Graph::argmax`] of long rows in two steps, so that many processors share a row: `[n, n_rows]` to i32 `[n_rows, 2]`, the
    /// part of `n / n_parts` elements that holds the largest element, and its place there; and to these elements,
    /// `[n_rows]`.
    pub fn argmax_by_parts(&self, a: Tensor<'g>, n_parts: i64) -> (Tensor<'g>, Tensor<'g>) {
        let [n, n_rows, ..] = a.ne();
        let fits = n_parts > 0 && n % n_parts == 0;
        let sound = self.check("argmax_by_parts", fits, || format!("{n_parts} parts of {a:?}"))
            && self.check_elements("argmax_by_parts", "a", a);
        if !sound {
            return (a, a);
        }
        let (n_each, n_all) = (n / n_parts, n_parts * n_rows);
        let parts = self.reshape(a, [n_each, n_all]);
        let places = self.within(self.argmax(parts), n_each); // [n_parts * n_rows]
        let values = self.reshape(self.picked(parts, places), [n_parts, n_rows]); // was [n_parts * n_rows]
        let part = self.within(self.argmax(values), n_parts); // [n_rows]
        let rows = self.reshape(places, [1, n_parts, n_rows]);
        let place = self.get_rows(rows, self.reshape(part, [1, n_rows])); // [1, 1, n_rows]
        let both = self.concat(self.reshape(part, [n_rows, 1]), self.reshape(place, [n_rows, 1]), 1);
        (both, self.picked(values, part))
    }

    /// The indices of the `k` largest elements of each row, largest first: `[n, n_rows]` to i32 `[k, n_rows]`, a view.
    pub fn top_k(&self, a: Tensor<'g>, k: i64) -> Tensor<'g> {
        let sound = self.check_f32("top_k", "a", a)
            && self.check("top_k", k >= 1 && k <= a.ne()[0] && a.ne()[0] <= i64::from(i32::MAX), || {
                format!("{k} of {a:?}")
            })
            && self.check_elements("top_k", "a", a)
            && self.check("top_k", ask!(ggml_is_contiguous_1, a), || {
                format!("the rows of `a` {a:?} do not follow each other")
            });
        if !sound {
            return a;
        }
        let ids = op!(self, "top_k", ggml_argsort_top_k, a, k as i32);
        self.made_below(ids, a.ne()[0]);
        ids
    }

    /// The `k` largest elements of each row, in no order: `[n, n_rows]` to their indices, i32 `[k, n_rows]`, and themselves,
    /// F32 `[k, n_rows]`. Which of several equal ones are left out is up to the device. Does not sort the rest of a row.
    pub fn largest(&self, a: Tensor<'g>, k: i64) -> (Tensor<'g>, Tensor<'g>) {
        let [n, n_rows, n_2, n_3] = a.ne();
        let fits = k >= 1 && k <= n && n <= i64::from(i32::MAX) && n_2 == 1 && n_3 == 1;
        let sound = self.check_f32("largest", "a", a)
            && self.check("largest", fits, || format!("{k} of {a:?}"))
            && self.check_elements("largest", "a", a)
            && self.check("largest", ask!(ggml_is_contiguous, a), || format!("`a` {a:?} is not contiguous"));
        if !sound {
            return (a, a);
        }
        let ids = op!(self, "largest", ggml_top_k, a, k as i32);
        self.made_below(ids, n);
        let values = self.get_rows(self.reshape(a, [1, n, n_rows]), ids); // [1, k, n_rows]
        (ids, self.reshape(values, [k, n_rows]))
    }
}

/// True when ggml converts elements of `from` to `into`.
fn converts(from: Dtype, into: Dtype) -> bool {
    from == into
        || (from.is_float() && (into.is_float() || into.packs()))
        || (from.unpacks() && into == Dtype::F32)
        || (from == Dtype::F32 && into == Dtype::I32)
        || (from == Dtype::I32 && into == Dtype::F32)
}

/// True when ggml copies `from` over `into`, which have as many elements. Blocks are copied whole: ggml wants rows that
/// match, and its copy of blocks between other shapes writes past the end.
fn copies(from: Tensor<'_>, into: Tensor<'_>) -> bool {
    let (packed, unpacked) = (from.dtype().block_size() as i64, into.dtype().block_size() as i64);
    let rows = |t: Tensor<'_>| t.nb()[0] == t.dtype().block_bytes();
    converts(from.dtype(), into.dtype())
        && match (packed > 1, unpacked > 1) {
            (false, false) => true,
            (true, true) => {
                (from.ne() == into.ne() && rows(from) && rows(into))
                    || (ask!(ggml_is_contiguous, from) && ask!(ggml_is_contiguous, into))
            }
            (false, true) => rows(from) && ask!(ggml_is_contiguous, into) && from.ne()[0] % unpacked == 0,
            (true, false) => {
                rows(from)
                    && rows(into)
                    && (into.ne()[0] % packed == 0 || ask!(ggml_is_contiguous, into))
                    && from.n_elements() <= i64::from(u32::MAX)
            }
        }
}

fn four<const N: usize>(ne: [i64; N]) -> [i64; 4] {
    let mut four = [1; 4];
    four[..N].copy_from_slice(&ne);
    four
}
