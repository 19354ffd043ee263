//! Gated DeltaNet: a causal convolution, then one matrix of state for each head, decayed and corrected token by token.
//! Source: Yang et al. 2024; the order of heads is that of GGUF files.

use ggml::{DeltaRule, Graph, Tensor, WeightId};
use memory::{Recurrent, Segment};

use super::causal_conv::causal_conv;
use super::linear::{Linear, join, vector};
use super::rms_norm::RmsNorm;
use crate::error::LoadError;
use crate::keys::{Keys, WIDTH};
use crate::share::Share;
use crate::step::{Numbers, Step};
use crate::tensors::Scope;

/// Epsilon under the root of the norms of queries and keys; fixed by the architecture.
const QK_EPS: f32 = 1e-6;

/// How heads belong together, and with that what a file's matrices of inputs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadOrder {
    /// Value head `h` reads key head `h mod n_k_heads`; decay and beta come from a matrix each.
    Tiled,
    /// Value heads of a key head follow each other; one matrix gives beta and decay, key head by key head. Older files have
    /// one matrix for all else, too.
    Grouped,
}

/// Sizes and constants of a DeltaNet layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaNetConfig {
    order: HeadOrder,
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
    pub(crate) fn read(keys: &Keys<'_, '_>, order: HeadOrder) -> Result<Self, LoadError> {
        let config = Self {
            order,
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

    /// The sizes of a share.
    pub(crate) fn shared(self, share: Share) -> Result<Self, LoadError> {
        let n_k_heads = share.count(self.n_k_heads, "key heads of a delta net")?;
        Ok(Self { n_k_heads, n_v_heads: share.count(self.n_v_heads, "value heads of a delta net")?, ..self })
    }

    /// Tensors whose heads do not follow each other, and the lengths of segments in which they do.
    pub(crate) fn segments(&self) -> Vec<(&'static str, Vec<usize>)> {
        let (d_key, d_value) = (self.d_key(), self.d_value());
        let n_of_head = self.n_v_heads / self.n_k_heads;
        let values = |of_keys: usize, of_values: usize| match self.order {
            HeadOrder::Tiled => vec![of_keys; n_of_head],
            HeadOrder::Grouped => vec![of_values],
        };
        let channels = [vec![d_key, d_key], values(d_key, d_value)].concat();
        let by_element = values(d_key, d_value);
        let by_head = values(self.n_k_heads, self.n_v_heads);
        let named = |names: &[&'static str], segments: &Vec<usize>| -> Vec<_> {
            names.iter().map(|name| (*name, segments.clone())).collect()
        };
        [
            named(&["attn_qkv.weight", "ssm_conv1d.weight"], &channels),
            named(&["attn_gate.weight", "ssm_out.weight"], &by_element),
            named(&["ssm_alpha.weight", "ssm_beta.weight", "ssm_a", "ssm_dt.bias"], &by_head),
        ]
        .concat()
    }

    /// The state that such a layer keeps.
    pub(crate) fn state(&self) -> Recurrent {
        Recurrent {
            n_conv: self.n_taps - 1,
            n_channels: self.n_channels(),
            n_heads: self.n_v_heads,
            d_state: self.d_state,
            d_head: self.d_state,
            is_delta_net: true,
        }
    }
}

/// The weights of a DeltaNet layer.
pub(crate) struct DeltaNet {
    config: DeltaNetConfig,
    inputs: Inputs,
    decay: DecayInputs,
    conv: WeightId,
    /// `-exp(A_log)`.
    a: WeightId,
    dt_bias: WeightId,
    norm: RmsNorm,
    out: Linear,
}

/// What gives queries, keys, values and the gate of the output.
enum Inputs {
    Split {
        /// Rows of all queries, all keys, all values.
        qkv: Linear,
        /// The gate.
        z: Linear,
    },
    /// For each key head its query, its key, its values and their gates.
    Joint(Linear),
}

/// What gives beta and what decays come from.
enum DecayInputs {
    Split {
        alpha: Linear,
        beta: Linear,
    },
    /// For each key head beta of its value heads, then alpha of them.
    Joint(Linear),
}

impl DeltaNet {
    /// Asks for the tensors of a block.
    pub(crate) fn open(t: &mut Scope<'_, '_>, config: DeltaNetConfig) -> Result<Self, LoadError> {
        let (n_embd, n_heads) = (config.n_embd, config.n_v_heads);
        let (grouped, n_in) = (config.order == HeadOrder::Grouped, config.n_channels() + config.d_value());
        let joint = if grouped { Linear::find(t, "ssm_in", n_embd, n_in, false)? } else { None };
        Ok(Self {
            inputs: match joint {
                Some(joint) => Inputs::Joint(joint),
                None => Inputs::Split {
                    qkv: Linear::open(t, "attn_qkv", n_embd, config.n_channels())?,
                    z: Linear::open(t, "attn_gate", n_embd, config.d_value())?,
                },
            },
            decay: match grouped {
                true => DecayInputs::Joint(Linear::open(t, "ssm_ba", n_embd, 2 * n_heads)?),
                false => DecayInputs::Split {
                    alpha: Linear::open(t, "ssm_alpha", n_embd, n_heads)?,
                    beta: Linear::open(t, "ssm_beta", n_embd, n_heads)?,
                },
            },
            conv: t.need("ssm_conv1d.weight", &[config.n_taps, config.n_channels()])?,
            a: t.need("ssm_a", &[n_heads])?,
            dt_bias: t.need("ssm_dt.bias", &[n_heads])?,
            norm: RmsNorm::open(t, "ssm_norm", config.d_state, config.eps)?,
            out: Linear::open(t, "ssm_out", config.d_value(), n_embd)?,
            config,
        })
    }

    /// `x: [n_embd, n_tokens]`, normed; gives the same shape. Reads and writes the state of layer `il`.
    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, step: &Step<'_, 'g>, il: usize, x: Tensor<'g>) -> Tensor<'g> {
        let (s, n_heads) = (self.config.d_state as i64, self.config.n_v_heads as i64);
        let n_tokens = x.ne()[1];
        let (qkv, z) = self.qkv_and_gate(g, x); // [n_channels, n_tokens] and [d_value, n_tokens]
        let (alpha, beta) = self.alpha_and_beta(g, x); // [n_v_heads, n_tokens] both
        let beta = g.sigmoid(beta);
        let alpha = g.add(alpha, vector(g, self.dt_bias));
        let decay = g.mul(g.softplus(alpha), vector(g, self.a)); // [n_v_heads, n_tokens], at most 0

        let segments = step.inputs.view.segments().iter().zip(&step.inputs.numbers);
        let parts = segments.map(|(seg, &numbers)| self.recur(g, step, il, (seg, numbers), (qkv, decay, beta)));
        let o = join(g, parts).unwrap_or(z); // [d_value, n_tokens]
        let o = g.reshape(o, [s, n_heads, n_tokens]);
        let z = g.reshape(z, [s, n_heads, n_tokens]);
        let o = g.mul(self.norm.forward(g, o), g.silu(z));
        self.out.forward(g, g.reshape(o, [s * n_heads, n_tokens]))
    }

    /// Queries, keys and values, all heads of each after the other, and the gate.
    fn qkv_and_gate<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> (Tensor<'g>, Tensor<'g>) {
        let joint = match &self.inputs {
            Inputs::Split { qkv, z } => return (qkv.forward(g, x), z.forward(g, x)),
            Inputs::Joint(joint) => joint.forward(g, x), // [(2 * s + 2 * r * s) * n_k_heads, n_tokens]
        };
        let DeltaNetConfig { d_state: s, n_k_heads, n_v_heads, .. } = self.config;
        let n_of_group = n_v_heads / n_k_heads * s;
        let part = |first: usize, n: usize| columns_of(g, joint, n_k_heads, first, n);
        let (q, k, v) = (part(0, s), part(s, s), part(2 * s, n_of_group));
        (g.concat(g.concat(q, k, 0), v, 0), part(2 * s + n_of_group, n_of_group))
    }

    /// What decays and beta come from.
    fn alpha_and_beta<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> (Tensor<'g>, Tensor<'g>) {
        let joint = match &self.decay {
            DecayInputs::Split { alpha, beta } => return (alpha.forward(g, x), beta.forward(g, x)),
            DecayInputs::Joint(joint) => joint.forward(g, x), // [2 * n_v_heads, n_tokens]
        };
        let n = self.config.n_v_heads / self.config.n_k_heads;
        let part = |first: usize| columns_of(g, joint, self.config.n_k_heads, first, n);
        (part(n), part(0))
    }

    /// Queries and keys for each value head: `both: [s, 2 * n_k_heads, n_rows, n_seqs]` with each head as often as value heads
    /// read it; as it is where these are tiled, which the op does by itself.
    fn for_value_heads<'g>(&self, g: &Graph<'g>, both: Tensor<'g>) -> Tensor<'g> {
        let n_of_head = (self.config.n_v_heads / self.config.n_k_heads) as i64;
        if self.config.order == HeadOrder::Tiled || n_of_head == 1 {
            return both;
        }
        let [s, n_heads, n_rows, n_seqs] = both.ne();
        let apart = g.reshape(both, [s, 1, n_heads, n_rows * n_seqs]);
        let repeated = g.repeat_to(apart, [s, n_of_head, n_heads, n_rows * n_seqs]);
        g.reshape(repeated, [s, n_of_head * n_heads, n_rows, n_seqs])
    }

    /// The recurrence of one segment's sequences, whose state lies where `numbers` say; gives `[d_value, n_rows * n_seqs]`.
    fn recur<'g>(
        &self,
        g: &Graph<'g>,
        step: &Step<'_, 'g>,
        il: usize,
        (seg, numbers): (&Segment, Numbers<'g>),
        (qkv, decay, beta): (Tensor<'g>, Tensor<'g>, Tensor<'g>),
    ) -> Tensor<'g> {
        let s = self.config.d_state;
        let (n_k, n_v) = (self.config.n_k_heads as i64, self.config.n_v_heads as i64);
        let (n_rows, n_seqs) = (seg.n_rows as i64, seg.n_seqs as i64);
        let view = &step.inputs.view;
        let conv = causal_conv(g, view, il, (seg, numbers), (qkv, 0), vector(g, self.conv));
        let Some(c) = conv else { return qkv };
        let c = g.silu(c); // [n_channels, n_rows, n_seqs]

        let nb = c.nb();
        let heads = |n_heads: i64, first_channel: usize| {
            let strides = [s * nb[0], nb[1], nb[2]];
            g.view(c, [s as i64, n_heads, n_rows, n_seqs], strides, first_channel * nb[0])
        };
        let d_key = self.config.d_key();
        let both = self.for_value_heads(g, g.l2_norm(heads(2 * n_k, 0), QK_EPS)); // [s, 2 * n, n_rows, n_seqs]
        let (nb, n) = (both.nb(), both.ne()[1] / 2);
        let part = |offset| g.view(both, [s as i64, n, n_rows, n_seqs], [nb[1], nb[2], nb[3]], offset);
        let (q, k) = (part(0), part(nb[1] * n as usize)); // [s, n, n_rows, n_seqs], n: key heads or value heads
        let v = heads(n_v, 2 * d_key); // [s, n_v_heads, n_rows, n_seqs]
        let gate = |t: Tensor<'g>| {
            let nb = t.nb()[1];
            let ne = [1, n_v, n_rows, n_seqs];
            g.view(t, ne, [t.nb()[0], nb, nb * seg.n_rows], nb * seg.first_row) // of [n_v_heads, n_tokens]
        };
        let rule = |state| DeltaRule { q, k, v, g: gate(decay), beta: gate(beta), state };
        if let Some((state, logs)) = numbers.logged.and_then(|logged| view.logged_heads(g, il, logged)) {
            return g.delta_rule_logged(&rule(state), logs);
        }
        let (state, planes) = (view.heads(g, il, seg, numbers.states), view.head_planes(g, il, seg, numbers.slots));
        let Some((state, planes)) = state.zip(planes) else { return qkv };
        let rule = rule(state);
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
        g.keep_snapshots(states, planes);
        g.view(out, [d_value as i64, n_tokens as i64, 1, 1], [row, row * n_tokens, row * n_tokens], 0)
    }
}

/// Of `joint: [n_groups * m, n_tokens]` columns `first` to `first + n` of each group of `m`: `[n_groups * n, n_tokens]`.
fn columns_of<'g>(g: &Graph<'g>, joint: Tensor<'g>, n_groups: usize, first: usize, n: usize) -> Tensor<'g> {
    let ([n_all, n_tokens, ..], nb) = (joint.ne(), joint.nb());
    let group = n_all as usize / n_groups * nb[0];
    let ne = [n as i64, n_groups as i64, n_tokens, 1];
    let part = g.view(joint, ne, [group, nb[1], nb[1] * n_tokens as usize], first * nb[0]);
    g.reshape(g.cont(part), [(n * n_groups) as i64, n_tokens]) // was [n, n_groups, n_tokens]
}
