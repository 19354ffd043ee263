//! What a layer of a NextN head computes, as numbers: for programs that train one.
//! Owns the words for it. What cannot be said in these words is refused by name, as a head that was trained otherwise than it is
//! computed would draft nonsense.

/// A layer of a NextN head: attention on `eh_proj * [norm(embedding); norm(hidden)]`, a feed-forward, a norm. Its tensors are
/// those of [`Schema`](crate::Schema) from block [`Hparams::n_layer`](crate::Hparams::n_layer) on.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadShape {
    /// Width of the stream.
    pub n_embd: usize,
    /// Epsilon of the RMS norms.
    pub eps: f32,
    /// A layer takes hidden states before the final norm, and hands on its own before its norm.
    pub pre_norm: bool,
    /// Of several layers, each takes the hidden states of the one before it; else all take the target model's.
    pub chained: bool,
    /// What the norm before the feed-forward is called.
    pub ffn_norm: &'static str,
    /// The attention.
    pub attention: HeadAttention,
    /// The feed-forward.
    pub ffn: HeadFfn,
}

/// Grouped-query attention of a head.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadAttention {
    /// Query heads.
    pub n_head: usize,
    /// Heads of keys and values.
    pub n_head_kv: usize,
    /// Elements of a query and a key.
    pub d_k: usize,
    /// Elements of a value.
    pub d_v: usize,
    /// Factor on scores.
    pub scale: f32,
    /// Queries and keys are normed head by head.
    pub qk_norm: bool,
    /// The output is gated by a sigmoid; the gate comes with the query, head by head.
    pub gate: bool,
    /// Leading elements of a query and a key that are rotated; 0 where nothing turns.
    pub n_rot: usize,
    /// Element `i` turns with element `i + n_rot / 2`; else neighbours turn.
    pub neox: bool,
    /// Pair `i` turns by `position * scale * base^(-2i / n_rot)`.
    pub rope_base: f32,
    /// Factor on positions.
    pub rope_scale: f32,
    /// The model's `rope_freqs.weight`, where it has some, divides the frequencies.
    pub freq_factors: bool,
}

/// The feed-forward of a head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadFfn {
    /// `down(silu(gate) * up)`.
    Dense {
        /// Its inner width.
        n_ff: usize,
    },
    /// Experts of the same kind, which a router chooses by a softmax.
    Moe {
        /// All of them.
        n_expert: usize,
        /// Those of a token.
        n_used: usize,
        /// Inner width of each.
        n_ff: usize,
        /// The weights of a token's experts are divided by their sum.
        norm: bool,
        /// Inner width of the expert that every token uses, under a sigmoid of the input; 0 where there is none.
        n_ff_shared: usize,
    },
}
