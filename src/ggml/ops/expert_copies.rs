//! Experts of whom some have copies on another device (`expert_cache.rs`): ids for either device.

use kernels::Isa;

use crate::graph::{Graph, Tensor};
use crate::weight_tensor::WeightId;

/// Tokens up to which every backend multiplies with the expert of each id by itself.
const BY_ID: i64 = 8;

/// Ids of a pass at most: CUDA's backend sorts them in memory that a few thousand blocks of threads share.
const MAX_IDS: i64 = 16 << 10;

/// What of a layer's experts has copies.
#[derive(Clone, Copy)]
pub struct ExpertCopies<'g> {
    n_copies: i64,
    /// i32 `[1, n_expert]`, where the copies lie.
    numbers_there: Tensor<'g>,
    /// i32 `[n_expert]` and `[n_expert + 1]`, in the host's memory.
    numbers: Tensor<'g>,
    counts: Tensor<'g>,
}

impl<'g> Graph<'g> {
    /// The copies of the layer that the experts `of` are of, for tokens that go to `ids: [n_used, n_tokens]`; `None` where it has
    /// none, or where the kernels on either side do not take so many tokens.
    pub fn expert_copies(&self, of: WeightId, ids: Tensor<'g>) -> Option<ExpertCopies<'g>> {
        Isa::chosen().filter(|_| ids.n_elements() <= MAX_IDS)?;
        let (tables, n_copies, tensors) = self.with_weights(|weights| {
            let layer = weights.expert_cache().layer_of(of)?;
            Some((layer.tables(), layer.n_copies() as i64, layer.tensors().collect::<Vec<_>>()))
        })?;
        let mut matrices = tensors.into_iter().map(|id| self.weight(id)).filter(|w| w.ne()[2] > 1);
        if !matrices.all(|w| self.kernel_takes_experts(w, ids)) {
            return None;
        }
        let [numbers_there, numbers, counts] = tables.map(|t| self.placed(t));
        Some(ExpertCopies { n_copies, numbers_there, numbers, counts })
    }

    /// Where the copies of `id`'s experts lie: `[.., n_copies + 1]`, the last of zeros.
    pub fn copies_of(&self, id: WeightId) -> Option<WeightId> {
        self.with_weights(|weights| weights.expert_cache().copies_of(id))
    }

    /// True when `mul_mat_id` with these experts takes ids `[n_used, n_tokens]` of which a token has the same one several times. For
    /// many tokens backends sort columns by expert, and take it for granted that a token has each once.
    pub fn takes_expert_twice(&self, experts: WeightId, n_tokens: i64) -> bool {
        n_tokens <= BY_ID || self.device_keeps_rows(self.weight(experts), n_tokens as usize)
    }

    /// Numbers of copies for `ids: [n_used, n_tokens]` (i32, ids of experts), the one of zeros for experts that have none: i32 of
    /// the same shape, contiguous.
    pub fn ids_of_copies(&self, copies: &ExpertCopies<'g>, ids: Tensor<'g>) -> Tensor<'g> {
        let [n_used, n_tokens, ..] = ids.ne();
        let flat = self.reshape(self.cont(ids), [n_used * n_tokens]); // was [n_used, n_tokens]
        let numbers = self.get_rows(copies.numbers_there, flat); // [1, n_used * n_tokens]
        let numbers = self.reshape(numbers, [n_used, n_tokens]);
        self.made_below(numbers, copies.n_copies + 1);
        numbers
    }

    /// `ids: [n_used, n_tokens]` (i32) of experts without a copy, and [`kernels::NO_EXPERT`] in place of the others: of the same
    /// shape, contiguous, for [`Graph::mul_mat_id`], which makes zeros of those. Elsewhere they stand for expert 0.
    pub fn ids_without_copies(&self, copies: &ExpertCopies<'g>, ids: Tensor<'g>) -> Tensor<'g> {
        let [n_used, n_tokens, ..] = ids.ne();
        let args = [ids, copies.numbers, copies.counts];
        let left =
            self.custom("ids_without_copies", ids.dtype(), [n_used, n_tokens, 1, 1], &args, kernels::experts_left);
        if self.ok() {
            self.ids.borrow_mut().partial.insert(left.base_ptr());
        }
        left
    }
}
