//! Gemma 4's hyper-parameters: the target's and its assistant's, which differ in the name before the keys.

use ggml::{Rope, WeightId};
use memory::{Kv, LayerState, StateLayout};

use crate::blocks::{ExpertGlu, MoeConfig, MoeKind, RouterKind};
use crate::error::LoadError;
use crate::keys::{Keys, WIDTH};
use crate::rope::{rope, rope_swa};
use crate::tensors::Scope;

/// One file.
pub(super) struct GemmaConfig {
    pub(super) n_embd: usize,
    pub(super) eps: f32,
    pub(super) layers: Vec<LayerConfig>,
    /// Numbers that a token brings for each layer.
    pub(super) n_per_layer: Option<usize>,
    pub(super) moe: Option<MoeConfig>,
    pub(super) cap: Option<f32>,
}

/// One layer.
#[derive(Clone, Copy)]
pub(super) struct LayerConfig {
    pub(super) n_head: usize,
    pub(super) n_head_kv: usize,
    /// Elements of a head: of its query, key and value.
    pub(super) d: usize,
    /// Positions that a token sees; `None` in a full layer.
    pub(super) window: Option<usize>,
    pub(super) rope: Rope,
    /// The layer whose cells it reads: its own, or an earlier one's.
    pub(super) cells: usize,
    pub(super) n_ff: usize,
}

impl GemmaConfig {
    pub(super) fn read(keys: &Keys<'_, '_>) -> Result<Self, LoadError> {
        let n_layer = keys.n_block()?;
        if keys.prefix() == "gemma4" && keys.find("nextn_predict_layers", 0..=1024)?.unwrap_or(0) > 0 {
            let what = "the head of this architecture comes in a file of its own: 0 expected";
            return Err(keys.error("nextn_predict_layers", what));
        }
        if keys.flag("attention.causal")? == Some(false) {
            return Err(keys.error("attention.causal", "attention to later tokens (an encoder) is not supported"));
        }
        let layers = LayerConfig::read(keys, n_layer)?;
        let n_per_layer = keys.find("embedding_length_per_layer_input", 0..=1 << 16)?.filter(|&n| n > 0);
        // Files without experts may name those that a token uses.
        let moe = match keys.find("expert_count", 0..=1 << 16)?.unwrap_or(0) {
            0 => None,
            _ => {
                let router = RouterKind { input_scale: true, ..RouterKind::default() };
                MoeConfig::read(keys, n_layer, MoeKind { router, glu: ExpertGlu::Gelu, ..MoeKind::default() })?
            }
        };
        // llama.cpp caps where the key is missing, and files are made for it.
        let cap = keys.float("final_logit_softcapping", 0.0..=1e6)?.unwrap_or(30.0);
        Ok(Self {
            n_embd: keys.need("embedding_length", WIDTH)?,
            eps: keys.rms_eps()?,
            layers,
            n_per_layer,
            moe,
            cap: Some(cap).filter(|&cap| cap > 0.0),
        })
    }

    /// Factors on the frequencies of full layers, one tensor for all of them: they keep most pairs from turning.
    pub(super) fn frequency_factors(&self, t: &mut Scope<'_, '_>) -> Result<Option<WeightId>, LoadError> {
        let full = self.layers.iter().find(|layer| layer.window.is_none());
        full.map(|layer| t.need("rope_freqs.weight", &[layer.d / 2])).transpose()
    }

    /// What each layer keeps: nothing where it reads an earlier one's cells.
    pub(super) fn state(&self) -> StateLayout {
        let of = |(il, layer): (usize, &LayerConfig)| {
            if layer.cells != il {
                return LayerState::None;
            }
            let LayerConfig { n_head_kv, d, window, .. } = *layer;
            LayerState::Kv(Kv { n_head_kv, d_k: d, d_v: d, window, latent: false })
        };
        StateLayout { layers: self.layers.iter().enumerate().map(of).collect() }
    }

    /// The last layer of a kind that keeps cells.
    pub(super) fn last_with_cells(&self, with_window: bool) -> Option<usize> {
        let mut layers = self.layers.iter().enumerate();
        layers.rfind(|(il, layer)| layer.cells == *il && layer.window.is_some() == with_window).map(|(il, _)| il)
    }
}

impl LayerConfig {
    fn read(keys: &Keys<'_, '_>, n_layer: usize) -> Result<Vec<Self>, LoadError> {
        let need = |key: &str, values: Option<Vec<usize>>| values.ok_or_else(|| keys.error(key, "is missing"));
        let heads = |key: &str| need(key, keys.per_layer(key, n_layer, 1..=1 << 16)?);
        let (n_head, n_head_kv) = (heads("attention.head_count")?, heads("attention.head_count_kv")?);
        let key = "attention.sliding_window_pattern";
        let slides = keys.pattern(key, n_layer)?.ok_or_else(|| keys.error(key, "is missing"))?;
        let window = keys.need("attention.sliding_window", 1..=1 << 28)?;
        let d = [head(keys, "")?, head(keys, "_swa")?];
        let ropes = [rope(keys, d[0], true)?, rope_swa(keys, d[1], true, None, false)?];
        let n_ff = need("feed_forward_length", keys.per_layer("feed_forward_length", n_layer, WIDTH)?)?;
        let n_shared = keys.find("attention.shared_kv_layers", 0..=n_layer as u32)?.unwrap_or(0);
        let n_own = n_layer - n_shared;
        let layer = |il: usize| {
            let kind = usize::from(slides[il]);
            if n_head[il] % n_head_kv[il] != 0 {
                let what = format!("{} query heads on {} key heads in block {il}", n_head[il], n_head_kv[il]);
                return Err(keys.error("attention.head_count", what));
            }
            // An assistant has no cells at all: those that it reads are its target's.
            let cells =
                if il < n_own || n_own == 0 { Some(il) } else { (0..n_own).rfind(|&j| slides[j] == slides[il]) };
            let cells = cells.filter(|&j| n_head_kv[j] == n_head_kv[il]).ok_or_else(|| {
                let what =
                    format!("{n_shared} of {n_layer}: block {il} has no earlier layer of its kind and heads to read");
                keys.error("attention.shared_kv_layers", what)
            })?;
            Ok(Self {
                n_head: n_head[il],
                n_head_kv: n_head_kv[il],
                d: d[kind],
                window: slides[il].then_some(window),
                rope: ropes[kind],
                cells,
                n_ff: n_ff[il],
            })
        };
        (0..n_layer).map(layer).collect()
    }
}

/// Elements of a head of full layers, or of those with a window (`_swa`).
fn head(keys: &Keys<'_, '_>, kind: &str) -> Result<usize, LoadError> {
    let (key, of_value) = (format!("attention.key_length{kind}"), format!("attention.value_length{kind}"));
    let d = keys.need(&key, WIDTH)?;
    match keys.find(&of_value, WIDTH)? {
        Some(d_v) if d_v != d => Err(keys.error(&of_value, format!("{d_v} found, {d} expected as for keys"))),
        _ => Ok(d),
    }
}
