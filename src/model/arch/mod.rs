//! The architectures: one file each, and the table that names them.

mod gemma3;
mod glm4;
mod glm4moe;
mod gpt_oss;
mod llama;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen3next;

use crate::architecture::Entry;
use crate::error::LoadError;

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
];

/// The entry for `general.architecture`.
pub(crate) fn find(name: &str) -> Result<&'static Entry, LoadError> {
    let entry = TABLE.iter().find(|e| e.names.contains(&name));
    entry.ok_or_else(|| LoadError::Architecture { found: name.to_owned(), known: architectures().join(", ") })
}

/// Every architecture's name in files.
pub fn architectures() -> Vec<&'static str> {
    TABLE.iter().flat_map(|e| e.names).copied().collect()
}

/// Those of [`architectures`] that take a NextN head.
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
