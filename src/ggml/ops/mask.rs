//! Masks of attention, made where they are read.

use super::checks::ask;
use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};

impl<'g> Graph<'g> {
    /// The additive mask F16 `[n_cells, n_rows, 1, n_seqs]` of rows that see the cells from one to before another:
    /// `spans: [2, n_rows, n_seqs]` I32, contiguous. On CUDA a kernel of ours serves ([`crate::Device::makes_masks`]), elsewhere
    /// the CPU.
    pub fn mask_of_spans(&self, spans: Tensor<'g>, n_cells: i64) -> Tensor<'g> {
        const OP: &str = "mask_of_spans";
        let [n, n_rows, n_seqs, more] = spans.ne();
        let fits = n == 2 && more == 1 && n_cells > 0 && spans.dtype() == Dtype::I32;
        let sound = self.check(OP, fits, || format!("{spans:?} are no spans of {n_cells} cells"))
            && self.check(OP, ask!(ggml_is_contiguous, spans), || "not contiguous".into());
        if !sound {
            return spans;
        }
        let ne = [n_cells, n_rows, 1, n_seqs];
        self.custom_of(OP, Dtype::F16, ne, &[spans], kernels::mask_of_spans, &[kernels::MASK_OF_SPANS])
    }
}
