//! Grouped-query attention as decoders have it. What differs between families is data: [`AttentionKind`].

use ggml::{Graph, Rope, Scores, Tensor, WeightId};
use memory::{KV_STEP, Kv, LayerState};

use super::attention::{attend, split_heads, store};
use super::linear::{Linear, vector};
use super::rms_norm::RmsNorm;
use super::temperature::Temperature;
use crate::error::LoadError;
use crate::head_shape::{HeadAttention, HeadGate};
use crate::keys::{Keys, WIDTH};
use crate::rope::{rope, rope_swa, rotation_of_head, without_yarn, yarn_factors};
use crate::share::Share;
use crate::step::AttentionInputs;
use crate::tensors::Scope;

/// What differs between families.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AttentionKind {
    /// Elements half a head apart turn together, not neighbours.
    pub(crate) neox: bool,
    /// Queries and keys are normed head by head.
    pub(crate) qk_norm: bool,
    /// They are where the file brings the norms, and are not where it brings none.
    pub(crate) qk_norm_if_there: bool,
    /// The output is gated by a sigmoid of the input; the gate comes with the query, head by head.
    pub(crate) gate: bool,
    /// Queries, keys and values may have biases.
    pub(crate) bias: bool,
    /// The output may have one.
    pub(crate) out_bias: bool,
    /// Scores may grow with the position.
    pub(crate) temperature: bool,
    /// The file may bring factors that divide the rotation's frequencies.
    pub(crate) freq_factors: bool,
    /// Pairs of a head may turn by positions of their own, as the file's sections say.
    pub(crate) sections: bool,
    /// Nothing turns: positions do not count.
    pub(crate) no_rope: bool,
    /// If it does, they are not for this block.
    pub(crate) own_frequencies: bool,
    /// One more score for each head, without a value (`attn_sinks`).
    pub(crate) sinks: bool,
    /// YaRN's borders lie between the pairs of a head, where the formula puts them; they are else rounded to pairs.
    pub(crate) exact_yarn: bool,
    /// That score where the file brings it.
    pub(crate) sinks_if_there: bool,
    /// Each head's output may be gated by a sigmoid of the input (`attn_gate`).
    pub(crate) head_gate: bool,
    /// The file's factors on frequencies are as many as half of a head's elements, however many are rotated.
    pub(crate) wide_factors: bool,
}

/// Sizes and constants of one block's attention. Blocks may differ in all but `n_embd` and `eps`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttentionConfig {
    pub(crate) kind: AttentionKind,
    /// Width of what queries, keys and values are made of.
    n_in: usize,
    n_embd: usize,
    pub(crate) n_head: usize,
    pub(crate) n_head_kv: usize,
    pub(crate) d_k: usize,
    pub(crate) d_v: usize,
    eps: f32,
    /// Factor on scores.
    pub(crate) scale: f32,
    /// Factor on values.
    pub(crate) value_scale: Option<f32>,
    /// Scores are kept below it by a hyperbolic tangent.
    pub(crate) softcap: Option<f32>,
    /// Positions that a token sees, its own counted; `None` for all before it.
    pub(crate) window: Option<usize>,
    /// The file may bring two lists of factors on frequencies, of which the second is for contexts of more positions.
    pub(crate) long_above: Option<usize>,
    temperature: Option<Temperature>,
    /// `None` where nothing turns.
    pub(crate) rope: Option<Rope>,
    /// Pairs that turn by each of the positions of a token of a picture ([`Graph::rope_sections`]).
    pub(crate) sections: Option<[i32; 4]>,
}

/// How layers with a window differ from the others in what the file says of both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlidingKind {
    pub(crate) kind: AttentionKind,
    /// Base of their rotation where the file tells none; `None` for that of the other layers.
    pub(crate) base: Option<f32>,
    /// Positions are scaled in them, too.
    pub(crate) scales: bool,
}

impl AttentionConfig {
    /// Those of each block, all without a window. Blocks without attention may have no heads.
    pub(crate) fn read(keys: &Keys<'_, '_>, n_block: usize, kind: AttentionKind) -> Result<Vec<Self>, LoadError> {
        Self::read_with(keys, n_block, kind, None)
    }

    /// Those of each block of a family in which some have a window: `attention.sliding_window` positions, in the layers that
    /// `attention.sliding_window_pattern` marks (flags, or numbers 0 and 1, or one number: each so-many-th has none), else in
    /// those that `slides` names. A file without a window has none anywhere. What the file says of layers with a window alone (keys ending in `_swa`) goes
    /// before what it says of all.
    pub(crate) fn read_sliding(
        keys: &Keys<'_, '_>,
        n_block: usize,
        full: AttentionKind,
        sliding: SlidingKind,
        slides: impl Fn(usize) -> bool,
    ) -> Result<Vec<Self>, LoadError> {
        let mut blocks = Self::read_with(keys, n_block, full, None)?;
        let Some(window) = keys.find("attention.sliding_window", 0..=1 << 28)?.filter(|&n| n > 0) else {
            return Ok(blocks);
        };
        let pattern = keys.pattern("attention.sliding_window_pattern", n_block)?;
        let slides = |il: usize| pattern.as_ref().map_or_else(|| slides(il), |pattern| pattern[il]);
        let windowed = Self::read_with(keys, n_block, sliding.kind, Some(sliding))?;
        for (_, (block, windowed)) in blocks.iter_mut().zip(windowed).enumerate().filter(|(il, _)| slides(*il)) {
            *block = Self { window: Some(window), ..windowed };
        }
        Ok(blocks)
    }

    fn read_with(
        keys: &Keys<'_, '_>,
        n_block: usize,
        kind: AttentionKind,
        sliding: Option<SlidingKind>,
    ) -> Result<Vec<Self>, LoadError> {
        let n_embd = keys.need("embedding_length", WIDTH)?;
        let n_head = keys.per_layer("attention.head_count", n_block, 0..=1 << 16)?;
        let n_head = n_head.ok_or_else(|| keys.error("attention.head_count", "is missing"))?;
        let n_head_kv = keys.per_layer("attention.head_count_kv", n_block, 0..=1 << 16)?;
        let n_head_kv = n_head_kv.unwrap_or_else(|| n_head.clone());
        let most = n_head.iter().copied().max().unwrap_or(1);
        let default_d = n_embd / most.max(1);
        let d = |key: &str| -> Result<usize, LoadError> {
            let own = sliding.map(|_| keys.find(&format!("{key}_swa"), WIDTH)).transpose()?.flatten();
            Ok(own.or(keys.find(key, WIDTH)?).unwrap_or(default_d))
        };
        let (d_k, d_v) = (d("attention.key_length")?, d("attention.value_length")?);
        if d_k == 0 || d_v == 0 {
            return Err(keys.error("attention.head_count", format!("{most} heads of a width of {n_embd}")));
        }
        if kind.gate && d_k != d_v {
            return Err(keys.error("attention.value_length", format!("heads of {d_v} elements beside keys of {d_k}")));
        }
        let (eps, scale) = (keys.rms_eps()?, keys.attention_scale(d_k)?);
        let rope = match sliding {
            _ if kind.no_rope => None,
            None => Some(rope(keys, d_k, kind.neox)?),
            Some(s) => Some(rope_swa(keys, d_k, kind.neox, s.base, s.scales)?),
        };
        let temperature = if kind.temperature { Temperature::read(keys)? } else { None };
        let sections = match rope.filter(|_| kind.sections) {
            Some(rope) => sections(keys, &rope)?,
            None => None,
        };
        let (softcap, window, value_scale) = (None, None, None);
        let config = |(n_head, n_head_kv)| Self {
            kind,
            n_in: n_embd,
            n_embd,
            n_head,
            n_head_kv,
            d_k,
            d_v,
            eps,
            scale,
            value_scale,
            softcap,
            window,
            long_above: None,
            temperature,
            rope,
            sections,
        };
        Ok(n_head.into_iter().zip(n_head_kv).map(config).collect())
    }

    /// The same with queries, keys and values made of rows of width `n_in`.
    pub(crate) fn of_width(self, n_in: usize) -> Self {
        Self { n_in, ..self }
    }

    /// The same with a factor on values.
    pub(crate) fn with_value_scale(self, value_scale: Option<f32>) -> Self {
        Self { value_scale, ..self }
    }

    /// The sizes of a share.
    pub(crate) fn shared(self, share: Share) -> Result<Self, LoadError> {
        let n_head_kv = share.count(self.n_head_kv, "key heads")?;
        Ok(Self { n_head: share.count(self.n_head, "heads")?, n_head_kv, ..self })
    }

    /// Rows of queries (with their gates), keys and values.
    pub(crate) fn rows_of_qkv(&self) -> [usize; 3] {
        let n_q = if self.kind.gate { 2 * self.d_k * self.n_head } else { self.d_k * self.n_head };
        [n_q, self.d_k * self.n_head_kv, self.d_v * self.n_head_kv]
    }

    /// The factors on the rotation's frequencies, which are one tensor for all blocks.
    pub(crate) fn find_freq_factors(&self, globals: &mut Scope<'_, '_>) -> Result<Option<WeightId>, LoadError> {
        if let Some(rope) = self.rope.filter(|rope| self.kind.exact_yarn && rope.ext_factor != 0.0) {
            return globals.made(YARN_FACTORS, &yarn_factors(&rope)).map(Some);
        }
        match self.rope.filter(|_| self.kind.freq_factors) {
            _ if self.kind.own_frequencies => Ok(None),
            Some(_) if self.kind.wide_factors => globals.find("rope_freqs.weight", &[self.d_k / 2]),
            Some(rope) => globals.find("rope_freqs.weight", &[rope.n_dims as usize / 2]),
            None => globals.refuse("rope_freqs.weight", "factors on frequencies are not supported").map(|()| None),
        }
    }

    /// As a NextN head has it in the block of `t`; else what of it cannot be said.
    pub(crate) fn shape(&self, t: &Scope<'_, '_>) -> Result<HeadAttention, String> {
        let Self { kind, n_head, n_head_kv, d_k, d_v, scale, window, rope, .. } = *self;
        let refused = [
            (self.n_in != self.n_embd, "an input of another width"),
            (self.softcap.is_some(), "capped scores"),
            (self.long_above.is_some() || kind.exact_yarn, "rotations of long contexts"),
            (n_head_kv == 0 || n_head % n_head_kv.max(1) != 0, "no heads"),
        ];
        if let Some((_, what)) = refused.iter().find(|(is_there, _)| *is_there) {
            return Err(format!("the attention of its NextN head has {what}"));
        }
        let gate = match kind.head_gate && t.has("attn_gate.weight") {
            true => Some(HeadGate::Heads),
            false => kind.gate.then_some(HeadGate::Elements),
        };
        let factors = kind.freq_factors && !kind.own_frequencies;
        Ok(HeadAttention {
            n_head,
            n_head_kv,
            d_k,
            d_v,
            scale,
            window,
            sinks: kind.sinks || kind.sinks_if_there && t.has("attn_sinks.weight"),
            value_scale: self.value_scale.unwrap_or(1.0),
            qk_norm: kind.qk_norm || kind.qk_norm_if_there && t.has("attn_q_norm.weight"),
            gate,
            rotation: rope.map(|rope| rotation_of_head(&rope, factors)).unwrap_or_default(),
            temperature: self.temperature.map(|t| t.shape()),
            latent: None,
        })
    }

    /// The state that such a layer keeps.
    pub(crate) fn state(&self) -> LayerState {
        let Self { n_head_kv, d_k, d_v, window, .. } = *self;
        LayerState::Kv(Kv { n_head_kv, d_k, d_v, window, latent: false })
    }
}

/// The factors that stand for YaRN, under a name that no file has.
const YARN_FACTORS: &str = "rope_yarn_factors";

/// The weights of one block's attention.
pub(crate) struct Attention {
    config: AttentionConfig,
    qkv: Qkv,
    /// The output matrix.
    pub(crate) out: Linear,
    norms: Option<(RmsNorm, RmsNorm)>,
    /// Divides the rotation's frequencies: `[n_dims / 2]`.
    freq_factors: Option<WeightId>,
    /// Factors in short contexts and in long ones, which take the place of `freq_factors`.
    by_context: Option<[WeightId; 2]>,
    /// `[n_head]`.
    sinks: Option<WeightId>,
    /// `[n_embd, n_head]`.
    head_gate: Option<Linear>,
}

enum Qkv {
    /// Query (with its gate), key, value.
    Split([Linear; 3]),
    /// The same rows in one matrix.
    Fused(Linear),
}

impl Attention {
    /// Asks for the tensors of block `il`. `freq_factors` are those of the model.
    pub(crate) fn open(
        t: &mut Scope<'_, '_>,
        il: usize,
        config: AttentionConfig,
        freq_factors: Option<WeightId>,
    ) -> Result<Self, LoadError> {
        let AttentionConfig { kind, n_in, n_embd, n_head, n_head_kv, d_k, d_v, eps, .. } = config;
        let rope = config.rope.map(|rope| if kind.exact_yarn { without_yarn(&rope) } else { rope });
        let config = AttentionConfig { rope, ..config };
        if n_head == 0 || n_head_kv == 0 || n_head % n_head_kv != 0 {
            let what = format!("{n_head} query heads on {n_head_kv} key heads");
            return Err(LoadError::Key { key: format!("attention.head_count of block {il}"), what });
        }
        if !kind.bias {
            for name in ["attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_qkv.bias"] {
                t.refuse(name, "biases are not supported")?;
            }
        }
        if !kind.out_bias {
            t.refuse("attn_output.bias", "biases are not supported")?;
        }
        let [n_q, n_k, n_v] = config.rows_of_qkv();
        let qkv = match Linear::find(t, "attn_qkv", n_in, n_q + n_k + n_v, kind.bias)? {
            Some(all) => {
                for name in ["attn_q.bias", "attn_k.bias", "attn_v.bias"] {
                    t.refuse(name, "biases of a joint matrix are in attn_qkv.bias")?;
                }
                Qkv::Fused(all)
            }
            None => {
                let mut part = |name: &str, n: usize| Linear::biased(t, name, n_in, n, kind.bias);
                Qkv::Split([part("attn_q", n_q)?, part("attn_k", n_k)?, part("attn_v", n_v)?])
            }
        };
        let norms = if kind.qk_norm || kind.qk_norm_if_there && RmsNorm::find(t, "attn_q_norm", d_k, eps)?.is_some() {
            Some((RmsNorm::open(t, "attn_q_norm", d_k, eps)?, RmsNorm::open(t, "attn_k_norm", d_k, eps)?))
        } else {
            for name in ["attn_q_norm.weight", "attn_k_norm.weight"] {
                t.refuse(name, "norms of heads are not expected here")?;
            }
            None
        };
        let out = Linear::biased(t, "attn_output", d_v * n_head, n_embd, kind.out_bias)?;
        let sinks = match kind.sinks {
            true => Some(t.need("attn_sinks.weight", &[n_head])?),
            false if kind.sinks_if_there => t.find("attn_sinks.weight", &[n_head])?,
            false => t.refuse("attn_sinks.weight", "attention sinks are not supported").map(|()| None)?,
        };
        let by_context = match rope.filter(|_| config.long_above.is_some()) {
            Some(rope) => factors_by_context(t, rope.n_dims as usize / 2)?,
            None => None,
        };
        let head_gate = match kind.head_gate {
            true => Linear::find(t, "attn_gate", n_embd, n_head, false)?,
            false => t.refuse("attn_gate.weight", "a gate of heads is not expected here").map(|()| None)?,
        };
        Ok(Self { config, qkv, out, norms, freq_factors, by_context, sinks, head_gate })
    }

    /// Whether it takes the second of two lists of factors in a context of so many positions, which is rounded up.
    pub(crate) fn is_long(&self, n_ctx: usize) -> bool {
        let above = self.config.long_above.filter(|_| self.by_context.is_some());
        above.is_some_and(|above| n_ctx > above.saturating_add(KV_STEP - 1) / KV_STEP * KV_STEP)
    }

    /// `x: [n_embd, n_tokens]`, normed; gives `[d_v * n_head, n_tokens]`, before the output matrix. Keys and values are
    /// those of layer `il` of the state.
    pub(crate) fn forward<'g>(
        &self,
        g: &Graph<'g>,
        inputs: &AttentionInputs<'_, 'g>,
        il: usize,
        x: Tensor<'g>,
    ) -> Tensor<'g> {
        let AttentionConfig { kind, n_head, d_k, d_v, scale, value_scale, softcap, temperature, .. } = self.config;
        let (q, k, v) = self.project(g, x);
        let (q, gate) = if kind.gate {
            let (q, gate) = gated(g, q, d_k, n_head);
            (q, Some(gate))
        } else {
            (split_heads(g, q, d_k), None) // [d_k, n_head, n_tokens]
        };
        let (k, v) = (split_heads(g, k, d_k), split_heads(g, v, d_v)); // [d, n_head_kv, n_tokens]
        let (q, k) = match &self.norms {
            Some((q_norm, k_norm)) => (q_norm.forward(g, q), k_norm.forward(g, k)),
            None => (q, k),
        };
        let is_long = self.is_long(inputs.view.n_ctx());
        let by_context = self.by_context.map(|[short, long]| if is_long { long } else { short });
        let factors = by_context.or(self.freq_factors).map(|f| vector(g, f));
        let rope = |x| match (self.config.rope, self.config.sections.zip(inputs.sections)) {
            (None, _) => x,
            (Some(rope), None) => g.rope(x, inputs.positions, factors, &rope),
            (Some(rope), Some((sections, positions))) => g.rope_sections(x, positions, factors, &rope, sections),
        };
        let q = rope(q);
        let q = temperature.map_or(q, |t| t.scaled(g, q, inputs.positions));
        let scores = Scores { scale, softcap, sinks: self.sinks.map(|sinks| vector(g, sinks)) };
        let o = attend(g, inputs, il, (q, rope(k), v), &scores);
        // The same as a factor on the values, which are sums here.
        let o = value_scale.map_or(o, |scale| g.scale(o, scale));
        let o = self.head_gate.as_ref().map_or(o, |gate| {
            let gate = g.sigmoid(gate.forward(g, x)); // [n_head, n_tokens]
            let ([n, n_tokens, ..], n_head, d_v) = (o.ne(), n_head as i64, d_v as i64);
            let by_head = g.reshape(o, [d_v, n_head, n_tokens]); // was [d_v * n_head, n_tokens]
            g.reshape(g.mul(by_head, g.reshape(gate, [1, n_head, n_tokens])), [n, n_tokens])
        });
        gate.map_or(o, |gate| g.mul(o, g.sigmoid(gate)))
    }

    /// Keeps keys and values of `x: [n_in, n_tokens]` in layer `il` of the state, and computes nothing else.
    pub(crate) fn fill<'g>(&self, g: &Graph<'g>, inputs: &AttentionInputs<'_, 'g>, il: usize, x: Tensor<'g>) {
        let (k, v) = match &self.qkv {
            Qkv::Split([_, k, v]) => (k.forward(g, x), v.forward(g, x)),
            Qkv::Fused(_) => {
                let (_, k, v) = self.project(g, x);
                (k, v)
            }
        };
        let (k, v) = (split_heads(g, k, self.config.d_k), split_heads(g, v, self.config.d_v)); // [d, n_head_kv, n_tokens]
        let k = self.norms.as_ref().map_or(k, |(_, norm)| norm.forward(g, k));
        let factors = self.freq_factors.map(|f| vector(g, f));
        let k = self.config.rope.map_or(k, |rope| g.rope(k, inputs.positions, factors, &rope));
        store(g, inputs, il, (k, v));
    }

    /// Queries (with their gates), keys and values, each head after the other in a column.
    fn project<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> (Tensor<'g>, Tensor<'g>, Tensor<'g>) {
        let all = match &self.qkv {
            Qkv::Split([q, k, v]) => return (q.forward(g, x), k.forward(g, x), v.forward(g, x)),
            Qkv::Fused(all) => all.forward(g, x), // [n_q + n_k + n_v, n_tokens]
        };
        let ([n_all, n_tokens, ..], nb) = (all.ne(), all.nb());
        let (n_k, n_v) = (self.config.d_k * self.config.n_head_kv, self.config.d_v * self.config.n_head_kv);
        let n_q = n_all as usize - n_k - n_v;
        let rows = |n: usize, first: usize| {
            let ne = [n as i64, n_tokens, 1, 1];
            g.cont(g.view(all, ne, [nb[1], nb[1] * n_tokens as usize, 0], first * nb[0]))
        };
        (rows(n_q, 0), rows(n_k, n_q), rows(n_v, n_q + n_k))
    }
}

/// How many pairs turn by time, height, width and a fourth position; `None` where the file says nothing, or of another number
/// of pairs.
fn sections(keys: &Keys<'_, '_>, rope: &Rope) -> Result<Option<[i32; 4]>, LoadError> {
    let Some(list) = keys.find_numbers("rope.dimension_sections")? else { return Ok(None) };
    let n_pairs = rope.n_dims as u32 / 2;
    let [t, h, w] = [0, 1, 2].map(|i| list.get(i).copied().unwrap_or(0));
    let sum = [t, h, w].iter().try_fold(0u32, |sum, &n| sum.checked_add(n));
    let fits = n_pairs > 0 && sum == Some(n_pairs) && list.iter().skip(3).all(|&n| n == 0);
    Ok(fits.then_some([t as i32, h as i32, w as i32, 0]))
}

/// The factors on `n` frequencies in short and in long contexts, if the file has some.
fn factors_by_context(t: &mut Scope<'_, '_>, n: usize) -> Result<Option<[WeightId; 2]>, LoadError> {
    let names = ["rope_factors_short.weight", "rope_factors_long.weight"];
    let [short, long] = [t.find_global(names[0], &[n])?, t.find_global(names[1], &[n])?];
    match (short, long) {
        (Some(short), Some(long)) => Ok(Some([short, long])),
        (None, None) => Ok(None),
        (Some(_), None) => Err(LoadError::Missing(names[1].into())),
        (None, Some(_)) => Err(LoadError::Missing(names[0].into())),
    }
}

/// `q: [2 * d * n_head, n_tokens]`, for each head its query, then its gate; gives queries `[d, n_head, n_tokens]` and gates
/// `[d * n_head, n_tokens]`.
fn gated<'g>(g: &Graph<'g>, q: Tensor<'g>, d: usize, n_head: usize) -> (Tensor<'g>, Tensor<'g>) {
    let (n_tokens, size, nb) = (q.ne()[1], q.nb()[0], q.nb()[1]);
    let half = |offset: usize| {
        g.view(q, [d as i64, n_head as i64, n_tokens, 1], [2 * d * size, nb, nb * n_tokens as usize], offset)
    };
    let gate = g.cont(half(d * size)); // [d, n_head, n_tokens]
    (half(0), g.reshape(gate, [(d * n_head) as i64, n_tokens]))
}
