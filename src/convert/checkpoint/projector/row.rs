//! What a kind of tower is in a checkpoint: its classes, its keys, what its tensors become.
//! Owns what a row may say. Knows no kind.

use serde_json::Value;

use crate::checkpoint::fields::Fields;
use crate::gguf_model::Key;

/// One kind of tower.
pub(super) struct Row {
    /// Classes of checkpoints that have it.
    pub(super) classes: &'static [&'static str],
    /// Fields of `vision_config`: blocks, and heads.
    pub(super) n_layer: &'static str,
    pub(super) n_head: &'static str,
    /// `clip.vision.image_size`.
    pub(super) image_size: fn(&Config<'_>) -> Result<u64, String>,
    /// The keys behind those that all kinds have, with their whole names, in the order of llama.cpp's converter.
    pub(super) keys: fn(&Config<'_>) -> Result<Keys, String>,
    /// What the tensor of a name (without `model.` in front) becomes; `None`: it is none of the tower's.
    pub(super) part: fn(&str) -> Option<Part>,
    /// What names of the tower's tensors start with: one of these that becomes nothing has no place.
    pub(super) prefixes: &'static [&'static str],
}

/// Keys with their names, in the order of the file.
pub(super) type Keys = Vec<(&'static str, Key)>;

/// What a checkpoint says of its tower.
pub(super) struct Config<'j> {
    pub(super) vision: Fields<'j>,
    /// The text model's.
    pub(super) text: Fields<'j>,
    /// The preprocessing.
    pub(super) processor: Fields<'j>,
}

impl Config<'_> {
    /// A number for each channel.
    pub(super) fn three(&self, name: &str) -> Result<[f32; 3], String> {
        let list = self.processor.get(name).and_then(Value::as_array);
        let list: Option<Vec<f32>> = list.and_then(|list| list.iter().map(|x| x.as_f64().map(|x| x as f32)).collect());
        list.and_then(|list| list.try_into().ok()).ok_or_else(|| {
            format!("{name}: three numbers expected in preprocessor_config.json or processor_config.json")
        })
    }
}

/// What a tensor becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A tensor of this name, as it is.
    Whole(String),
    /// The weight of a norm that is stored without its 1.
    LacksOne(&'static str),
    /// A kernel for two frames `[n_embd, 3, 2, patch, patch]`: this name for the first, with `.1` for the second.
    Frames(&'static str),
    /// A kernel `[n_embd, patch * patch * 3]` with the channels of a pixel together: a plane for each channel.
    Pixels(&'static str),
}

/// The name within a block and the block's number of `{prefix}{number}.{rest}`.
pub(super) fn in_block<'n>(name: &'n str, prefix: &str) -> Option<(u64, &'n str)> {
    let (no, rest) = name.strip_prefix(prefix)?.split_once('.')?;
    Some((no.parse().ok()?, rest))
}
