//! Mamba-2: a causal convolution, then one matrix of state for each head, decayed and written token by token.
//! Source: Dao and Gu 2024; head `h` reads group `h / (n_heads / n_groups)`; the output is gated before its norm, which is
//! one for each group.

use ggml::{Graph, SsmScan, Tensor, WeightId};
use memory::{Recurrent, Segment};

use super::causal_conv::causal_conv;
use super::linear::{Linear, join, vector};
use crate::error::LoadError;
use crate::keys::{Keys, WIDTH};
use crate::step::{Numbers, Step};
use crate::tensors::Scope;

/// Sizes and constants of a Mamba-2 layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MambaConfig {
    n_embd: usize,
    /// Epsilon under the root of the output's norm.
    eps: f32,
    /// Width of the convolution.
    n_taps: usize,
    d_state: usize,
    n_groups: usize,
    n_heads: usize,
    /// Elements of all heads.
    d_inner: usize,
}

impl MambaConfig {
    /// The same in all blocks.
    pub(crate) fn read(keys: &Keys<'_, '_>) -> Result<Self, LoadError> {
        let config = Self {
            n_embd: keys.need("embedding_length", WIDTH)?,
            eps: keys.rms_eps()?,
            n_taps: keys.need("ssm.conv_kernel", 2..=64)?,
            d_state: keys.need("ssm.state_size", 1..=4096)?,
            n_groups: keys.need("ssm.group_count", 1..=4096)?,
            n_heads: keys.need("ssm.time_step_rank", 1..=4096)?,
            d_inner: keys.need("ssm.inner_size", WIDTH)?,
        };
        let Self { n_groups, n_heads, d_inner, .. } = config;
        if !n_heads.is_multiple_of(n_groups) {
            let what = format!("{n_heads} heads are no multiple of {n_groups} groups");
            return Err(keys.error("ssm.time_step_rank", what));
        }
        if !d_inner.is_multiple_of(n_heads) {
            let what = format!("{d_inner} found, a multiple of {n_heads} heads expected");
            return Err(keys.error("ssm.inner_size", what));
        }
        Ok(config)
    }

    /// Elements of what writes, and of what reads, in all groups.
    fn d_groups(&self) -> usize {
        self.n_groups * self.d_state
    }

    /// Channels of the convolution: inputs, what writes, what reads.
    fn n_channels(&self) -> usize {
        self.d_inner + 2 * self.d_groups()
    }

    fn d_head(&self) -> usize {
        self.d_inner / self.n_heads
    }

    /// The state that such a layer keeps.
    pub(crate) fn state(&self) -> Recurrent {
        Recurrent {
            n_conv: self.n_taps - 1,
            n_channels: self.n_channels(),
            n_heads: self.n_heads,
            d_state: self.d_state,
            d_head: self.d_head(),
            is_delta_net: false,
        }
    }
}

/// The weights of a Mamba-2 layer.
pub(crate) struct Mamba {
    config: MambaConfig,
    /// Gate, then the channels of the convolution, then time steps.
    input: Linear,
    conv: WeightId,
    conv_bias: Option<WeightId>,
    dt_bias: WeightId,
    /// `-exp(A_log)`.
    a: WeightId,
    /// Share of the input in the output.
    d: WeightId,
    norm: WeightId,
    out: Linear,
}

impl Mamba {
    /// Asks for the tensors of a block.
    pub(crate) fn open(t: &mut Scope<'_, '_>, config: MambaConfig) -> Result<Self, LoadError> {
        let MambaConfig { n_embd, n_taps, n_groups, n_heads, d_inner, .. } = config;
        let n_channels = config.n_channels();
        Ok(Self {
            input: Linear::open(t, "ssm_in", n_embd, d_inner + n_channels + n_heads)?,
            conv: t.need("ssm_conv1d.weight", &[n_taps, n_channels])?,
            conv_bias: t.find("ssm_conv1d.bias", &[n_channels])?,
            dt_bias: t.need("ssm_dt.bias", &[n_heads])?,
            a: t.need("ssm_a", &[1, n_heads])?,
            d: t.need("ssm_d", &[1, n_heads])?,
            norm: t.need("ssm_norm.weight", &[d_inner / n_groups, n_groups])?,
            out: Linear::open(t, "ssm_out", d_inner, n_embd)?,
            config,
        })
    }

    /// `x: [n_embd, n_tokens]`, normed; gives the same shape. Reads and writes the state of layer `il`.
    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, step: &Step<'_, 'g>, il: usize, x: Tensor<'g>) -> Tensor<'g> {
        let MambaConfig { n_groups, n_heads, d_inner, eps, .. } = self.config;
        let (n_tokens, n_channels) = (x.ne()[1], self.config.n_channels());
        let all = self.input.forward(g, x); // [d_inner + n_channels + n_heads, n_tokens]
        let nb = all.nb();
        let part =
            |first: usize, n: usize| g.view(all, [n as i64, n_tokens, 1, 1], [nb[1], nb[2], nb[3]], first * nb[0]);
        let dt = g.add(g.cont(part(d_inner + n_channels, n_heads)), vector(g, self.dt_bias)); // [n_heads, n_tokens]

        let segments = step.inputs.view.segments().iter().zip(&step.inputs.numbers);
        let parts = segments.map(|(seg, &numbers)| self.recur(g, step, il, (seg, numbers), (all, dt)));
        let y = join(g, parts).unwrap_or(x); // [d_inner, n_tokens]
        let y = g.swiglu(part(0, d_inner), y);
        let y = g.reshape(y, [(d_inner / n_groups) as i64, n_groups as i64, n_tokens]);
        let y = g.mul(g.rms_norm(y, eps), vector(g, self.norm));
        self.out.forward(g, g.reshape(y, [d_inner as i64, n_tokens]))
    }

    /// The recurrence of one segment's sequences, whose state lies where `numbers` say; gives `[d_inner, n_rows * n_seqs]`.
    fn recur<'g>(
        &self,
        g: &Graph<'g>,
        step: &Step<'_, 'g>,
        il: usize,
        (seg, numbers): (&Segment, Numbers<'g>),
        (all, dt): (Tensor<'g>, Tensor<'g>),
    ) -> Tensor<'g> {
        let MambaConfig { d_state, n_groups, n_heads, d_inner, .. } = self.config;
        let (d_head, d_groups) = (self.config.d_head(), self.config.d_groups());
        let (n_rows, n_seqs) = (seg.n_rows as i64, seg.n_seqs as i64);
        let view = &step.inputs.view;
        let channels = (all, d_inner);
        let Some(c) = causal_conv(g, view, il, (seg, numbers), channels, vector(g, self.conv)) else { return all };
        let c = self.conv_bias.map_or(c, |bias| g.add(c, vector(g, bias)));
        let c = g.silu(c); // [n_channels, n_rows, n_seqs]
        let nb = c.nb();
        let heads = |d: usize, n: usize, first: usize| {
            g.view(c, [d as i64, n as i64, n_rows, n_seqs], [d * nb[0], nb[1], nb[2]], first * nb[0])
        };
        let x = heads(d_head, n_heads, 0); // [d_head, n_heads, n_rows, n_seqs]
        let nb = dt.nb()[1];
        let dt = g.view(
            dt,
            [n_heads as i64, n_rows, n_seqs, 1],
            [nb, nb * seg.n_rows, nb * seg.n_tokens()],
            nb * seg.first_row,
        );
        let (state, planes) = (view.heads(g, il, seg, numbers.states), view.head_planes(g, il, seg, numbers.slots));
        let Some((state, planes)) = state.zip(planes) else { return all };
        let b = heads(d_state, n_groups, d_inner); // [d_state, n_groups, n_rows, n_seqs]
        let c = heads(d_state, n_groups, d_inner + d_groups);
        let scan = SsmScan { state, x, dt, a: vector(g, self.a), b, c };
        let (y, states) = g.ssm_scan(&scan, seg.n_snapshots as i64);
        g.keep_snapshots(states, planes);
        let direct = g.mul(x, vector(g, self.d)); // [d_head, n_heads, n_rows, n_seqs]
        g.add(y, g.reshape(direct, [d_inner as i64, n_rows * n_seqs]))
    }
}
