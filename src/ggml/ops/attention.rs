//! Attention: the fused op, and the softmax that the unfused form is made of.

use kernels::Isa;

use super::checks::{ask, op};
use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};

/// What attention makes of the products of queries and keys.
#[derive(Clone, Copy)]
pub struct Scores<'g> {
    /// Factor on them.
    pub scale: f32,
    /// Where there is one, `cap * tanh(score / cap)` takes the place of a scaled score, before the mask.
    pub softcap: Option<f32>,
    /// One more score for each query head, which has no value and is neither scaled nor capped: F32 `[n_head]`.
    pub sinks: Option<Tensor<'g>>,
}

impl Scores<'_> {
    /// Scores that are only scaled.
    pub fn scaled(scale: f32) -> Self {
        Self { scale, softcap: None, sinks: None }
    }
}

impl<'g> Graph<'g> {
    /// `softmax(a * scale + mask)` over dim 0. `a: [n_kv, n_rows, n_head, n_seqs]` contiguous,
    /// `mask: [n_kv, >= n_tokens, ..]` F16 or F32, repeated over dims 2 and 3.
    pub fn soft_max(&self, a: Tensor<'g>, mask: Option<Tensor<'g>>, scale: f32) -> Tensor<'g> {
        self.soft_max_of(a, mask, &Scores::scaled(scale))
    }

    /// As [`Graph::soft_max`], of scores that may be capped and have sinks, which take part in the sum alone.
    pub fn soft_max_of(&self, a: Tensor<'g>, mask: Option<Tensor<'g>>, scores: &Scores<'g>) -> Tensor<'g> {
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
        if !(sound && self.check_scores("soft_max", scores, na[2])) {
            return a;
        }
        let (a, scale) = match scores.softcap {
            Some(cap) => (self.scale(self.tanh(self.scale(a, scores.scale / cap)), cap), 1.0),
            None => (a, scores.scale),
        };
        let t = op!(self, "soft_max", ggml_soft_max_ext, a, mask.map_or(std::ptr::null_mut(), Tensor::raw), scale, 0.0);
        if let Some(sinks) = scores.sinks.filter(|_| self.ok()) {
            // SAFETY: `t` is the softmax node just made, without sinks; they are F32, one for each head.
            unsafe { ggml_sys::ggml_soft_max_add_sinks(t.raw(), sinks.raw()) };
        }
        t
    }

    /// Checks what is said of scores of `n_head` heads.
    pub(super) fn check_scores(&self, op: &'static str, scores: &Scores<'g>, n_head: i64) -> bool {
        let capped = scores.softcap.is_none_or(|cap| cap.is_finite() && cap > 0.0);
        self.check(op, capped, || format!("scores are capped at {:?}, a number above 0 is needed", scores.softcap))
            && scores.sinks.is_none_or(|sinks| {
                let fits = sinks.ne() == [n_head, 1, 1, 1];
                self.check(op, fits, || format!("`sinks` {sinks:?} are not one for each of {n_head} heads"))
                    && self.check_f32(op, "sinks", sinks)
                    && self.check_elements(op, "sinks", sinks)
            })
    }

    /// Attention in one op: `q: [d_k, n_tokens, n_head, n_seqs]`, `k: [d_k, n_kv, n_head_kv, n_seqs]`,
    /// `v: [d_v, n_kv, n_head_kv, n_seqs]`, `mask: [n_kv, >= n_tokens, ..]` F16; gives `[d_v, n_head, n_tokens, n_seqs]`.
    /// Sums are asked for in F32. On a CPU a token has the bits that it has among up to 63 others, whatever the number of
    /// threads.
    ///
    /// Source: Dao et al. 2022; query head `j` reads key head `j / (n_head / n_head_kv)`.
    pub fn flash_attn(&self, q: Tensor<'g>, k: Tensor<'g>, v: Tensor<'g>, mask: Tensor<'g>, scale: f32) -> Tensor<'g> {
        self.flash_attn_of((q, k, v), mask, &Scores::scaled(scale))
    }

    /// As [`Graph::flash_attn`] for queries, keys and values, with scores that may be capped and have sinks.
    pub fn flash_attn_of(
        &self,
        (q, k, v): (Tensor<'g>, Tensor<'g>, Tensor<'g>),
        mask: Tensor<'g>,
        scores: &Scores<'g>,
    ) -> Tensor<'g> {
        let (nq, nk, nm) = (q.ne(), k.ne(), mask.ne());
        let masked =
            mask.dtype() == Dtype::F16 && nm[0] == nk[1] && nm[1] >= nq[1] && nq[2] % nm[2] == 0 && nq[3] % nm[3] == 0;
        let sound = self.check_qkv((q, k, v))
            && self.check("flash_attn", masked, || format!("`mask` {mask:?} does not fit `q` {nq:?}, `k` {nk:?}"))
            && self.check("flash_attn", ask!(ggml_is_contiguous, mask), || "`mask` is not contiguous".into())
            && self.check_scores("flash_attn", scores, nq[2]);
        if !sound {
            return q;
        }
        let may_split = nq[1] == 1 && nq[3] == 1 && k.dtype() == v.dtype() && k.dtype().is_float();
        if may_split && self.is_on_cpu() {
            return self.flash_attn_unsplit((q, k, v), mask, scores);
        }
        self.fused_attention((q, k, v), Some(mask), scores)
    }

    /// As [`Graph::flash_attn`], of every token to every other, without a mask. On a CPU a kernel of our own serves F32.
    pub fn flash_attn_to_all(&self, q: Tensor<'g>, k: Tensor<'g>, v: Tensor<'g>, scale: f32) -> Tensor<'g> {
        if !self.check_qkv((q, k, v)) {
            return q;
        }
        let nq = q.ne();
        let floats = [q, k, v].iter().all(|t| t.dtype() == Dtype::F32 && t.nb()[0] == size_of::<f32>());
        let alike = k.ne() == nq && v.ne() == nq && nq[3] == 1 && nq[0] <= kernels::MAX_HEAD as i64;
        if floats && alike && self.is_on_cpu() && Isa::chosen().is_some() {
            let k = self.scale(self.cont(self.transpose(k)), scale); // [n, n_embd_head, n_head]
            let ne = [nq[0], nq[2], nq[1], 1];
            return self.custom("flash_attn", Dtype::F32, ne, &[q, k, v], kernels::attention_to_all);
        }
        self.fused_attention((q, k, v), None, &Scores::scaled(scale))
    }

    /// Sums of rows by weight: `rows: [n, n_rows, 1, n_seqs]`, any type that unpacks, with whole rows;
    /// `weights: [n_rows, n_sums, 1, n_seqs]` F32, contiguous; gives `[n, n_sums, 1, n_seqs]`. On a CPU a kernel of our own reads
    /// the rows as they lie; elsewhere they are turned first.
    pub fn weighted_rows(&self, rows: Tensor<'g>, weights: Tensor<'g>) -> Tensor<'g> {
        let (nr, nw) = (rows.ne(), weights.ne());
        let fits = nr[1] == nw[0] && nr[2] == 1 && nw[2] == 1 && nr[3] == nw[3];
        let sound = self.check("weighted_rows", fits, || format!("`rows` {nr:?} and `weights` {nw:?} do not fit"))
            && self.check_f32("weighted_rows", "weights", weights)
            && self.check("weighted_rows", ask!(ggml_is_contiguous, weights), || "`weights` are not contiguous".into())
            && self.check_elements("weighted_rows", "rows", rows)
            && self.check("weighted_rows", rows.dtype().unpacks(), || format!("`rows` {rows:?} cannot be unpacked"))
            && self.check_size("weighted_rows", Dtype::F32, [nr[0], nw[1], 1, nw[3]]);
        if !sound {
            return weights;
        }
        let rows = if rows.dtype().is_quantized() { self.cast(rows, Dtype::F32) } else { rows };
        let served = matches!(rows.dtype(), Dtype::F16 | Dtype::F32);
        if served && self.is_on_cpu() && Isa::chosen().is_some() {
            let ne = [nr[0], nw[1], 1, nw[3]];
            return self.custom("weighted_rows", Dtype::F32, ne, &[rows, weights], kernels::weighted_rows);
        }
        self.mul_mat(self.cont(self.transpose(rows)), weights)
    }

    /// Checks that queries, keys and values belong together.
    fn check_qkv(&self, (q, k, v): (Tensor<'g>, Tensor<'g>, Tensor<'g>)) -> bool {
        let (nq, nk, nv) = (q.ne(), k.ne(), v.ne());
        let fits = nq[0] == nk[0]
            && nq[2] % nk[2] == 0
            && nk[1] == nv[1]
            && nk[2] == nv[2]
            && nq[3] == nk[3]
            && nq[3] == nv[3];
        self.check("flash_attn", fits, || format!("`q` {nq:?}, `k` {nk:?}, `v` {nv:?} do not fit"))
            && self.check_f32("flash_attn", "q", q)
            && self.check("flash_attn", k.dtype().multiplies() && v.dtype().unpacks(), || {
                format!("`k` {k:?} or `v` {v:?} is of a type that cannot be attended to")
            })
            && [("q", q), ("k", k), ("v", v)].iter().all(|&(name, t)| self.check_elements("flash_attn", name, t))
            && self.check_size("flash_attn", Dtype::F32, [nv[0], nq[2], nq[1], nq[3]])
    }

    /// One token of one sequence, whose operands were checked. From 512 cells on ggml would part the cells among its threads
    /// (`ggml_compute_forward_flash_attn_ext_f16`, `use_split_kv_path`) and add up in another order than for several tokens;
    /// not so where there is more than one sequence, so key heads take the place of sequences. They are as many cells and
    /// heads to compute, parted by heads. With one key head, or masks or sinks for each head, the token is computed twice
    /// instead.
    fn flash_attn_unsplit(
        &self,
        (q, k, v): (Tensor<'g>, Tensor<'g>, Tensor<'g>),
        mask: Tensor<'g>,
        scores: &Scores<'g>,
    ) -> Tensor<'g> {
        let ([d_k, _, n_head, _], nb) = (q.ne(), q.nb());
        let ([_, _, n_head_kv, _], d_v) = (k.ne(), v.ne()[0]);
        if n_head_kv == 1 || mask.ne()[2] > 1 || scores.sinks.is_some() {
            let [q, mask] = [q, mask].map(|t| self.concat(t, t, 1));
            let o = self.fused_attention((q, k, v), Some(mask), scores); // [d_v, n_head, 2, 1]
            let nb = o.nb();
            return self.view(o, [d_v, n_head, 1, 1], [nb[1], nb[2], nb[3]], 0);
        }
        let n_group = n_head / n_head_kv;
        let heads = [nb[1], nb[2], nb[2] * n_group as usize];
        let q = self.view(q, [d_k, 1, n_group, n_head_kv], heads, 0); // was [d_k, 1, n_head, 1]
        let [k, v] = [k, v].map(|t| self.permute(t, [0, 1, 3, 2])); // now [d, n_kv, 1, n_head_kv]
        let o = self.fused_attention((q, k, v), Some(mask), scores); // [d_v, n_group, 1, n_head_kv]
        self.reshape(o, [d_v, n_head])
    }

    /// The op itself.
    fn fused_attention(
        &self,
        (q, k, v): (Tensor<'g>, Tensor<'g>, Tensor<'g>),
        mask: Option<Tensor<'g>>,
        scores: &Scores<'g>,
    ) -> Tensor<'g> {
        let mask = mask.map_or(std::ptr::null_mut(), Tensor::raw);
        let (scale, cap) = (scores.scale, scores.softcap.unwrap_or(0.0));
        let t = op!(self, "flash_attn", ggml_flash_attn_ext, q, k.raw(), v.raw(), mask, scale, 0.0, cap);
        if self.ok() {
            // SAFETY: `t` is the flash attention node just made.
            unsafe { ggml_sys::ggml_flash_attn_ext_set_prec(t.raw(), ggml_sys::GGML_PREC_F32) };
        }
        if let Some(sinks) = scores.sinks.filter(|_| self.ok()) {
            // SAFETY: `t` is that node, without sinks; they are F32, one for each head.
            unsafe { ggml_sys::ggml_flash_attn_ext_add_sinks(t.raw(), sinks.raw()) };
        }
        t
    }
}
