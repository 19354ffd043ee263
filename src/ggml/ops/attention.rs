//! Attention: the fused op, and the softmax that the unfused form is made of.

use super::{ask, op};
use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};

impl<'g> Graph<'g> {
    /// `softmax(a * scale + mask)` over dim 0. `a: [n_kv, n_rows, n_head, n_seqs]` contiguous,
    /// `mask: [n_kv, >= n_rows, ..]` F16 or F32, repeated over dims 2 and 3.
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

    /// Attention in one op: `q: [d_k, n_rows, n_head, n_seqs]`, `k: [d_k, n_kv, n_head_kv, n_seqs]`,
    /// `v: [d_v, n_kv, n_head_kv, n_seqs]`, `mask: [n_kv, >= n_rows, ..]` F16; gives `[d_v, n_head, n_rows, n_seqs]`.
    /// Sums are asked for in F32.
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
        let t = op!(self, "flash_attn", ggml_flash_attn_ext, q, k.raw(), v.raw(), mask.raw(), scale, 0.0, 0.0);
        if self.ok() {
            // SAFETY: `t` is the flash attention node just made.
            unsafe { ggml_sys::ggml_flash_attn_ext_set_prec(t.raw(), ggml_sys::GGML_PREC_F32) };
        }
        t
    }
}
