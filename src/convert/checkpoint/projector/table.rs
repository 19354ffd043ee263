//! The kinds of tower that checkpoints of known classes have.

use serde_json::Value;

use super::row::Row;
use super::{gemma3, gemma4, qwen};
use crate::checkpoint::fields::Fields;
use crate::safetensors::quoted;

const ROWS: &[&Row] = &[&qwen::ROW, &gemma4::ROW, &gemma3::ROW];

/// The tower of a checkpoint of this `config.json`.
///
/// # Errors
/// In words without the path: the class is none of those, or the configuration has no tower.
pub(super) fn find(root: &Value) -> Result<&'static Row, String> {
    let class = Fields::of(root).class().ok_or("neither architectures nor model_type is there")?;
    let row = ROWS.iter().find(|row| row.classes.contains(&class));
    let row = row.ok_or_else(|| {
        let known = ROWS.iter().flat_map(|row| row.classes).filter(|class| class.ends_with("Generation"));
        let known: Vec<&str> = known.copied().collect();
        format!("class {} has no tower that is known; known are {}", quoted(class), known.join(", "))
    })?;
    match root.get("vision_config") {
        Some(vision) if vision.is_object() => Ok(*row),
        _ => Err("no vision_config: the checkpoint is of text alone".into()),
    }
}
