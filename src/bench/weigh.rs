//! What a forward pass has to read: bytes of a model by what they are for, of a file or of a shape that has no file yet.
//! Owns the sums; knows nothing of time.

use std::collections::HashSet;
use std::path::Path;

use anyhow::Context;
use gguf::Header;
use memory::{CacheType, Kv, LayerState};
use model::{Schema, TensorSchema, block_of};

use super::synth::shapes::Shape;
use super::synth::tensors::tensors;
use super::synth::types::Mix;

/// Bytes and sizes of one model.
#[derive(Clone, Debug, Default)]
pub(super) struct Weight {
    pub(super) name: String,
    pub(super) n_params: u64,
    /// All tensors.
    pub(super) n_bytes: u64,
    /// What the target model reads whatever the token: without the output matrix, the embedding and the routed experts.
    pub(super) trunk: u64,
    /// Routed experts of the target model, all of them.
    pub(super) experts: u64,
    /// The matrix of the vocabulary.
    pub(super) head: u64,
    /// The MTP layer's block, without routed experts.
    pub(super) draft: u64,
    /// Routed experts of the MTP layer's block.
    pub(super) draft_experts: u64,
    pub(super) n_expert: u64,
    pub(super) n_expert_used: u64,
    pub(super) n_vocab: u64,
    pub(super) n_embd: u64,
    /// Layers of the target model that keep keys and values.
    kv: Vec<Kv>,
    /// The same of the MTP layer.
    mtp_kv: Vec<Kv>,
    /// Recurrent state of one sequence.
    pub(super) state: u64,
    /// The widest activation of a layer.
    pub(super) n_widest: u64,
}

impl Weight {
    /// Of a GGUF file, with all of its shards.
    ///
    /// # Errors
    /// A file that cannot be read, or metadata that say too little.
    pub(super) fn of_file(path: &Path) -> anyhow::Result<Self> {
        let at = || path.display().to_string();
        let maps = model::map_shards(path).with_context(at)?;
        Self::of_maps(&maps.iter().map(|m| m.bytes()).collect::<Vec<_>>()).with_context(at)
    }

    /// Of the bytes of a file's shards.
    pub(super) fn of_maps(maps: &[&[u8]]) -> anyhow::Result<Self> {
        let headers = maps.iter().map(|bytes| Header::parse(bytes)).collect::<Result<Vec<_>, _>>()?;
        let meta = headers[0].metadata();
        let tensors = || headers.iter().flat_map(Header::tensors);
        let names: HashSet<&str> = tensors().map(|t| t.name).collect();
        let n_vocab = meta.array("tokenizer.ggml.tokens")?.context("tokenizer.ggml.tokens is missing")?.len();
        let mut schema = Schema::of(meta, n_vocab, &|name| names.contains(name))?;
        schema.tensors.retain(|t| names.contains(t.name.as_str()));
        let name = meta.str("general.name")?.unwrap_or(meta.require_str("general.architecture")?);
        let sizes = tensors().map(|t| (t.name, t.ne.iter().product(), t.n_bytes));
        Ok(Self::new(name.to_owned(), &schema, sizes, !names.contains("output.weight")))
    }

    /// Of a shape that could be made.
    pub(super) fn of_shape(shape: &Shape, mix: &Mix) -> Self {
        let tensors = tensors(shape, mix);
        let sizes = tensors.iter().map(|t| (t.name.as_str(), t.ne.iter().product(), t.n_bytes()));
        Self::new(format!("{} {mix}", shape.name), &shape.schema(), sizes, shape.tied)
    }

    /// `tensors`: names, elements and bytes.
    fn new<'t>(name: String, schema: &Schema, tensors: impl Iterator<Item = (&'t str, u64, u64)>, tied: bool) -> Self {
        let sizes = &schema.hparams;
        let experts = |t: &TensorSchema| if t.name.contains("_exps.weight") { t.ne[2] } else { 0 };
        let n_expert_used = sizes.n_expert_used as u64;
        let width = |t: &TensorSchema| match (block_of(&t.name), t.ne.get(1)) {
            (Some(_), Some(n)) if experts(t) > 0 => n * n_expert_used,
            (Some(_), Some(n)) => *n,
            _ => 0,
        };
        let most = |of: &dyn Fn(&TensorSchema) -> u64| schema.tensors.iter().map(of).max().unwrap_or(0);
        let mut weight = Self {
            name,
            n_expert: most(&experts),
            n_expert_used,
            n_vocab: sizes.n_vocab as u64,
            n_embd: sizes.n_embd as u64,
            n_widest: most(&width),
            ..Self::default()
        };
        for layer in &schema.state.layers {
            match layer {
                LayerState::Kv(kv) => weight.kv.push(*kv),
                LayerState::Recurrent(r) => {
                    weight.state += r.n_bytes() as u64;
                }
                LayerState::None => {}
            }
        }
        for layer in &schema.mtp_states {
            if let LayerState::Kv(kv) = layer {
                weight.mtp_kv.push(*kv);
            }
        }
        for (name, n_params, n_bytes) in tensors {
            weight.add(name, n_params, n_bytes, sizes.n_layer as u64, tied);
        }
        weight
    }

    fn add(&mut self, name: &str, n_params: u64, n_bytes: u64, n_layer: u64, tied: bool) {
        self.n_params += n_params;
        self.n_bytes += n_bytes;
        let routed = name.contains("_exps.");
        match block_of(name) {
            _ if name == "output.weight" || (tied && name == "token_embd.weight") => self.head += n_bytes,
            // One row of it is read for a token.
            _ if name.ends_with("token_embd.weight") || name.contains("embed_tokens") => {}
            Some((il, _)) if il >= n_layer && routed => self.draft_experts += n_bytes,
            Some((il, _)) if il >= n_layer => self.draft += n_bytes,
            _ if routed => self.experts += n_bytes,
            _ => self.trunk += n_bytes,
        }
    }

    /// Bytes of weights that a forward pass over `n_rows` tokens reads, experts spread evenly at random.
    pub(super) fn pass(&self, n_rows: u64) -> f64 {
        self.trunk as f64 + self.head as f64 + self.experts as f64 * self.share_of_experts(n_rows)
    }

    /// Bytes of weights that one drafted token reads, over `n_words` rows of the output matrix.
    pub(super) fn draft_step(&self, n_words: u64) -> f64 {
        self.draft_block(1) + self.head as f64 * n_words.min(self.n_vocab) as f64 / self.n_vocab.max(1) as f64
    }

    /// Bytes of the MTP layer's block for `n_rows` tokens.
    pub(super) fn draft_block(&self, n_rows: u64) -> f64 {
        self.draft as f64 + self.draft_experts as f64 * self.share_of_experts(n_rows)
    }

    /// Experts that at least one of `n_rows` tokens takes.
    fn share_of_experts(&self, n_rows: u64) -> f64 {
        if self.n_expert == 0 {
            return 0.0;
        }
        1.0 - (1.0 - self.n_expert_used as f64 / self.n_expert as f64).powi(n_rows as i32)
    }

    /// Bytes of one cached position in all layers of the target model.
    pub(super) fn position(&self, type_k: CacheType, type_v: CacheType) -> f64 {
        bytes(&self.kv, type_k, type_v)
    }

    /// Bytes of one cached position of the MTP layer.
    pub(super) fn head_position(&self, type_k: CacheType, type_v: CacheType) -> f64 {
        bytes(&self.mtp_kv, type_k, type_v)
    }

    /// True when there is an MTP layer.
    pub(super) fn has_draft(&self) -> bool {
        self.draft > 0
    }
}

/// Bytes of one position's keys and values in these layers.
fn bytes(layers: &[Kv], type_k: CacheType, type_v: CacheType) -> f64 {
    let of_layer = |kv: &Kv| {
        let values = if kv.latent { 0.0 } else { head_bytes(type_v, kv.d_v) };
        kv.n_head_kv as f64 * (head_bytes(type_k, kv.d_k) + values)
    };
    layers.iter().map(of_layer).sum()
}

/// Bytes of a head of `d` elements; where no block divides it, as many as of a longer one.
fn head_bytes(cache: CacheType, d: usize) -> f64 {
    const LONGER: usize = 256;
    let of_longer = || cache.head_bytes(LONGER).map_or(f64::NAN, |bytes| bytes as f64 * d as f64 / LONGER as f64);
    cache.head_bytes(d).map_or_else(of_longer, |bytes| bytes as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_shapes_read_what_their_dimensions_say() {
        let of = |name: &str| {
            let shape = Shape::find(name).expect("a known shape");
            Weight::of_shape(&shape, &"q8_0".parse().expect("a known type"))
        };
        let w = of("27b");
        assert!((w.pass(1) / 1e9 - 27.23).abs() < 0.03, "{}", w.pass(1));
        assert!((w.state as f64 / 1e6 - 156.9).abs() < 0.1, "{}", w.state);
        assert_eq!(w.position(CacheType::F16, CacheType::F16), 65536.0);
        let w = of("35b-a3b");
        // The 3.13 GB of everything at 8.5 bits, and the routers of 40 layers, which stay F32.
        let routers = (40 * 256 * 2048) as f64 * (4.0 - 34.0 / 32.0) / 1e9;
        assert!((w.pass(1) / 1e9 - 3.13 - routers).abs() < 0.03, "{}", w.pass(1));
        assert!((w.n_params as f64 / 1e9 - 35.51).abs() < 0.01);
        assert!((w.draft_step(w.n_vocab) / 1e9 - 0.61).abs() < 0.01);
    }
}
