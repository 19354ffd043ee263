//! Products by the kernels of the crate `kernels`, where they serve the operands. What they promise: `batch_invariance.rs`.

use kernels::{ActivationFormat, Isa, NodeFn, Shape, WeightType};

use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};

/// The instruction set of the kernels on this CPU, by the name that `NEXTN_KERNELS` takes; `off` where ggml computes.
pub fn kernels_in_use() -> String {
    Isa::chosen().map_or_else(|| "off".to_owned(), |isa| format!("{isa:?}").to_lowercase())
}

impl<'g> Graph<'g> {
    /// `mul_mat(a, b)` by a kernel, if there is one for these operands; they fit each other (checked by the caller).
    pub(super) fn kernel_product(&self, a: Tensor<'g>, b: Tensor<'g>) -> Option<Tensor<'g>> {
        let (na, nb) = (a.ne(), b.ne());
        let ty = self.kernel_for(a)?;
        let one_matrix = na[2] == 1 && na[3] == 1 && nb[2] == 1 && nb[3] == 1 && nb[1] <= ty.max_columns(na[0] * na[1]);
        let quantised = one_matrix.then(|| self.quantised(ty.format(), b))??;
        let args = self.with_joined([a, quantised, b]);
        Some(self.custom("mul_mat", Dtype::F32, [na[1], nb[1], 1, 1], &args, kernels::product))
    }

    /// `mul_mat_id(experts, b, ids)` by a kernel, likewise.
    pub(super) fn kernel_experts(&self, experts: Tensor<'g>, b: Tensor<'g>, ids: Tensor<'g>) -> Option<Tensor<'g>> {
        let (ne, ni) = (experts.ne(), ids.ne());
        let ty = self.kernel_for(experts)?;
        let served = self.kernel_takes_experts(experts, ids);
        let quantised = served.then(|| self.quantised(ty.format(), b))??;
        let args = self.with_joined([experts, quantised, ids, b]);
        Some(self.custom("mul_mat_id", Dtype::F32, [ne[1], ni[0], ni[1], 1], &args, kernels::expert_products))
    }

    /// True when a kernel multiplies with these experts for `ids: [n_used, n_tokens]`.
    pub(super) fn kernel_takes_experts(&self, experts: Tensor<'g>, ids: Tensor<'g>) -> bool {
        let (ne, ni) = (experts.ne(), ids.ne());
        let Some(ty) = self.kernel_for(experts) else { return false };
        // What each expert's matrix is multiplied with, were all chosen alike.
        let of_each = (ni[0] * ni[1] + ne[2] - 1) / ne[2].max(1);
        let even = experts.nb()[2] == experts.nb()[1] * ne[1] as usize;
        even && of_each.min(ni[1]) <= ty.max_columns(ne[0] * ne[1] * ne[2])
    }

    /// `mul_mat_by_head(heads, b)` by a kernel, likewise.
    pub(super) fn kernel_heads(&self, heads: Tensor<'g>, b: Tensor<'g>) -> Option<Tensor<'g>> {
        let (nh, nb) = (heads.ne(), b.ne());
        let ty = self.kernel_for(heads)?;
        let few = nb[2] <= ty.max_columns(nh[0] * nh[1] * nh[2]);
        let even = heads.nb()[2] == heads.nb()[1] * nh[1] as usize;
        let quantised = (even && few).then(|| self.quantised(ty.format(), b))??;
        let args = self.with_joined([heads, quantised, b]);
        Some(self.custom("mul_mat_by_head", Dtype::F32, [nh[1], nb[1], nb[2], 1], &args, kernels::head_products))
    }

    /// The operands of a product, and behind them the weight, which is the first of them, with its rows joined, if there is such a
    /// copy of it, or of the weight whose first rows it is.
    fn with_joined<const N: usize>(&self, args: [Tensor<'g>; N]) -> Vec<Tensor<'g>> {
        let a = args[0];
        let (ne, nb) = (a.ne(), a.nb());
        let joined = self.with_weights(|weights| weights.joined(a.base_ptr())).map(|joined| self.placed(joined));
        let alike = |joined: &Tensor<'g>| joined.ne()[0] == ne[0] && a.view_offset() == 0;
        let joined = joined.filter(alike).and_then(|joined| match joined.ne() == ne {
            true => Some(joined),
            false if ne[1] % kernels::JOINED_ROWS as i64 == 0 && ne[2..] == [1, 1] => {
                Some(self.view(joined, ne, [nb[1], nb[2], nb[3]], 0))
            }
            false => None,
        });
        args.into_iter().chain(joined).collect()
    }

    /// True when `mul_mat` with this weight may be given a token alone: it has the bits that it has among up to eight
    /// (quantised weights, and floats where there are kernels for them), or bits are not in our hands (on a GPU).
    pub fn row_may_stand_alone(&self, w: Tensor<'g>) -> bool {
        w.dtype().is_quantized() || self.kernel_for(w).is_some() || !w.lies_on_host()
    }

    /// True when the device of this weight, which is no CPU, gives each token the bits that it has alone in up to so many.
    pub fn device_keeps_rows(&self, w: Tensor<'g>, n: usize) -> bool {
        w.device().and_then(|d| d.columns_alike(w.dtype(), w.ne())).is_some_and(|most| n <= most)
    }

    /// The type of the weight `a`, if kernels serve it.
    fn kernel_for(&self, a: Tensor<'g>) -> Option<WeightType> {
        let ty = WeightType::of(a.dtype().raw())?;
        let k = usize::try_from(a.ne()[0]).ok()?;
        let served = a.lies_on_host()
            && k.is_multiple_of(ty.format().block())
            && a.nb()[1] == ty.row_bytes(k)
            && !a.is_repacked()
            // The KV cache stays with ggml for any number of tokens: its products are of one class from 2 tokens on.
            && (ty.format() != ActivationFormat::F32 || a.is_weight())
            && Isa::chosen().is_some();
        served.then_some(ty)
    }

    /// The columns of `b` quantised, in a node that all products with them share; `None` for columns that kernels do not
    /// read.
    fn quantised(&self, format: ActivationFormat, b: Tensor<'g>) -> Option<Tensor<'g>> {
        let (ne, nb) = (b.ne(), b.nb());
        let n = usize::try_from(ne[1] * ne[2] * ne[3]).ok()?;
        let even = (ne[2] == 1 || nb[2] == nb[1] * ne[1] as usize) && ne[3] == 1;
        if b.dtype() != Dtype::F32 || nb[0] != 4 || !even {
            return None;
        }
        let (purpose, fun): (_, NodeFn) = match format {
            ActivationFormat::F32 => return Some(b),
            ActivationFormat::Q8_0 => ("activations for Q8_0", kernels::quantise_for_q8_0),
            ActivationFormat::Q8K => ("activations for K types", kernels::quantise_for_k_types),
        };
        let words = Shape { n, k: usize::try_from(ne[0]).ok()?, format }.n_bytes().div_ceil(4) as i64;
        Some(self.once_for(b, purpose, || self.custom("mul_mat", Dtype::F32, [words, 1, 1, 1], &[b], fun)))
    }
}
