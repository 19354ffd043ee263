//! The table of dimensions: the published sizes, those for a CPU with few cores, and small ones for tests.

use super::shapes::{Family, Ffn, Shape, Sliding};

impl Shape {
    /// The shape of this name, in any case.
    pub(crate) fn find(name: &str) -> Option<Shape> {
        all().into_iter().find(|shape| shape.name.eq_ignore_ascii_case(name))
    }

    /// The model that says what is said: for a head in a file of its own its target.
    pub(crate) fn speaker(&self) -> Shape {
        match self.family {
            Family::Gemma4Assistant { target } => Shape::find(target).expect("assistants are of shapes"),
            _ => self.clone(),
        }
    }
}

/// All shapes, the published ones first.
pub(crate) fn all() -> Vec<Shape> {
    let mut shapes = qwen35();
    shapes.extend(published());
    shapes.extend(for_few_cores());
    shapes.extend(for_tests());
    shapes
}

/// A shape of Qwen 3.5: width, layers, heads and key heads of attention, value heads of delta nets.
fn shape(
    name: &'static str,
    (n_embd, n_layer): (usize, usize),
    (n_head, n_head_kv, n_v_heads): (usize, usize, usize),
    tied: bool,
    ffn: Ffn,
) -> Shape {
    Shape {
        name,
        n_embd,
        n_layer,
        n_nextn: 1,
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
    }
}

/// A shape of another family, whose layers all have attention.
fn of_family(
    name: &'static str,
    size: (usize, usize),
    (n_head, n_head_kv): (usize, usize),
    (d_head, n_rot): (usize, usize),
    ffn: Ffn,
    family: Family,
) -> Shape {
    Shape { d_head, n_rot, family, ..shape(name, size, (n_head, n_head_kv, 0), false, ffn) }
}

/// The head of `target`, four layers wide `n_embd`.
fn assistant(name: &'static str, target: &'static str, n_embd: usize, n_ff: usize) -> Shape {
    let family = Family::Gemma4Assistant { target };
    let heads = all_gemma().into_iter().find(|shape| shape.name == target).expect("targets are shapes");
    Shape { name, n_embd, n_layer: 4, n_nextn: 0, ffn: dense(n_ff), family, ..heads }
}

fn dense(n_ff: usize) -> Ffn {
    Ffn::Dense { n_ff }
}

fn moe(n_expert: usize, n_used: usize, n_ff: usize, n_ff_shared: usize) -> Ffn {
    Ffn::Moe { n_expert, n_used, n_ff, n_ff_shared }
}

fn qwen35() -> Vec<Shape> {
    vec![
        shape("0.8b", (1024, 24), (8, 2, 16), true, dense(3584)),
        shape("2b", (2048, 24), (8, 2, 16), true, dense(6144)),
        shape("4b", (2560, 32), (16, 4, 32), true, dense(9216)),
        shape("9b", (4096, 32), (16, 4, 32), false, dense(12_288)),
        shape("27b", (5120, 64), (24, 4, 48), false, dense(17_408)),
        shape("35b-a3b", (2048, 40), (16, 2, 32), false, moe(256, 8, 512, 512)),
        shape("122b-a10b", (3072, 48), (32, 2, 64), false, moe(256, 8, 1024, 1024)),
    ]
}

/// Gemma 4, whose sizes its assistants repeat.
fn all_gemma() -> Vec<Shape> {
    let gemma = |name, size, heads, d_head, ffn, sliding| Shape {
        n_nextn: 0,
        tied: true,
        n_vocab: 262_144,
        ..of_family(name, size, heads, (d_head, d_head), ffn, Family::Gemma4 { sliding })
    };
    let sliding = |window, n_head, n_head_kv, d_head, period| Sliding { window, n_head, n_head_kv, d_head, period };
    let published = sliding(1024, 32, 16, 256, 6);
    let mini = sliding(512, 8, 4, 128, 6);
    let tiny = sliding(32, 4, 2, 64, 3);
    let of_tiny = |shape: Shape| Shape { n_vocab: 4096, ..shape };
    vec![
        gemma("gemma-4-31b", (5376, 60), (32, 4), 512, dense(21_504), published),
        gemma("gemma-4-26b-a4b", (2816, 30), (16, 2), 512, moe(128, 8, 704, 2112), sliding(1024, 16, 8, 256, 6)),
        gemma("mini-gemma4", (1280, 24), (8, 2), 256, dense(5120), mini),
        gemma("mini-gemma4-moe", (1024, 24), (8, 2), 256, moe(32, 4, 256, 1024), mini),
        of_tiny(gemma("tiny-gemma4", (512, 6), (4, 1), 128, dense(768), tiny)),
        of_tiny(gemma("tiny-gemma4-moe", (512, 6), (4, 1), 128, moe(8, 2, 96, 352), tiny)),
    ]
}

fn published() -> Vec<Shape> {
    let mut shapes: Vec<Shape> = all_gemma().into_iter().filter(|shape| shape.name.starts_with("gemma")).collect();
    let flash = Family::DeepSeek2 { n_ff_dense: 10_240, n_lora: [768, 512], d_v: 256 };
    let of_mimo = Sliding { window: 128, n_head: 64, n_head_kv: 8, d_head: 192, period: 6 };
    let mimo = Family::Mimo2 { n_ff_dense: 16_384, d_v: 128, sliding: of_mimo };
    let of_step = Sliding { window: 512, n_head: 96, n_head_kv: 8, d_head: 128, period: 4 };
    let step = Family::Step35 { n_ff_dense: 11_264, sliding: of_step };
    let air = Family::Glm4Moe { n_ff_dense: 10_944 };
    shapes.extend([
        assistant("gemma-4-31b-assistant", "gemma-4-31b", 1024, 8192),
        assistant("gemma-4-26b-a4b-assistant", "gemma-4-26b-a4b", 1024, 8192),
        Shape {
            n_vocab: 151_936,
            family: Family::Qwen3Next,
            ..shape("qwen3-next-80b-a3b", (2048, 48), (16, 2, 32), false, moe(512, 10, 512, 512))
        },
        Shape {
            n_vocab: 151_552,
            ..of_family("glm-4.5-air", (4096, 46), (96, 8), (128, 64), moe(128, 8, 1408, 1408), air)
        },
        Shape {
            n_vocab: 154_880,
            ..of_family("glm-4.7-flash", (2048, 47), (20, 1), (256, 64), moe(64, 4, 1536, 1536), flash)
        },
        Shape {
            n_nextn: 3,
            n_vocab: 152_576,
            ..of_family("mimo-v2-flash", (4096, 48), (64, 4), (192, 64), moe(256, 8, 2048, 0), mimo)
        },
        Shape {
            n_nextn: 3,
            n_vocab: 128_896,
            ..of_family("step-3.5-flash", (4096, 45), (64, 8), (128, 128), moe(288, 8, 1280, 1280), step)
        },
    ]);
    shapes
}

/// Small ones with real vocabularies, about 1 B parameters: one of each family.
fn for_few_cores() -> Vec<Shape> {
    let mut shapes: Vec<Shape> = all_gemma().into_iter().filter(|shape| shape.name.starts_with("mini")).collect();
    let size = (1024, 24);
    let experts = moe(32, 4, 256, 256);
    let air = Family::Glm4Moe { n_ff_dense: 2816 };
    let flash = Family::DeepSeek2 { n_ff_dense: 2816, n_lora: [512, 256], d_v: 128 };
    let of_mimo = Sliding { window: 128, n_head: 16, n_head_kv: 4, d_head: 96, period: 6 };
    let mimo = Family::Mimo2 { n_ff_dense: 2816, d_v: 64, sliding: of_mimo };
    let of_step = Sliding { window: 512, n_head: 24, n_head_kv: 4, d_head: 64, period: 4 };
    let step = Family::Step35 { n_ff_dense: 2816, sliding: of_step };
    shapes.extend([
        assistant("mini-gemma4-assistant", "mini-gemma4", 256, 1024),
        assistant("mini-gemma4-moe-assistant", "mini-gemma4-moe", 256, 1024),
        shape("mini-moe", size, (8, 2, 32), false, moe(64, 8, 256, 256)),
        Shape {
            n_vocab: 151_936,
            family: Family::Qwen3Next,
            ..shape("mini-qwen3next", size, (8, 2, 32), false, experts)
        },
        Shape { n_vocab: 151_552, ..of_family("mini-glm4moe", size, (16, 4), (128, 64), experts, air) },
        Shape { n_vocab: 154_880, ..of_family("mini-deepseek2", size, (16, 1), (128, 32), experts, flash) },
        Shape {
            n_nextn: 3,
            n_vocab: 152_576,
            ..of_family("mini-mimo2", size, (16, 2), (96, 32), moe(32, 4, 256, 0), mimo)
        },
        Shape { n_nextn: 3, n_vocab: 128_896, ..of_family("mini-step35", size, (16, 4), (64, 64), experts, step) },
    ]);
    shapes
}

fn for_tests() -> Vec<Shape> {
    let mut shapes: Vec<Shape> = all_gemma().into_iter().filter(|shape| shape.name.starts_with("tiny")).collect();
    let small = |shape: Shape| Shape { n_k_heads: 2, d_state: 64, n_vocab: 4096, ..shape };
    let hybrid =
        |name, tied, ffn| Shape { d_head: 64, n_rot: 16, ..small(shape(name, (256, 4), (4, 2, 4), tied, ffn)) };
    let experts = moe(8, 2, 256, 256);
    let plain = |name, (n_head, n_head_kv), (d_head, n_rot), ffn, family| {
        small(of_family(name, (256, 4), (n_head, n_head_kv), (d_head, n_rot), ffn, family))
    };
    let flash = Family::DeepSeek2 { n_ff_dense: 768, n_lora: [128, 64], d_v: 48 };
    let of_mimo = Sliding { window: 32, n_head: 4, n_head_kv: 2, d_head: 96, period: 3 };
    let mimo = Family::Mimo2 { n_ff_dense: 768, d_v: 64, sliding: of_mimo };
    let of_step = Sliding { window: 32, n_head: 6, n_head_kv: 2, d_head: 64, period: 4 };
    let step = Family::Step35 { n_ff_dense: 768, sliding: of_step };
    shapes.extend([
        assistant("tiny-gemma4-assistant", "tiny-gemma4", 256, 512),
        assistant("tiny-gemma4-moe-assistant", "tiny-gemma4-moe", 256, 512),
        hybrid("tiny", false, dense(768)),
        hybrid("tiny-tied", true, dense(768)),
        hybrid("tiny-moe", false, experts),
        Shape { family: Family::Qwen3Next, ..hybrid("tiny-qwen3next", false, experts) },
        plain("tiny-glm4moe", (4, 2), (64, 16), experts, Family::Glm4Moe { n_ff_dense: 768 }),
        plain("tiny-deepseek2", (4, 1), (96, 32), experts, flash),
        Shape { n_nextn: 3, ..plain("tiny-mimo2", (4, 1), (96, 32), moe(8, 2, 256, 0), mimo) },
        Shape { n_nextn: 3, ..plain("tiny-step35", (4, 2), (64, 64), experts, step) },
    ]);
    shapes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_has_the_tensors_of_its_architecture() {
        for shape in all() {
            let n_params: u64 = shape.schema().tensors.iter().map(|t| t.ne.iter().product::<u64>()).sum();
            assert!(n_params > 0, "{}", shape.name);
        }
    }
}
