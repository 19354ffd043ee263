//! Matrix products. ggml's convention: a weight `[n_in, n_out]` times `[n_in, n_rows]` gives `[n_out, n_rows]`.

use super::{ask, op};
use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};

impl<'g> Graph<'g> {
    /// `a: [k, m, n2, n3]` times `b: [k, n, ..]` gives `[m, n, ..]`; `a` is repeated over dims 2 and 3 of `b`.
    pub fn mul_mat(&self, a: Tensor<'g>, b: Tensor<'g>) -> Tensor<'g> {
        let (na, nb) = (a.ne(), b.ne());
        let fits = na[0] == nb[0] && nb[2] % na[2] == 0 && nb[3] % na[3] == 0;
        let sound = self.check("mul_mat", fits, || format!("`a` {na:?} does not fit `b` {nb:?}"))
            && self.check("mul_mat", !ask!(ggml_is_transposed, a), || format!("`a` {a:?} is transposed"))
            && self.check("mul_mat", b.nb()[0] == 4 || b.dtype() != Dtype::F32, || {
                format!("the elements of `b` {b:?} do not follow each other")
            });
        if !sound {
            return b;
        }
        let by_kernel = self.kernel_product(a, b);
        by_kernel.unwrap_or_else(|| op!(self, "mul_mat", ggml_mul_mat, a, b.raw()))
    }

    /// One matrix of `experts: [k, m, n_expert]` for each id: `b: [k, n_used or 1, n_tokens]`, `ids: [n_used, n_tokens]`
    /// (i32, below `n_expert`) gives `[m, n_used, n_tokens]`.
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
            && self
                .check("mul_mat_id", !ask!(ggml_is_transposed, experts), || format!("`experts` {ne:?} are transposed"));
        if !sound {
            return b;
        }
        op!(self, "mul_mat_id", ggml_mul_mat_id, experts, b.raw(), ids.raw())
    }
}
