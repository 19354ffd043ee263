//! Feed-forward by experts: a router picks some for each token, their outputs are summed by weight; with or without a
//! shared expert that every token uses. Source: Shazeer et al. 2017; the shared expert's gate as in Qwen2-MoE.

use ggml::{Graph, Tensor, WeightId};

use super::expert_ffn::{ExpertFfn, ExpertGlu, ExpertShape};
use super::gated_ffn::GatedFfn;
use super::linear::{Linear, updated, vector};
use super::router::{Router, RouterConfig, RouterKind};
use super::squared_relu::SquaredReluFfn;
use crate::error::LoadError;
use crate::head_shape::{HeadExperts, HeadGlu, HeadInner, HeadShared};
use crate::keys::Keys;
use crate::share::Share;
use crate::tensors::Scope;

/// The expert that every token uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum SharedExpert {
    /// There is none.
    #[default]
    None,
    /// It is multiplied with a sigmoid of the input.
    Gated,
    /// It is added as it is, where the file counts one or tells its width.
    Plain,
}

/// What a family says of its experts, where files do not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MoeKind {
    pub(crate) router: RouterKind,
    pub(crate) shared: SharedExpert,
    /// An expert's width that the file does not tell is that of the dense feed-forward; of others it is that width, shared
    /// out among the experts that a token uses.
    pub(crate) wide: bool,
    /// Experts may have biases.
    pub(crate) bias: bool,
    pub(crate) glu: ExpertGlu,
    /// Experts may work on a narrower image of the input, which the file's `moe_latent_size` tells. Source: Nemotron 3.
    pub(crate) latent: bool,
}

/// Sizes and constants of an MoE layer, the same in all blocks that have experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoeConfig {
    pub(crate) router: RouterConfig,
    kind: MoeKind,
    /// Width of one expert.
    n_ff: usize,
    /// Width of the shared expert; 0 when there is none.
    n_ff_shared: usize,
    /// Width of what experts read and give; `None` for the stream's.
    n_latent: Option<usize>,
    /// On both factors of the shared expert's inner rows.
    shared_limit: Option<f32>,
}

impl MoeConfig {
    /// `None` for a dense model.
    pub(crate) fn read(keys: &Keys<'_, '_>, n_block: usize, kind: MoeKind) -> Result<Option<Self>, LoadError> {
        let uniform = |key: &str| match keys.per_layer(key, n_block, 0..=1 << 22)? {
            Some(values) if values.iter().any(|v| *v != values[0]) => {
                Err(keys.error(key, "differs between blocks, which is not supported"))
            }
            values => Ok(values.map(|values| values[0])),
        };
        let dense = keys.per_layer("feed_forward_length", n_block, 0..=1 << 22)?.map(|n| n[0]);
        Self::read_by(keys, kind, dense, &uniform)
    }

    /// As [`MoeConfig::read`], of block `il` of a family whose blocks may differ.
    pub(crate) fn of_block(
        keys: &Keys<'_, '_>,
        n_block: usize,
        il: usize,
        kind: MoeKind,
    ) -> Result<Option<Self>, LoadError> {
        let of_block = |key: &str| {
            let values = keys.per_layer(key, n_block, 0..=1 << 22)?;
            Ok(values.and_then(|values| values.get(il).copied()).filter(|&n| n > 0))
        };
        Self::read_by(keys, kind, of_block("feed_forward_length")?, &of_block)
    }

    /// `number` gives what a key says of a block, `dense` is its dense feed-forward.
    fn read_by(
        keys: &Keys<'_, '_>,
        kind: MoeKind,
        dense: Option<usize>,
        number: &dyn Fn(&str) -> Result<Option<usize>, LoadError>,
    ) -> Result<Option<Self>, LoadError> {
        let n_expert = keys.find("expert_count", 0..=1 << 16)?.unwrap_or(0);
        if n_expert == 0 {
            return Ok(None);
        }
        let found =
            |key: &str, fallback: Option<usize>| number(key)?.or(fallback).ok_or_else(|| keys.error(key, "is missing"));
        let router = RouterConfig::read(keys, kind.router, n_expert, found("expert_used_count", None)?)?;
        let n_ff = found("expert_feed_forward_length", dense.map(|n| if kind.wide { n } else { n / router.n_used }))?;
        if n_ff == 0 {
            return Err(keys.error("expert_feed_forward_length", "0 found, a width expected"));
        }
        let shared = "expert_shared_feed_forward_length";
        let counted = || Ok::<_, LoadError>(keys.find("expert_shared_count", 0..=1 << 8)?.map(|n| n * n_ff));
        let n_ff_shared = match kind.shared {
            SharedExpert::None => 0,
            SharedExpert::Gated => found(shared, dense)?,
            SharedExpert::Plain => match number(shared)?.filter(|&n| n > 0) {
                Some(n) => n,
                None => counted()?.unwrap_or(0),
            },
        };
        let n_latent = if kind.latent { keys.find("moe_latent_size", 0..=1 << 22)?.filter(|&n| n > 0) } else { None };
        Ok(Some(Self { router, kind, n_ff, n_ff_shared, n_latent, shared_limit: None }))
    }

    /// The sizes of a share.
    pub(crate) fn shared(self, share: Share) -> Result<Self, LoadError> {
        let count = |n_ff| share.count(n_ff, "inner rows of experts");
        Ok(Self { n_ff: count(self.n_ff)?, n_ff_shared: count(self.n_ff_shared)?, ..self })
    }

    /// Width of one expert.
    pub(crate) fn n_ff(&self) -> usize {
        self.n_ff
    }

    /// As a NextN head has it; else what of it cannot be said.
    pub(crate) fn shape(&self) -> Result<HeadExperts, String> {
        let Self { router, kind, n_ff, n_ff_shared, n_latent, shared_limit } = *self;
        let glu = kind.glu.shape().filter(|_| !kind.bias);
        let glu = glu.ok_or("the experts of its NextN head are of another kind than SwiGLU or a squared ReLU")?;
        let of_shared = match glu {
            HeadGlu::SquaredRelu => HeadGlu::SquaredRelu,
            _ => shared_limit.map_or(HeadGlu::Silu, HeadGlu::Limited),
        };
        let shared = HeadShared {
            inner: HeadInner { n_ff: n_ff_shared, glu: of_shared },
            gated: kind.shared == SharedExpert::Gated,
        };
        Ok(HeadExperts {
            router: router.shape()?,
            each: HeadInner { n_ff, glu },
            shared: (n_ff_shared > 0).then_some(shared),
            narrow: n_latent.is_some(),
        })
    }

    /// The same with limits on the experts and on the shared one.
    pub(crate) fn limited(self, limit: Option<f32>, shared_limit: Option<f32>) -> Self {
        let glu = limit.map_or(self.kind.glu, |limit| ExpertGlu::Limited { limit });
        Self { kind: MoeKind { glu, ..self.kind }, shared_limit, ..self }
    }
}

/// The weights of an MoE layer.
pub(crate) struct MoeFfn {
    router: Router,
    experts: ExpertFfn,
    shared: Option<Shared>,
    /// Into the width of experts, and out of it.
    latent: Option<(Linear, Linear)>,
}

/// What the expert that every token uses is made of.
enum Ffn {
    Gated(GatedFfn),
    Plain(SquaredReluFfn),
}

/// The expert that every token uses, and its gate.
struct Shared {
    ffn: Ffn,
    gate: Option<WeightId>,
}

impl Shared {
    fn open(t: &mut Scope<'_, '_>, n_embd: usize, config: &MoeConfig) -> Result<Option<Self>, LoadError> {
        let name = "ffn_gate_inp_shexp.weight";
        if config.n_ff_shared == 0 {
            for name in [name, "ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight"] {
                t.refuse(name, "a shared expert is not expected here")?;
            }
            return Ok(None);
        }
        let gate = match config.kind.shared {
            SharedExpert::Gated => {
                let gate = t.need(name, &[n_embd])?;
                t.updatable(name, gate, &[n_embd]);
                Some(gate)
            }
            SharedExpert::None | SharedExpert::Plain => {
                t.refuse(name, "a gate of the shared expert is not expected here")?;
                None
            }
        };
        let ffn = match config.kind.glu {
            ExpertGlu::SquaredRelu => Ffn::Plain(SquaredReluFfn::open(t, "_shexp", n_embd, config.n_ff_shared)?),
            _ => {
                let ffn = GatedFfn::open(t, "_shexp", n_embd, config.n_ff_shared, false, false)?;
                Ffn::Gated(ffn.limited(config.shared_limit))
            }
        };
        Ok(Some(Self { ffn, gate }))
    }

    fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        let out = match &self.ffn {
            Ffn::Gated(ffn) => ffn.forward(g, x),
            Ffn::Plain(ffn) => ffn.forward(g, x),
        };
        let Some(gate) = self.gate else { return out };
        let matrix = g.reshape(vector(g, gate), [x.ne()[0], 1]); // was [n_embd]
        let gate = g.sigmoid(updated(g, gate, x, g.mul_mat(matrix, x))); // [1, n_tokens]
        g.mul(out, gate)
    }
}

impl MoeFfn {
    /// Asks for the tensors of a block.
    pub(crate) fn open(t: &mut Scope<'_, '_>, n_embd: usize, config: MoeConfig) -> Result<Self, LoadError> {
        let router = Router::open(t, n_embd, config.router)?;
        let latent = match config.n_latent {
            Some(n) => {
                Some((Linear::open(t, "ffn_latent_down", n_embd, n)?, Linear::open(t, "ffn_latent_up", n, n_embd)?))
            }
            None => {
                t.refuse("ffn_latent_down.weight", "experts of another width are not expected here").map(|()| None)?
            }
        };
        let n_in = config.n_latent.unwrap_or(n_embd);
        let MoeConfig { router: RouterConfig { n_expert, n_used, .. }, kind: MoeKind { bias, glu, .. }, n_ff, .. } =
            config;
        let experts = ExpertFfn::open(t, ExpertShape { glu, n_in, n_ff, n_expert, n_used, bias })?;
        let shared = Shared::open(t, n_embd, &config)?;
        Ok(Self { router, experts, shared, latent })
    }

    /// `x: [n_embd, n_tokens]`; gives the same shape.
    pub(crate) fn forward<'g>(&self, g: &Graph<'g>, x: Tensor<'g>) -> Tensor<'g> {
        self.forward_by(g, x, x)
    }

    /// As [`MoeFfn::forward`], where the router reads `seen` in place of `x`, of the same shape.
    pub(crate) fn forward_by<'g>(&self, g: &Graph<'g>, x: Tensor<'g>, seen: Tensor<'g>) -> Tensor<'g> {
        let route = self.router.route(g, seen);
        let inputs = self.latent.as_ref().map_or(x, |(down, _)| down.forward(g, x)); // [n_in, n_tokens]
        let sum = self.experts.forward(g, inputs, &route); // [n_in, n_tokens]
        let sum = self.latent.as_ref().map_or(sum, |(_, up)| up.forward(g, sum)); // [n_embd, n_tokens]
        self.shared.as_ref().map_or(sum, |shared| g.add(sum, shared.forward(g, x)))
    }
}
