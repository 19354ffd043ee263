//! The metadata of a shape: every key that its architecture reads, but for those that say nothing about sizes.

use gguf::{ArrayBuf, Value};

use super::{Family, Ffn, INTERVAL, Shape, Sliding};

/// What stands under a key.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    One(Number),
    /// One for each block.
    List(ArrayBuf),
}

/// One number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Count(usize),
    Float(f32),
    Flag(bool),
}

/// Taps of the convolution.
const N_TAPS: usize = 4;

/// The epsilon of all norms.
const EPS: f32 = 1e-6;

/// Positions that published models of these families are made for, about.
const N_CTX: usize = 262_144;

impl Entry {
    pub(crate) fn value(&self) -> Value<'_> {
        match self {
            Entry::One(Number::Count(n)) => Value::U32(*n as u32),
            Entry::One(Number::Float(v)) => Value::F32(*v),
            Entry::One(Number::Flag(v)) => Value::Bool(*v),
            Entry::List(values) => values.into(),
        }
    }
}

/// Keys without the architecture's name.
struct Keys<'s> {
    shape: &'s Shape,
    entries: Vec<(String, Entry)>,
}

impl Shape {
    /// The keys of the file that start with the architecture's name, and what stands under them.
    pub(crate) fn entries(&self) -> Vec<(String, Entry)> {
        let mut keys = Keys { shape: self, entries: Vec::new() };
        keys.common();
        keys.heads();
        keys.feed_forward();
        keys.family();
        keys.entries
    }

    /// Blocks of the file.
    fn n_block(&self) -> usize {
        self.n_layer + self.n_nextn
    }

    /// Parts of the rotation for text and images: 11, 11, 10 of 32; `None` in families that have none.
    pub(super) fn rope_sections(&self) -> Option<[i32; 4]> {
        if self.family != Family::Qwen35 {
            return None;
        }
        let half = self.n_rot / 2;
        let (time, height) = (half.div_ceil(3), half.div_ceil(3).min(half - half.div_ceil(3)));
        Some([time as i32, height as i32, (half - time - height) as i32, 0])
    }
}

impl Keys<'_> {
    fn add(&mut self, key: &str, entry: Entry) {
        self.entries.push((format!("{}.{key}", self.shape.architecture()), entry));
    }

    fn count(&mut self, key: &str, n: usize) {
        self.add(key, Entry::One(Number::Count(n)));
    }

    fn float(&mut self, key: &str, value: f32) {
        self.add(key, Entry::One(Number::Float(value)));
    }

    /// `of` gives the number of each block.
    fn each(&mut self, key: &str, of: impl Fn(usize) -> usize) {
        self.add(key, Entry::List((0..self.shape.n_block()).map(|il| of(il) as i32).collect()));
    }

    fn common(&mut self) {
        let s = self.shape;
        self.count("block_count", s.n_block());
        self.count("context_length", N_CTX);
        self.count("embedding_length", s.n_embd);
        self.float("attention.layer_norm_rms_epsilon", EPS);
        match s.family {
            // All of its layers are the head.
            Family::Gemma4Assistant { .. } => self.count("nextn_predict_layers", s.n_layer),
            // Its head comes in a file of its own.
            Family::Gemma4 { .. } => {}
            _ => self.count("nextn_predict_layers", s.n_nextn),
        }
        if let Some(sections) = s.rope_sections() {
            self.add("rope.dimension_sections", Entry::List(sections.into_iter().collect()));
        }
    }

    fn heads(&mut self) {
        let s = self.shape;
        let (d_k, d_v) = match s.family {
            // What is kept of a position: one row for all heads.
            Family::DeepSeek2 { n_lora: [_, n_kv], .. } => (n_kv + s.n_rot, n_kv),
            Family::Mimo2 { d_v, .. } => (s.d_head, d_v),
            _ => (s.d_head, s.d_head),
        };
        self.count("attention.key_length", d_k);
        self.count("attention.value_length", d_v);
        // Step 3.5 rotates half of what the key says in full layers.
        if !matches!(s.family, Family::Step35 { .. }) {
            self.count("rope.dimension_count", s.n_rot);
        }
        let base = if s.is_gemma() { 1e6 } else { 1e7 };
        self.float("rope.freq_base", base);
        let Some(Sliding { window, n_head, n_head_kv, d_head, .. }) = s.sliding() else {
            self.count("attention.head_count", s.n_head);
            return self.count("attention.head_count_kv", s.n_head_kv);
        };
        let slides: Vec<bool> = (0..s.n_block()).map(|il| s.slides(il)).collect();
        if n_head == s.n_head {
            self.count("attention.head_count", n_head);
        } else {
            self.each("attention.head_count", |il| if slides[il] { n_head } else { s.n_head });
        }
        self.each("attention.head_count_kv", |il| if slides[il] { n_head_kv } else { s.n_head_kv });
        self.count("attention.sliding_window", window);
        self.add("attention.sliding_window_pattern", Entry::List(slides.into_iter().collect()));
        self.float("rope.freq_base_swa", 1e4);
        if s.is_gemma() {
            self.count("attention.key_length_swa", d_head);
            self.count("attention.value_length_swa", d_head);
            self.count("rope.dimension_count_swa", d_head);
        }
    }

    fn feed_forward(&mut self) {
        let s = self.shape;
        let dense = match s.family {
            Family::Glm4Moe { n_ff_dense }
            | Family::DeepSeek2 { n_ff_dense, .. }
            | Family::Mimo2 { n_ff_dense, .. }
            | Family::Step35 { n_ff_dense, .. } => Some(n_ff_dense),
            _ => None,
        };
        match s.ffn {
            Ffn::Dense { n_ff } => self.count("feed_forward_length", n_ff),
            Ffn::Moe { n_expert, n_used, n_ff, n_ff_shared } => {
                self.count("expert_count", n_expert);
                self.count("expert_used_count", n_used);
                self.count("expert_feed_forward_length", n_ff);
                match s.family {
                    Family::Gemma4 { .. } => self.count("feed_forward_length", n_ff_shared),
                    Family::Mimo2 { .. } => {}
                    _ => self.count("expert_shared_feed_forward_length", n_ff_shared),
                }
            }
        }
        if let Some(n_ff) = dense {
            self.count("feed_forward_length", n_ff);
            // Sigmoids.
            self.count("expert_gating_func", 2);
        }
    }

    fn family(&mut self) {
        let s = self.shape;
        match s.family {
            Family::Qwen35 | Family::Qwen3Next => {
                self.count("ssm.conv_kernel", N_TAPS);
                self.count("ssm.state_size", s.d_state);
                self.count("ssm.group_count", s.n_k_heads);
                self.count("ssm.time_step_rank", s.n_v_heads);
                self.count("ssm.inner_size", s.n_v_heads * s.d_state);
                self.count("full_attention_interval", INTERVAL);
            }
            Family::Glm4Moe { .. } => {
                self.count("leading_dense_block_count", 1);
                self.count("expert_shared_count", 1);
            }
            Family::DeepSeek2 { n_lora: [n_q, n_kv], d_v, .. } => {
                self.count("leading_dense_block_count", 1);
                self.count("expert_shared_count", 1);
                self.weights(1.8);
                self.count("vocab_size", s.n_vocab);
                self.count("attention.q_lora_rank", n_q);
                self.count("attention.kv_lora_rank", n_kv);
                self.count("attention.key_length_mla", s.d_head);
                self.count("attention.value_length_mla", d_v);
            }
            Family::Mimo2 { .. } => self.float("attention.value_scale", 0.707),
            Family::Step35 { .. } => {
                self.count("leading_dense_block_count", N_DENSE_OF_STEP);
                self.weights(3.0);
            }
            Family::Gemma4 { .. } => {
                self.float("final_logit_softcapping", 30.0);
                self.count("attention.shared_kv_layers", 0);
                self.count("embedding_length_per_layer_input", 0);
            }
            Family::Gemma4Assistant { .. } => {
                self.count("attention.shared_kv_layers", s.n_layer);
                self.count("embedding_length_per_layer_input", 0);
                self.count("embedding_length_out", s.speaker().n_embd);
            }
        }
    }

    /// Experts' weights have the sum 1, then this factor.
    fn weights(&mut self, factor: f32) {
        self.float("expert_weights_scale", factor);
        self.add("expert_weights_norm", Entry::One(Number::Flag(true)));
    }
}

/// Dense layers before those with experts.
const N_DENSE_OF_STEP: usize = 3;
