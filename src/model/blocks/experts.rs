//! Matrices of experts: each token is multiplied with those of the experts that it goes to.

use ggml::{ExpertCopies, Graph, Tensor, WeightId};

use super::linear::{updated_experts, vector};
use super::router::Route;
use crate::error::LoadError;
use crate::tensors::Scope;

/// One matrix `[n_in, n_out]` for each expert, with the scales that NVFP4 files put beside them, one for each expert, and a
/// bias `[n_out]` for each.
pub(crate) struct Experts {
    weight: WeightId,
    scales: Option<WeightId>,
    bias: Option<WeightId>,
}

impl Experts {
    /// Asks for `{name}.weight`: `[n_in, n_out, n_expert]`; with `bias` also for `{name}.bias`, which may be absent.
    pub(crate) fn open(t: &mut Scope<'_, '_>, name: &str, dims: [usize; 3], bias: bool) -> Result<Self, LoadError> {
        let name_of_weight = format!("{name}.weight");
        let weight = t.need(&name_of_weight, &dims)?;
        t.updatable(&name_of_weight, weight, &dims);
        let name_of_bias = format!("{name}.bias");
        let bias = match bias {
            true => t.find(&name_of_bias, &dims[1..])?,
            false => t.refuse(&name_of_bias, "biases are not supported").map(|()| None)?,
        };
        Ok(Self { weight, scales: t.companion(&format!("{name}.scale"), &dims[2..])?, bias })
    }

    /// As [`Experts::open`], or `None` when there are no such matrices.
    pub(crate) fn find(
        t: &mut Scope<'_, '_>,
        name: &str,
        dims: [usize; 3],
        bias: bool,
    ) -> Result<Option<Self>, LoadError> {
        match t.find(&format!("{name}.weight"), &dims)? {
            Some(_) => Self::open(t, name, dims, bias).map(Some),
            None => Ok(None),
        }
    }

    /// The copies of the layer's experts, for a pass that goes this way.
    pub(crate) fn copies_for<'g>(&self, g: &Graph<'g>, route: &Route<'g>) -> Option<ExpertCopies<'g>> {
        g.expert_copies(self.weight, route.ids)
    }

    /// The same over the copies of these experts.
    pub(crate) fn copies(&self, g: &Graph<'_>) -> Option<Self> {
        let copies = |id: Option<WeightId>| match id {
            Some(id) => g.copies_of(id).map(Some),
            None => Some(None),
        };
        Some(Self { weight: g.copies_of(self.weight)?, scales: copies(self.scales)?, bias: copies(self.bias)? })
    }

    /// See [`Graph::takes_expert_twice`].
    pub(crate) fn take_one_twice(&self, g: &Graph<'_>, n_tokens: i64) -> bool {
        g.takes_expert_twice(self.weight, n_tokens)
    }

    pub(crate) fn has_bias(&self) -> bool {
        self.bias.is_some()
    }

    /// `x: [n_in, n_used or 1, n_tokens]` gives `[n_out, n_used, n_tokens]`.
    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>, route: &Route<'g>) -> Tensor<'g> {
        let y = g.mul_mat_id(g.weight(self.weight), x, route.ids);
        let y = match self.scales {
            Some(scales) => g.mul(y, route.look_up(g, vector(g, scales))),
            None => y,
        };
        let y = updated_experts(g, self.weight, x, route.ids, y);
        self.bias.map_or(y, |bias| g.add_id(y, vector(g, bias), route.ids))
    }
}
