//! Gemma 4: layers with a window and full ones of another shape, post-norms, a scale for each layer; dense, with experts beside
//! the dense feed-forward, or with inputs of each token for each layer and layers that read the cells of earlier ones.
//! Source: the Gemma 4 reference model; GGUF name: gemma4.

mod assistant;
mod attention;
mod config;
mod feed_forward;
mod layer;
mod per_layer;

use ggml::{Graph, Tensor, WeightId};
use memory::{LayerState, Segment, StateLayout};

use crate::architecture::{Architecture, Entry, HeadEntry, Hparams, ModelFile, NextNHead, Opened, Tables};
use crate::blocks::{Linear, RmsNorm, embedded};
use crate::draft::DraftStep;
use crate::error::LoadError;
use crate::pictures::{BothWays, PictureKind};
use crate::share::Share;
use crate::step::Step;
use assistant::Assistant;
use config::GemmaConfig;
use layer::{Layer, nodes};
use per_layer::PerLayerInputs;

pub(super) const ENTRY: Entry = Entry { names: &["gemma4"], nextn: false, open };

/// Its head, which comes in a file of its own.
pub(super) const ASSISTANT: HeadEntry = HeadEntry { name: assistant::NAME, target: "gemma4", open: assistant::open };

struct Gemma4 {
    n_embd: usize,
    n_expert_used: usize,
    state: StateLayout,
    embed: WeightId,
    per_layer: Option<PerLayerInputs>,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    /// Logits are `cap * tanh(logit / cap)`.
    cap: Option<f32>,
    assistant: Option<Assistant>,
}

fn open(file: &mut ModelFile<'_, '_, '_>) -> Result<Opened, LoadError> {
    let c = GemmaConfig::read(&file.keys)?;
    let (n_embd, n_vocab, n_layer) = (c.n_embd, file.n_vocab, c.layers.len());
    let t = &mut *file.tensors;
    let factors = c.frequency_factors(&mut t.globals())?;
    let layers =
        (0..n_layer).map(|il| Layer::open(&mut t.block(il), &c, il, factors)).collect::<Result<Vec<_>, _>>()?;
    let g = &mut t.globals();
    let embed = g.need("token_embd.weight", &[n_embd, n_vocab])?;
    g.refuse("output.bias", "biases are not supported")?;
    g.updatable_rows("token_embd.weight", embed, &[n_embd, n_vocab]);
    let head = Linear::find(g, "output", n_embd, n_vocab, false)?.unwrap_or_else(|| {
        g.updatable("output.weight", embed, &[n_embd, n_vocab]);
        Linear::tied(embed)
    });
    let norm = RmsNorm::open(g, "output_norm", n_embd, c.eps)?;
    let per_layer = c.n_per_layer.map(|n| PerLayerInputs::open(g, &c, n, n_vocab)).transpose()?;
    let assistant = match &file.head_keys {
        Some(keys) => Some(t.in_head_file("assistant.", |t| Assistant::open(keys, t, n_vocab, &c, embed))?),
        None => None,
    };
    let n_head = c.layers.iter().map(|layer| layer.n_head).max().unwrap_or(0);
    let n_expert_used = c.moe.as_ref().map_or(0, |moe| moe.router.n_used);
    let hparams = Hparams { n_layer, n_embd, n_vocab, n_ctx_train: 0, n_expert_used, n_head };
    let nextn = if assistant.is_some() { NextNHead::Bound } else { NextNHead::Absent };
    let (cap, state) = (c.cap, c.state());
    let arch = Gemma4 { n_embd, n_expert_used, state, embed, per_layer, layers, norm, head, cap, assistant };
    let head = Err("its NextN head is an architecture of its own".into());
    Ok(Opened { arch: Box::new(arch), hparams, nextn, share: Share::WHOLE, head })
}

impl Architecture for Gemma4 {
    fn state(&self) -> StateLayout {
        self.state.clone()
    }

    fn forward<'g>(&self, g: &Graph<'g>, step: &Step<'_, 'g>) {
        // Rows of pictures are not scaled.
        let x = step.placed(g, g.scale(embedded(g, self.embed, step.tokens), (self.n_embd as f32).sqrt())); // [n_embd, n_tokens]
        let inputs = self.per_layer.as_ref().map(|p| p.forward(g, x, step.tokens));
        let mut x = x;
        for (il, layer) in self.layers.iter().enumerate() {
            g.layer(il);
            step.tap(il, x);
            let mixed = layer.attend(g, &step.inputs, x);
            let own = inputs.as_ref().map(|inputs| inputs.of(g, il)); // [n_per_layer, n_tokens]
            if il + 1 == self.layers.len() {
                let rest = |cut: &dyn Fn(Tensor<'g>) -> Tensor<'g>| layer.rest(g, cut(x), cut(mixed), own.map(cut));
                let logits = |h| capped(g, self.head.forward(g, h), self.cap);
                return step.end(g, x, rest, &self.norm, (logits, false));
            }
            x = layer.rest(g, x, mixed, own);
        }
    }

    fn pictures(&self) -> Option<PictureKind> {
        // No key says whether tokens of a picture see later ones: in the published models those without inputs of each layer do.
        let both_ways = if self.per_layer.is_none() { BothWays::InWindows } else { BothWays::Nowhere };
        Some(PictureKind::Plain { both_ways })
    }

    fn max_nodes(&self, segments: &[Segment]) -> usize {
        nodes(self.layers.len(), self.n_expert_used, segments)
    }

    fn tables(&self) -> Option<Tables> {
        Some(Tables { embed: self.embed, output: self.head })
    }

    fn mtp_states(&self) -> Vec<LayerState> {
        self.assistant.iter().map(|_| LayerState::None).collect()
    }

    fn head_reads_target(&self) -> bool {
        self.assistant.is_some()
    }

    fn max_draft_nodes(&self, segments: &[Segment]) -> usize {
        self.assistant.as_ref().map_or(0, |assistant| assistant.max_nodes(segments))
    }

    fn draft_heads(&self) -> Vec<WeightId> {
        self.assistant.iter().map(Assistant::head).collect()
    }

    fn draft<'g>(&self, g: &Graph<'g>, step: &DraftStep<'_, 'g>) {
        if let Some(assistant) = &self.assistant {
            assistant.draft(g, step);
        }
    }
}

/// `cap * tanh(logits / cap)`.
fn capped<'g>(g: &Graph<'g>, logits: Tensor<'g>, cap: Option<f32>) -> Tensor<'g> {
    cap.map_or(logits, |cap| g.scale(g.tanh(g.scale(logits, 1.0 / cap)), cap))
}
