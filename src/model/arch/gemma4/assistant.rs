//! Gemma 4's assistant: a small model with queries only, which reads the target's cells and drafts from its hidden state.
//! All drafts of a round stand at one position, the one after the target's last token, and see the cells before it.
//! Source: the Gemma 4 assistant reference model; GGUF name: gemma4-assistant.

use ggml::{Graph, WeightId};
use memory::Segment;

use super::config::GemmaConfig;
use super::layer::{Layer, nodes};
use crate::architecture::Hparams;
use crate::blocks::{Linear, RmsNorm, embedded};
use crate::draft::DraftStep;
use crate::error::LoadError;
use crate::head_file::refused;
use crate::keys::{Keys, WIDTH};
use crate::tensors::Tensors;

/// Its name in files.
pub(super) const NAME: &str = "gemma4-assistant";

/// The assistant's weights, and what it takes of the target.
pub(super) struct Assistant {
    /// The target's.
    embed: WeightId,
    /// Width of the target's hidden states.
    n_embd_target: usize,
    before: Linear,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    after: Linear,
}

/// Asks for the tensors of an assistant without a target, for its schema.
pub(super) fn open(keys: &Keys<'_, '_>, t: &mut Tensors<'_>, n_vocab: usize) -> Result<Hparams, LoadError> {
    let c = GemmaConfig::read(keys)?;
    let n_target = keys.need("embedding_length_out", WIDTH)?;
    Assistant::bind(t, &c, (n_vocab, n_target, WeightId::default()), |_| 0)?;
    let n_head = c.layers.iter().map(|layer| layer.n_head).max().unwrap_or(0);
    Ok(Hparams { n_layer: c.layers.len(), n_embd: c.n_embd, n_vocab, n_head, ..Hparams::default() })
}

impl Assistant {
    /// Asks for the tensors of an assistant's file, whose metadata are `keys`, for a target whose embedding is `embed`.
    pub(super) fn open(
        keys: &Keys<'_, '_>,
        t: &mut Tensors<'_>,
        n_vocab: usize,
        target: &GemmaConfig,
        embed: WeightId,
    ) -> Result<Self, LoadError> {
        if keys.prefix() != NAME {
            return Err(refused(format!("it is a model of `{}`, a file of `{NAME}` expected", keys.prefix())));
        }
        let c = GemmaConfig::read(keys)?;
        let n_target = keys.need("embedding_length_out", WIDTH)?;
        if n_target != target.n_embd {
            return Err(refused(format!("it drafts for a width of {n_target}, the model's is {}", target.n_embd)));
        }
        let mut sources = [0; 2];
        for (il, own) in c.layers.iter().enumerate() {
            let slides = own.window.is_some();
            let kind = if slides { "a window" } else { "all positions" };
            let Some(cells) = target.last_with_cells(slides) else {
                return Err(refused(format!("its block {il} sees {kind}, and no layer of the model does")));
            };
            let theirs = &target.layers[cells];
            if (own.d, own.n_head_kv, own.window) != (theirs.d, theirs.n_head_kv, theirs.window) {
                return Err(refused(format!(
                    "block {il}: heads of {}, {} key heads, window {:?} there; {}, {}, {:?} in block {cells} of the model",
                    own.d, own.n_head_kv, own.window, theirs.d, theirs.n_head_kv, theirs.window
                )));
            }
            if own.window == Some(1) {
                return Err(refused(format!("its block {il} has a window of its own position, which has no cell yet")));
            }
            sources[usize::from(slides)] = cells;
        }
        Self::bind(t, &c, (n_vocab, n_target, embed), |il| sources[usize::from(c.layers[il].window.is_some())])
    }

    fn bind(
        t: &mut Tensors<'_>,
        c: &GemmaConfig,
        (n_vocab, n_target, embed): (usize, usize, WeightId),
        cells: impl Fn(usize) -> usize,
    ) -> Result<Self, LoadError> {
        if c.moe.is_some() || c.n_per_layer.is_some() {
            return Err(refused("it has experts or inputs for each layer, which assistants have not"));
        }
        let factors = c.frequency_factors(&mut t.globals())?;
        let layer = |il: usize| Layer::of_assistant(&mut t.block(il), c, il, cells(il), factors);
        let layers = (0..c.layers.len()).map(layer).collect::<Result<_, _>>()?;
        let t = &mut t.globals();
        Ok(Self {
            embed,
            n_embd_target: n_target,
            before: Linear::open(t, "nextn.pre_projection", 2 * n_target, c.n_embd)?,
            layers,
            norm: RmsNorm::open(t, "output_norm", c.n_embd, c.eps)?,
            head: Linear::tied(t.need("token_embd.weight", &[c.n_embd, n_vocab])?),
            after: Linear::open(t, "nextn.post_projection", c.n_embd, n_target)?,
        })
    }

    /// The matrix that draft tokens come from.
    pub(super) fn head(&self) -> WeightId {
        self.head.weight()
    }

    /// Nodes of one draft token, at most.
    pub(super) fn max_nodes(&self, segments: &[Segment]) -> usize {
        nodes(self.layers.len(), 0, segments)
    }

    /// The drafts of a round.
    pub(super) fn draft<'g>(&self, g: &Graph<'g>, step: &DraftStep<'_, 'g>) {
        let (mut ids, mut hidden) = (step.tokens, step.hidden); // [n_seqs], [n_embd_target, n_seqs]
        for i in 0..step.depth {
            let e = g.scale(embedded(g, self.embed, ids), (self.n_embd_target as f32).sqrt());
            let mut x = self.before.forward(g, g.concat(e, hidden, 0)); // [n_embd, n_seqs], of [2 * n_embd_target, n_seqs]
            for layer in &self.layers {
                let mixed = layer.attend(g, &step.inputs, x);
                x = layer.rest(g, x, mixed, None);
            }
            let x = self.norm.forward(g, x);
            ids = step.pick(g, i, x, &self.head);
            hidden = self.after.forward(g, x);
        }
    }
}
