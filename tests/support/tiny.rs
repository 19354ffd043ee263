//! Tiny models with random weights, of every architecture and layout: the file as a document that tests can change.
//! Which tensors there are and of which shapes is the model's schema; what is in a document is checked by nobody, so that
//! it can also be wrong.

use std::path::{Path, PathBuf};

use gguf::{ArrayBuf, Header, TensorType, Writer};
use model::{Schema, TensorSchema};

use super::words;

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum Meta {
    U32(u32),
    F32(f32),
    Bool(bool),
    Str(String),
    U32s(Vec<u32>),
    I32s(Vec<i32>),
    Bools(Vec<bool>),
    F32s(Vec<f32>),
    Strs(Vec<String>),
}

/// A tensor as the file has it.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    pub ne: Vec<u64>,
    pub dtype: TensorType,
    pub data: Vec<u8>,
}

/// A whole file.
#[derive(Clone, Debug, Default)]
pub struct Document {
    pub keys: Vec<(String, Meta)>,
    pub tensors: Vec<Tensor>,
}

impl Document {
    /// Sets a key, which may be there already.
    pub fn set(&mut self, key: &str, value: Meta) {
        match self.keys.iter_mut().find(|(k, _)| k == key) {
            Some((_, old)) => *old = value,
            None => self.keys.push((key.to_owned(), value)),
        }
    }

    /// Removes a key, which must be there.
    pub fn unset(&mut self, key: &str) {
        let n = self.keys.len();
        self.keys.retain(|(k, _)| k != key);
        assert_eq!(self.keys.len() + 1, n, "{key} was not there");
    }

    /// Takes a tensor out, which must be there.
    pub fn take(&mut self, name: &str) -> Tensor {
        let at = self.tensors.iter().position(|t| t.name == name);
        self.tensors.remove(at.unwrap_or_else(|| panic!("{name} is not there")))
    }

    /// Joins tensors along `ne[1]` into one: rows of the first, then of the next; for each matrix where there are several.
    /// Vectors become one vector.
    pub fn fuse(&mut self, parts: &[&str], name: &str) {
        let parts: Vec<Tensor> = parts.iter().map(|part| self.take(part)).collect();
        let mut ne = parts[0].ne.clone();
        let dim = 1.min(ne.len() - 1);
        ne[dim] = parts.iter().map(|t| t.ne[dim]).sum();
        let n = ne.get(2).copied().unwrap_or(1) as usize;
        let mut data = Vec::new();
        for matrix in 0..n {
            for part in &parts {
                let n_bytes = part.data.len() / n;
                data.extend_from_slice(&part.data[matrix * n_bytes..][..n_bytes]);
            }
        }
        self.tensors.push(Tensor { name: name.to_owned(), ne, dtype: parts[0].dtype, data });
    }

    /// Joins tensors along `ne[0]` into one: a row of the first, then of the next, for each row.
    pub fn fuse_rows(&mut self, parts: &[&str], name: &str) {
        let parts: Vec<Tensor> = parts.iter().map(|part| self.take(part)).collect();
        let mut ne = parts[0].ne.clone();
        let n_rows = ne[1..].iter().product::<u64>() as usize;
        ne[0] = parts.iter().map(|t| t.ne[0]).sum();
        let row = |t: &Tensor, i: usize| {
            let n_bytes = t.data.len() / n_rows;
            t.data[i * n_bytes..][..n_bytes].to_vec()
        };
        let data = (0..n_rows).flat_map(|i| parts.iter().flat_map(move |t| row(t, i))).collect();
        self.tensors.push(Tensor { name: name.to_owned(), ne, dtype: parts[0].dtype, data });
    }

    /// Writes the file; gives its path.
    pub fn write(&self, path: &Path) -> PathBuf {
        self.write_part(path, &self.keys, &self.tensors);
        path.to_owned()
    }

    /// Writes two shards as splitting tools do, the metadata in the first; gives its path.
    pub fn write_shards(&self, dir: &Path) -> PathBuf {
        let split = |no: u32| {
            let mut keys = Document { keys: if no == 0 { self.keys.clone() } else { vec![] }, tensors: vec![] };
            keys.set("split.no", Meta::U32(no));
            keys.set("split.count", Meta::U32(2));
            keys.set("split.tensors.count", Meta::U32(self.tensors.len() as u32));
            keys.keys
        };
        let (first, second) = self.tensors.split_at(self.tensors.len() / 3);
        let path = |no: u32| dir.join(format!("tiny-{no:05}-of-00002.gguf"));
        self.write_part(&path(2), &split(1), second);
        self.write_part(&path(1), &split(0), first);
        path(1)
    }

    fn write_part(&self, path: &Path, keys: &[(String, Meta)], tensors: &[Tensor]) {
        let mut writer = Writer::create(path).expect("the folder is writable");
        add_keys(&mut writer, keys);
        for t in tensors {
            writer.tensor(&t.name, &t.ne, t.dtype).expect("a tensor that can be written");
        }
        let mut data = writer.begin().expect("a header that can be read");
        for t in tensors {
            data.write_tensor(&t.name, &t.data).expect("data of the declared size");
        }
        data.finish().expect("all tensors are written");
    }
}

fn add_keys<W: gguf::Output>(writer: &mut Writer<W>, keys: &[(String, Meta)]) {
    for (key, value) in keys {
        let array: ArrayBuf;
        let value: gguf::Value<'_> = match value {
            Meta::U32(v) => (*v).into(),
            Meta::F32(v) => (*v).into(),
            Meta::Bool(v) => (*v).into(),
            Meta::Str(v) => v.as_str().into(),
            Meta::U32s(v) => {
                array = v.iter().copied().collect();
                (&array).into()
            }
            Meta::I32s(v) => {
                array = v.iter().copied().collect();
                (&array).into()
            }
            Meta::Bools(v) => {
                array = v.iter().copied().collect();
                (&array).into()
            }
            Meta::F32s(v) => {
                array = v.iter().copied().collect();
                (&array).into()
            }
            Meta::Strs(v) => {
                array = v.iter().map(String::as_str).collect();
                (&array).into()
            }
        };
        writer.add(key, value).expect("a key that can be written");
    }
}

/// Sizes of a tiny model.
#[derive(Clone, Debug)]
pub struct Spec {
    pub arch: &'static str,
    pub n_layer: usize,
    pub n_embd: usize,
    pub n_head: usize,
    pub n_head_kv: usize,
    pub d_head: usize,
    pub n_rot: usize,
    pub n_ff: usize,
    pub n_vocab: usize,
    pub tied: bool,
    /// Every so many layers is one of attention; the others are delta nets.
    pub interval: usize,
    pub n_k_heads: usize,
    pub n_v_heads: usize,
    pub d_state: usize,
    pub n_taps: usize,
    pub n_expert: usize,
    pub n_used: usize,
    pub n_ff_shared: usize,
    pub nextn: bool,
    /// MTP layers of the NextN head.
    pub n_mtp: usize,
    pub seed: u64,
    /// Keys beside those that follow from the sizes, without the architecture's name.
    pub more: Vec<(&'static str, Meta)>,
}

impl Spec {
    /// Small sizes that differ from each other wherever they may.
    pub fn of(arch: &'static str) -> Spec {
        let moe = arch.ends_with("moe") || has_windows(arch) || ["qwen3next", "deepseek2", "gpt-oss"].contains(&arch);
        Spec {
            arch,
            n_layer: 4,
            n_embd: 48,
            n_head: 4,
            n_head_kv: 2,
            d_head: 32,
            n_rot: if arch == "deepseek2" { 32 } else { 16 },
            n_ff: if moe { 24 } else { 72 },
            n_vocab: 272,
            tied: false,
            interval: 2,
            n_k_heads: 2,
            n_v_heads: 4,
            d_state: 16,
            n_taps: 4,
            n_expert: if moe { 6 } else { 0 },
            n_used: 3,
            n_ff_shared: 40,
            nextn: false,
            n_mtp: 1,
            seed: 1,
            more: match arch {
                "mistral3" => vec![
                    ("attention.temperature_scale", Meta::F32(0.4)),
                    ("rope.scaling.original_context_length", Meta::U32(8)),
                ],
                // A window that prompts outgrow, in two layers of four.
                "gemma2" | "gemma3" => vec![
                    ("attention.sliding_window", Meta::U32(9)),
                    ("attention.sliding_window_pattern", Meta::U32(2)),
                    ("final_logit_softcapping", Meta::F32(6.0)),
                ],
                "phi3" => vec![
                    ("attention.sliding_window", Meta::U32(11)),
                    ("rope.scaling.original_context_length", Meta::U32(4096)),
                    ("rope.scaling.attn_factor", Meta::F32(1.2)),
                ],
                "gpt-oss" => vec![
                    ("attention.sliding_window", Meta::U32(9)),
                    ("rope.scaling.type", Meta::Str("yarn".into())),
                    ("rope.scaling.factor", Meta::F32(4.0)),
                    ("rope.scaling.original_context_length", Meta::U32(64)),
                ],
                "glm4moe" => vec![
                    ("feed_forward_length", Meta::U32(72)),
                    ("leading_dense_block_count", Meta::U32(1)),
                    ("expert_group_count", Meta::U32(3)),
                    ("expert_group_used_count", Meta::U32(2)),
                    ("expert_weights_norm", Meta::Bool(true)),
                    ("expert_weights_scale", Meta::F32(1.5)),
                ],
                "granite" => vec![
                    ("embedding_scale", Meta::F32(3.0)),
                    ("residual_scale", Meta::F32(0.6)),
                    ("logit_scale", Meta::F32(0.5)),
                ],
                "lfm2" => {
                    vec![("shortconv.l_cache", Meta::U32(3)), ("attention.head_count_kv", Meta::U32s(vec![0, 2, 0, 2]))]
                }
                "deepseek2" => vec![
                    ("attention.head_count_kv", Meta::U32(1)),
                    ("attention.q_lora_rank", Meta::U32(40)),
                    ("attention.kv_lora_rank", Meta::U32(64)),
                    ("attention.key_length", Meta::U32(64 + 32)),
                    ("attention.value_length", Meta::U32(64)),
                    ("attention.key_length_mla", Meta::U32(24 + 32)),
                    ("attention.value_length_mla", Meta::U32(20)),
                    ("feed_forward_length", Meta::U32(72)),
                    ("leading_dense_block_count", Meta::U32(1)),
                    ("expert_gating_func", Meta::U32(2)),
                    ("expert_group_count", Meta::U32(3)),
                    ("expert_group_used_count", Meta::U32(2)),
                    ("expert_weights_norm", Meta::Bool(true)),
                    ("expert_weights_scale", Meta::F32(1.5)),
                    ("rope.scaling.type", Meta::Str("yarn".into())),
                    ("rope.scaling.factor", Meta::F32(4.0)),
                    ("rope.scaling.original_context_length", Meta::U32(64)),
                    ("rope.scaling.yarn_log_multiplier", Meta::F32(0.08)),
                ],
                "nemotron_h" => vec![("attention.layer_norm_epsilon", Meta::F32(1e-5))],
                "nemotron_h_moe" => vec![
                    ("attention.layer_norm_epsilon", Meta::F32(1e-5)),
                    ("expert_weights_norm", Meta::Bool(true)),
                    ("expert_weights_scale", Meta::F32(1.5)),
                    ("moe_latent_size", Meta::U32(32)),
                ],
                // Two layers with a window and a full one of another shape, whose cells a fourth reads; experts beside a dense
                // part; inputs of each token for each layer.
                "gemma4" => vec![
                    ("feed_forward_length", Meta::U32s(vec![72, 40, 56, 64])),
                    ("expert_count", Meta::U32(6)),
                    ("expert_used_count", Meta::U32(3)),
                    ("expert_feed_forward_length", Meta::U32(24)),
                    ("attention.key_length_swa", Meta::U32(16)),
                    ("attention.value_length_swa", Meta::U32(16)),
                    ("attention.sliding_window", Meta::U32(9)),
                    ("attention.sliding_window_pattern", Meta::Bools(vec![true, false, true, false])),
                    ("attention.shared_kv_layers", Meta::U32(1)),
                    ("rope.freq_base_swa", Meta::F32(1e3)),
                    ("rope.dimension_count_swa", Meta::U32(16)),
                    ("embedding_length_per_layer_input", Meta::U32(8)),
                    ("final_logit_softcapping", Meta::F32(6.0)),
                ],
                _ => Vec::new(),
            },
        }
    }

    /// The assistant of [`Spec::of`] a model of `gemma4`: a layer of each kind.
    pub fn assistant() -> Spec {
        Spec {
            n_layer: 2,
            n_embd: 40,
            n_ff: 44,
            tied: true,
            seed: 2,
            more: vec![
                ("embedding_length_out", Meta::U32(48)),
                ("nextn_predict_layers", Meta::U32(2)),
                ("attention.key_length_swa", Meta::U32(16)),
                ("attention.value_length_swa", Meta::U32(16)),
                ("attention.sliding_window", Meta::U32(9)),
                ("attention.sliding_window_pattern", Meta::Bools(vec![true, false])),
                ("attention.shared_kv_layers", Meta::U32(2)),
                ("rope.freq_base_swa", Meta::F32(1e3)),
                ("rope.dimension_count_swa", Meta::U32(16)),
            ],
            ..Spec::of("gemma4-assistant")
        }
    }

    fn n_block(&self) -> usize {
        self.n_layer + if self.nextn { self.n_mtp } else { 0 }
    }

    fn has_delta_nets(&self) -> bool {
        self.arch.starts_with("qwen35") || self.arch == "qwen3next"
    }

    /// True for layers without attention.
    pub fn is_recurrent(&self, il: usize) -> bool {
        match self.arch {
            _ if self.has_delta_nets() => il < self.n_layer && !(il + 1).is_multiple_of(self.interval),
            "lfm2" => il.is_multiple_of(2),
            // A mixer, a feed-forward, attention, and again.
            "nemotron_h" | "nemotron_h_moe" => il < self.n_layer && il.is_multiple_of(3),
            _ => false,
        }
    }

    /// The keys of MiMo and Step: each second layer and those of the head have a window, and other heads than the rest.
    fn windows(&self, d: &mut Document) {
        let slides = |il: usize| il % 2 == 1 || il >= self.n_layer;
        let of =
            |sliding: u32, full: u32| (0..self.n_block()).map(|il| if slides(il) { sliding } else { full }).collect();
        let mut set = |key: &str, value: Meta| d.set(&format!("{}.{key}", self.arch), value);
        set("feed_forward_length", Meta::U32(72));
        set("attention.sliding_window", Meta::U32(7));
        set("rope.freq_base_swa", Meta::F32(1e4));
        if self.arch == "mimo2" {
            let pattern = (0..self.n_block()).map(|il| i32::from(slides(il))).collect();
            set("attention.sliding_window_pattern", Meta::I32s(pattern));
            set("attention.head_count_kv", Meta::U32s(of(2, 1)));
            set("attention.value_length", Meta::U32(2 * self.d_head as u32));
            set("attention.value_scale", Meta::F32(0.7));
        } else {
            set("attention.sliding_window_pattern", Meta::Bools((0..self.n_block()).map(slides).collect()));
            set("attention.head_count", Meta::U32s(of(6, 4)));
            set("leading_dense_block_count", Meta::U32(1));
            set("expert_weights_scale", Meta::F32(1.5));
            // The others have none.
            let limits = (0..self.n_block()).map(|il| if il < 3 { 0.4 } else { 0.0 }).collect();
            set("swiglu_clamp_shexp", Meta::F32s(limits));
            set("swiglu_clamp_exp", Meta::F32(0.5));
        }
    }

    /// The whole file, tensors in F32: those that a model of these sizes must have, and those that it may have and these
    /// sizes ask for. Where the sizes are none of a model's there are no tensors.
    pub fn document(&self) -> Document {
        let keys = self.keys();
        let mut writer = Writer::in_memory();
        add_keys(&mut writer, &keys);
        let header = writer.begin().and_then(|data| data.finish()).expect("keys that can be written");
        let header = Header::parse(&header).expect("keys that can be read");
        let has = |name: &str| {
            name == "output.weight" && !self.tied
                || name.ends_with("shared_head_norm.weight")
                || name.starts_with("rope_factors_")
                || name.ends_with(".bias")
                || has_windows(self.arch)
                    && ["attn_sinks", "attn_gate", "attn_q_norm", "attn_k_norm", "shared_head_head"]
                        .iter()
                        .any(|part| name.ends_with(&format!("{part}.weight")))
                || name.ends_with("layer_output_scale.weight")
                // Values of full layers of Gemma 4 are made of keys.
                || self.arch == "gemma4" && ["blk.0.attn_v.weight", "blk.2.attn_v.weight"].contains(&name)
        };
        let schema = Schema::of(header.metadata(), self.n_vocab, &has);
        let mut rng = Rng::new(self.seed);
        let wanted = schema.into_iter().flat_map(|schema| schema.tensors).filter(|t| t.required || has(&t.name));
        Document { keys, tensors: wanted.map(|t| random(&mut rng, t)).collect() }
    }

    fn keys(&self) -> Vec<(String, Meta)> {
        let mut d = Document::default();
        d.set("general.architecture", Meta::Str(self.arch.into()));
        let mut u = |key: &str, n: usize| d.set(&format!("{}.{key}", self.arch), Meta::U32(n as u32));
        u("block_count", self.n_block());
        u("context_length", 4096);
        u("embedding_length", self.n_embd);
        u("attention.head_count", self.n_head);
        u("attention.head_count_kv", self.n_head_kv);
        u("attention.key_length", self.d_head);
        u("attention.value_length", self.d_head);
        u("rope.dimension_count", self.n_rot);
        if self.n_expert > 0 && self.arch == "llama" {
            // Mixtral's files tell the width of experts so.
            u("expert_count", self.n_expert);
            u("expert_used_count", self.n_used);
            u("feed_forward_length", self.n_ff);
        } else if self.n_expert > 0 {
            u("expert_count", self.n_expert);
            u("expert_used_count", self.n_used);
            u("expert_feed_forward_length", self.n_ff);
            u("expert_shared_feed_forward_length", self.n_ff_shared);
        } else {
            u("feed_forward_length", self.n_ff);
        }
        if self.has_delta_nets() {
            u("ssm.conv_kernel", self.n_taps);
            u("ssm.state_size", self.d_state);
            u("ssm.group_count", self.n_k_heads);
            u("ssm.time_step_rank", self.n_v_heads);
            u("ssm.inner_size", self.n_v_heads * self.d_state);
            u("full_attention_interval", self.interval);
        }
        if self.arch.starts_with("nemotron_h") {
            u("ssm.conv_kernel", self.n_taps);
            u("ssm.state_size", self.d_state);
            u("ssm.group_count", self.n_k_heads);
            u("ssm.time_step_rank", self.n_v_heads);
            u("ssm.inner_size", self.n_v_heads * 24);
        }
        if self.nextn {
            u("nextn_predict_layers", self.n_mtp);
        }
        if self.arch.starts_with("nemotron_h") {
            let each = |of_kind: usize, n: usize| {
                let of_block = |il| if il >= self.n_layer || il % 3 == of_kind { n as u32 } else { 0 };
                Meta::U32s((0..self.n_block()).map(of_block).collect())
            };
            d.set(&format!("{}.feed_forward_length", self.arch), each(1, self.n_ff));
            d.set(&format!("{}.attention.head_count_kv", self.arch), each(2, self.n_head_kv));
        }
        d.set(&format!("{}.attention.layer_norm_rms_epsilon", self.arch), Meta::F32(1e-6));
        d.set(&format!("{}.rope.freq_base", self.arch), Meta::F32(1e5));
        if has_windows(self.arch) {
            self.windows(&mut d);
        }
        for (key, value) in &self.more {
            d.set(&format!("{}.{key}", self.arch), value.clone());
        }
        let (tokens, types, merges) = words::vocabulary(self.n_vocab);
        d.set("tokenizer.ggml.model", Meta::Str("gpt2".into()));
        d.set("tokenizer.ggml.pre", Meta::Str(if self.arch == "llama" { "llama-bpe" } else { "qwen35" }.into()));
        d.set("tokenizer.ggml.tokens", Meta::Strs(tokens));
        d.set("tokenizer.ggml.token_type", Meta::I32s(types));
        d.set("tokenizer.ggml.merges", Meta::Strs(merges));
        d.set("tokenizer.ggml.eos_token_id", Meta::U32(words::END));
        d.set("tokenizer.ggml.add_bos_token", Meta::Bool(false));
        d.keys
    }
}

/// Whether some layers of the architecture have windows, and its files lists of them.
fn has_windows(arch: &str) -> bool {
    ["mimo2", "step35"].contains(&arch)
}

/// A tensor whose numbers are scaled so that a pass neither dies nor explodes.
fn random(rng: &mut Rng, t: TensorSchema) -> Tensor {
    let n: u64 = t.ne.iter().product();
    let (name, n_in) = (t.name.as_str(), t.ne[0] as f32);
    let value = |rng: &mut Rng| match name {
        "token_embd.weight" => rng.normal(),
        _ if name.ends_with("norm.weight") || name.ends_with("output_scale.weight") => 1.0 + 0.2 * rng.normal(),
        "rope_freqs.weight" => 1.0 + rng.normal().abs(),
        _ if name.ends_with("ssm_conv1d.weight") => 0.6 * rng.normal(),
        _ if name.ends_with("ssm_a") => -(0.05 + rng.normal().abs()),
        _ if name.ends_with(".bias") => rng.normal(),
        _ if name.starts_with("rope_factors_") => 1.0 + rng.normal().abs(),
        _ if t.ne.len() == 1 => 0.2 * rng.normal(),
        _ => rng.normal() / n_in.sqrt(),
    };
    let data = (0..n).flat_map(|_| value(rng).to_le_bytes()).collect();
    Tensor { name: t.name.clone(), ne: t.ne.clone(), dtype: TensorType::F32, data }
}

/// xorshift64*; Vigna 2014. The same numbers for the same seed.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 33) as usize % n
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// About standard normal: a sum of uniform numbers.
    pub fn normal(&mut self) -> f32 {
        let uniform = |rng: &mut Rng| (rng.bits() >> 40) as f32 / (1 << 24) as f32;
        (0..6).map(|_| uniform(self)).sum::<f32>() * std::f32::consts::SQRT_2 - 3.0 * std::f32::consts::SQRT_2
    }
}
