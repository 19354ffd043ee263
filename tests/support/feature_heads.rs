//! Tiny heads with random weights that read the streams of a target's layers: EAGLE-3 and DFlash files as documents.

use gguf::TensorType;

use super::tiny::{Document, Meta, Rng, Spec, Tensor};

/// Sizes of a head.
#[derive(Clone, Debug)]
pub struct FeatureHead {
    pub arch: &'static str,
    pub n_block: usize,
    pub n_embd: usize,
    pub n_head: usize,
    pub n_head_kv: usize,
    pub d_head: usize,
    pub n_ff: usize,
    /// Layers of the target before which it takes the stream.
    pub layers: Vec<u32>,
    /// Tokens of its own rows, where it has an embedding and an output matrix of its own.
    pub words: Option<Vec<u32>>,
    /// EAGLE-3: norms before the projection and before the residual; DFlash: norms after both parts of a layer.
    pub norms: bool,
    /// DFlash: positions that its first layer sees.
    pub window: Option<u32>,
    pub seed: u64,
}

impl FeatureHead {
    /// One that takes the tables of a target.
    pub fn eagle3(target: &Spec) -> Self {
        Self {
            arch: "eagle3",
            n_block: 1,
            n_embd: target.n_embd,
            n_head: 4,
            n_head_kv: 2,
            d_head: 16,
            n_ff: 56,
            layers: vec![1, 2, 3],
            words: None,
            norms: false,
            window: None,
            seed: 3,
        }
    }

    /// One of another width with tables of its own, the output's for two words of three.
    pub fn eagle3_own(target: &Spec) -> Self {
        let words = (0..target.n_vocab as u32).rev().filter(|id| id % 3 != 1).collect();
        Self { n_embd: 40, words: Some(words), norms: true, layers: vec![3, 0, 4], ..Self::eagle3(target) }
    }

    /// One of two layers, the first of which sees a few tokens only.
    pub fn dflash(target: &Spec) -> Self {
        let layers = vec![1, 4];
        Self { arch: "dflash", n_block: 2, layers, norms: true, window: Some(6), ..Self::eagle3(target) }
    }

    /// Its file for `target`, whose vocabulary it has.
    pub fn document(&self, target: &Spec) -> Document {
        let keys = target.document().keys.into_iter().filter(|(key, _)| key.starts_with("tokenizer."));
        let mut d = Document { keys: keys.collect(), ..Document::default() };
        d.set("general.architecture", Meta::Str(self.arch.into()));
        let mut set = |key: &str, value| d.set(&format!("{}.{key}", self.arch), value);
        for (key, n) in [
            ("block_count", self.n_block),
            ("context_length", 4096),
            ("embedding_length", self.n_embd),
            ("feed_forward_length", self.n_ff),
            ("attention.head_count", self.n_head),
            ("attention.head_count_kv", self.n_head_kv),
            ("attention.key_length", self.d_head),
            ("attention.value_length", self.d_head),
        ] {
            set(key, Meta::U32(n as u32));
        }
        set("attention.layer_norm_rms_epsilon", Meta::F32(1e-5));
        set("rope.freq_base", Meta::F32(5e3));
        set("target_layers", Meta::U32s(self.layers.clone()));
        let is_dflash = self.arch == "dflash";
        if is_dflash {
            set("block_size", Meta::U32(7));
            if let Some(window) = self.window {
                set("attention.sliding_window", Meta::U32(window));
                set("attention.sliding_window_pattern", Meta::Bools((0..self.n_block).map(|il| il == 0).collect()));
            }
        } else {
            set("target_hidden_size", Meta::U32(target.n_embd as u32));
            set("norm_before_fc", Meta::Bool(self.norms));
            set("norm_before_residual", Meta::Bool(self.norms));
        }
        if is_dflash {
            d.set("tokenizer.ggml.mask_token_id", Meta::U32(11));
        }
        d.tensors = self.tensors(target);
        d
    }

    fn tensors(&self, target: &Spec) -> Vec<Tensor> {
        let (d, n_streams, is_dflash) = (self.n_embd, self.layers.len() * target.n_embd, self.arch == "dflash");
        let n_in = if is_dflash { d } else { 2 * d };
        let (n_q, n_kv) = (self.n_head * self.d_head, self.n_head_kv * self.d_head);
        let mut shapes: Vec<(String, Vec<usize>)> = Vec::new();
        let mut add = |name: &str, ne: &[usize]| shapes.push((format!("{name}.weight"), ne.to_vec()));
        add("fc", &[n_streams, d]);
        add("output_norm", &[d]);
        if is_dflash {
            add("enc.output_norm", &[d]);
        } else if self.norms {
            add("enc.output_norm", &[n_streams]);
        }
        if let Some(words) = &self.words {
            add("token_embd", &[d, target.n_vocab]);
            add("output", &[d, words.len()]);
        }
        for il in 0..self.n_block {
            let mut add = |name: &str, ne: &[usize]| add(&format!("blk.{il}.{name}"), ne);
            add("attn_norm", &[d]);
            add("attn_q", &[n_in, n_q]);
            add("attn_k", &[n_in, n_kv]);
            add("attn_v", &[n_in, n_kv]);
            add("attn_output", &[n_q, d]);
            add("ffn_norm", &[d]);
            add("ffn_gate", &[d, self.n_ff]);
            add("ffn_up", &[d, self.n_ff]);
            add("ffn_down", &[self.n_ff, d]);
            if is_dflash {
                add("attn_q_norm", &[self.d_head]);
                add("attn_k_norm", &[self.d_head]);
            } else {
                add("attn_norm_2", &[d]);
            }
            if is_dflash && self.norms {
                add("post_attention_norm", &[d]);
                add("post_ffw_norm", &[d]);
            }
        }
        let mut rng = Rng::new(self.seed);
        let mut tensor = |(name, ne): (String, Vec<usize>)| {
            let n: usize = ne.iter().product();
            let (is_norm, gain) = (ne.len() == 1, 1.0 / (ne[0] as f32).sqrt());
            let value = |rng: &mut Rng| if is_norm { 1.0 + 0.2 * rng.normal() } else { gain * rng.normal() };
            let data = (0..n).flat_map(|_| value(&mut rng).to_le_bytes()).collect();
            Tensor { name, ne: ne.iter().map(|&n| n as u64).collect(), dtype: TensorType::F32, data }
        };
        let mut tensors: Vec<Tensor> = shapes.into_iter().map(&mut tensor).collect();
        if let Some(words) = &self.words {
            let data = words.iter().flat_map(|&id| i64::from(id).to_le_bytes()).collect();
            tensors.push(Tensor { name: "d2t".into(), ne: vec![words.len() as u64], dtype: TensorType::I64, data });
        }
        tensors
    }
}
