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
    /// Epsilon of the layer norm that a layer ends in; `None` where an RMS norm does.
    pub layer_norm: Option<f32>,
    /// The attention.
    pub attention: HeadAttention,
    /// The feed-forward.
    pub ffn: HeadFfn,
}

/// The attention of a head: each query head reads the keys and values of its group.
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
    /// Positions that a token sees, its own counted; `None` for all before it.
    pub window: Option<usize>,
    /// One more score for each head, without a value (`attn_sinks`).
    pub sinks: bool,
    /// Factor on values.
    pub value_scale: f32,
    /// Queries and keys are normed head by head.
    pub qk_norm: bool,
    /// What the output is gated by, through a sigmoid.
    pub gate: Option<HeadGate>,
    /// The rotation of queries and keys; of latent attention, of the parts that are for it.
    pub rotation: HeadRotation,
    /// Queries get longer with their positions.
    pub temperature: Option<HeadTemperature>,
    /// Keys and values are made of a low-rank image of the input; else of the input itself.
    pub latent: Option<HeadLatent>,
}

/// What gates the output of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadGate {
    /// A number for each element; they come with the query, head by head.
    Elements,
    /// A number for each head (`attn_gate`).
    Heads,
}

/// The rotation of a head's leading elements.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeadRotation {
    /// The angle by which each pair turns from one position to the next; empty where nothing turns.
    pub frequencies: Vec<f64>,
    /// The model's `rope_freqs.weight`, where it has some, divides the frequencies.
    pub freq_factors: bool,
    /// Factor on rotated elements.
    pub magnitude: f32,
    /// Element `i` turns with the one so many places on as there are pairs; else neighbours turn.
    pub neox: bool,
}

/// Queries are multiplied with `1 + rate * ln(1 + floor(position / stretch))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadTemperature {
    /// How fast they grow.
    pub rate: f32,
    /// Positions of one length.
    pub stretch: usize,
}

/// What keys and values of latent attention are made of. The last elements of queries and keys are rotated; those of keys are the
/// same for all heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLatent {
    /// Width of the image of keys and values.
    pub n_kv_lora: usize,
    /// Elements of a query and a key that are rotated.
    pub d_rope: usize,
    /// Queries are made of a normed low-rank image, too.
    pub low_rank_q: bool,
    /// Each head has a matrix for its keys (`attn_k_b`) and one for its values (`attn_v_b`); else one is for all (`attn_kv_b`).
    pub by_head: bool,
}

/// The feed-forward of a head.
#[derive(Clone, Debug, PartialEq)]
pub enum HeadFfn {
    /// One for all tokens.
    Dense(HeadInner),
    /// Experts of the same kind, which a router chooses.
    Moe(HeadExperts),
}

impl HeadFfn {
    /// Inner elements of a token.
    pub fn n_inner(&self) -> usize {
        match self {
            Self::Dense(inner) => inner.n_ff,
            Self::Moe(moe) => moe.each.n_ff * moe.router.n_used + moe.shared.map_or(0, |shared| shared.inner.n_ff),
        }
    }
}

/// What stands between the matrices of a feed-forward.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadInner {
    /// Its width.
    pub n_ff: usize,
    /// What becomes of the rows there.
    pub glu: HeadGlu,
}

/// What a feed-forward's down matrix is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeadGlu {
    /// `silu(gate) * up`.
    Silu,
    /// `min(silu(gate), limit) * clamp(up, -limit, limit)`.
    Limited(f32),
    /// `relu(up)^2`: there is no gate.
    SquaredRelu,
}

/// Experts, and what chooses them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadExperts {
    /// What chooses.
    pub router: HeadRouter,
    /// Each of them.
    pub each: HeadInner,
    /// The expert that every token uses.
    pub shared: Option<HeadShared>,
    /// The others read a narrower image of the input (`ffn_latent_down`), and their sum is widened again (`ffn_latent_up`).
    pub narrow: bool,
}

/// The expert that every token uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadShared {
    /// What it is.
    pub inner: HeadInner,
    /// It is multiplied with a sigmoid of the input.
    pub gated: bool,
}

/// Which experts a token goes to, and with which weights. Where a layer has a correction (`exp_probs_b.bias`), it is added to the
/// scores that choose, not to those that become weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadRouter {
    /// All experts.
    pub n_expert: usize,
    /// Those of a token.
    pub n_used: usize,
    /// What makes scores of the router's outputs.
    pub scores: HeadScores,
    /// Experts stand in so many groups of equal size, of which so many are used: those with the largest sums of their two best
    /// experts.
    pub groups: Option<(usize, usize)>,
    /// The weights of a token's experts are divided by their sum, or by this if that is less.
    pub norm: Option<f32>,
    /// Factor on the weights.
    pub scale: f32,
}

/// What makes scores of a router's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadScores {
    /// A softmax over all experts.
    Softmax,
    /// A sigmoid, each expert for itself.
    Sigmoid,
    /// Nothing: the outputs choose as they are, and weights are a softmax over the chosen.
    SoftmaxOfChosen,
}
