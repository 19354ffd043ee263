//! The shapes that models can be made in: the published sizes, and small ones for tests.
//! Owns the table of dimensions; knows nothing of tensors or types.

/// Dimensions of one model, named as the metadata keys name them.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) n_embd: usize,
    /// Layers of the trunk; the head is one more block.
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
}

/// The feed-forward part.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ffn {
    Dense { n_ff: usize },
    Moe { n_expert: usize, n_used: usize, n_ff: usize, n_ff_shared: usize },
}

/// Every so many layers is one of attention; the others are delta nets.
pub(crate) const INTERVAL: usize = 4;

/// Taps of the convolution.
pub(crate) const N_TAPS: usize = 4;

/// Frequent tokens: the low ids, as in a byte-pair vocabulary.
const N_FREQUENT: usize = 24_576;

impl Shape {
    /// The shape of this name, in any case.
    pub(crate) fn find(name: &str) -> Option<Shape> {
        all().into_iter().find(|shape| shape.name.eq_ignore_ascii_case(name))
    }

    pub(crate) fn architecture(&self) -> &'static str {
        match self.ffn {
            Ffn::Dense { .. } => "qwen35",
            Ffn::Moe { .. } => "qwen35moe",
        }
    }

    pub(crate) fn is_recurrent(&self, il: usize) -> bool {
        il < self.n_layer && !(il + 1).is_multiple_of(INTERVAL)
    }

    /// How many of the first ids count as frequent.
    pub(crate) fn n_frequent(&self) -> usize {
        N_FREQUENT.min(self.n_vocab * 3 / 4)
    }

    pub(crate) fn d_key(&self) -> usize {
        self.n_k_heads * self.d_state
    }

    pub(crate) fn d_value(&self) -> usize {
        self.n_v_heads * self.d_state
    }

    /// Parts of the rotation for text and images: 11, 11, 10 of 32.
    pub(crate) fn rope_sections(&self) -> [i32; 4] {
        let half = self.n_rot / 2;
        let (time, height) = (half.div_ceil(3), half.div_ceil(3).min(half - half.div_ceil(3)));
        [time as i32, height as i32, (half - time - height) as i32, 0]
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
    };
    let small = |name, tied, ffn| Shape {
        d_head: 64,
        n_rot: 16,
        n_k_heads: 2,
        d_state: 64,
        n_vocab: 4096,
        ..shape(name, 256, 4, (4, 2), 4, tied, ffn)
    };
    vec![
        shape("0.8b", 1024, 24, (8, 2), 16, true, dense(3584)),
        shape("2b", 2048, 24, (8, 2), 16, true, dense(6144)),
        shape("4b", 2560, 32, (16, 4), 32, true, dense(9216)),
        shape("9b", 4096, 32, (16, 4), 32, false, dense(12_288)),
        shape("27b", 5120, 64, (24, 4), 48, false, dense(17_408)),
        shape("35b-a3b", 2048, 40, (16, 2), 32, false, moe(256, 512)),
        shape("122b-a10b", 3072, 48, (32, 2), 64, false, moe(256, 1024)),
        shape("mini-moe", 1024, 24, (8, 2), 32, false, moe(64, 256)),
        small("tiny", false, dense(768)),
        small("tiny-tied", true, dense(768)),
        small("tiny-moe", false, Ffn::Moe { n_expert: 8, n_used: 2, n_ff: 256, n_ff_shared: 256 }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rotation_is_split_as_in_the_published_models() {
        assert_eq!(Shape::find("27B").expect("a known shape").rope_sections(), [11, 11, 10, 0]);
        assert_eq!(Shape::find("tiny").expect("a known shape").rope_sections(), [3, 3, 2, 0]);
    }
}
