//! What a pass has to read: bytes of a model by what they are for, of a file or of a shape that has no file yet.
//! Owns the sums; knows nothing of time.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};
use gguf::{Header, Metadata, SplitInfo};
use memory::CacheType;

use super::synth::shapes::{Ffn, N_TAPS, Shape};
use super::synth::tensors::tensors;
use super::synth::types::Mix;

/// Bytes and sizes of one model.
#[derive(Clone, Debug, Default)]
pub(super) struct Weight {
    pub(super) name: String,
    pub(super) n_params: u64,
    /// All tensors.
    pub(super) n_bytes: u64,
    /// What every row of the trunk reads, whatever the token: without the head, the embedding and the routed experts.
    pub(super) trunk: u64,
    /// Routed experts of the trunk, all of them.
    pub(super) experts: u64,
    /// The matrix of the vocabulary.
    pub(super) head: u64,
    /// The draft head's block, without routed experts.
    pub(super) draft: u64,
    /// Routed experts of the draft head's block.
    pub(super) draft_experts: u64,
    pub(super) n_expert: u64,
    pub(super) n_expert_used: u64,
    pub(super) n_vocab: u64,
    pub(super) n_embd: u64,
    /// Layers of attention in the trunk.
    pub(super) n_attention: u64,
    /// Elements of keys and of values of one position in one layer.
    pub(super) n_key: u64,
    pub(super) n_value: u64,
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
        let first = Arc::new(ggml::Mapping::open(path).with_context(at)?);
        let mut maps = vec![first];
        if let Some(info) = SplitInfo::of(&Header::parse(maps[0].bytes()).with_context(at)?)? {
            for shard in &gguf::shard_paths(path, &info)?[1..] {
                maps.push(Arc::new(ggml::Mapping::open(shard)?));
            }
        }
        Self::of_maps(&maps.iter().map(|m| m.bytes()).collect::<Vec<_>>()).with_context(at)
    }

    /// Of the bytes of a file's shards.
    pub(super) fn of_maps(maps: &[&[u8]]) -> anyhow::Result<Self> {
        let headers = maps.iter().map(|bytes| Header::parse(bytes)).collect::<Result<Vec<_>, _>>()?;
        let mut weight = Self::of_keys(headers[0].metadata())?;
        let tensors = || headers.iter().flat_map(Header::tensors);
        let tied = !tensors().any(|t| t.name == "output.weight");
        let n_layer = weight.n_layer(headers[0].metadata())?;
        for t in tensors() {
            weight.add(t.name, t.ne.iter().product(), t.n_bytes, n_layer, tied);
        }
        Ok(weight)
    }

    /// Of a shape that could be made.
    pub(super) fn of_shape(shape: &Shape, mix: &Mix) -> Self {
        let (n_expert, n_expert_used, n_ff) = match shape.ffn {
            Ffn::Dense { n_ff } => (0, 0, n_ff),
            Ffn::Moe { n_expert, n_used, n_ff, .. } => (n_expert, n_used, n_ff * n_used),
        };
        let n_recurrent = (0..shape.n_layer).filter(|&il| shape.is_recurrent(il)).count();
        let n_channels = 2 * shape.d_key() + shape.d_value();
        let state = shape.d_state * shape.d_value() + (N_TAPS - 1) * n_channels;
        let mut weight = Self {
            name: format!("{} {mix}", shape.name),
            n_expert: n_expert as u64,
            n_expert_used: n_expert_used as u64,
            n_vocab: shape.n_vocab as u64,
            n_embd: shape.n_embd as u64,
            n_attention: (shape.n_layer - n_recurrent) as u64,
            n_key: (shape.n_head_kv * shape.d_head) as u64,
            n_value: (shape.n_head_kv * shape.d_head) as u64,
            state: (n_recurrent * state * 4) as u64,
            n_widest: n_ff.max(n_channels).max(2 * shape.n_head * shape.d_head) as u64,
            ..Self::default()
        };
        for t in tensors(shape, mix) {
            weight.add(&t.name, t.ne.iter().product(), t.n_bytes(), shape.n_layer, shape.tied);
        }
        weight
    }

    fn add(&mut self, name: &str, n_params: u64, n_bytes: u64, n_layer: usize, tied: bool) {
        self.n_params += n_params;
        self.n_bytes += n_bytes;
        let block = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok());
        let routed = name.contains("_exps.");
        match block {
            _ if name == "output.weight" || (tied && name == "token_embd.weight") => self.head += n_bytes,
            // One row of it is read for a token.
            _ if name.ends_with("token_embd.weight") || name.contains("embed_tokens") => {}
            Some(il) if il >= n_layer && routed => self.draft_experts += n_bytes,
            Some(il) if il >= n_layer => self.draft += n_bytes,
            _ if routed => self.experts += n_bytes,
            _ => self.trunk += n_bytes,
        }
    }

    fn n_layer(&self, meta: &Metadata<'_>) -> anyhow::Result<usize> {
        let arch = meta.require_str("general.architecture")?;
        let n = |key: &str| int(meta, &format!("{arch}.{key}"));
        let n_block = n("block_count").context("the file has no block_count")?;
        Ok(n_block.saturating_sub(n("nextn_predict_layers").unwrap_or(0)) as usize)
    }

    fn of_keys(meta: &Metadata<'_>) -> anyhow::Result<Self> {
        let arch = meta.require_str("general.architecture")?.to_owned();
        let n = |key: &str| int(meta, &format!("{arch}.{key}"));
        let need = |key: &str| n(key).with_context(|| format!("{arch}.{key} is missing or no number"));
        let mut weight = Self {
            name: meta.str("general.name")?.unwrap_or(&arch).to_owned(),
            n_expert: n("expert_count").unwrap_or(0),
            n_expert_used: n("expert_used_count").unwrap_or(0),
            n_embd: need("embedding_length")?,
            ..Self::default()
        };
        let n_layer = weight.n_layer(meta)? as u64;
        let tokens = meta.get("tokenizer.ggml.tokens");
        let Some(gguf::Value::Array(tokens)) = tokens else { bail!("tokenizer.ggml.tokens is missing") };
        weight.n_vocab = tokens.len() as u64;
        let n_head = need("attention.head_count")?;
        let n_head_kv = n("attention.head_count_kv").unwrap_or(n_head);
        let d_head = weight.n_embd / n_head.max(1);
        weight.n_key = n_head_kv * n("attention.key_length").unwrap_or(d_head);
        weight.n_value = n_head_kv * n("attention.value_length").unwrap_or(d_head);
        let n_ff = n("feed_forward_length")
            .unwrap_or_else(|| n("expert_feed_forward_length").unwrap_or(0) * weight.n_expert_used);
        weight.n_widest = n_ff.max(2 * n_head * n("attention.key_length").unwrap_or(d_head));
        weight.n_attention = n_layer;
        if let Some(d_state) = n("ssm.state_size") {
            let interval = n("full_attention_interval").unwrap_or(4).max(1);
            weight.n_attention = n_layer / interval;
            let n_channels = 2 * need("ssm.group_count")? * d_state + need("ssm.inner_size")?;
            let floats = d_state * need("ssm.inner_size")? + (need("ssm.conv_kernel")? - 1) * n_channels;
            weight.state = (n_layer - weight.n_attention) * floats * 4;
            weight.n_widest = weight.n_widest.max(n_channels);
        }
        Ok(weight)
    }

    /// Bytes of weights that a pass over `n_rows` rows reads, experts spread evenly at random.
    pub(super) fn pass(&self, n_rows: u64) -> f64 {
        self.trunk as f64 + self.head as f64 + self.experts as f64 * self.share_of_experts(n_rows)
    }

    /// Bytes of weights that one drafted token reads, over `n_words` rows of the head.
    pub(super) fn draft_step(&self, n_words: u64) -> f64 {
        self.draft_block(1) + self.head as f64 * n_words.min(self.n_vocab) as f64 / self.n_vocab.max(1) as f64
    }

    /// Bytes of the draft head's block for `n_rows` rows.
    pub(super) fn draft_block(&self, n_rows: u64) -> f64 {
        self.draft as f64 + self.draft_experts as f64 * self.share_of_experts(n_rows)
    }

    /// Experts that at least one of `n_rows` rows takes.
    fn share_of_experts(&self, n_rows: u64) -> f64 {
        if self.n_expert == 0 {
            return 0.0;
        }
        1.0 - (1.0 - self.n_expert_used as f64 / self.n_expert as f64).powi(n_rows as i32)
    }

    /// Bytes of one cached position in all layers of the trunk.
    pub(super) fn position(&self, type_k: CacheType, type_v: CacheType) -> f64 {
        self.n_attention as f64 * self.head_position(type_k, type_v)
    }

    /// Bytes of one cached position of the draft head.
    pub(super) fn head_position(&self, type_k: CacheType, type_v: CacheType) -> f64 {
        self.n_key as f64 * element(type_k) + self.n_value as f64 * element(type_v)
    }

    /// True when there is a draft head.
    pub(super) fn has_draft(&self) -> bool {
        self.draft > 0
    }
}

fn element(cache: CacheType) -> f64 {
    match cache {
        CacheType::F32 => 4.0,
        CacheType::F16 => 2.0,
        CacheType::Q8_0 => 34.0 / 32.0,
        CacheType::Q4_0 => 18.0 / 32.0,
    }
}

/// A number, or the largest of a list with one for each layer.
fn int(meta: &Metadata<'_>, key: &str) -> Option<u64> {
    match meta.get(key)? {
        gguf::Value::Array(values) => values.iter().filter_map(|v| v.as_int()).max().and_then(|n| n.try_into().ok()),
        value => value.as_int().and_then(|n| n.try_into().ok()),
    }
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
