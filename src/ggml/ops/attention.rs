//! Attention: the fused op, and the softmax that the unfused form is made of.

use super::checks::{ask, op};
use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};

impl<'g> Graph<'g> {
    /// `softmax(a * scale + mask)` over dim 0. `a: [n_kv, n_rows, n_head, n_seqs]` contiguous,
    /// `mask: [n_kv, >= n_tokens, ..]` F16 or F32, repeated over dims 2 and 3.
    pub fn soft_max(&self, a: Tensor<'g>, mask: Option<Tensor<'g>>, scale: f32) -> Tensor<'g> {
        let na = a.ne();
        let sound = self.check_f32("soft_max", "a", a)
            && self.check("soft_max", ask!(ggml_is_contiguous, a), || format!("`a` {a:?} is not contiguous"))
            && mask.is_none_or(|m| {
                let nm = m.ne();
                let fits = nm[0] == na[0] && nm[1] >= na[1] && na[2] % nm[2] == 0 && na[3] % nm[3] == 0;
                self.check("soft_max", fits, || format!("`mask` {m:?} does not fit `a` {na:?}"))
                    && self.check("soft_max", matches!(m.dtype(), Dtype::F16 | Dtype::F32), || {
                        format!("`mask` is {}, f16 or f32 is needed", m.dtype())
                    })
                    && self.check("soft_max", ask!(ggml_is_contiguous, m), || format!("`mask` {m:?} is not contiguous"))
            });
        if !sound {
            return a;
        }
        op!(self, "soft_max", ggml_soft_max_ext, a, mask.map_or(std::ptr::null_mut(), Tensor::raw), scale, 0.0)
    }

    /// Attention in one op: `q: [d_k, n_tokens, n_head, n_seqs]`, `k: [d_k, n_kv, n_head_kv, n_seqs]`,
    /// `v: [d_v, n_kv, n_head_kv, n_seqs]`, `mask: [n_kv, >= n_tokens, ..]` F16; gives `[d_v, n_head, n_tokens, n_seqs]`.
    /// Sums are asked for in F32. On a CPU a token has the bits that it has among up to 63 others, whatever the number of
    /// threads.
    ///
    /// Source: Dao et al. 2022; query head `j` reads key head `j / (n_head / n_head_kv)`.
    pub fn flash_attn(&self, q: Tensor<'g>, k: Tensor<'g>, v: Tensor<'g>, mask: Tensor<'g>, scale: f32) -> Tensor<'g> {
        let (nq, nk, nv, nm) = (q.ne(), k.ne(), v.ne(), mask.ne());
        let fits = nq[0] == nk[0]
            && nq[2] % nk[2] == 0
            && nk[1] == nv[1]
            && nk[2] == nv[2]
            && nq[3] == nk[3]
            && nq[3] == nv[3];
        let masked =
            mask.dtype() == Dtype::F16 && nm[0] == nk[1] && nm[1] >= nq[1] && nq[2] % nm[2] == 0 && nq[3] % nm[3] == 0;
        let sound = self.check("flash_attn", fits, || format!("`q` {nq:?}, `k` {nk:?}, `v` {nv:?} do not fit"))
            && self.check("flash_attn", masked, || format!("`mask` {mask:?} does not fit `q` {nq:?}, `k` {nk:?}"))
            && self.check("flash_attn", ask!(ggml_is_contiguous, mask), || "`mask` is not contiguous".into())
            && self.check_f32("flash_attn", "q", q)
            && self.check("flash_attn", k.dtype().multiplies() && v.dtype().unpacks(), || {
                format!("`k` {k:?} or `v` {v:?} is of a type that cannot be attended to")
            })
            && [("q", q), ("k", k), ("v", v)].iter().all(|&(name, t)| self.check_elements("flash_attn", name, t))
            && self.check_size("flash_attn", Dtype::F32, [nv[0], nq[2], nq[1], nq[3]]);
        if !sound {
            return q;
        }
        let may_split = nq[1] == 1 && nq[3] == 1 && k.dtype() == v.dtype() && k.dtype().is_float();
        if may_split && self.is_on_cpu() {
            return self.flash_attn_unsplit(q, k, v, mask, scale);
        }
        self.fused_attention(q, k, v, mask, scale)
    }

    /// One token of one sequence, whose operands were checked. From 512 cells on ggml would part the cells among its threads
    /// (`ggml_compute_forward_flash_attn_ext_f16`, `use_split_kv_path`) and add up in another order than for several tokens;
    /// not so where there is more than one sequence, so key heads take the place of sequences. They are as many cells and
    /// heads to compute, parted by heads. With one key head, or masks for each head, the token is computed twice instead.
    fn flash_attn_unsplit(
        &self,
        q: Tensor<'g>,
        k: Tensor<'g>,
        v: Tensor<'g>,
        mask: Tensor<'g>,
        scale: f32,
    ) -> Tensor<'g> {
        let ([d_k, _, n_head, _], nb) = (q.ne(), q.nb());
        let ([_, _, n_head_kv, _], d_v) = (k.ne(), v.ne()[0]);
        if n_head_kv == 1 || mask.ne()[2] > 1 {
            let [q, mask] = [q, mask].map(|t| self.concat(t, t, 1));
            let o = self.fused_attention(q, k, v, mask, scale); // [d_v, n_head, 2, 1]
            let nb = o.nb();
            return self.view(o, [d_v, n_head, 1, 1], [nb[1], nb[2], nb[3]], 0);
        }
        let n_group = n_head / n_head_kv;
        let heads = [nb[1], nb[2], nb[2] * n_group as usize];
        let q = self.view(q, [d_k, 1, n_group, n_head_kv], heads, 0); // was [d_k, 1, n_head, 1]
        let [k, v] = [k, v].map(|t| self.permute(t, [0, 1, 3, 2])); // now [d, n_kv, 1, n_head_kv]
        let o = self.fused_attention(q, k, v, mask, scale); // [d_v, n_group, 1, n_head_kv]
        self.reshape(o, [d_v, n_head])
    }

    /// The op itself.
    fn fused_attention(&self, q: Tensor<'g>, k: Tensor<'g>, v: Tensor<'g>, mask: Tensor<'g>, scale: f32) -> Tensor<'g> {
        let t = op!(self, "flash_attn", ggml_flash_attn_ext, q, k.raw(), v.raw(), mask.raw(), scale, 0.0, 0.0);
        if self.ok() {
            // SAFETY: `t` is the flash attention node just made.
            unsafe { ggml_sys::ggml_flash_attn_ext_set_prec(t.raw(), ggml_sys::GGML_PREC_F32) };
        }
        t
    }
}
