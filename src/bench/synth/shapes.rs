//! The shapes that models can be made in: what a shape is, and which tensors follow from it.
//! The numbers are in `synth::table`, the metadata in `keys`; types are the mix's.

mod keys;

use gguf::{Metadata, Value};
use model::{Schema, block_of};

/// Elements that are not random.
pub(crate) const N_RESERVED: usize = 16;

/// Dimensions of one model, named as the metadata keys name them.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) n_embd: usize,
    /// Layers of the target model; MTP layers are more blocks.
    pub(crate) n_layer: usize,
    /// MTP layers; those of an assistant are its `n_layer`.
    pub(crate) n_nextn: usize,
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
    /// Latent attention in every layer, one dense layer first; `d_head` is that of keys, `n_rot` of it are rotated.
    DeepSeek2 {
        n_ff_dense: usize,
        /// Widths of the low-rank images of queries, and of keys and values.
        n_lora: [usize; 2],
        /// Elements of a value.
        d_v: usize,
    },
    /// Windows in most layers, one dense layer first.
    Mimo2 {
        n_ff_dense: usize,
        /// Elements of a value.
        d_v: usize,
        sliding: Sliding,
    },
    /// Windows in most layers, three dense layers first.
    Step35 {
        n_ff_dense: usize,
        sliding: Sliding,
    },
    /// Windows in most layers; the shared expert is the dense feed-forward.
    Gemma4 {
        sliding: Sliding,
    },
    /// The head of the Gemma 4 of this name, which comes in a file of its own.
    Gemma4Assistant {
        target: &'static str,
    },
}

/// Layers with a window, among full ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sliding {
    pub(crate) window: usize,
    pub(crate) n_head: usize,
    pub(crate) n_head_kv: usize,
    pub(crate) d_head: usize,
    /// Every so many layers is full.
    pub(crate) period: usize,
}

/// The feed-forward part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ffn {
    Dense { n_ff: usize },
    Moe { n_expert: usize, n_used: usize, n_ff: usize, n_ff_shared: usize },
}

/// Every so many layers is one of attention; the others are delta nets.
pub(super) const INTERVAL: usize = 4;

/// Frequent tokens: the low ids, as in a byte-pair vocabulary.
const N_FREQUENT: usize = 24_576;

impl Shape {
    pub(crate) fn architecture(&self) -> &'static str {
        match (self.family, self.ffn) {
            (Family::Qwen35, Ffn::Dense { .. }) => "qwen35",
            (Family::Qwen35, Ffn::Moe { .. }) => "qwen35moe",
            (Family::Qwen3Next, _) => "qwen3next",
            (Family::Glm4Moe { .. }, _) => "glm4moe",
            (Family::DeepSeek2 { .. }, _) => "deepseek2",
            (Family::Mimo2 { .. }, _) => "mimo2",
            (Family::Step35 { .. }, _) => "step35",
            (Family::Gemma4 { .. }, _) => "gemma4",
            (Family::Gemma4Assistant { .. }, _) => "gemma4-assistant",
        }
    }

    /// True where delta nets stand between layers of attention.
    pub(super) fn is_hybrid(&self) -> bool {
        matches!(self.family, Family::Qwen35 | Family::Qwen3Next)
    }

    pub(super) fn is_gemma(&self) -> bool {
        matches!(self.family, Family::Gemma4 { .. } | Family::Gemma4Assistant { .. })
    }

    /// Its layers with a window, if it has some.
    fn sliding(&self) -> Option<Sliding> {
        match self.family {
            Family::Mimo2 { sliding, .. } | Family::Step35 { sliding, .. } | Family::Gemma4 { sliding } => {
                Some(sliding)
            }
            Family::Gemma4Assistant { .. } => self.speaker().sliding(),
            Family::Qwen35 | Family::Qwen3Next | Family::Glm4Moe { .. } | Family::DeepSeek2 { .. } => None,
        }
    }

    /// Whether block `il` has a window.
    fn slides(&self, il: usize) -> bool {
        let Some(Sliding { period, .. }) = self.sliding() else { return false };
        match self.family {
            Family::Gemma4Assistant { .. } => il + 1 < self.n_layer,
            Family::Step35 { .. } => il >= self.n_layer || !il.is_multiple_of(period),
            Family::Mimo2 { .. } => il >= self.n_layer || il > 0 && !(il + 1).is_multiple_of(period),
            _ => !(il + 1).is_multiple_of(period),
        }
    }

    /// How many elements of a vector the last layer can move: not more than its dense feed-forward has neurons.
    pub(super) fn n_movable(&self) -> usize {
        let n_ff = match self.ffn {
            Ffn::Dense { n_ff } => n_ff,
            Ffn::Moe { n_ff_shared, .. } => n_ff_shared,
        };
        n_ff.min(self.n_embd - N_RESERVED)
    }

    /// What such a model consists of, with the optional tensors that it has.
    pub(crate) fn schema(&self) -> Schema {
        let entries = self.entries();
        let keys = entries.iter().map(|(key, entry)| (key.as_str(), entry.value()));
        let arch = ("general.architecture", Value::from(self.architecture()));
        let meta: Metadata<'_> = std::iter::once(arch).chain(keys).collect();
        let has = |name: &str| self.has(name);
        let mut schema = Schema::of(&meta, self.n_vocab, &has).expect("shapes are those of models");
        schema.tensors.retain(|t| t.required || has(&t.name));
        schema
    }

    /// Whether a tensor that such a model may have is there.
    fn has(&self, name: &str) -> bool {
        let Some((il, part)) = block_of(name) else { return name == "output.weight" && !self.tied };
        let slides = self.slides(il as usize);
        match self.family {
            Family::Gemma4 { .. } | Family::Gemma4Assistant { .. } => match part {
                "attn_v.weight" => slides,
                "ffn_gate_up_exps.weight" => matches!(self.ffn, Ffn::Moe { .. }),
                _ => part == "layer_output_scale.weight",
            },
            Family::Mimo2 { .. } => match part {
                "attn_sinks.weight" => slides,
                _ => matches!(part, "attn_qkv.weight" | "layer_output_norm.weight"),
            },
            Family::Step35 { .. } => matches!(
                part,
                "attn_q_norm.weight"
                    | "attn_k_norm.weight"
                    | "attn_gate.weight"
                    | "nextn.shared_head_norm.weight"
                    | "nextn.shared_head_head.weight"
            ),
            _ => part == "nextn.shared_head_norm.weight",
        }
    }

    /// How many of the first ids count as frequent.
    pub(crate) fn n_frequent(&self) -> usize {
        N_FREQUENT.min(self.n_vocab * 3 / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_have_windows_where_the_published_models_have_them() {
        let full = |name: &str, n: usize| {
            let shape = Shape::find(name).expect("a known shape");
            (0..n).filter(|il| !shape.slides(*il)).collect::<Vec<_>>()
        };
        assert_eq!(full("gemma-4-26b-a4b", 30), [5, 11, 17, 23, 29]);
        assert_eq!(full("gemma-4-26b-a4b-assistant", 4), [3]);
        assert_eq!(full("mimo-v2-flash", 51), [0, 5, 11, 17, 23, 29, 35, 41, 47]);
        assert_eq!(full("step-3.5-flash", 48), [0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44]);
    }

    #[test]
    fn the_rotation_is_split_as_in_the_published_models() {
        assert_eq!(Shape::find("27B").expect("a known shape").rope_sections(), Some([11, 11, 10, 0]));
        assert_eq!(Shape::find("tiny").expect("a known shape").rope_sections(), Some([3, 3, 2, 0]));
    }
}
