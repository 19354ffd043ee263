//! Gated DeltaNet: a causal convolution, then one matrix of state for each head, decayed and corrected token by token.
//! Source: Yang et al. 2024; the order of heads (value head `h` reads key head `h mod n_k_heads`) is that of GGUF files.

use ggml::{DeltaRule, Graph, Tensor, WeightId};
use memory::{Recurrent, Segment};

use super::causal_conv::causal_conv;
use super::linear::{Linear, join, vector};
use super::rms_norm::RmsNorm;
use crate::error::LoadError;
use crate::keys::{Keys, WIDTH};
use crate::step::Step;
use crate::tensors::Scope;

/// Epsilon under the root of the norms of queries and keys; fixed by the architecture.
const QK_EPS: f32 = 1e-6;

/// Sizes and constants of a DeltaNet layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaNetConfig {
    n_embd: usize,
    /// Epsilon under the root of the output's norm.
    eps: f32,
    /// Width of the convolution.
    n_taps: usize,
    /// Elements of a key or value head.
    d_state: usize,
    n_k_heads: usize,
    n_v_heads: usize,
}

impl DeltaNetConfig {
    /// The same in all blocks.
    pub(crate) fn read(keys: &Keys<'_, '_>) -> Result<Self, LoadError> {
        let config = Self {
            n_embd: keys.need("embedding_length", WIDTH)?,
            eps: keys.rms_eps()?,
            n_taps: keys.need("ssm.conv_kernel", 2..=64)?,
            d_state: keys.need("ssm.state_size", 1..=4096)?,
            n_k_heads: keys.need("ssm.group_count", 1..=4096)?,
            n_v_heads: keys.need("ssm.time_step_rank", 1..=4096)?,
        };
        if !config.n_v_heads.is_multiple_of(config.n_k_heads) {
            let what = format!("{} value heads are no multiple of {} key heads", config.n_v_heads, config.n_k_heads);
            return Err(keys.error("ssm.time_step_rank", what));
        }
        let inner = keys.need("ssm.inner_size", WIDTH)?;
        if inner != config.d_value() {
            let what = format!("{inner} found, {} heads of {} expected", config.n_v_heads, config.d_state);
            return Err(keys.error("ssm.inner_size", what));
        }
        Ok(config)
    }

    fn d_key(&self) -> usize {
        self.n_k_heads * self.d_state
    }

    fn d_value(&self) -> usize {
        self.n_v_heads * self.d_state
    }

    /// Channels of the convolution: queries, keys and values.
    fn n_channels(&self) -> usize {
        2 * self.d_key() + self.d_value()
    }

    /// The state that such a layer keeps.
    pub(crate) fn state(&self) -> Recurrent {
        Recurrent {
            n_conv: self.n_taps - 1,
            n_channels: self.n_channels(),
            n_heads: self.n_v_heads,
            d_state: self.d_state,
            d_head: self.d_state,
        }
    }
}

/// The weights of a DeltaNet layer.
pub(crate) struct DeltaNet {
    config: DeltaNetConfig,
    qkv: Linear,
    z: Linear,
    conv: WeightId,
    /// `-exp(A_log)`.
    a: WeightId,
    dt_bias: WeightId,
    alpha: Linear,
    beta: Linear,
    norm: RmsNorm,
    out: Linear,
}

impl DeltaNet {
    /// Asks for the tensors of a block.
    pub(crate) fn open(t: &mut Scope<'_, '_>, config: DeltaNetConfig) -> Result<Self, LoadError> {
        let (n_embd, n_heads) = (config.n_embd, config.n_v_heads);
        Ok(Self {
            qkv: Linear::open(t, "attn_qkv", n_embd, config.n_channels())?,
            z: Linear::open(t, "attn_gate", n_embd, config.d_value())?,
            conv: t.need("ssm_conv1d.weight", &[config.n_taps, config.n_channels()])?,
            a: t.need("ssm_a", &[n_heads])?,
            dt_bias: t.need("ssm_dt.bias", &[n_heads])?,
            alpha: Linear::open(t, "ssm_alpha", n_embd, n_heads)?,
            beta: Linear::open(t, "ssm_beta", n_embd, n_heads)?,
            norm: RmsNorm::open(t, "ssm_norm", config.d_state, config.eps)?,
            out: Linear::open(t, "ssm_out", config.d_value(), n_embd)?,
            config,
        })
    }

    /// `x: [n_embd, n_tokens]`, normed; gives the same shape. Reads and writes the state of layer `il`.
    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, step: &Step<'_, 'g>, il: usize, x: Tensor<'g>) -> Tensor<'g> {
        let (s, n_heads) = (self.config.d_state as i64, self.config.n_v_heads as i64);
        let n_tokens = x.ne()[1];
        let qkv = self.qkv.forward(g, x); // [n_channels, n_tokens]
        let z = self.z.forward(g, x); // [d_value, n_tokens]
        let beta = g.sigmoid(self.beta.forward(g, x)); // [n_v_heads, n_tokens]
        let alpha = g.add(self.alpha.forward(g, x), vector(g, self.dt_bias));
        let decay = g.mul(g.softplus(alpha), vector(g, self.a)); // [n_v_heads, n_tokens], at most 0

        let segments = step.inputs.view.segments().iter().zip(&step.inputs.states);
        let parts = segments.map(|(seg, &state)| self.recur(g, step, il, (seg, state), (qkv, decay, beta)));
        let o = join(g, parts).unwrap_or(z); // [d_value, n_tokens]
        let o = g.reshape(o, [s, n_heads, n_tokens]);
        let z = g.reshape(z, [s, n_heads, n_tokens]);
        let o = g.mul(self.norm.forward(g, o), g.silu(z));
        self.out.forward(g, g.reshape(o, [s * n_heads, n_tokens]))
    }

    /// The recurrence of one segment's sequences, which read those rows of the state; gives `[d_value, n_rows * n_seqs]`.
    fn recur<'g>(
        &self,
        g: &Graph<'g>,
        step: &Step<'_, 'g>,
        il: usize,
        (seg, states): (&Segment, Option<Tensor<'g>>),
        (qkv, decay, beta): (Tensor<'g>, Tensor<'g>, Tensor<'g>),
    ) -> Tensor<'g> {
        let s = self.config.d_state;
        let (n_k, n_v) = (self.config.n_k_heads as i64, self.config.n_v_heads as i64);
        let (n_rows, n_seqs) = (seg.n_rows as i64, seg.n_seqs as i64);
        let view = &step.inputs.view;
        let conv = causal_conv(g, view, il, (seg, states), (qkv, 0), vector(g, self.conv));
        let Some(c) = conv else { return qkv };
        let c = g.silu(c); // [n_channels, n_rows, n_seqs]

        let nb = c.nb();
        let heads = |n_heads: i64, first_channel: usize| {
            let strides = [s * nb[0], nb[1], nb[2]];
            g.view(c, [s as i64, n_heads, n_rows, n_seqs], strides, first_channel * nb[0])
        };
        let d_key = self.config.d_key();
        let both = g.l2_norm(heads(2 * n_k, 0), QK_EPS); // [s, 2 * n_k_heads, n_rows, n_seqs]
        let nb = both.nb();
        let part = |offset| g.view(both, [s as i64, n_k, n_rows, n_seqs], [nb[1], nb[2], nb[3]], offset);
        let (q, k) = (part(0), part(nb[1] * self.config.n_k_heads)); // [s, n_k_heads, n_rows, n_seqs]
        let v = heads(n_v, 2 * d_key); // [s, n_v_heads, n_rows, n_seqs]
        let gate = |t: Tensor<'g>| {
            let nb = t.nb()[1];
            let ne = [1, n_v, n_rows, n_seqs];
            g.view(t, ne, [t.nb()[0], nb, nb * seg.n_rows], nb * seg.first_row) // of [n_v_heads, n_tokens]
        };
        let (state, planes) = (view.heads(g, il, seg, states), view.head_planes(g, il, seg));
        let Some((state, planes)) = state.zip(planes) else { return qkv };
        let rule = DeltaRule { q, k, v, g: gate(decay), beta: gate(beta), state };
        if let Some(out) = g.delta_rule(&rule, planes) {
            return out;
        }
        let n_snapshots = seg.n_snapshots as i64;
        let out = g.gated_delta_net(&rule, n_snapshots);

        let d_value = self.config.d_value();
        let n_tokens = seg.n_tokens();
        let (size, row) = (out.nb()[0], out.nb()[1]);
        let n_state = s * d_value; // elements of one sequence's state
        let ne = [n_state as i64, n_seqs, n_snapshots, 1];
        let strides = [n_state * size, n_state * size * seg.n_seqs, n_state * size * seg.n_seqs * seg.n_snapshots];
        let states = g.view(out, ne, strides, n_tokens * row);
        g.keep(g.cpy(states, planes));
        g.view(out, [d_value as i64, n_tokens as i64, 1, 1], [row, row * n_tokens, row * n_tokens], 0)
    }
}
