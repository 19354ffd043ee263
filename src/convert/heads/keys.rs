//! Keys of our own, and what happens to the keys that count blocks when a block comes or goes.
//! Owns names and per-layer arrays; knows no tensors.

use gguf::{ArrayBuf, Value};

use super::info::ModelInfo;
use crate::error::Error;
use crate::gguf_model::Key;
use crate::source::Source;

pub(crate) const LAYOUT: &str = "nextn.layout";
pub(crate) const LAYOUT_VERSION: &str = "nextn.layout_version";
pub(crate) const BLOCK: &str = "nextn.block";
pub(crate) const FROM_TARGET: &str = "nextn.from_target";
pub(crate) const TARGET_EMBD: &str = "nextn.target.embedding_length";
pub(crate) const TARGET_VOCAB: &str = "nextn.target.vocab_size";
pub(crate) const TARGET_TOKENIZER: &str = "nextn.target.tokenizer";
pub(crate) const SOURCE_TENSORS: &str = "nextn.source.n_tensors";
pub(crate) const SOURCE_INDEX: &str = "nextn.source.tensor_index";
/// In a combined file: what a main model had to say about a head before it got one, if that was not nothing.
pub(crate) const RESTORE: &str = "nextn.graft.restore";
/// Its values: `nextn_predict_layers` was 0; it was as it is and `block_count` counted the missing blocks.
pub(crate) const RESTORE_ZERO: &str = "zero";
pub(crate) const RESTORE_PROMISE: &str = "promise";

/// Whether a key is of one of our head files and not of the model.
pub(crate) fn is_ours(key: &str) -> bool {
    key.starts_with("nextn.")
}

/// Keys that may be arrays of one value for each block.
const PER_BLOCK: [&str; 12] = [
    "attention.head_count",
    "attention.head_count_kv",
    "attention.recurrent_layers",
    "attention.sliding_window_pattern",
    "expert_count",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "expert_used_count",
    "feed_forward_length",
    "rope.dimension_count",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
];

/// Those of [`PER_BLOCK`] that are 0 in blocks without the thing.
const COUNTS: [&str; 4] =
    ["attention.head_count_kv", "expert_feed_forward_length", "expert_used_count", "feed_forward_length"];

/// The last value, or of a count the last that is not 0.
fn last_of(array: &ArrayBuf, is_count: bool) -> Option<Key> {
    let mut values: Vec<Key> = array.as_array().iter().map(Key::from).collect();
    let counts = |value: &Key| value.as_u64().is_none_or(|n| n > 0);
    let at = values.iter().rposition(|value| !is_count || counts(value));
    at.or(values.len().checked_sub(1)).map(|at| values.swap_remove(at))
}

/// Cuts arrays of `n_block` values to `n_layer`.
pub(crate) fn shorten(keys: &mut [(String, Key)], info: &ModelInfo) {
    for name in PER_BLOCK {
        let full = info.full(name);
        let Some((_, Key::Array(array))) = keys.iter_mut().find(|(key, _)| *key == full) else { continue };
        if array.as_array().len() as u64 == info.n_block {
            *array = cut(array, info.n_layer as usize);
        }
    }
}

/// Gives per-layer arrays of the target the values of `n_new` blocks: those of the head's file where it has some.
/// A single value stays; the shapes of the head were compared with it.
pub(crate) fn lengthen(
    keys: &mut [(String, Key)],
    info: &ModelInfo,
    n_new: u64,
    head: Option<(&Source, &ModelInfo)>,
) -> Result<(), Error> {
    for name in PER_BLOCK {
        let full = info.full(name);
        let Some((_, Key::Array(array))) = keys.iter_mut().find(|(key, _)| *key == full) else { continue };
        // One that counts the missing blocks already, or that is no list of blocks at all.
        if array.as_array().len() as u64 != info.n_layer {
            continue;
        }
        for i in 0..n_new {
            let of_head = head.and_then(|(source, of)| match source.key(&of.full(name))? {
                Key::Array(values) => values.as_array().iter().nth((of.n_layer + i) as usize).map(Key::from),
                single => Some(single.clone()),
            });
            let last = match of_head {
                Some(value) => value,
                // The NextN block is one of attention; for the rest the last block of the main model is the model, or the last
                // that has something where blocks are one thing each.
                None if name == "attention.recurrent_layers" => Key::Bool(false),
                None => match last_of(array, COUNTS.contains(&name)) {
                    Some(value) => value,
                    None => continue,
                },
            };
            *array = with(array, &last).ok_or_else(|| Error::Tensor {
                name: full.clone(),
                what: format!("{} for the new block does not fit its list", last.value()),
            })?;
        }
    }
    Ok(())
}

/// Sets a number without changing its type.
pub(crate) fn set_number(keys: &mut [(String, Key)], name: &str, n: u64) {
    let Some((_, value)) = keys.iter_mut().find(|(key, _)| key == name) else { return };
    // Block counts are below 1025 and were read as numbers: they fit every type that held one, but 8 bits.
    *value = match value {
        Key::U8(_) if n <= 255 => Key::U8(n as u8),
        Key::I8(_) if n <= 127 => Key::I8(n as i8),
        Key::U16(_) => Key::U16(n as u16),
        Key::I16(_) => Key::I16(n as i16),
        Key::I32(_) => Key::I32(n as i32),
        Key::U64(_) => Key::U64(n),
        Key::I64(_) => Key::I64(n as i64),
        _ => Key::U32(n as u32),
    };
}

fn cut(array: &ArrayBuf, n: usize) -> ArrayBuf {
    rebuilt(array, array.as_array().iter().take(n)).unwrap_or_else(|| array.clone())
}

fn with(array: &ArrayBuf, last: &Key) -> Option<ArrayBuf> {
    rebuilt(array, array.as_array().iter().chain([last.value()]))
}

/// An array of the element type that `like` has.
fn rebuilt<'v>(like: &ArrayBuf, values: impl Iterator<Item = Value<'v>>) -> Option<ArrayBuf> {
    macro_rules! ints {
        ($($variant:ident: $ty:ty),*) => {
            match like.as_array().elem_type() {
                $(gguf::ValueType::$variant => {
                    values.map(|v| <$ty>::try_from(v.as_int()?).ok()).collect::<Option<Vec<$ty>>>()?.into_iter().collect()
                })*
                gguf::ValueType::Bool => values
                    .map(|v| if let Value::Bool(b) = v { Some(b) } else { None })
                    .collect::<Option<Vec<bool>>>()?
                    .into_iter()
                    .collect(),
                gguf::ValueType::F32 => values
                    .map(|v| if let Value::F32(x) = v { Some(x) } else { None })
                    .collect::<Option<Vec<f32>>>()?
                    .into_iter()
                    .collect(),
                _ => return None,
            }
        };
    }
    Some(ints!(U8: u8, I8: i8, U16: u16, I16: i16, U32: u32, I32: i32, U64: u64, I64: i64))
}
