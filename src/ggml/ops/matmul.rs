//! Matrix products. ggml's convention: a weight `[n_in, n_out]` times `[n_in, n_rows]` gives `[n_out, n_rows]`.

use super::checks::{ask, op};
use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};

impl<'g> Graph<'g> {
    /// `a: [k, m, n2, n3]` times `b: [k, n, ..]` gives `[m, n, ..]`; `a` is repeated over dims 2 and 3 of `b`.
    pub fn mul_mat(&self, a: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
        let (na, nb) = (a.ne(), b.ne());
        let fits = na[0] == nb[0] && nb[2] % na[2] == 0 && nb[3] % na[3] == 0;
        let sound = self.check("mul_mat", fits, || format!("`a` {na:?} does not fit `b` {nb:?}"))
            && self.is_matrix("mul_mat", "a", a)
            && self.check_float("mul_mat", "b", b)
            && self.check_elements("mul_mat", "b", b)
            && self.check_size("mul_mat", Dtype::F32, [na[1], nb[1], nb[2], nb[3]]);
        if !sound {
            return b;
        }
        let by_kernel = self.kernel_product(a, b);
        by_kernel.unwrap_or_else(|| op!(self, "mul_mat", ggml_mul_mat, a, b.raw()))
    }

    /// The Walsh-Hadamard transform, scaled to keep lengths, of each run of `n` elements: `h: [n, n]` is its matrix, F32, and
    /// `x: [n, ..]` F32; gives the shape of `x`. It is its own inverse. Devices that know the matrix by the hint do not read
    /// it. Source: Sylvester's construction.
    pub fn hadamard(&self, h: Tensor<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let (nh, nx) = (h.ne(), x.ne());
        let fits = nh[0] == nh[1] && nh[2..] == [1, 1] && nh[0] == nx[0] && nh[0].count_ones() == 1;
        let sound = self.check("hadamard", fits, || format!("`h` {nh:?} does not fit `x` {nx:?}"))
            && self.check_f32("hadamard", "h", h)
            && self.check_f32("hadamard", "x", x)
            && self.check_elements("hadamard", "h", h)
            && self.check_elements("hadamard", "x", x);
        if !sound {
            return x;
        }
        let y = op!(self, "hadamard", ggml_mul_mat, h, x.raw());
        if self.ok() {
            // SAFETY: `y` is the product that was just made.
            unsafe { ggml_sys::ggml_mul_mat_set_hint(y.raw(), ggml_sys::GGML_HINT_SRC0_IS_HADAMARD) };
        }
        y
    }

    /// One matrix of `experts: [k, m, n_expert]` for each id: `b: [k, n_used or 1, n_tokens]`, `ids: [n_used, n_tokens]`
    /// (i32, below `n_expert`) gives `[m, n_used, n_tokens]`. Ids outside are kept away as by [`Graph::get_rows`]; those of
    /// [`Graph::ids_without_copies`] may stand for no expert, and give zeros.
    pub fn mul_mat_id(&self, experts: Tensor<'g>, b: Tensor<'g>, ids: Tensor<'g>) -> Tensor<'g> {
        let (ne, nb, ni) = (experts.ne(), b.ne(), ids.ne());
        let fits = ne[0] == nb[0]
            && ne[3] == 1
            && nb[3] == 1
            && ni[2] == 1
            && ni[3] == 1
            && ni[1] == nb[2]
            && ni[0] % nb[1] == 0
            && ids.dtype() == Dtype::I32;
        let sound = self
            .check("mul_mat_id", fits, || format!("`experts` {ne:?}, `b` {nb:?}, `ids` {ids:?} do not fit"))
            && self.is_matrix("mul_mat_id", "experts", experts)
            && self.check_f32("mul_mat_id", "b", b)
            && self.check_elements("mul_mat_id", "b", b)
            && self.check_size("mul_mat_id", Dtype::F32, [ne[1], ni[0], nb[2], 1]);
        if !sound {
            return b;
        }
        let partial = self.ids.borrow().partial.contains(&ids.base_ptr());
        let ids = if partial { ids } else { self.bounded("mul_mat_id", ids, ne[2]) };
        let by_kernel = self.kernel_experts(experts, b, ids);
        if partial && by_kernel.is_none() {
            return self.fail("mul_mat_id", format!("no kernel leaves columns of {b:?} with {experts:?} out"));
        }
        by_kernel.unwrap_or_else(|| op!(self, "mul_mat_id", ggml_mul_mat_id, experts, b.raw(), ids.raw()))
    }

    /// Each matrix of `heads: [k, m, n_head]` times the column of its number of each token: `b: [k, n_head, n_tokens]` gives
    /// `[m, n_head, n_tokens]`, contiguous.
    pub fn mul_mat_by_head(&self, heads: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
        let (nh, nb) = (heads.ne(), b.ne());
        let fits = nh[0] == nb[0] && nh[2] == nb[1] && nh[3] == 1 && nb[3] == 1;
        let sound = self.check("mul_mat_by_head", fits, || format!("`heads` {nh:?} do not fit `b` {nb:?}"))
            && self.is_matrix("mul_mat_by_head", "heads", heads)
            && self.check_f32("mul_mat_by_head", "b", b)
            && self.check_elements("mul_mat_by_head", "b", b)
            && self.check_size("mul_mat_by_head", Dtype::F32, [nh[1], nb[1], nb[2], 1]);
        if !sound {
            return b;
        }
        self.kernel_heads(heads, b).unwrap_or_else(|| {
            let y = self.mul_mat(heads, self.permute(b, [0, 2, 1, 3])); // [m, n_tokens, n_head]
            self.cont(self.permute(y, [0, 2, 1, 3]))
        })
    }

    /// `a: [n, n_used, n_tokens]` plus one row of `rows: [n, n_rows]` for each id, both F32; `ids: [n_used, n_tokens]` (i32, below
    /// `n_rows`). Ids outside are kept away as by [`Graph::get_rows`].
    pub fn add_id(&self, a: Tensor<'g>, rows: Tensor<'g>, ids: Tensor<'g>) -> Tensor<'g> {
        let (na, nr, ni) = (a.ne(), rows.ne(), ids.ne());
        let fits = na[0] == nr[0]
            && nr[2..] == [1, 1]
            && na[1..] == [ni[0], ni[1], 1]
            && ni[2..] == [1, 1]
            && ids.dtype() == Dtype::I32;
        let sound = self.check("add_id", fits, || format!("`a` {na:?}, `rows` {nr:?}, `ids` {ids:?} do not fit"))
            && self.check_f32("add_id", "a", a)
            && self.check_f32("add_id", "rows", rows)
            && self.check_elements("add_id", "a", a)
            && self.check_elements("add_id", "rows", rows);
        if !sound {
            return a;
        }
        let ids = self.bounded("add_id", ids, nr[1]);
        op!(self, "add_id", ggml_add_id, a, rows.raw(), ids.raw())
    }

    fn is_matrix(&self, op: &'static str, name: &str, a: Tensor<'g>) -> bool {
        self.check(op, a.dtype().multiplies(), || format!("`{name}` is {}, which has no products", a.dtype()))
            && self.check_elements(op, name, a)
            && self.check(op, !ask!(ggml_is_transposed, a), || format!("`{name}` {a:?} is transposed"))
    }
}
