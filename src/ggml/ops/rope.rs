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
        if !self.check_rope("rope", a, (positions, 1), factors, rope) {
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

    /// As [`Graph::rope`] with NeoX pairs, where pair `i` turns by one of three positions of its token (interleaved M-RoPE): by
    /// the second if `i % 3 == 1` and `i < 3 * sections[1]`, by the third if `i % 3 == 2` and `i < 3 * sections[2]`, by the first
    /// if `i % 3 == 0` and `i < 3 * sections[0]`, else by the fourth. `positions: [4 * n_tokens]` (i32): the first of all tokens,
    /// then the second, the third and the fourth. `sections` sum to `n_dims / 2`. Source: the Qwen3-VL reference model.
    pub fn rope_sections(
        &self,
        a: Tensor<'g>,
        positions: Tensor<'g>,
        factors: Option<Tensor<'g>>,
        rope: &Rope,
        sections: [i32; 4],
    ) -> Tensor<'g> {
        let fits = rope.neox
            && sections.iter().all(|&n| (0..=rope.n_dims).contains(&n))
            && sections[..3].iter().any(|&n| n > 0)
            && sections.iter().sum::<i32>() == rope.n_dims / 2;
        let sound = self.check_rope("rope_sections", a, (positions, 4), factors, rope)
            && self.check("rope_sections", fits, || {
                format!("sections {sections:?} of {} rotated elements, neox {}", rope.n_dims, rope.neox)
            });
        if !sound {
            return a;
        }
        let mut sections = sections;
        let factors = factors.map_or(std::ptr::null_mut(), Tensor::raw);
        op!(
            self,
            "rope_sections",
            ggml_rope_multi,
            a,
            positions.raw(),
            factors,
            rope.n_dims,
            sections.as_mut_ptr(),
            ggml_sys::GGML_ROPE_TYPE_IMROPE as i32,
            rope.n_ctx_orig,
            rope.base,
            rope.scale,
            rope.ext_factor,
            rope.attn_factor,
            rope.beta_fast,
            rope.beta_slow
        )
    }

    /// Rotates heads by two positions, as towers over pictures do: of `a: [n_embd_head, n_head, n_tokens]` elements `j` and
    /// `j + n_embd_head / 2` are a pair; the first half of the pairs turns by the first position, the second half by the
    /// second, pair `i` of each by `position * base^(-4i / n_embd_head)`. `positions: [4 * n_tokens]` (i32): all first ones,
    /// all second ones, and both once more, which are not read. `n_embd_head` is a multiple of 4.
    ///
    /// Source: Qwen2-VL (Wang et al. 2024).
    pub fn rope_in_two(&self, a: Tensor<'g>, positions: Tensor<'g>, base: f32) -> Tensor<'g> {
        let (na, np) = (a.ne(), positions.ne());
        let fits = Some(np[0]) == na[2].checked_mul(4)
            && np[1..] == [1, 1, 1]
            && positions.dtype() == Dtype::I32
            && ask!(ggml_is_contiguous, positions);
        let sound = self.check_f32("rope_in_two", "a", a)
            && self.check_elements("rope_in_two", "a", a)
            && self.check("rope_in_two", fits, || format!("`positions` {positions:?} do not fit `a` {na:?}"))
            && self.check("rope_in_two", na[0] % 4 == 0 && na[0] <= 1 << 16, || {
                format!("heads of {}, a multiple of 4 is needed", na[0])
            });
        if !sound {
            return a;
        }
        let n_dims = na[0] as i32 / 2;
        let mut sections = [n_dims / 2; 4];
        op!(
            self,
            "rope_in_two",
            ggml_rope_multi,
            a,
            positions.raw(),
            std::ptr::null_mut(),
            n_dims,
            sections.as_mut_ptr(),
            ggml_sys::GGML_ROPE_TYPE_VISION as i32,
            0,
            base,
            1.0,
            0.0,
            1.0,
            32.0,
            1.0
        )
    }

    /// Whether operands of a rotation fit each other, with so many positions of each token.
    fn check_rope(
        &self,
        name: &'static str,
        a: Tensor<'g>,
        (positions, n_each): (Tensor<'g>, i64),
        factors: Option<Tensor<'g>>,
        rope: &Rope,
    ) -> bool {
        let (na, np) = (a.ne(), positions.ne());
        let fits = na[2].checked_mul(n_each) == Some(np[0])
            && np[1..] == [1, 1, 1]
            && positions.dtype() == Dtype::I32
            && ask!(ggml_is_contiguous, positions);
        let dims = rope.n_dims > 0 && rope.n_dims % 2 == 0 && i64::from(rope.n_dims) <= na[0];
        self.check(name, matches!(a.dtype(), Dtype::F32 | Dtype::F16), || {
            format!("`a` is {}, f32 or f16 is needed", a.dtype())
        }) && self.check_elements(name, "a", a)
            && self.check(name, fits, || format!("`positions` {positions:?} do not fit `a` {na:?}"))
            && self.check(name, dims, || format!("{} rotated elements of heads of {}", rope.n_dims, na[0]))
            && factors.is_none_or(|f| {
                let fits = f.dtype() == Dtype::F32
                    && f.ne()[0] >= i64::from(rope.n_dims / 2)
                    && f.nb()[0] == Dtype::F32.block_bytes();
                self.check(name, fits, || format!("`factors` {f:?} for {} rotated elements", rope.n_dims))
            })
    }
}
