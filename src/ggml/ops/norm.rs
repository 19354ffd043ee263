//! Norms over dim 0.

use super::checks::op;
use crate::graph::{Graph, Tensor};

impl<'g> Graph<'g> {
    /// `a / sqrt(mean(a^2) + eps)` over dim 0. Gives the shape of `a`.
    ///
    /// Source: Zhang & Sennrich 2019, epsilon inside the root as in the reference models.
    pub fn rms_norm(&self, a: Tensor<'g>, eps: f32) -> Tensor<'g> {
        let sound = self.check_f32("rms_norm", "a", a)
            && self.check_elements("rms_norm", "a", a)
            && self.check("rms_norm", eps >= 0.0, || format!("epsilon is {eps}, 0 or more is needed"));
        if !sound {
            return a;
        }
        op!(self, "rms_norm", ggml_rms_norm, a, eps)
    }

    /// `(a - mean(a)) / sqrt(variance(a) + eps)` over dim 0. Gives the shape of `a`.
    ///
    /// Source: Ba et al. 2016.
    pub fn layer_norm(&self, a: Tensor<'g>, eps: f32) -> Tensor<'g> {
        let sound = self.check_f32("layer_norm", "a", a)
            && self.check_elements("layer_norm", "a", a)
            && self.check("layer_norm", eps >= 0.0, || format!("epsilon is {eps}, 0 or more is needed"));
        if !sound {
            return a;
        }
        op!(self, "layer_norm", ggml_norm, a, eps)
    }

    /// `a / sqrt(sum(a^2) + eps)` over dim 0 of `a: [n, ..]`, as the RMS norm with `eps / n`, scaled by `1 / sqrt(n)`.
    ///
    /// ggml's own l2 norm divides by `max(norm, eps)` instead, which differs for short vectors.
    pub fn l2_norm(&self, a: Tensor<'g>, eps: f32) -> Tensor<'g> {
        let n = a.ne()[0] as f32;
        self.scale(self.rms_norm(a, eps / n), 1.0 / n.sqrt())
    }
}
