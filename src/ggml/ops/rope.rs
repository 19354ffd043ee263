//! Rotary position embedding.

use super::checks::{ask, op};
use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};

/// How positions turn into rotations. Source: Su et al. 2021; YaRN (Peng et al. 2023) when `ext_factor` is not 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope {
    /// Leading elements of each head that are rotated, even; the rest pass through.
    pub n_dims: i32,
    /// True: element `i` pairs with `i + n_dims / 2` (NeoX); false: neighbours pair (GPT-J, as in llama).
    pub neox: bool,
    /// Pair `i` turns by `position * base^(-2i / n_dims)`.
    pub base: f32,
    /// Positions are multiplied by this.
    pub scale: f32,
    /// Context of the original training, for YaRN.
    pub n_ctx_orig: i32,
    /// Share of extrapolation; 0 switches YaRN off.
    pub ext_factor: f32,
    /// Factor on the rotated values.
    pub attn_factor: f32,
    /// YaRN's fast border, in rotations.
    pub beta_fast: f32,
    /// YaRN's slow border, in rotations.
    pub beta_slow: f32,
}

impl Rope {
    /// NeoX pairs over `n_dims` elements, no scaling.
    pub fn neox(n_dims: i32, base: f32) -> Self {
        Self {
            n_dims,
            neox: true,
            base,
            scale: 1.0,
            n_ctx_orig: 0,
            ext_factor: 0.0,
            attn_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
        }
    }
}

impl<'g> Graph<'g> {
    /// Rotates `a: [n_embd_head, n_head, n_tokens]` by `positions: [n_tokens]` (i32). `factors: [n_dims / 2]` divide the
    /// frequencies when given.
    pub fn rope(&self, a: Tensor<'g>, positions: Tensor<'g>, factors: Option<Tensor<'g>>, rope: &Rope) -> Tensor<'g> {
        let (na, np) = (a.ne(), positions.ne());
        let fits = np[0] == na[2]
            && np[1..] == [1, 1, 1]
            && positions.dtype() == Dtype::I32
            && ask!(ggml_is_contiguous, positions);
        let dims = rope.n_dims > 0 && rope.n_dims % 2 == 0 && i64::from(rope.n_dims) <= na[0];
        let sound = self.check("rope", matches!(a.dtype(), Dtype::F32 | Dtype::F16), || {
            format!("`a` is {}, f32 or f16 is needed", a.dtype())
        }) && self.check_elements("rope", "a", a)
            && self.check("rope", fits, || format!("`positions` {positions:?} do not fit `a` {na:?}"))
            && self.check("rope", dims, || format!("{} rotated elements of heads of {}", rope.n_dims, na[0]))
            && factors.is_none_or(|f| {
                let fits = f.dtype() == Dtype::F32
                    && f.ne()[0] >= i64::from(rope.n_dims / 2)
                    && f.nb()[0] == Dtype::F32.block_bytes();
                self.check("rope", fits, || format!("`factors` {f:?} for {} rotated elements", rope.n_dims))
            });
        if !sound {
            return a;
        }
        let mode = if rope.neox { ggml_sys::GGML_ROPE_TYPE_NEOX as i32 } else { 0 };
        let factors = factors.map_or(std::ptr::null_mut(), Tensor::raw);
        op!(
            self,
            "rope",
            ggml_rope_ext,
            a,
            positions.raw(),
            factors,
            rope.n_dims,
            mode,
            rope.n_ctx_orig,
            rope.base,
            rope.scale,
            rope.ext_factor,
            rope.attn_factor,
            rope.beta_fast,
            rope.beta_slow
        )
    }
}
