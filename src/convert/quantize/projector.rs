//! Which type each tensor of a projector gets in a file of a given type: that of llama.cpp's converter.

use gguf::TensorType;
use model::ProjectorSchema;

use super::types::FileType;
use crate::error::Error;
use crate::gguf_model::{Model, metadata};
use crate::stream::TensorPlan;

/// The kind of a projector, which has tensors that are known and can be of a type.
///
/// # Errors
/// What is wrong, with what can be.
pub(super) fn kind(model: &Model, file_type: FileType) -> Result<String, Error> {
    let keys = metadata(&model.keys);
    let kind = ProjectorSchema::kind_of(&keys).ok().flatten().unwrap_or_default();
    let known = ProjectorSchema::kinds();
    if !known.contains(&kind) {
        let what = format!("projectors of type {kind:?} are not known; known are {}", known.join(", "));
        return Err(Error::tensor("clip.projector_type", what));
    }
    match file_type {
        FileType::F32 | FileType::F16 | FileType::BF16 | FileType::Q8_0 => Ok(kind.to_owned()),
        other => Err(Error::tensor(
            "general.file_type",
            format!("{other} asked for; projectors are made as f32, f16, bf16 and q8_0"),
        )),
    }
}

/// The type of a tensor.
pub(super) fn dtype(kind: &str, t: &TensorPlan, file_type: FileType) -> TensorType {
    let base = file_type.base();
    // It is turned before it is used, which blocks cannot be.
    if kind == "gemma3" && t.name == "mm.input_projection.weight" {
        return TensorType::F16;
    }
    if t.name.contains(".patch_embd.weight") && kind != "gemma3" {
        return if base == TensorType::F16 { base } else { TensorType::F32 };
    }
    let is_vector = t.ne.iter().skip(1).all(|n| *n == 1);
    let kept = [".patch_embd.weight", ".position_embd.weight"].iter().any(|name| t.name.contains(name))
        || t.name.ends_with("_norm.weight");
    if is_vector || kept || !t.name.ends_with(".weight") {
        return TensorType::F32;
    }
    if t.ne[0].is_multiple_of(base.block_size()) { base } else { TensorType::F16 }
}
