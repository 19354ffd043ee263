//! The architectures: one file each, and the table that names them.

mod deepseek2;
mod dflash;
mod eagle3;
mod gemma3;
mod gemma4;
mod glm4;
mod glm4moe;
mod gpt_oss;
mod granite;
mod lfm2;
mod llama;
mod mimo2;
mod nemotron_h;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen3next;
mod step35;

use crate::architecture::{Entry, HeadEntry};
use crate::error::LoadError;
use crate::feature_head::FeatureHeadEntry;
use crate::head_file::architecture_of;

const TABLE: &[Entry] = &[
    qwen35::ENTRY,
    qwen3next::ENTRY,
    qwen3::ENTRY,
    qwen2::ENTRY,
    llama::ENTRY,
    llama::MISTRAL3,
    glm4::ENTRY,
    gemma3::ENTRY,
    gemma3::GEMMA2,
    gpt_oss::ENTRY,
    phi3::ENTRY,
    glm4moe::ENTRY,
    granite::ENTRY,
    lfm2::ENTRY,
    gemma4::ENTRY,
    deepseek2::ENTRY,
    nemotron_h::ENTRY,
    mimo2::ENTRY,
    step35::ENTRY,
];

/// Heads that are architectures of their own.
const HEADS: &[HeadEntry] = &[gemma4::ASSISTANT];

/// Heads that read the streams of several layers of a target of any architecture.
const FEATURE_HEADS: &[FeatureHeadEntry] = &[eagle3::ENTRY, dflash::ENTRY];

/// The entry for `general.architecture`.
pub(crate) fn find(name: &str) -> Result<&'static Entry, LoadError> {
    let entry = TABLE.iter().find(|e| e.names.contains(&name));
    entry.ok_or_else(|| LoadError::Architecture { found: name.to_owned(), known: architectures().join(", ") })
}

/// The head of this name, if it is an architecture of its own.
pub(crate) fn find_head(name: &str) -> Option<&'static HeadEntry> {
    HEADS.iter().find(|head| head.name == name)
}

/// The head of this name, if it reads the streams of several layers.
pub(crate) fn find_feature_head(name: &str) -> Option<&'static FeatureHeadEntry> {
    FEATURE_HEADS.iter().find(|head| head.name == name)
}

/// Whether a head in a file named `head` may be for a model named `model`.
pub(crate) fn drafts_for(head: &str, model: &str) -> bool {
    find_feature_head(head).is_some() || find_head(head).map_or(architecture_of(head), |head| head.target) == model
}

/// Whether `entry`, of a model named `name`, takes a NextN head of another file.
pub(crate) fn takes_head(entry: &Entry, name: &str) -> bool {
    entry.nextn || HEADS.iter().any(|head| head.target == name)
}

/// Every architecture's name in files.
pub fn architectures() -> Vec<&'static str> {
    TABLE.iter().flat_map(|e| e.names).copied().collect()
}

/// Draft heads that are architectures of their own, in files of their own: the name of each, and the architecture that it
/// drafts for.
pub fn head_architectures() -> Vec<(&'static str, &'static str)> {
    HEADS.iter().map(|head| (head.name, head.target)).collect()
}

/// Draft heads for targets of any architecture, in files of their own.
pub fn feature_heads() -> Vec<&'static str> {
    FEATURE_HEADS.iter().map(|head| head.name).collect()
}

/// Those of [`architectures`] whose files may have a NextN head.
pub fn nextn_architectures() -> Vec<&'static str> {
    TABLE.iter().filter(|e| e.nextn).flat_map(|e| e.names).copied().collect()
}

#[cfg(test)]
mod tests {
    /// A guide that does not compile misleads: its code is that of an architecture which a golden holds.
    #[test]
    fn the_guides_code_is_a_whole_architecture() {
        let guide = include_str!("../../../docs/ADDING_A_MODEL.md");
        let blocks = guide.split("```rust\n").skip(1).map(|rest| rest.split("\n```").next().unwrap_or_default());
        let code = blocks.collect::<Vec<_>>().join("\n\n") + "\n";
        assert_eq!(code, include_str!("glm4.rs"), "docs/ADDING_A_MODEL.md and src/model/arch/glm4.rs");
    }
}
