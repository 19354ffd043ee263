//! Synthetic projectors: towers of published dimensions with random weights, for measuring how fast pictures are seen.
//! Owns their shapes, keys and the file; which tensors there are is told by the model's schema.

use std::path::Path;

use gguf::{ArrayBuf, Metadata, TensorType, Value, Writer};
use model::ProjectorSchema;

use super::encode;
use super::random::Random;
use super::types::Mix;

/// Dimensions of one tower.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TowerShape {
    pub(crate) name: &'static str,
    kind: &'static str,
    n_embd: u32,
    n_layer: u32,
    n_head: u32,
    n_ff: u32,
    n_embd_text: u32,
    /// Positions of the learned table along a side.
    side: u32,
}

/// All of them.
pub(crate) const TOWERS: &[TowerShape] = &[
    qwen("27B-mmproj", (1152, 27), 16, 4304, 5120),
    qwen("9B-mmproj", (1152, 27), 16, 4304, 4096),
    qwen("0.8B-mmproj", (768, 12), 12, 3072, 1024),
    TowerShape { kind: "gemma4v", side: 10_240, ..qwen("gemma-4-26b-a4b-mmproj", (1152, 27), 16, 4304, 2816) },
];

const fn qwen(
    name: &'static str,
    (n_embd, n_layer): (u32, u32),
    n_head: u32,
    n_ff: u32,
    n_embd_text: u32,
) -> TowerShape {
    TowerShape { name, kind: "qwen3vl_merger", n_embd, n_layer, n_head, n_ff, n_embd_text, side: 48 }
}

const PATCH: u32 = 16;
/// Elements that are made at once.
const PIECE: usize = 1 << 20;

/// One tensor of the file.
struct Tensor {
    name: String,
    ne: Vec<u64>,
    dtype: TensorType,
}

impl TowerShape {
    pub(crate) fn find(name: &str) -> Option<TowerShape> {
        TOWERS.iter().copied().find(|tower| tower.name.eq_ignore_ascii_case(name))
    }

    pub(crate) fn n_bytes(&self, mix: &Mix) -> u64 {
        self.tensors(mix).iter().map(Tensor::n_bytes).sum()
    }

    pub(crate) fn n_params(&self, mix: &Mix) -> u64 {
        self.tensors(mix).iter().map(|t| t.ne.iter().product::<u64>()).sum()
    }

    pub(crate) fn size(&self) -> (u32, u32) {
        (self.n_embd, self.n_layer)
    }

    /// Writes the file; gives the number of tensors.
    pub(crate) fn write(&self, path: &Path, mix: &Mix, seed: u64) -> anyhow::Result<usize> {
        let mut writer = Writer::create(path)?;
        let (numbers, three) = (self.numbers(), self.three());
        writer.add("general.architecture", "clip")?;
        writer.add("general.type", "mmproj")?;
        writer.add("general.name", format!("synthetic {} {mix}", self.name).as_str())?;
        writer.add("general.file_type", mix.file_type())?;
        writer.add("clip.has_vision_encoder", true)?;
        writer.add("clip.use_gelu", true)?;
        writer.add(self.kind_key(), self.kind)?;
        for (key, number) in numbers {
            writer.add(&format!("clip.vision.{key}"), number)?;
        }
        writer.add("clip.vision.attention.layer_norm_epsilon", 1e-6f32)?;
        for (key, array) in &three {
            writer.add(key, array)?;
        }
        let tensors = self.tensors(mix);
        for t in &tensors {
            writer.tensor(&t.name, &t.ne, t.dtype)?;
        }
        let mut data = writer.begin()?;
        let mut bytes = Vec::new();
        for (i, t) in tensors.iter().enumerate() {
            let mut out = data.tensor(&t.name)?;
            let (mut rng, n_all) = (Random::stream(seed, i as u64), t.ne.iter().product::<u64>());
            let (mut n_left, scale) = (n_all, 0.7 / (n_all as f64 / *t.ne.last().unwrap_or(&1) as f64).sqrt() as f32);
            while n_left > 0 {
                let n = n_left.min(PIECE as u64);
                bytes.resize((n / t.dtype.block_size() * t.dtype.type_size()) as usize, 0);
                match t.ne.len() {
                    // Norms keep what they have; biases add nothing.
                    1 => {
                        let value = f32::from(!t.name.ends_with("bias"));
                        bytes.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&value.to_le_bytes()));
                    }
                    _ => encode::random(t.dtype, scale, &mut rng, &mut bytes),
                }
                out.put(&bytes)?;
                n_left -= n;
            }
        }
        data.finish()?;
        Ok(tensors.len())
    }

    /// Where the kind stands: files of models that only see, and of those that may also hear, have it in two places.
    fn kind_key(&self) -> &'static str {
        if self.kind == "gemma4v" { "clip.vision.projector_type" } else { "clip.projector_type" }
    }

    fn numbers(&self) -> [(&'static str, u32); 8] {
        [
            ("embedding_length", self.n_embd),
            ("block_count", self.n_layer),
            ("attention.head_count", self.n_head),
            ("feed_forward_length", self.n_ff),
            ("projection_dim", self.n_embd_text),
            ("patch_size", PATCH),
            ("image_size", self.side * PATCH),
            ("spatial_merge_size", 2),
        ]
    }

    /// Mean and spread of channels.
    fn three(&self) -> [(&'static str, ArrayBuf); 2] {
        let (mean, std) = if self.kind == "gemma4v" { (0.0f32, 1.0f32) } else { (0.5, 0.5) };
        [("clip.vision.image_mean", mean), ("clip.vision.image_std", std)]
            .map(|(key, x)| (key, [x; 3].into_iter().collect()))
    }

    /// In the order of the file: matrices of blocks and projection of the mix's type, all else F32.
    fn tensors(&self, mix: &Mix) -> Vec<Tensor> {
        let keys: Vec<(String, u32)> = self.numbers().map(|(key, n)| (format!("clip.vision.{key}"), n)).into();
        let three = self.three();
        let words = [("general.architecture", "clip"), (self.kind_key(), self.kind)];
        let meta: Metadata<'_> = words
            .iter()
            .map(|&(key, word)| (key, Value::from(word)))
            .chain(keys.iter().map(|(key, n)| (key.as_str(), Value::from(*n))))
            .chain(three.iter().map(|(key, array)| (*key, Value::from(array))))
            .collect();
        let (has, rows) = (|name: &str| name.starts_with("v.std_"), |_: &str| Some(u64::from(self.side)));
        let schema = ProjectorSchema::of_meta(&meta, &has, &rows).expect("shapes are those of towers");
        let there = schema.tensors.into_iter().filter(|t| t.required || has(&t.name));
        let typed = there.map(|t| {
            let matrix = t.ne.len() == 2 && t.name != "v.position_embd.weight";
            let dtype = if matrix { mix.plain(t.ne[0]) } else { TensorType::F32 };
            Tensor { name: t.name, ne: t.ne, dtype }
        });
        typed.collect()
    }
}

impl Tensor {
    fn n_bytes(&self) -> u64 {
        self.ne.iter().product::<u64>() / self.dtype.block_size() * self.dtype.type_size()
    }
}
