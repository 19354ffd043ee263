//! The shapes that models can be made in: the published sizes, and small ones for tests.
//! Owns the table of dimensions; which tensors follow from them is the model's schema, and types are the mix's.

use gguf::{Metadata, Value};
use model::Schema;

/// Dimensions of one model, named as the metadata keys name them.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) n_embd: usize,
    /// Layers of the target model; the MTP layer is one more block.
    pub(crate) n_layer: usize,
    pub(crate) n_head: usize,
    pub(crate) n_head_kv: usize,
    pub(crate) d_head: usize,
    /// Rotated elements of a head.
    pub(crate) n_rot: usize,
    /// Key heads, value heads and width of a delta net.
    pub(crate) n_k_heads: usize,
    pub(crate) n_v_heads: usize,
    pub(crate) d_state: usize,
    pub(crate) n_vocab: usize,
    /// The head is the embedding.
    pub(crate) tied: bool,
    pub(crate) ffn: Ffn,
    pub(crate) family: Family,
}

/// Whose layers a model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Qwen35,
    Qwen3Next,
    /// Attention in every layer, one dense layer first.
    Glm4Moe {
        /// Width of the dense layer.
        n_ff_dense: usize,
    },
}

/// The feed-forward part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ffn {
    Dense { n_ff: usize },
    Moe { n_expert: usize, n_used: usize, n_ff: usize, n_ff_shared: usize },
}

/// Every so many layers is one of attention; the others are delta nets.
pub(super) const INTERVAL: usize = 4;

/// Taps of the convolution.
const N_TAPS: usize = 4;

/// The epsilon of all norms, and its key.
pub(crate) const EPS: f32 = 1e-6;
pub(crate) const EPS_KEY: &str = "attention.layer_norm_rms_epsilon";

/// Frequent tokens: the low ids, as in a byte-pair vocabulary.
const N_FREQUENT: usize = 24_576;

impl Shape {
    /// The shape of this name, in any case.
    pub(crate) fn find(name: &str) -> Option<Shape> {
        all().into_iter().find(|shape| shape.name.eq_ignore_ascii_case(name))
    }

    pub(crate) fn architecture(&self) -> &'static str {
        match (self.family, self.ffn) {
            (Family::Qwen35, Ffn::Dense { .. }) => "qwen35",
            (Family::Qwen35, Ffn::Moe { .. }) => "qwen35moe",
            (Family::Qwen3Next, _) => "qwen3next",
            (Family::Glm4Moe { .. }, _) => "glm4moe",
        }
    }

    /// The numbers of the metadata, by their keys without the architecture.
    pub(crate) fn sizes(&self) -> Vec<(&'static str, usize)> {
        let mut sizes = vec![
            ("block_count", self.n_layer + 1),
            ("context_length", 262_144),
            ("embedding_length", self.n_embd),
            ("attention.head_count", self.n_head),
            ("attention.head_count_kv", self.n_head_kv),
            ("attention.key_length", self.d_head),
            ("attention.value_length", self.d_head),
            ("rope.dimension_count", self.n_rot),
            ("nextn_predict_layers", 1),
        ];
        match self.family {
            Family::Qwen35 | Family::Qwen3Next => sizes.extend([
                ("ssm.conv_kernel", N_TAPS),
                ("ssm.state_size", self.d_state),
                ("ssm.group_count", self.n_k_heads),
                ("ssm.time_step_rank", self.n_v_heads),
                ("ssm.inner_size", self.n_v_heads * self.d_state),
                ("full_attention_interval", INTERVAL),
            ]),
            Family::Glm4Moe { n_ff_dense } => sizes.extend([
                ("feed_forward_length", n_ff_dense),
                ("leading_dense_block_count", 1),
                ("expert_gating_func", 2),
                ("expert_shared_count", 1),
            ]),
        }
        match self.ffn {
            Ffn::Dense { n_ff } => sizes.push(("feed_forward_length", n_ff)),
            Ffn::Moe { n_expert, n_used, n_ff, n_ff_shared } => sizes.extend([
                ("expert_count", n_expert),
                ("expert_used_count", n_used),
                ("expert_feed_forward_length", n_ff),
                ("expert_shared_feed_forward_length", n_ff_shared),
            ]),
        }
        sizes
    }

    /// What such a model consists of, with the optional tensors that it has.
    pub(crate) fn schema(&self) -> Schema {
        let arch = self.architecture();
        let full = |key: &str| format!("{arch}.{key}");
        let mut keys: Vec<(String, Value<'_>)> = vec![("general.architecture".into(), arch.into())];
        keys.extend(self.sizes().into_iter().map(|(key, n)| (full(key), Value::U32(n as u32))));
        keys.push((full(EPS_KEY), EPS.into()));
        let meta: Metadata<'_> = keys.iter().map(|(key, value)| (key.as_str(), *value)).collect();
        let has = |name: &str| name == "output.weight" && !self.tied || name.ends_with("shared_head_norm.weight");
        let mut schema = Schema::of(&meta, self.n_vocab, &has).expect("shapes are those of models");
        schema.tensors.retain(|t| t.required || has(&t.name));
        schema
    }

    /// How many of the first ids count as frequent.
    pub(crate) fn n_frequent(&self) -> usize {
        N_FREQUENT.min(self.n_vocab * 3 / 4)
    }

    /// Parts of the rotation for text and images: 11, 11, 10 of 32; `None` in families that have none.
    pub(crate) fn rope_sections(&self) -> Option<[i32; 4]> {
        if self.family != Family::Qwen35 {
            return None;
        }
        let half = self.n_rot / 2;
        let (time, height) = (half.div_ceil(3), half.div_ceil(3).min(half - half.div_ceil(3)));
        Some([time as i32, height as i32, (half - time - height) as i32, 0])
    }
}

/// All shapes, the published ones first.
pub(crate) fn all() -> Vec<Shape> {
    let dense = |n_ff| Ffn::Dense { n_ff };
    let moe = |n_expert, n_ff| Ffn::Moe { n_expert, n_used: 8, n_ff, n_ff_shared: n_ff };
    let shape = |name, n_embd, n_layer, (n_head, n_head_kv), n_v_heads, tied, ffn| Shape {
        name,
        n_embd,
        n_layer,
        n_head,
        n_head_kv,
        d_head: 256,
        n_rot: 64,
        n_k_heads: 16,
        n_v_heads,
        d_state: 128,
        n_vocab: 248_320,
        tied,
        ffn,
        family: Family::Qwen35,
    };
    let small = |name, tied, ffn| Shape {
        d_head: 64,
        n_rot: 16,
        n_k_heads: 2,
        d_state: 64,
        n_vocab: 4096,
        ..shape(name, 256, 4, (4, 2), 4, tied, ffn)
    };
    let tiny_moe = Ffn::Moe { n_expert: 8, n_used: 2, n_ff: 256, n_ff_shared: 256 };
    vec![
        shape("0.8b", 1024, 24, (8, 2), 16, true, dense(3584)),
        shape("2b", 2048, 24, (8, 2), 16, true, dense(6144)),
        shape("4b", 2560, 32, (16, 4), 32, true, dense(9216)),
        shape("9b", 4096, 32, (16, 4), 32, false, dense(12_288)),
        shape("27b", 5120, 64, (24, 4), 48, false, dense(17_408)),
        shape("35b-a3b", 2048, 40, (16, 2), 32, false, moe(256, 512)),
        shape("122b-a10b", 3072, 48, (32, 2), 64, false, moe(256, 1024)),
        Shape {
            n_vocab: 151_936,
            family: Family::Qwen3Next,
            ..shape(
                "qwen3-next-80b-a3b",
                2048,
                48,
                (16, 2),
                32,
                false,
                Ffn::Moe { n_expert: 512, n_used: 10, n_ff: 512, n_ff_shared: 512 },
            )
        },
        Shape {
            d_head: 128,
            n_vocab: 151_552,
            family: Family::Glm4Moe { n_ff_dense: 10_944 },
            ..shape("glm-4.5-air", 4096, 46, (96, 8), 0, false, moe(128, 1408))
        },
        shape("mini-moe", 1024, 24, (8, 2), 32, false, moe(64, 256)),
        small("tiny", false, dense(768)),
        small("tiny-tied", true, dense(768)),
        small("tiny-moe", false, tiny_moe),
        Shape { family: Family::Qwen3Next, ..small("tiny-qwen3next", false, tiny_moe) },
        Shape { family: Family::Glm4Moe { n_ff_dense: 768 }, ..small("tiny-glm4moe", false, tiny_moe) },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rotation_is_split_as_in_the_published_models() {
        assert_eq!(Shape::find("27B").expect("a known shape").rope_sections(), Some([11, 11, 10, 0]));
        assert_eq!(Shape::find("tiny").expect("a known shape").rope_sections(), Some([3, 3, 2, 0]));
    }
}
