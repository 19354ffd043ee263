//! Qwen3.5 and 3.6, dense and MoE: delta-net layers with one of gated attention after each few; optional NextN head.
//! Source: the Qwen3.5 reference model; GGUF names as llama.cpp's converter writes them: qwen35, qwen35moe.

use ggml::{Graph, Rope, Tensor, WeightId};
use memory::{Kv, LayerState, Segment, StateLayout};

use super::{Architecture, Entry, Opened};
use crate::blocks::{DeltaNet, DeltaNetSizes, Ffn, Linear, MoeSizes, RmsNorm, attend, split_heads};
use crate::draft::DraftStep;
use crate::error::LoadError;
use crate::head_file::{HeadFile, refused};
use crate::keys::{Keys, WIDTH};
use crate::load::Loader;
use crate::model::{Hparams, NextNHead};
use crate::step::{Cells, Step};

pub(super) const ENTRY: Entry = Entry { names: &["qwen35", "qwen35moe"], nextn: true, open };

/// The most blocks that a file may have.
const MAX_BLOCKS: u32 = 1024;

struct Qwen35 {
    n_expert_used: usize,
    embed: WeightId,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    nextn: Option<NextN>,
}

/// The NextN head: one layer of gated attention on the embedding of a token and the hidden row before it.
struct NextN {
    embed: WeightId,
    embed_norm: RmsNorm,
    hidden_norm: RmsNorm,
    project: Linear,
    layer: Layer,
    /// The trunk's final norm if absent.
    norm: Option<RmsNorm>,
    /// The trunk's head if absent.
    head: Option<Linear>,
}

struct Layer {
    norm: RmsNorm,
    mixer: Mixer,
    post_norm: RmsNorm,
    ffn: Ffn,
}

enum Mixer {
    Attention(GatedAttention),
    DeltaNet(Box<DeltaNet>, memory::Recurrent),
}

/// Sizes and constants of one file.
struct Sizes {
    n_embd: usize,
    eps: f32,
    n_head: Vec<usize>,
    n_head_kv: Vec<usize>,
    d_k: usize,
    d_v: usize,
    scale: f32,
    rope: Rope,
    delta: DeltaNetSizes,
    n_ff: Vec<usize>,
    moe: Option<MoeSizes>,
}

fn open(
    keys: &Keys<'_, '_>,
    loader: &mut Loader<'_>,
    n_vocab: usize,
    head_file: Option<&HeadFile<'_, '_>>,
) -> Result<Opened, LoadError> {
    let n_block = keys.need("block_count", 1..=MAX_BLOCKS)?;
    let n_nextn = keys.find("nextn_predict_layers", 0..=MAX_BLOCKS)?.unwrap_or(0);
    let n_layer = n_block.checked_sub(n_nextn).filter(|&n| n > 0).ok_or_else(|| {
        keys.error("nextn_predict_layers", format!("{n_nextn} of {n_block} blocks leave none for the trunk"))
    })?;
    if n_nextn > 1 {
        return Err(keys.error("nextn_predict_layers", format!("{n_nextn} found, 0 or 1 expected")));
    }
    if keys.flag("ssm.v_head_reordered")? == Some(false) {
        let what = "the value heads are in Hugging Face order; convert the file again with a current converter";
        return Err(keys.error("ssm.v_head_reordered", what));
    }
    let sizes = Sizes::read(keys, n_block)?;
    let recurrent = recurrent_layers(keys, n_block, n_layer)?;

    let layer = |loader: &mut Loader<'_>, il: usize, recurrent: bool| sizes.layer(loader, il, recurrent);
    let layers = (0..n_layer).map(|il| layer(loader, il, recurrent[il])).collect::<Result<Vec<_>, _>>()?;
    let embed = loader.need("token_embd.weight", &[sizes.n_embd, n_vocab])?;
    let head = Linear::find(loader, "output", sizes.n_embd, n_vocab)?.unwrap_or(Linear::tied(embed));
    let norm = RmsNorm::open(loader, "output_norm.weight", sizes.n_embd, sizes.eps)?;
    let (nextn, status) = match (head_file, n_nextn) {
        (Some(file), _) => (Some(standalone(file, loader, &sizes, n_layer, n_vocab, embed)?), NextNHead::Bound),
        (None, 0) => (None, NextNHead::Absent),
        (None, _) => match sizes.nextn(loader, n_layer, n_vocab, embed)? {
            Ok(nextn) => (Some(nextn), NextNHead::Bound),
            Err(missing) => (None, NextNHead::Missing(missing)),
        },
    };

    let n_expert_used = sizes.moe.map_or(0, |m| m.n_used);
    let n_ctx_train = keys.need("context_length", 1..=1 << 28)?;
    let n_head = sizes.n_head.iter().copied().max().unwrap_or(0);
    let hparams = Hparams { n_layer, n_embd: sizes.n_embd, n_vocab, n_ctx_train, n_expert_used, n_head };
    let arch = Box::new(Qwen35 { n_expert_used, embed, layers, norm, head, nextn });
    Ok(Opened { arch, hparams, nextn: status })
}

/// The head of another file. Embedding, final norm and head are the model's own unless the head brings some of its own kind:
/// copies of the model's in that file are left alone.
fn standalone(
    file: &HeadFile<'_, '_>,
    loader: &mut Loader<'_>,
    model: &Sizes,
    n_layer: usize,
    n_vocab: usize,
    embed: WeightId,
) -> Result<NextN, LoadError> {
    let keys = &file.keys;
    let n_block = keys.need("block_count", 1..=MAX_BLOCKS)?;
    let n_nextn = keys.find("nextn_predict_layers", 0..=MAX_BLOCKS)?.unwrap_or(0);
    if n_nextn != 1 {
        let name = keys.full("nextn_predict_layers");
        return Err(refused(format!("its {name} is {n_nextn}, 1 expected: it holds no NextN head, or several")));
    }
    let (il, sizes) = (n_block - n_nextn, Sizes::read(keys, n_block)?);
    let pairs = [
        ("layers before the head", il, n_layer),
        ("embedding_length", sizes.n_embd, model.n_embd),
        ("experts", sizes.moe.map_or(0, |m| m.n_expert), model.moe.map_or(0, |m| m.n_expert)),
    ];
    if let Some((what, own, wanted)) = pairs.into_iter().find(|(_, own, wanted)| own != wanted) {
        return Err(refused(format!("{what}: {own} there, {wanted} in the model")));
    }
    let nextn = loader.in_head_file(|loader| {
        if loader.has("d2t") {
            let what = "its head is cut to a part of the vocabulary (tensor d2t): take the whole head, drafts use a part of it by themselves";
            return Err(refused(what));
        }
        sizes.nextn(loader, il, n_vocab, embed)
    })?;
    nextn.map_err(|missing| refused(format!("it lacks {}", missing.join(", "))))
}

/// Which blocks are delta nets: by the file's list, or all but each `full_attention_interval`-th of the trunk.
fn recurrent_layers(keys: &Keys<'_, '_>, n_block: usize, n_layer: usize) -> Result<Vec<bool>, LoadError> {
    if let Some(flags) = keys.flags("attention.recurrent_layers", n_block)? {
        return Ok(flags);
    }
    let interval = keys.find("full_attention_interval", 1..=MAX_BLOCKS)?.unwrap_or(4);
    Ok((0..n_block).map(|il| il < n_layer && (il + 1) % interval != 0).collect())
}

impl Sizes {
    fn read(keys: &Keys<'_, '_>, n_block: usize) -> Result<Self, LoadError> {
        let n_embd = keys.need("embedding_length", WIDTH)?;
        let n_head = keys.per_layer("attention.head_count", n_block, 0..=1 << 16)?;
        let n_head = n_head.ok_or_else(|| keys.error("attention.head_count", "is missing"))?;
        let n_head_kv = keys.per_layer("attention.head_count_kv", n_block, 0..=1 << 16)?;
        let default_d = n_embd / n_head.iter().copied().max().unwrap_or(1).max(1);
        let d_k = keys.find("attention.key_length", WIDTH)?.unwrap_or(default_d);
        let d_v = keys.find("attention.value_length", WIDTH)?.unwrap_or(default_d);
        let delta = DeltaNetSizes {
            n_embd,
            n_taps: keys.need("ssm.conv_kernel", 2..=64)?,
            d_state: keys.need("ssm.state_size", 1..=4096)?,
            n_k_heads: keys.need("ssm.group_count", 1..=4096)?,
            n_v_heads: keys.need("ssm.time_step_rank", 1..=4096)?,
        };
        if !delta.n_v_heads.is_multiple_of(delta.n_k_heads) {
            let what = format!("{} value heads are no multiple of {} key heads", delta.n_v_heads, delta.n_k_heads);
            return Err(keys.error("ssm.time_step_rank", what));
        }
        let inner = keys.need("ssm.inner_size", WIDTH)?;
        if inner != delta.n_v_heads * delta.d_state {
            let what = format!("{inner} found, {} heads of {} expected", delta.n_v_heads, delta.d_state);
            return Err(keys.error("ssm.inner_size", what));
        }
        let n_ff = keys.per_layer("feed_forward_length", n_block, 0..=1 << 22)?;
        let moe = match keys.find("expert_count", 0..=1 << 16)?.unwrap_or(0) {
            0 => None,
            n_expert => Some(moe_sizes(keys, n_embd, n_expert, n_block, n_ff.as_deref())?),
        };
        let n_ff = match (n_ff, moe) {
            (Some(n_ff), _) => n_ff,
            (None, Some(_)) => vec![0; n_block],
            (None, None) => return Err(keys.error("feed_forward_length", "is missing")),
        };
        Ok(Self {
            n_embd,
            eps: keys.rms_eps()?,
            n_head_kv: n_head_kv.unwrap_or_else(|| n_head.clone()),
            n_head,
            d_k,
            d_v,
            scale: keys.attention_scale(d_k)?,
            // Positions of text are the same in every section, so the interleaved sections come to plain NeoX pairs.
            rope: keys.rope(d_k, true)?,
            delta,
            n_ff,
            moe,
        })
    }

    fn layer(&self, loader: &mut Loader<'_>, il: usize, recurrent: bool) -> Result<Layer, LoadError> {
        let prefix = format!("blk.{il}.");
        let (n_embd, eps) = (self.n_embd, self.eps);
        let mixer = if recurrent {
            Mixer::DeltaNet(Box::new(DeltaNet::open(loader, &prefix, self.delta, eps)?), self.delta.state())
        } else {
            Mixer::Attention(self.attention(loader, il)?)
        };
        let ffn = Ffn::open(loader, &prefix, n_embd, self.n_ff[il], self.moe)?;
        Ok(Layer {
            norm: RmsNorm::open(loader, &format!("{prefix}attn_norm.weight"), n_embd, eps)?,
            mixer,
            post_norm: RmsNorm::open(loader, &format!("{prefix}post_attention_norm.weight"), n_embd, eps)?,
            ffn,
        })
    }

    fn attention(&self, loader: &mut Loader<'_>, il: usize) -> Result<GatedAttention, LoadError> {
        let name = |what: &str| format!("blk.{il}.{what}");
        let (n_head, n_head_kv) = (self.n_head[il], self.n_head_kv[il]);
        if n_head == 0 || n_head_kv == 0 || n_head % n_head_kv != 0 {
            let what = format!("{n_head} query heads on {n_head_kv} key heads");
            return Err(LoadError::Key { key: format!("attention.head_count of block {il}"), what });
        }
        if self.d_k != self.d_v {
            let what = format!("heads of {} elements beside keys of {}", self.d_v, self.d_k);
            return Err(LoadError::Key { key: "attention.value_length".into(), what });
        }
        let (n_q, n_k, n_v) = (2 * self.d_k * n_head, self.d_k * n_head_kv, self.d_v * n_head_kv);
        let qkv = match Linear::find(loader, &name("attn_qkv"), self.n_embd, n_q + n_k + n_v)? {
            Some(all) => Qkv::Fused(all),
            None => Qkv::Split([
                Linear::open(loader, &name("attn_q"), self.n_embd, n_q)?,
                Linear::open(loader, &name("attn_k"), self.n_embd, n_k)?,
                Linear::open(loader, &name("attn_v"), self.n_embd, n_v)?,
            ]),
        };
        Ok(GatedAttention {
            n_head,
            n_head_kv,
            d_head: self.d_k,
            scale: self.scale,
            rope: self.rope,
            qkv,
            q_norm: RmsNorm::open(loader, &name("attn_q_norm.weight"), self.d_k, self.eps)?,
            k_norm: RmsNorm::open(loader, &name("attn_k_norm.weight"), self.d_k, self.eps)?,
            out: Linear::open(loader, &name("attn_output"), self.d_v * n_head, self.n_embd)?,
        })
    }

    /// Binds the head's block, or says which of its tensors are missing.
    fn nextn(
        &self,
        loader: &mut Loader<'_>,
        il: usize,
        n_vocab: usize,
        trunk_embed: WeightId,
    ) -> Result<Result<NextN, Vec<String>>, LoadError> {
        let (d, eps, name) = (self.n_embd, self.eps, |what: &str| format!("blk.{il}.{what}"));
        let needed = ["nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight", "attn_norm.weight"];
        let missing: Vec<String> = needed.iter().map(|what| name(what)).filter(|n| !loader.has(n)).collect();
        if !missing.is_empty() {
            return Ok(Err(missing));
        }
        let layer = match self.layer(loader, il, false) {
            Ok(layer) => layer,
            Err(LoadError::Missing(tensor)) => return Ok(Err(vec![tensor])),
            Err(error) => return Err(error),
        };
        let norm = name("nextn.shared_head_norm.weight");
        let norm = if loader.has(&norm) { Some(RmsNorm::open(loader, &norm, d, eps)?) } else { None };
        Ok(Ok(NextN {
            embed: loader.find(&name("nextn.embed_tokens.weight"), &[d, n_vocab])?.unwrap_or(trunk_embed),
            embed_norm: RmsNorm::open(loader, &name("nextn.enorm.weight"), d, eps)?,
            hidden_norm: RmsNorm::open(loader, &name("nextn.hnorm.weight"), d, eps)?,
            project: Linear::open(loader, &name("nextn.eh_proj"), 2 * d, d)?,
            layer,
            norm,
            head: Linear::find(loader, &name("nextn.shared_head_head"), d, n_vocab)?,
        }))
    }
}

fn moe_sizes(
    keys: &Keys<'_, '_>,
    n_embd: usize,
    n_expert: usize,
    n_block: usize,
    n_ff: Option<&[usize]>,
) -> Result<MoeSizes, LoadError> {
    let uniform = |key: &str, fallback: Option<usize>| -> Result<usize, LoadError> {
        let values = keys.per_layer(key, n_block, 0..=1 << 22)?;
        let first = match &values {
            Some(values) if values.iter().any(|v| *v != values[0]) => {
                return Err(keys.error(key, "differs between blocks, which is not supported"));
            }
            Some(values) => Some(values[0]),
            None => fallback,
        };
        first.ok_or_else(|| keys.error(key, "is missing"))
    };
    let n_used = uniform("expert_used_count", None)?;
    if n_used == 0 || n_used > n_expert {
        return Err(keys.error("expert_used_count", format!("{n_used} of {n_expert} experts")));
    }
    let n_ff = n_ff.map(|n| n[0]);
    let expert = uniform("expert_feed_forward_length", n_ff.map(|n| n / n_used))?;
    let shared = uniform("expert_shared_feed_forward_length", n_ff)?;
    let scale = keys.float("expert_weights_scale", 0.0..=1e4)?.filter(|&s| s > 0.0).unwrap_or(1.0);
    Ok(MoeSizes { n_embd, n_expert, n_used, n_ff: expert, n_ff_shared: shared, scale, normalize: true })
}

/// Attention whose output is gated by a sigmoid of the input; the gate comes with the query, head by head.
struct GatedAttention {
    n_head: usize,
    n_head_kv: usize,
    d_head: usize,
    scale: f32,
    rope: Rope,
    qkv: Qkv,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    out: Linear,
}

enum Qkv {
    /// Query with gate, key, value.
    Split([Linear; 3]),
    /// The same rows in one matrix.
    Fused(Linear),
}

impl GatedAttention {
    fn state(&self) -> Kv {
        Kv { n_head_kv: self.n_head_kv, d_k: self.d_head, d_v: self.d_head }
    }

    /// `x: [n_embd, n_tokens]`, normed; gives `[d_head * n_head, n_tokens]` before the output matrix.
    fn forward<'g>(&self, g: &Graph<'g>, cells: &Cells<'_, 'g>, il: usize, x: Tensor<'g>) -> Tensor<'g> {
        let d = self.d_head;
        let n_tokens = x.ne()[1];
        let (n_q, n_k) = (2 * d * self.n_head, d * self.n_head_kv);
        let (q, k, v) = match &self.qkv {
            Qkv::Split([q, k, v]) => (q.forward(g, x), k.forward(g, x), v.forward(g, x)),
            Qkv::Fused(all) => {
                let all = all.forward(g, x); // [n_q + n_k + n_v, n_tokens]
                let (size, nb) = (all.nb()[0], all.nb()[1]);
                let rows = |n: usize, first: usize| {
                    let part = g.view(all, [n as i64, n_tokens, 1, 1], [nb, nb * n_tokens as usize, 0], first * size);
                    g.cont(part)
                };
                (rows(n_q, 0), rows(n_k, n_q), rows(n_k, n_q + n_k))
            }
        };
        // q: [2 * d * n_head, n_tokens], for each head its query, then its gate
        let (size, nb) = (q.nb()[0], q.nb()[1]);
        let half = |offset: usize| {
            let ne = [d as i64, self.n_head as i64, n_tokens, 1];
            g.view(q, ne, [2 * d * size, nb, nb * n_tokens as usize], offset)
        };
        let gate = g.cont(half(d * size)); // [d, n_head, n_tokens]
        let gate = g.reshape(gate, [(d * self.n_head) as i64, n_tokens]);
        let rope = |x| g.rope(x, cells.positions, None, &self.rope);
        let q = rope(self.q_norm.forward(g, half(0))); // [d, n_head, n_tokens]
        let k = rope(self.k_norm.forward(g, split_heads(g, k, d))); // [d, n_head_kv, n_tokens]
        let o = attend(g, cells, il, (q, k, split_heads(g, v, d)), self.scale);
        g.mul(o, g.sigmoid(gate))
    }
}

impl Architecture for Qwen35 {
    fn state(&self) -> StateLayout {
        let layer = |layer: &Layer| match &layer.mixer {
            Mixer::Attention(a) => LayerState::Kv(a.state()),
            Mixer::DeltaNet(_, state) => LayerState::Recurrent(*state),
        };
        StateLayout { layers: self.layers.iter().map(layer).collect() }
    }

    fn forward<'g>(&self, g: &Graph<'g>, step: &Step<'_, 'g>) {
        let mut x = g.get_rows(g.weight(self.embed), step.tokens); // [n_embd, n_tokens]
        for (il, layer) in self.layers.iter().enumerate() {
            g.layer(il);
            let y = layer.norm.forward(g, x);
            let mixed = match &layer.mixer {
                Mixer::Attention(a) => a.forward(g, &step.cells, il, y),
                Mixer::DeltaNet(net, _) => net.forward(g, step, il, y),
            };
            if il + 1 == self.layers.len() {
                return step.end(g, x, |cut| self.norm.forward(g, layer.rest(g, cut(x), cut(mixed))), &self.head);
            }
            x = layer.rest(g, x, mixed);
        }
    }

    fn max_nodes(&self, segments: &[Segment]) -> usize {
        super::max_nodes(self.layers.len(), self.n_expert_used, segments)
    }

    fn head_state(&self) -> Option<LayerState> {
        let Mixer::Attention(a) = &self.nextn.as_ref()?.layer.mixer else { return None };
        Some(LayerState::Kv(a.state()))
    }

    fn draft_head(&self) -> Option<WeightId> {
        Some(self.nextn.as_ref()?.head.as_ref().unwrap_or(&self.head).weight())
    }

    fn draft<'g>(&self, g: &Graph<'g>, step: &DraftStep<'_, 'g>) {
        let Some(nextn) = &self.nextn else { return };
        let norm = nextn.norm.as_ref().unwrap_or(&self.norm);
        let head = nextn.head.as_ref().unwrap_or(&self.head);
        // Into the head's cells; where nothing is drafted, nothing else is needed.
        let (x, mixed) = nextn.attend(g, &step.cells, step.tokens, step.hidden);
        let Some(last) = step.last else { return };
        let end = |(x, mixed)| norm.forward(g, nextn.layer.rest(g, x, mixed)); // [n_embd, n_seqs]
        // Only the last entry of a sequence gives guesses.
        let cut = |t: Tensor<'g>| if t.ne()[1] == last.ne()[0] { t } else { g.get_rows(t, last) };
        let mut h = end((cut(x), cut(mixed)));
        for i in 0..step.depth() {
            let ids = step.pick(g, i, h, head);
            if let Some(cells) = step.chain.get(i) {
                h = end(nextn.attend(g, cells, ids, h));
            }
        }
    }
}

impl Layer {
    /// What follows the mixer, row by row. `x: [n_embd, n_rows]`, the residual stream, `mixed`: what the mixer gave for these
    /// rows; gives the stream after the layer.
    fn rest<'g>(&self, g: &Graph<'g>, x: Tensor<'g>, mixed: Tensor<'g>) -> Tensor<'g> {
        let mixed = match &self.mixer {
            Mixer::Attention(a) => a.out.forward(g, mixed),
            Mixer::DeltaNet(..) => mixed,
        };
        let x = g.add(x, mixed);
        // The stream comes second: a sum that ends the block and this one are one launch on CUDA.
        g.add(self.ffn.forward(g, self.post_norm.forward(g, x)), x)
    }
}

impl NextN {
    /// One entry a row: `tokens: [n_entries]`, `hidden: [n_embd, n_entries]`, after the trunk's final norm or the head's
    /// own; gives the head's stream and what its attention adds, for [`Layer::rest`]. Its cells are layer 0 of the head's
    /// memory.
    fn attend<'g>(
        &self,
        g: &Graph<'g>,
        cells: &Cells<'_, 'g>,
        tokens: Tensor<'g>,
        hidden: Tensor<'g>,
    ) -> (Tensor<'g>, Tensor<'g>) {
        let e = self.embed_norm.forward(g, g.get_rows(g.weight(self.embed), tokens)); // [n_embd, n_entries]
        let h = self.hidden_norm.forward(g, hidden);
        let x = self.project.forward(g, g.concat(e, h, 0)); // [n_embd, n_entries], of [2 * n_embd, n_entries]
        let y = self.layer.norm.forward(g, x);
        let Mixer::Attention(a) = &self.layer.mixer else { return (x, y) };
        (x, a.forward(g, cells, 0, y))
    }
}
