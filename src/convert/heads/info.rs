//! What a file of a known architecture is, told from its keys and names: sizes, blocks, which parts, which layout.
//! Owns the arithmetic on `block_count`; looks at no shape and no data.

use model::{architectures, block_of, feature_heads, head_architectures, nextn_architectures};

use crate::error::Error;
use crate::gguf_model::Key;
use crate::source::Source;

/// How a NextN head is laid out in a file of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// With embedding, final norm and head matrix, under the model's architecture: llama.cpp loads it as a draft.
    Upstream,
    /// Without embedding and head matrix, which come from the target.
    Slim,
    /// As `Upstream`, under the architecture's name with `_mtp` behind it.
    Legacy,
}

/// Which parts of a model a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Main model and NextN block.
    Combined,
    /// The main model; no word of a NextN block.
    MainModel,
    /// The main model, with keys that promise a NextN block that is not there.
    Promised,
    /// The main model and some tensors of a NextN block that no key tells of.
    Unannounced,
    /// A NextN block without a main model.
    Head(Layout),
    /// A draft head that is an architecture of its own.
    Assistant,
}

/// The info of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// As in the runtime's table.
    pub arch: String,
    /// What stands before the keys: `arch`, or that of the legacy layout.
    pub prefix: String,
    /// Blocks by `block_count`.
    pub n_block: u64,
    /// Of these NextN blocks, by `nextn_predict_layers`; 0 if absent.
    pub n_nextn: u64,
    /// The first NextN block, or the one that would be: the number of main model blocks.
    pub n_layer: u64,
    /// Length of hidden states.
    pub n_embd: u64,
    /// What is there.
    pub content: Content,
}

impl ModelInfo {
    /// Of a file whose NextN block is to be cut out, put in or taken out.
    ///
    /// # Errors
    /// Those of [`ModelInfo::of`]; an architecture that has no such blocks.
    pub fn with_blocks(source: &Source) -> Result<ModelInfo, Error> {
        let refused = |what: String| Error::input(&source.path, what);
        let prefix = source.text("general.architecture").unwrap_or_default();
        let arch = plain(prefix);
        if let Some((head, target)) = head_architectures().into_iter().find(|(head, of)| *head == arch || *of == arch) {
            return Err(refused(format!(
                "heads of {target} are files of their own ({head}), which --draft-model takes as they are: there is \
                 nothing to extract or graft"
            )));
        }
        if !has_blocks(prefix) {
            return Err(refused(format!(
                "general.architecture is {:?}; NextN heads are known of {} only",
                prefix.chars().take(40).collect::<String>(),
                nextn_architectures().join(" and ")
            )));
        }
        ModelInfo::of(source)
    }

    /// # Errors
    /// An architecture that is not known, or a key that all such files have is missing or out of range.
    pub fn of(source: &Source) -> Result<ModelInfo, Error> {
        let refused = |what: String| Error::input(&source.path, what);
        let prefix = source.text("general.architecture").unwrap_or_default().to_owned();
        let legacy = prefix.strip_suffix("_mtp");
        let arch = plain(&prefix).to_owned();
        if !is_known(&prefix) {
            let shown: String = prefix.chars().take(40).collect();
            return Err(refused(format!("general.architecture is {shown:?}, which is not known")));
        }
        let number = |key: &str, default: Option<u64>| -> Result<u64, Error> {
            let key = format!("{prefix}.{key}");
            match (source.key(&key), default) {
                (None, Some(n)) => Ok(n),
                (None, None) => Err(refused(format!("{key} is missing: a whole model, or its first shard, expected"))),
                (Some(value), _) => value
                    .as_u64()
                    .filter(|n| *n <= MAX_SIZE)
                    .ok_or_else(|| refused(format!("{key} is {}, 0 to {MAX_SIZE} expected", value.value()))),
            }
        };
        let n_block = number("block_count", None)?;
        let n_nextn = if has_blocks(&prefix) { number("nextn_predict_layers", Some(0))? } else { 0 };
        let n_embd = number("embedding_length", None)?;
        if n_block > MAX_BLOCKS {
            return Err(refused(format!("{prefix}.block_count is {n_block}, at most {MAX_BLOCKS} expected")));
        }
        let Some(n_layer) = n_block.checked_sub(n_nextn).filter(|n| *n > 0) else {
            return Err(refused(format!(
                "{prefix}.nextn_predict_layers is {n_nextn} of {n_block} blocks: none are left for the main model"
            )));
        };
        let has = |name: &str| source.tensors.iter().any(|t| t.name == name);
        let head = source.tensors.iter().any(|t| block_of(&t.name).is_some_and(|(block, _)| block >= n_layer));
        let content = match (has("blk.0.attn_norm.weight"), n_nextn > 0, head) {
            _ if is_assistant(&arch) => Content::Assistant,
            (false, true, true) if legacy.is_some() => Content::Head(Layout::Legacy),
            (false, true, true) if has("token_embd.weight") => Content::Head(Layout::Upstream),
            (false, true, true) => Content::Head(Layout::Slim),
            (_, true, true) => Content::Combined,
            (_, true, false) => Content::Promised,
            (_, false, false) => Content::MainModel,
            (_, false, true) => Content::Unannounced,
        };
        Ok(ModelInfo { arch, prefix, n_block, n_nextn, n_layer, n_embd, content })
    }

    /// The full name of one of the architecture's keys.
    pub fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    /// A number of the architecture's; of an array the element of `block`.
    pub fn number(&self, source: &Source, key: &str, block: u64) -> Option<u64> {
        match source.key(&self.full(key))? {
            Key::Array(array) => {
                let value = array.as_array().iter().nth(usize::try_from(block).ok()?)?;
                u64::try_from(value.as_int()?).ok()
            }
            value => value.as_u64(),
        }
    }

    /// Whether a tensor belongs to the NextN block.
    pub fn is_head(&self, name: &str) -> bool {
        self.content == Content::Assistant || block_of(name).is_some_and(|(block, _)| block >= self.n_layer)
    }
}

/// Whether the tensors of this architecture are known, under its own name or that of the legacy layout.
pub(crate) fn is_known(arch: &str) -> bool {
    architectures().contains(&plain(arch)) || is_assistant(arch)
}

/// Whether files of it may have NextN blocks.
fn has_blocks(arch: &str) -> bool {
    nextn_architectures().contains(&plain(arch))
}

/// Whether an architecture is that of draft heads in files of their own, such as Gemma 4's assistants.
pub fn is_assistant(arch: &str) -> bool {
    head_architectures().iter().any(|(head, _)| *head == arch)
}

/// Whether an architecture is that of draft heads in files of their own: assistants, and those that read a model's layers.
pub fn is_draft_head(arch: &str) -> bool {
    is_assistant(arch) || feature_heads().contains(&arch)
}

/// The architecture without what the legacy layout puts behind it.
fn plain(arch: &str) -> &str {
    arch.strip_suffix("_mtp").filter(|arch| nextn_architectures().contains(arch)).unwrap_or(arch)
}

impl Layout {
    /// As in the key `nextn.layout`.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Upstream => "upstream",
            Layout::Slim => "slim",
            Layout::Legacy => "legacy",
        }
    }
}

/// As in the runtime.
const MAX_BLOCKS: u64 = 1024;
/// Sizes that no model comes near; products of three stay within 128 bits.
const MAX_SIZE: u64 = 1 << 31;
