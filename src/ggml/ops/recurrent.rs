//! Ops of recurrent layers.

use super::{ask, op};
use crate::dtype::Dtype;
use crate::graph::{Graph, Tensor};

impl<'g> Graph<'g> {
    /// Causal depthwise convolution without bias. `x: [n_taps - 1 + n_tokens, n_channels, n_seqs]`, time fastest;
    /// `w: [n_taps, n_channels]`, the last tap on the current token; gives `[n_channels, n_tokens, n_seqs]`.
    pub fn ssm_conv(&self, x: Tensor<'g>, w: Tensor<'g>) -> Tensor<'g> {
        let (nx, nw) = (x.ne(), w.ne());
        let fits = nx[3] == 1 && nw[2] == 1 && nw[3] == 1 && nx[1] == nw[1] && nx[0] >= nw[0];
        let sound = self.check("ssm_conv", fits, || format!("`x` {nx:?} does not fit `w` {nw:?}"))
            && self.check_f32("ssm_conv", "x", x)
            && self.check_f32("ssm_conv", "w", w)
            && self.check(
                "ssm_conv",
                x.nb()[0] == 4 && x.nb()[1] == 4 * nx[0] as usize && ask!(ggml_is_contiguous, w),
                || format!("`x` {x:?} or `w` {w:?} is not laid out row after row"),
            )
            && self.check_elements("ssm_conv", "w", w);
        if !sound {
            return x;
        }
        op!(self, "ssm_conv", ggml_ssm_conv, x, w.raw())
    }

    /// The gated delta rule. `q, k: [s, n_k_heads, n_tokens, n_seqs]`, `v: [s, n_v_heads, n_tokens, n_seqs]`,
    /// `g, beta: [1, n_v_heads, n_tokens, n_seqs]`, `state: [s, s, n_v_heads, n_seqs]`, all F32; value head `h` reads key
    /// head `h mod n_k_heads`; outputs are scaled by `1 / sqrt(s)`.
    ///
    /// Gives `[s * n_v_heads, n_tokens * n_seqs + n_snapshots * s * n_seqs]`: first the outputs `[s, n_v_heads, n_tokens,
    /// n_seqs]`, then `n_snapshots` states `[s, s, n_v_heads, n_seqs]`, the newest first. With more tokens than snapshots
    /// only the newest is certain; with fewer, the surplus ones are not written.
    ///
    /// Source: Yang et al. 2024, Gated Delta Networks.
    #[expect(clippy::too_many_arguments, reason = "the op has six operands; a struct would only rename them")]
    pub fn gated_delta_net(
        &self,
        q: Tensor<'g>,
        k: Tensor<'g>,
        v: Tensor<'g>,
        g: Tensor<'g>,
        beta: Tensor<'g>,
        state: Tensor<'g>,
        n_snapshots: i64,
    ) -> Tensor<'g> {
        let (nq, nv, ns) = (q.ne(), v.ne(), state.ne());
        let [s, n_heads, n_tokens, n_seqs] = nv;
        let fits = k.ne() == nq
            && nq[0] == s
            && n_heads % nq[1] == 0
            && nq[2] == n_tokens
            && nq[3] == n_seqs
            && g.ne() == [1, n_heads, n_tokens, n_seqs]
            && beta.ne() == g.ne()
            && ns == [s, s, n_heads, n_seqs]
            && (1..=i64::from(i32::MAX)).contains(&n_snapshots);
        let all = [("q", q), ("k", k), ("v", v), ("g", g), ("beta", beta), ("state", state)];
        let sound = self.check("gated_delta_net", fits, || {
            let (k, g, beta) = (k.ne(), g.ne(), beta.ne());
            format!("`q` {nq:?}, `k` {k:?}, `v` {nv:?}, `g` {g:?}, `beta` {beta:?}, `state` {ns:?}, {n_snapshots} snapshots do not fit")
        }) && all.iter().all(|&(name, t)| self.check_f32("gated_delta_net", name, t))
            && all.iter().all(|&(name, t)| {
                let rows_only = matches!(name, "q" | "k" | "v");
                let sound = if rows_only { t.nb()[0] == Dtype::F32.block_bytes() } else { ask!(ggml_is_contiguous, t) };
                self.check("gated_delta_net", sound, || format!("`{name}` {t:?} is not contiguous"))
            })
            && self.check_size("gated_delta_net", Dtype::F32, [s, n_heads, n_tokens, n_seqs])
            && self.check_size("gated_delta_net", Dtype::F32, [s * n_heads, n_snapshots, s, n_seqs]);
        if !sound {
            return v;
        }
        let (k, v, g, beta, state) = (k.raw(), v.raw(), g.raw(), beta.raw(), state.raw());
        op!(self, "gated_delta_net", ggml_gated_delta_net, q, k, v, g, beta, state, n_snapshots)
    }
}
