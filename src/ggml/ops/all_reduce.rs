//! Sums over the ranks of a model.

use super::checks::ask;
use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};

impl<'g> Graph<'g> {
    /// The sum of `x`, F32, over all ranks that compute the model together, with the same bits on each; `x` itself where one
    /// device computes alone. Every rank's graph has as many of them, in the same order and of the same shapes. On CUDA a kernel of
    /// ours serves, on CPUs `kernels::all_reduce`.
    pub fn all_reduce(&self, x: Tensor<'g>) -> Tensor<'g> {
        const OP: &str = "all_reduce";
        let Some([group, rank, _]) = self.rank_numbers() else { return x };
        if !self.check_f32(OP, "x", x) {
            return x;
        }
        let x = if ask!(ggml_is_contiguous, x) { x } else { self.cont(x) };
        self.custom_of(OP, Dtype::F32, x.ne(), &[x], kernels::all_reduce, &[kernels::ALL_REDUCE, group, rank])
    }

    /// The rows of `x: [n, ..]`, F32, of all ranks that compute the model together: `each` rows of the first, `each` of the second and
    /// so on, and again, which is `[n_ranks * n, ..]`; `x` itself where one device computes alone. As [`Graph::all_reduce`].
    pub fn all_gather(&self, x: Tensor<'g>, each: usize) -> Tensor<'g> {
        const OP: &str = "all_gather";
        let Some([group, rank, n_ranks]) = self.rank_numbers() else { return x };
        let [n, n1, n2, n3] = x.ne();
        let whole = each > 0 && usize::try_from(n).is_ok_and(|n| n.is_multiple_of(each));
        let Some(each) = i32::try_from(each).ok().filter(|_| whole) else {
            return self.fail(OP, format!("{n} rows are no multiple of {each}"));
        };
        if !self.check_f32(OP, "x", x) {
            return x;
        }
        let x = if ask!(ggml_is_contiguous, x) { x } else { self.cont(x) };
        let ne = [n * i64::from(n_ranks), n1, n2, n3];
        self.custom_of(OP, Dtype::F32, ne, &[x], kernels::all_gather, &[kernels::ALL_GATHER, group, rank, each])
    }
}
